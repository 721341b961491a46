"""`bertie demo`: pre-train on the documentation on this machine.

The demo also measures how much pre-training helps.
"""

import csv
import io
import json
import os
import shlex
import shutil
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from bertie.base.processors import available_cpus
from bertie.commands.options import exit_when_stopped, path_option, resumed_by_same_command

if TYPE_CHECKING:
    from bertie.base.settings import Tree
    from bertie.commands.demo_report import Outcome
    from bertie.commands.documentation import Passage
    from bertie.reports.page import MaskedSentence
    from bertie.tasks.classification import LabelledTexts
    from bertie.training.pretraining_settings import PretrainingSettings

STARTED_FILE, REPORT_FILE = "demo.json", "report.html"  # the first file of a demo, and the last one
VOCABULARY_SIZE = 4096
HELD_OUT = 0.03  # of the documents, for the measurements during pre-training
# Speed is measured over these steps of each phase; the first half warms up caches and threads.
CALIBRATION_STEPS = 40
# Also on a slow machine, because a model with less pre-training answers nonsense
# (docs/decisions/demo.md).
MIN_SCALE = 0.75
CLASSES = 12
LABELLED = 64  # training examples per class: pre-training matters most if labels are few
UNSEEN = 50  # test examples per class, excluded from pre-training
MIN_CHARACTERS = 80  # of a docstring that is long enough to classify
SEEDS = 3
FINETUNING: "Tree" = {
    "epochs": 3,
    "max_seq_length": 64,  # half the time of the whole docstrings (docs/decisions/demo.md)
    "batch_size": 16,
    "keep_best": False,  # there is no dev set: the unseen docstrings are for testing
    "optimizer": {"learning_rate": 1e-3},
    # As in pre-training: docs/decisions/demo.md has the figures without dropout.
    "dropout": 0.0,
    "attention_dropout": 0.0,
}
# Sentences from packages that are left out of pre-training. A person can guess the word, and so could the
# model of an earlier run (docs/decisions/demo.md). The report also has sentences drawn at random.
CHOSEN = (
    ("pathlib", "However, you [MASK] also instantiate it directly on any system.", "can"),
    ("shutil", "Function [MASK] can be used as copytree() ignore parameter.", "that"),
    ("pathlib", "Return [MASK] if this path matches the given pattern.", "true"),
    ("shutil", "'owner' and 'group' are [MASK] when creating a tar archive.", "used"),
    (
        "tempfile",
        "If 'dir' is not None, the file [MASK] be created in that directory, otherwise a default directory "
        "is used.",
        "will",
    ),
    ("tempfile", "User-callable function to create and [MASK] a unique temporary file.", "return"),
    ("tempfile", "This has the same behavior as mkdtemp but [MASK] be used as a context manager.", "can"),
    ("zipfile", "File-like [MASK] for reading an archive member.", "object"),
)
ASIDE_EVERY = 50  # one of so many modules is left out of pre-training, to draw sentences from
DRAWN = 300  # sentences, to measure how often the model guesses a word
SHOWN = 10  # of them


class Collected(NamedTuple):
    """The demo's text.

    documents  for pre-training, one a module
    aside      documents that are not in `documents`
    classes    names of the packages
    training   labelled docstrings (text, class index) for the classifiers
    unseen     labelled docstrings that are not in `documents`, for testing
    """

    documents: list[str]
    aside: list[str]
    classes: tuple[str, ...]
    training: list[tuple[str, int]]
    unseen: list[tuple[str, int]]


class FilledMasks(NamedTuple):
    """Sentences that pre-training has not seen, with the model's predictions.

    chosen    the sentences of CHOSEN
    drawn     sentences drawn at random, one word of each masked at random, to show
    total     the number of all sentences drawn
    accuracy  the fraction of these whose word was guessed
    """

    chosen: "list[MaskedSentence]"
    drawn: "list[MaskedSentence]"
    total: int
    accuracy: float


