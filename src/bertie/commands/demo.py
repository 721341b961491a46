"""`bertie demo`: the main job once, on the documentation that every Python carries, and what it bought."""

import json
import math
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

if TYPE_CHECKING:
    from bertie.tasks.classification import LabelledTexts

VOCABULARY_SIZE = 4096
HELD_OUT = 0.05
CALIBRATION_STEPS = 60
# On a slow machine it takes longer. By how much the classifier is better than from random weights: not at
# all after 800 steps, 0.07 after 1,500, 0.18 after 2,000, 0.30 after 4,500 (means of three to five seeds).
FEWEST_STEPS = 2000
CLASSES = 12
LABELLED = 16  # texts a class to learn from: pre-training is for when labels are few
UNSEEN_SHARE = 0.25  # of the classes' docstrings, kept from pre-training to judge the classifiers by
SHORTEST = 80  # characters of a docstring that can be told by its text
SEEDS = 5
FINETUNING = {
    "epochs": 12,
    "batch_size": 16,
    "keep_best": False,  # the unseen docstrings are there to judge by, not to choose by
    "optimizer": {"learning_rate": 5e-4},
}
MASKED_SENTENCES = (
    "Return a list of the [MASK] in the directory.",
    "If the file does not [MASK], an error is raised.",
    "The return [MASK] is always a string.",
    "Raises ValueError if the argument is not a valid [MASK].",
    "This function is a wrapper [MASK] the built-in open function.",
)


class Collected(NamedTuple):
    """The demo's text: documents to pre-train on, and labelled texts, some of them kept from pre-training."""

    documents: list[str]
    classes: tuple[str, ...]
    training: list[tuple[str, int]]
    unseen: list[tuple[str, int]]


class Outcome(NamedTuple):
    """What pre-training bought, on held-out text."""

    curves: list[dict[str, Any]]  # the rows of metrics.jsonl
    accuracies: dict[str, list[float]]  # of the classifiers, for each start one a seed
    confusion: Any  # of the first pre-trained classifier

    @property
    def last(self) -> dict[str, Any]:
        """The last held-out evaluation."""
        return next(row for row in reversed(self.curves) if row["kind"] == "evaluation")

    def masked_words_z(self) -> float:
        """By how many standard errors masked-word accuracy is above that of the commonest word."""
        accuracy = self.last["masked_lm_accuracy"]
        error = math.sqrt(accuracy * (1 - accuracy) / self.last["masked_lm_targets"])
        return float((accuracy - self.last["unigram_accuracy"]) / error)

    def classifier_z(self) -> float:
        """By how many standard errors the pre-trained classifiers beat those from random weights."""
        pretrained, random = self.accuracies.values()
        variances = [statistics.variance(scores) / len(scores) for scores in (pretrained, random)]
        return (statistics.mean(pretrained) - statistics.mean(random)) / math.sqrt(sum(variances))


def demo(
    out: Annotated[Path, typer.Option(help="Where everything is left.")] = Path("demo"),
    seconds: Annotated[int, typer.Option(min=10, help="About how long to pre-train.")] = 170,
) -> None:
    """Pre-train a small BERT on Python's own documentation, and show what that bought."""
    from bertie.base.errors import BertieError

    if out.exists():
        raise BertieError(f"{out}: already there; remove it, or name another place with --out")
    started = time.monotonic()
    _say("1/6  collecting the documentation of this Python")
    collected = collect()
    _write_documents(out / "text.jsonl", collected.documents)
    characters = sum(map(len, collected.documents))
    _say(f"     {len(collected.documents):,} documents, {characters / 1e6:.1f} million characters")

    _say("2/6  learning a vocabulary, preparing the corpus")
    _prepare(out)
    _say(f"3/6  pre-training for about {seconds} seconds")
    _pretrain(out, seconds)
    _say(
        f"4/6  fine-tuning {SEEDS} classifiers from it and {SEEDS} from random weights, "
        f"{LABELLED} labels a class"
    )
    outcome = _finetune(out, collected)
    _say("5/6  filling in masked words")
    guesses = _fill_masks(out)
    _say("6/6  writing the report")
    settings_text = (out / "pretraining" / "settings.toml").read_text(encoding="utf-8")
    _report(out / "report.html", collected, outcome, guesses, settings_text)

    _say(f"done in {(time.monotonic() - started) / 60:.1f} minutes")
    print(f"model   {out / 'pretraining' / 'model'}\nreport  {out / 'report.html'}")
    _check(outcome)


