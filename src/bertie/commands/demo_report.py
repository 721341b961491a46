"""The report of `bertie demo`, and the check of its measurements."""

import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from bertie.commands.demo import Collected, FilledMasks
    from bertie.reports.page import Page


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
        return _in_errors(float(accuracy - self.last["unigram_accuracy"]), error)

    def classifier_z(self) -> float:
        """Return by how many standard errors pre-trained weights beat random ones."""
        pretrained, random = self.accuracies.values()
        variances = [statistics.variance(scores) / len(scores) for scores in (pretrained, random)]
        return _in_errors(statistics.mean(pretrained) - statistics.mean(random), math.sqrt(sum(variances)))


def _in_errors(difference: float, error: float) -> float:
    """Return a difference in standard errors.

    The error is 0 if all seeds have the same accuracy.
    """
    if error:
        return difference / error
    return math.copysign(math.inf, difference) if difference else 0.0


def write_report(
    path: Path, collected: "Collected", outcome: Outcome, filled: "FilledMasks", settings_text: str
) -> None:
    """Write one self-contained HTML file."""
    from bertie.reports.page import Page

    page = Page("A BERT of Python's documentation", "Pre-trained from raw text by bertie demo")
    _add_figures(page, outcome)
    _add_masked_tokens(page, filled)
    _add_classifiers(page, collected, outcome)
    _add_pretraining(page, outcome, settings_text)
    page.section("Settings")
    page.code(settings_text)
    page.save(path)


def check(outcome: Outcome, say: Callable[[str], None]) -> None:
    """Raise BertieError if pre-training hardly improved a score.

    An improvement has at least two standard errors.
    """
    from bertie.base.errors import BertieError

    won = {"masked tokens": outcome.masked_token_z(), "the classifier": outcome.classifier_z()}
    for name, z in won.items():
        say(f"{name}: pre-training wins by {z:.1f} standard errors")
    lost = [name for name, z in won.items() if z < 2]
    if lost:
        raise BertieError(
            f"pre-training improved {' and '.join(lost)} by less than two standard errors; run again with a "
            f"larger --seconds"
        )


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
                "perplexity",
                f"{last['perplexity']:.0f}",
                f"unigram baseline: {math.exp(last['unigram_loss']):.0f}",
            ),
            (
                "next-sentence accuracy",
                f"{last['next_sentence_accuracy']:.1%}",
                f"majority class: {last['majority_accuracy']:.1%}",
            ),
            (
                "classifier accuracy",
                f"{means['pre-trained']:.1%}",
                f"random weights: {means['random weights']:.1%}",
            ),
        ]
    )
    page.paragraph("All figures are from documents that took no part in pre-training.")


def _add_masked_tokens(page: "Page", filled: "FilledMasks") -> None:
    page.section("Masked words")
    page.paragraph(
        "Each highlighted word is hidden from the model, which guesses it from the rest of the sentence. The "
        "sentences are from packages that were left out of pre-training. They were chosen because a person "
        "can guess the word, and because the model of an earlier run could. A ✓ marks the word of the text."
    )
    page.masked_tokens(filled.chosen)
    page.section("Words drawn at random")
    page.paragraph(
        f"Sentences of unseen modules, and a word of each, drawn at random: the model guesses "
        f"{filled.accuracy:.0%} of {filled.total} such words, and these are the first {len(filled.drawn)}. "
        f"The masked-token accuracy above is another measurement: there several tokens of a passage are "
        f"hidden at once, parts of words and code included."
    )
    page.masked_tokens(filled.drawn)


def _add_classifiers(page: "Page", collected: "Collected", outcome: Outcome) -> None:
    from bertie.reports.pictures import comparison, confusion_matrix

    page.section("How much pre-training helps")
    page.paragraph(
        f"Which of {len(collected.classes)} libraries does a docstring come from? The classifiers learn from "
        f"{len(collected.training) // len(collected.classes)} labelled docstrings per library and are "
        f"tested on {len(collected.unseen)} docstrings that pre-training has not seen. Network, settings and "
        f"seeds are the same; only the initial weights differ."
    )
    page.picture(
        comparison(outcome.accuracies, "accuracy", baseline=1 / len(collected.classes)),
        f"Each point is a seed; the difference is {outcome.classifier_z():.1f} standard errors.",
        "Accuracies of the classifiers by their initial weights",
    )
    page.picture(
        confusion_matrix(outcome.confusion, collected.classes),
        "The first pre-trained classifier: rows are true libraries, columns are predictions.",
        "Confusion matrix of the libraries",
    )


def _add_pretraining(page: "Page", outcome: Outcome, settings_text: str) -> None:
    from bertie.reports.pictures import training_curves
    from bertie.reports.pretraining import phase_steps

    last_train = [row for row in outcome.metrics if row["kind"] == "train"][-1]
    tokens, seconds = last_train["tokens"], last_train["seconds"]
    page.section("Pre-training")
    page.paragraph(
        f"{tokens:,} tokens in {last_train['step']:,} steps and {seconds:.0f} seconds "
        f"({tokens / seconds:,.0f} tokens per second). The first phase learns masked tokens in short "
        f"passages, the second both objectives of Section 3.1 in longer ones."
    )
    page.picture(
        training_curves(outcome.metrics, phase_steps(settings_text)),
        "Training and held-out documents. The dashed line is the unigram baseline.",
        "Loss and accuracy over the steps of pre-training",
    )