def demo(
    out: Annotated[Path, path_option("The directory to write.")] = Path("demo"),
    seconds: Annotated[int, typer.Option(min=10, help="The approximate duration of pre-training.")] = 220,
) -> None:
    """Pre-train a small BERT on this machine's documentation.

    The same command resumes a run that was stopped or killed.
    """
    from bertie.base.locks import lock_directory

    with lock_directory(out), exit_when_stopped(lambda: resumed_by_same_command(out)):
        _start_or_resume(out, seconds)
        _run(out, seconds)


def _start_or_resume(out: Path, seconds: int) -> None:
    """Record that this folder is a demo's.

    Refuse a finished demo, another one, and other files.
    """
    from bertie.base.errors import SettingsError
    from bertie.base.files import read_json, write_json

    started = out / STARTED_FILE
    other = [path.name for path in out.iterdir() if path.name != ".lock"]
    if (out / REPORT_FILE).exists() or (other and not started.exists()):
        raise SettingsError(f"{out}: exists already; choose another folder with --out")
    if not started.exists():
        write_json(started, {"seconds": seconds})
    elif (before := read_json(started)) != {"seconds": seconds}:
        raise SettingsError(
            f"{started}: this demo was started with {json.dumps(before)}; give the same --seconds, or "
            f"choose another folder with --out"
        )


def _run(out: Path, seconds: int) -> None:
    """Run the steps of the demo, and say what each of them does."""
    from bertie.commands.demo_report import check, write_report

    started = time.monotonic()
    _say("1/6  reading the documentation and comments of Python and the packages installed with bertie")
    collected = collect()
    _write_documents(out, collected)
    characters = sum(map(len, collected.documents))
    _say(f"     {len(collected.documents):,} documents, {characters / 1e6:.1f} million characters")

    _say(f"2/6  learning a vocabulary of {VOCABULARY_SIZE:,} tokens, and turning the text into tokens")
    _prepare(out)
    _say(
        f"3/6  pre-training for about {seconds} seconds: the model learns to guess masked words, first in "
        f"short passages, then in longer ones"
    )
    _pretrain(out, seconds)
    _say(
        f"4/6  fine-tuning to tell {len(collected.classes)} libraries by their docstrings, from {LABELLED} "
        f"examples of each: {SEEDS} times from the pre-trained model, {SEEDS} times from random weights"
    )
    outcome = _finetune(out, collected)
    _say("5/6  filling in masked words of sentences that the model has not seen")
    filled = _fill_masks(out, collected.aside)
    _say("6/6  writing the report")
    settings_text = (out / "pretraining" / "settings.toml").read_text(encoding="utf-8")
    write_report(out / REPORT_FILE, collected, outcome, filled, settings_text)

    _say(f"done in {(time.monotonic() - started) / 60:.1f} minutes")
    print(f"model   {out / 'pretraining' / 'model'}\nreport  {out / REPORT_FILE}")
    check(outcome, _say)
    _say(
        "try these commands next; open the address that serve prints in a browser; the last command also "
        "reads your own csv with the columns text and label:"
    )
    print("\n".join(next_commands(out)))


def collect() -> Collected:
    """Collect the documents for pre-training and the labelled docstrings."""
    from bertie.commands.documentation import passages, topics

    found = passages(workers=min(available_cpus(), 4))
    modules = sorted({passage.module for passage in found})
    packages_aside = {package for package, _, _ in CHOSEN}
    modules_aside = {*modules[::ASIDE_EVERY], *(p.module for p in found if p.package in packages_aside)}
    for_training = [passage for passage in found if passage.module not in modules_aside]
    classes, training, unseen = _label_docstrings(for_training)

    seen = {paragraph for text, _ in unseen for paragraph in text.split("\n\n")}
    aside = _make_documents([passage for passage in found if passage.module in modules_aside], seen)
    chosen = [sentence.partition("[MASK]") for _, sentence, _ in CHOSEN]
    unknown = [
        passage
        for passage in for_training
        if not any(before in passage.text and after in passage.text for before, _, after in chosen)
    ]
    documents = [*topics().values(), *_make_documents(unknown, seen)]
    return Collected(documents, aside, classes, training, unseen)