def collect() -> Collected:
    """The documentation, cut into text to pre-train on and labelled docstrings."""
    from bertie.base.random import permutation
    from bertie.commands.standard_library import docstrings, topics

    found = docstrings()
    telling = [d for d in found if len(d.text) >= SHORTEST and not d.package.startswith("_")]
    common = Counter(d.package for d in telling).most_common(CLASSES)
    classes = tuple(sorted(package for package, _ in common))
    training, unseen, kept = [], [], set()
    for number, package in enumerate(classes):
        own = [d.text for d in telling if d.package == package]
        shuffled = [own[i] for i in permutation(len(own), number)]
        cut = round(UNSEEN_SHARE * len(shuffled))
        kept.update(shuffled[:cut])
        unseen += [(text, number) for text in shuffled[:cut]]
        training += [(text, number) for text in shuffled[cut : cut + LABELLED]]
    modules: dict[str, list[str]] = {}
    for docstring in found:
        if docstring.text not in kept:
            modules.setdefault(docstring.module, []).append(docstring.text)
    documents = [*topics().values(), *("\n\n".join(texts) for texts in modules.values())]
    return Collected(documents, classes, training, unseen)


def _write_documents(path: Path, documents: Sequence[str]) -> None:
    from bertie.base.files import write_text

    write_text(path, "".join(json.dumps({"text": text}) + "\n" for text in documents))


def _prepare(out: Path) -> None:
    """The commands `bertie vocab` and `bertie prepare`."""
    from bertie.commands.prepare import prepare
    from bertie.commands.vocab import vocab

    vocab([out / "text.jsonl"], out / "tokenizer", size=VOCABULARY_SIZE, workers=1)
    prepare([out / "text.jsonl"], out / "tokenizer", out / "corpus", workers=1, held_out=HELD_OUT)


def _pretrain(out: Path, seconds: int) -> None:
    """Measure the speed once, set the steps by it, and pre-train."""
    import tempfile

    from bertie.base.settings import resolve
    from bertie.recipes import read_recipe
    from bertie.reports.metrics import read_metrics
    from bertie.training.pretraining import PretrainingSettings, pretrain

    def settings(steps: int) -> PretrainingSettings:
        recipe = read_recipe("demo")
        recipe["phases"][0]["steps"] = steps
        return resolve(PretrainingSettings, recipe, source="demo")

    _say("     measuring the speed first")
    with tempfile.TemporaryDirectory(dir=out) as trial:
        pretrain(settings(CALIBRATION_STEPS), out / "corpus", Path(trial) / "run")
        rows = [r for r in read_metrics(Path(trial) / "run" / "metrics.jsonl") if r["kind"] == "train"]
    # The first row holds the warm-up of caches and threads.
    steps_per_second = (rows[-1]["step"] - rows[0]["step"]) / (rows[-1]["seconds"] - rows[0]["seconds"])
    steps = max(round(seconds * steps_per_second), FEWEST_STEPS)
    pretrain(settings(steps), out / "corpus", out / "pretraining")


def _finetune(out: Path, collected: Collected) -> Outcome:
    """The same classifier from the pre-trained and from random weights, on the same seeds."""
    import numpy as np

    from bertie.base.settings import resolve
    from bertie.model.formats.directory import read_metadata
    from bertie.reports.metrics import read_metrics
    from bertie.tasks.custom import CustomClassification
    from bertie.tasks.metrics import accuracy, confusion_matrix
    from bertie.training.finetuning import FinetuningSettings, InitialModel, finetune

    model = out / "pretraining" / "model"
    metadata = read_metadata(model)
    training, unseen = _labelled(collected, collected.training), _labelled(collected, collected.unseen)
    task = CustomClassification("demo").fitted(training)
    gold = task.gold(unseen)
    accuracies: dict[str, list[float]] = {}
    confusions = []
    for name, weights in (("pre-trained", model), ("random weights", None)):
        start = InitialModel(metadata.config, metadata.tokenizer, weights)
        accuracies[name] = []
        for seed in range(SEEDS):
            settings = resolve(FinetuningSettings, FINETUNING, {"seed": seed})
            run = out / "classifiers" / f"{name.replace(' ', '-')}-{seed}"
            result = finetune(task, start, training, {"unseen": unseen}, settings, run, silent=True)
            predicted = result.predictions["unseen"]
            accuracies[name].append(accuracy(gold, predicted))
            confusions.append(confusion_matrix(gold, predicted, len(task.labels)))
        mean = np.mean(accuracies[name])
        _say(f"     {name}: {mean:.3f} ({', '.join(f'{score:.3f}' for score in accuracies[name])})")
    return Outcome(read_metrics(out / "pretraining" / "metrics.jsonl"), accuracies, confusions[0])


