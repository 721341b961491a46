"""`bertie demo`: pre-train on Python's documentation, and measure how much that helps."""

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
    from bertie.reports.page import MaskedSentence, Page
    from bertie.tasks.classification import LabelledTexts

VOCABULARY_SIZE = 4096
HELD_OUT = 0.05
CALIBRATION_STEPS = 60
# Also on a slow machine, because shorter pre-training shows nothing: the classifier's lead over random
# weights was 0 after 800 steps, 0.07 after 1,500, 0.18 after 2,000 and 0.30 after 4,500 (means of three to
# five seeds).
MIN_STEPS = 2000
CLASSES = 12
LABELLED = 16  # training examples per class: pre-training matters most if labels are few
TEST_FRACTION = 0.25  # of each class's docstrings, excluded from pre-training
MIN_CHARACTERS = 80  # of a docstring that is long enough to classify
SEEDS = 5
FINETUNING = {
    "epochs": 12,
    "batch_size": 16,
    "keep_best": False,  # the unseen docstrings are a test set; they must not select the epoch
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
    """The demo's text.

    documents  for pre-training
    classes    names of the packages
    training   labelled docstrings (text, class index) for the classifiers
    unseen     labelled docstrings that are not in `documents`, for testing
    """

    documents: list[str]
    classes: tuple[str, ...]
    training: list[tuple[str, int]]
    unseen: list[tuple[str, int]]


class Outcome(NamedTuple):
    """Measurements on text that pre-training has not seen.

    metrics     the rows of metrics.jsonl
    accuracies  of the classifiers, by their initial weights, one per seed
    confusion   confusion matrix of the first pre-trained classifier
    """

    metrics: list[dict[str, Any]]
    accuracies: dict[str, list[float]]
    confusion: Any

    @property
    def last(self) -> dict[str, Any]:
        """The last held-out evaluation."""
        return next(row for row in reversed(self.metrics) if row["kind"] == "evaluation")

    def masked_token_z(self) -> float:
        """Return masked-token accuracy minus unigram baseline, in standard errors."""
        accuracy = self.last["masked_lm_accuracy"]
        error = math.sqrt(accuracy * (1 - accuracy) / self.last["masked_lm_targets"])
        return float((accuracy - self.last["unigram_accuracy"]) / error)

    def classifier_z(self) -> float:
        """Return by how many standard errors pre-trained weights beat random ones."""
        pretrained, random = self.accuracies.values()
        variances = [statistics.variance(scores) / len(scores) for scores in (pretrained, random)]
        return (statistics.mean(pretrained) - statistics.mean(random)) / math.sqrt(sum(variances))


def demo(
    out: Annotated[Path, typer.Option(help="The directory to write.")] = Path("demo"),
    seconds: Annotated[int, typer.Option(min=10, help="The approximate duration of pre-training.")] = 170,
) -> None:
    """Pre-train a small BERT on Python's documentation, and measure how much it helps."""
    from bertie.base.errors import BertieError

    if out.exists():
        raise BertieError(f"{out}: already exists; remove it, or choose another folder with --out")
    started = time.monotonic()
    _say("1/6  collecting the documentation of this Python")
    collected = collect()
    _write_documents(out / "text.jsonl", collected.documents)
    characters = sum(map(len, collected.documents))
    _say(f"     {len(collected.documents):,} documents, {characters / 1e6:.1f} million characters")

    _say("2/6  learning a vocabulary and preparing the corpus")
    _prepare(out)
    _say(f"3/6  pre-training for about {seconds} seconds")
    _pretrain(out, seconds)
    _say(
        f"4/6  fine-tuning {SEEDS} classifiers from the pre-trained model and {SEEDS} from random weights, "
        f"with {LABELLED} labels per class"
    )
    outcome = _finetune(out, collected)
    _say("5/6  predicting masked tokens")
    sentences = _fill_masks(out)
    _say("6/6  writing the report")
    settings_text = (out / "pretraining" / "settings.toml").read_text(encoding="utf-8")
    _write_report(out / "report.html", collected, outcome, sentences, settings_text)

    _say(f"done in {(time.monotonic() - started) / 60:.1f} minutes")
    print(f"model   {out / 'pretraining' / 'model'}\nreport  {out / 'report.html'}")
    _check(outcome)


def collect() -> Collected:
    """Collect the documents for pre-training and the labelled docstrings."""
    from bertie.base.random import permutation
    from bertie.commands.standard_library import docstrings, topics

    all_docstrings = docstrings()
    long_enough = [d for d in all_docstrings if len(d.text) >= MIN_CHARACTERS and d.package[0] != "_"]
    common = Counter(d.package for d in long_enough).most_common(CLASSES)
    classes = tuple(sorted(package for package, _ in common))
    training, unseen, excluded = [], [], set()
    for number, package in enumerate(classes):
        texts = [d.text for d in long_enough if d.package == package]
        shuffled = [texts[i] for i in permutation(len(texts), number)]
        cut = round(TEST_FRACTION * len(shuffled))
        excluded.update(shuffled[:cut])
        unseen += [(text, number) for text in shuffled[:cut]]
        training += [(text, number) for text in shuffled[cut : cut + LABELLED]]
    modules: dict[str, list[str]] = {}
    for docstring in all_docstrings:
        if docstring.text not in excluded:
            modules.setdefault(docstring.module, []).append(docstring.text)
    documents = [*topics().values(), *("\n\n".join(texts) for texts in modules.values())]
    return Collected(documents, classes, training, unseen)


def _write_documents(path: Path, documents: Sequence[str]) -> None:
    from bertie.base.files import write_text

    write_text(path, "".join(json.dumps({"text": text}) + "\n" for text in documents))


def _prepare(out: Path) -> None:
    import bertie

    text, tokenizer = out / "text.jsonl", out / "tokenizer"
    bertie.learn_vocabulary(text, tokenizer, size=VOCABULARY_SIZE, workers=1)
    bertie.prepare(text, tokenizer=tokenizer, out=out / "corpus", held_out=HELD_OUT, workers=1)


def _pretrain(out: Path, seconds: int) -> None:
    """Measure the speed, choose the number of steps accordingly, and pre-train."""
    import tempfile

    from bertie.base.settings import resolve
    from bertie.recipes import read_recipe
    from bertie.training.metrics_file import read_metrics
    from bertie.training.pretraining import pretrain
    from bertie.training.pretraining_settings import PretrainingSettings

    def settings(steps: int) -> PretrainingSettings:
        recipe = read_recipe("demo")
        recipe["phases"][0]["steps"] = steps
        return resolve(PretrainingSettings, recipe, source="demo")

    _say("     measuring the speed first")
    with tempfile.TemporaryDirectory(dir=out) as trial:
        pretrain(settings(CALIBRATION_STEPS), out / "corpus", Path(trial) / "run")
        rows = [r for r in read_metrics(Path(trial) / "run" / "metrics.jsonl") if r["kind"] == "train"]
    # The first row includes the warm-up of caches and threads.
    steps_per_second = (rows[-1]["step"] - rows[0]["step"]) / (rows[-1]["seconds"] - rows[0]["seconds"])
    steps = max(round(seconds * steps_per_second), MIN_STEPS)
    pretrain(settings(steps), out / "corpus", out / "pretraining")


def _finetune(out: Path, collected: Collected) -> Outcome:
    """Train a classifier from pre-trained and from random weights, on the same seeds."""
    import numpy as np

    from bertie.base.settings import resolve
    from bertie.model.formats.directory import read_metadata
    from bertie.tasks.custom import CustomClassification
    from bertie.tasks.metrics import accuracy, confusion_matrix
    from bertie.training.finetuning import FinetuningSettings, InitialModel, finetune
    from bertie.training.metrics_file import read_metrics

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


def _fill_masks(out: Path) -> "list[MaskedSentence]":
    """Return a few sentences with the model's predictions for their masks."""
    import bertie
    from bertie.reports.page import MaskedSentence

    model = bertie.load(out / "pretraining" / "model")
    rows = []
    for sentence in MASKED_SENTENCES:
        predictions = [(mask.token_str, mask.score) for mask in model.fill_mask(sentence, top_k=5)[0]]
        rows.append(MaskedSentence(sentence, None, predictions))
        _say(f"     {sentence}  {', '.join(f'{token} {score:.0%}' for token, score in predictions[:3])}")
    return rows


def _write_report(
    path: Path,
    collected: Collected,
    outcome: Outcome,
    sentences: "list[MaskedSentence]",
    settings_text: str,
) -> None:
    """Write one self-contained HTML file."""
    from bertie.reports.page import Page

    page = Page("A BERT of Python's own documentation", "Pre-trained from raw text by bertie demo")
    _add_figures(page, outcome)
    _add_pretraining(page, outcome)
    page.section("Masked tokens")
    page.masked_tokens(sentences)
    _add_classifiers(page, collected, outcome)
    page.section("Settings")
    page.code(settings_text)
    page.save(path)


def _add_figures(page: "Page", outcome: Outcome) -> None:
    last = outcome.last
    means = {name: statistics.mean(scores) for name, scores in outcome.accuracies.items()}
    page.figures(
        [
            (
                "masked-token accuracy",
                f"{last['masked_lm_accuracy']:.1%}",
                f"unigram baseline: {last['unigram_accuracy']:.1%}",
            ),
            (
                "next-sentence accuracy",
                f"{last['next_sentence_accuracy']:.1%}",
                f"majority class: {last['majority_accuracy']:.1%}",
            ),
            (
                "perplexity",
                f"{last['perplexity']:.0f}",
                f"unigram baseline: {math.exp(last['unigram_loss']):.0f}",
            ),
            (
                "classifier accuracy",
                f"{means['pre-trained']:.1%}",
                f"random weights: {means['random weights']:.1%}",
            ),
        ]
    )
    page.paragraph("All figures are from documents that took no part in training.")


def _add_pretraining(page: "Page", outcome: Outcome) -> None:
    from bertie.reports.pictures import training_curves

    last_train = [row for row in outcome.metrics if row["kind"] == "train"][-1]
    tokens, seconds = last_train["tokens"], last_train["seconds"]
    page.section("Pre-training")
    page.paragraph(
        f"{tokens:,} tokens in {last_train['step']:,} steps and {seconds:.0f} seconds "
        f"({tokens / seconds:,.0f} tokens per second), with both objectives of Section 3.1."
    )
    page.picture(
        training_curves(outcome.metrics),
        "Training and held-out documents. The dashed line is the unigram baseline.",
        "Loss and accuracy over the steps of pre-training",
    )


def _add_classifiers(page: "Page", collected: Collected, outcome: Outcome) -> None:
    from bertie.reports.pictures import comparison, confusion_matrix

    page.section("How much pre-training helps")
    page.paragraph(
        f"Which of {len(collected.classes)} packages does a docstring come from? The classifiers learn from "
        f"{LABELLED} labelled docstrings per package and are tested on {len(collected.unseen)} docstrings "
        f"that pre-training has not seen. Network, settings and seeds are the same; only the initial weights "
        f"differ."
    )
    page.picture(
        comparison(outcome.accuracies, "accuracy", baseline=1 / len(collected.classes)),
        f"Each point is a seed; the difference is {outcome.classifier_z():.1f} standard errors.",
        "Accuracies of the classifiers by their initial weights",
    )
    page.picture(
        confusion_matrix(outcome.confusion, collected.classes),
        "The first pre-trained classifier: rows are true packages, columns are predictions.",
        "Confusion matrix of the packages",
    )


def _check(outcome: Outcome) -> None:
    """Raise BertieError if pre-training did not win by two standard errors."""
    from bertie.base.errors import BertieError

    won = {"masked tokens": outcome.masked_token_z(), "the classifier": outcome.classifier_z()}
    for name, z in won.items():
        _say(f"{name}: pre-training wins by {z:.1f} standard errors")
    lost = [name for name, z in won.items() if z < 2]
    if lost:
        raise BertieError(f"pre-training did not win by two standard errors in {' and '.join(lost)}")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