def _label_docstrings(
    passages: "Sequence[Passage]",
) -> tuple[tuple[str, ...], list[tuple[str, int]], list[tuple[str, int]]]:
    """Return the packages with most docstrings, and training and test docstrings."""
    from bertie.base.random import permutation

    packages: dict[str, str | None] = {}  # of each docstring; None if several packages have it
    for passage in passages:
        if passage.is_docstring and len(passage.text) >= MIN_CHARACTERS and passage.package[0] != "_":
            known = packages.setdefault(passage.text, passage.package)
            packages[passage.text] = passage.package if known == passage.package else None
    counts = Counter(package for package in packages.values() if package)
    classes = tuple(sorted(package for package, _ in counts.most_common(CLASSES)))
    training, unseen = [], []
    for index, package in enumerate(classes):
        texts = [text for text, owner in packages.items() if owner == package]
        shuffled = [(texts[i], index) for i in permutation(len(texts), index)]
        unseen += shuffled[:UNSEEN]
        training += shuffled[UNSEEN : UNSEEN + LABELLED]
    return classes, training, unseen


def _make_documents(passages: "Sequence[Passage]", seen: set[str]) -> list[str]:
    """Return one document a module, without paragraphs that are in `seen`.

    Add the paragraphs of the documents to `seen`.
    """
    modules: dict[str, list[str]] = {}
    for passage in passages:
        new = [paragraph for paragraph in passage.text.split("\n\n") if paragraph not in seen]
        seen.update(new)
        modules.setdefault(passage.module, []).extend(new)
    return ["\n\n".join(paragraphs) for paragraphs in modules.values() if paragraphs]


def _write_documents(out: Path, collected: Collected) -> None:
    """Write the text for pre-training, and the labelled docstrings as csv files."""
    from bertie.base.files import write_text

    text = out / "text.jsonl"
    if not text.exists():  # a prepare that was killed resumes only if its input has not been written again
        write_text(text, "".join(json.dumps({"text": document}) + "\n" for document in collected.documents))
    for name, rows in (("train", collected.training), ("unseen", collected.unseen)):
        lines = io.StringIO()
        writer = csv.writer(lines)
        writer.writerow(["text", "label"])
        writer.writerows((text, collected.classes[index]) for text, index in rows)
        write_text(out / f"{name}.csv", lines.getvalue())


def _prepare(out: Path) -> None:
    import bertie
    from bertie.base.locks import remove_stale_locks
    from bertie.corpus.preparation_plan import remove_leftovers

    text, tokenizer, corpus = out / "text.jsonl", out / "tokenizer", out / "corpus"
    if not tokenizer.exists():
        bertie.learn_vocabulary(text, tokenizer, size=VOCABULARY_SIZE, cased=False, workers=1)
    if (corpus / "manifest.json").exists():
        remove_leftovers(corpus)
    else:
        bertie.prepare(text, tokenizer=tokenizer, out=corpus, held_out=HELD_OUT, workers=1)
    for path in (tokenizer, corpus):
        remove_stale_locks(path)


def _pretrain(out: Path, seconds: int) -> None:
    """Start or resume pre-training; a complete run stays as it is."""
    from bertie.base.settings import SETTINGS_FILE, read_settings, resolve
    from bertie.recipes import read_recipe
    from bertie.training.pretraining import pretrain
    from bertie.training.pretraining_settings import PretrainingSettings

    run = out / "pretraining"
    resume = (run / SETTINGS_FILE).exists()
    if resume:
        settings = resolve(PretrainingSettings, read_settings(run / SETTINGS_FILE), source=str(run))
    else:
        settings = resolve(PretrainingSettings, read_recipe("demo"), source="demo")
        scale = _measure_scale(settings, out, seconds)
        phases = [phase.model_copy(update={"steps": round(scale * phase.steps)}) for phase in settings.phases]
        settings = settings.model_copy(update={"phases": tuple(phases)})
    pretrain(settings, out / "corpus", run, resume=resume)