def _labelled(collected: Collected, pairs: Sequence[tuple[str, int]]) -> "LabelledTexts":
    from bertie.tasks.classification import LabelledTexts

    labels = [collected.classes[number] for _, number in pairs]
    return LabelledTexts([text for text, _ in pairs], labels=labels)


def _fill_masks(out: Path) -> list[tuple[str, str | None, list[tuple[str, float]]]]:
    """The model's guesses for a few sentences, as rows of the report."""
    import bertie

    model = bertie.load(out / "pretraining" / "model")
    rows: list[tuple[str, str | None, list[tuple[str, float]]]] = []
    for sentence in MASKED_SENTENCES:
        guesses = [(guess.token_str, guess.score) for guess in model.fill_mask(sentence, top_k=5)[0]]
        rows.append((sentence, None, guesses))
        _say(f"     {sentence}  {', '.join(f'{token} {score:.0%}' for token, score in guesses[:3])}")
    return rows


def _report(
    path: Path,
    collected: Collected,
    outcome: Outcome,
    guesses: list[tuple[str, str | None, list[tuple[str, float]]]],
    settings_text: str,
) -> None:
    """One self-contained HTML file."""
    from bertie.reports.page import Page
    from bertie.reports.pictures import comparison, confusion_matrix, training_curves

    last = outcome.last
    trained = [row for row in outcome.curves if row["kind"] == "train"][-1]
    means = {name: statistics.mean(scores) for name, scores in outcome.accuracies.items()}
    page = Page("A BERT of Python's own documentation", "Pre-trained from raw text by bertie demo")
    page.figures(
        [
            (
                "masked words",
                f"{last['masked_lm_accuracy']:.1%}",
                f"commonest word: {last['unigram_accuracy']:.1%}",
            ),
            (
                "next sentence",
                f"{last['next_sentence_accuracy']:.1%}",
                f"commoner label: {last['majority_accuracy']:.1%}",
            ),
            (
                "perplexity",
                f"{last['perplexity']:.0f}",
                f"word frequencies: {math.exp(last['unigram_loss']):.0f}",
            ),
            ("classifier", f"{means['pre-trained']:.1%}", f"random weights: {means['random weights']:.1%}"),
        ]
    )
    page.paragraph("All figures are from held-out documents, which took no part in training.")
    page.section("Pre-training")
    page.paragraph(
        f"{trained['tokens']:,} tokens in {trained['step']:,} steps and {trained['seconds']:.0f} seconds "
        f"({trained['tokens'] / trained['seconds']:,.0f} tokens a second), with both objectives of "
        f"Section 3.1."
    )
    page.picture(
        training_curves(outcome.curves),
        "In training and on held-out documents. The dashed line knows word frequencies only.",
        "Curves of loss and accuracy over the steps of pre-training",
    )
    page.section("Masked words")
    page.masked_words(guesses)
    page.section("What pre-training bought")
    page.paragraph(
        f"From which of {len(collected.classes)} packages is a docstring? {LABELLED} labelled ones of each "
        f"to learn from, {len(collected.unseen)} to be judged by, which pre-training has not seen. The same "
        f"network, settings and seeds: once from the pre-trained weights, once from random ones."
    )
    page.picture(
        comparison(outcome.accuracies, "accuracy", baseline=1 / len(collected.classes)),
        f"Each point is a seed; the difference is {outcome.classifier_z():.1f} standard errors.",
        "Accuracies of the classifiers by their start",
    )
    page.picture(
        confusion_matrix(outcome.confusion, collected.classes),
        "The first pre-trained classifier: rows are true packages, columns its answers.",
        "Confusion matrix of the packages",
    )
    page.section("Settings of the run")
    page.code(settings_text)
    page.save(path)


def _check(outcome: Outcome) -> None:
    """Raises BertieError where pre-training did not win by two standard errors."""
    from bertie.base.errors import BertieError

    won = {"masked words": outcome.masked_words_z(), "the classifier": outcome.classifier_z()}
    for name, z in won.items():
        _say(f"{name}: pre-training wins by {z:.1f} standard errors")
    lost = [name for name, z in won.items() if z < 2]
    if lost:
        raise BertieError(f"pre-training did not win by two standard errors in {' and '.join(lost)}")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