def _measure_scale(settings: "PretrainingSettings", out: Path, seconds: int) -> float:
    """Return by how much to scale the steps of the phases to the time.

    The speed of each phase is measured.
    """
    from bertie.base.files import temporary_name
    from bertie.training.metrics_file import read_metrics
    from bertie.training.pretraining import pretrain

    _say("     measuring the speed first")
    folder = temporary_name(out / "speed")  # which a resumed demo removes after a kill
    needed = 0.0  # seconds for the recipe's steps
    for number, phase in enumerate(settings.phases):
        trial_phase = phase.model_copy(update={"steps": CALIBRATION_STEPS})
        trial = settings.model_copy(update={"phases": (trial_phase,), "log_every": CALIBRATION_STEPS // 2})
        pretrain(trial, out / "corpus", folder / str(number), silent=True)
        rows = [r for r in read_metrics(folder / str(number) / "metrics.jsonl") if r["kind"] == "train"]
        seconds_per_step = (rows[-1]["seconds"] - rows[0]["seconds"]) / (rows[-1]["step"] - rows[0]["step"])
        needed += phase.steps * seconds_per_step
    shutil.rmtree(folder)
    scale = max(seconds / needed, MIN_SCALE)
    if scale * needed > 1.2 * seconds:
        _say(
            f"     this machine is slow or busy: it will take about {scale * needed / 60:.0f} minutes, "
            f"because a model trained for less answers nonsense"
        )
    return scale


def _finetune(out: Path, collected: Collected) -> "Outcome":
    """Train a classifier from pre-trained and from random weights, on the same seeds."""
    from bertie.base.files import atomic_directory, copy_directory
    from bertie.base.progress import Progress
    from bertie.base.settings import SETTINGS_FILE, resolve
    from bertie.commands.demo_report import Outcome
    from bertie.model.engines.loading import load_engine
    from bertie.model.formats.directory import read_metadata
    from bertie.tasks.custom.classification import CustomClassification
    from bertie.tasks.evaluation import EncodedExamples, evaluate
    from bertie.tasks.metrics import accuracy, confusion_matrix
    from bertie.training.finetuning import InitialModel, finetune
    from bertie.training.finetuning_settings import FinetuningSettings
    from bertie.training.metrics_file import read_metrics

    model = out / "pretraining" / "model"
    metadata = read_metadata(model)
    training, unseen = _labelled(collected, collected.training), _labelled(collected, collected.unseen)
    task = CustomClassification("demo").fitted(training)
    gold = task.gold(unseen)
    accuracies: dict[str, list[float]] = {"pre-trained": [], "random weights": []}
    confusions = []
    with Progress("fine-tuning", 2 * SEEDS, "classifiers") as progress:
        for name, scores in accuracies.items():
            weights = model if name == "pre-trained" else None
            start = InitialModel(metadata.config, metadata.tokenizer, weights)
            for seed in range(SEEDS):
                settings = resolve(FinetuningSettings, FINETUNING, {"seed": seed})
                run = out / "classifiers" / f"{name.replace(' ', '-')}-{seed}"
                resume = (run / SETTINGS_FILE).exists()
                finetune(task, start, training, {}, settings, run, resume=resume, silent=True)
                inputs = task.encode(unseen, metadata.tokenizer, settings.max_seq_length)
                engine = load_engine(run / "model").engine
                result = evaluate(task, engine, {"unseen": EncodedExamples(unseen, inputs)})
                predicted = result.predictions["unseen"]
                scores.append(accuracy(gold, predicted))
                confusions.append(confusion_matrix(gold, predicted, len(task.labels)))
                progress.advance(1, accuracy=scores[-1])
    if not (out / "classifier").exists():
        with atomic_directory(out / "classifier") as temporary:
            copy_directory(out / "classifiers" / "pre-trained-0" / "model", temporary)
    for name, scores in accuracies.items():
        mean = sum(scores) / len(scores)
        _say(f"     {name}: {mean:.1%} right ({', '.join(f'{score:.1%}' for score in scores)})")
    return Outcome(read_metrics(out / "pretraining" / "metrics.jsonl"), accuracies, confusions[0])


def _labelled(collected: Collected, pairs: Sequence[tuple[str, int]]) -> "LabelledTexts":
    from bertie.tasks.classification import LabelledTexts

    labels = [collected.classes[index] for _, index in pairs]
    return LabelledTexts([text for text, _ in pairs], labels=labels)


def _fill_masks(out: Path, aside: Sequence[str]) -> FilledMasks:
    """Let the model guess words of chosen sentences, and of some of `aside`."""
    import bertie
    from bertie.reports.page import MaskedSentence

    model = bertie.load(out / "pretraining" / "model")
    tokens = frozenset(model.tokenizer.vocabulary.tokens)
    masked = [(sentence, truth) for _, sentence, truth in CHOSEN] + draw_masked_sentences(aside, tokens)
    rows = []
    for (sentence, truth), masks in zip(
        masked, model.fill_mask([s for s, _ in masked], top_k=5), strict=True
    ):
        rows.append(MaskedSentence(sentence, truth, [(mask.token_str, mask.score) for mask in masks[0]]))
    chosen, drawn = rows[: len(CHOSEN)], rows[len(CHOSEN) :]
    for row in chosen:
        best, score = row.predictions[0]
        verdict = "right" if best == row.truth else f"the text has: {row.truth}"
        _say(f"     {row.sentence}  {best} {score:.0%} ({verdict})")
    accuracy = sum(row.predictions[0][0] == row.truth for row in drawn) / len(drawn)
    _say(f"     of {len(drawn)} words drawn at random from unseen sentences, {accuracy:.0%} are right")
    return FilledMasks(chosen, drawn[:SHOWN], len(drawn), accuracy)


def draw_masked_sentences(documents: Sequence[str], tokens: frozenset[str]) -> list[tuple[str, str]]:
    """Draw sentences in prose, and mask a word of each that is one token.

    Return (sentence, word) pairs. The draw is the same at each call.
    """
    import re

    from bertie.base.random import permutation
    from bertie.text.sentences import split_sentences

    prose = re.compile(r"[A-Z`'\"][\w ,;:`'\"()/*.-]+\.")
    sentences = sorted({s.strip() for document in documents for s in split_sentences(document)})
    sentences = [s for s in sentences if prose.fullmatch(s) and 6 <= len(s.split()) <= 25]
    drawn: list[tuple[str, str]] = []
    for number, index in enumerate(permutation(len(sentences), 0)):
        sentence = sentences[index]
        words = [m for m in re.finditer(r"(?<!\S)[a-z]+(?=[ ,;.])", sentence) if m[0] in tokens]
        if words and len(drawn) < DRAWN:
            word = words[permutation(len(words), number)[0]]
            drawn.append((f"{sentence[: word.start()]}[MASK]{sentence[word.end() :]}", word[0]))
    return drawn


def next_commands(out: Path) -> list[str]:
    """Return commands to paste: predict, serve and finetune with the demo's model."""
    beside = Path(sys.executable).with_name("bertie")
    bertie = "bertie"
    if shutil.which("bertie") != str(beside):  # the environment is not activated
        program = [os.path.relpath(beside)] if beside.exists() else [sys.executable, "-m", "bertie"]
        bertie = shlex.join(program)
    model, classifier = (shlex.quote(str(out / name)) for name in ("pretraining/model", "classifier"))
    train, dev, new = (shlex.quote(str(out / name)) for name in ("train.csv", "unseen.csv", "my-classifier"))
    return [
        f'{bertie} predict {model} --text "Return the absolute [MASK] of the file."',
        f"{bertie} serve {model} {classifier}",
        f"{bertie} finetune --model {model} --train {train} --dev {dev} --out {new} --set max_seq_length=64 "
        f"--set batch_size=16 --set optimizer.learning_rate=1e-3",
    ]


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
