"""Per-label scores, confusions and errors.

`Task.analyze_errors` returns an `ErrorAnalysis`; the families of tasks share the functions here.
`bertie finetune` shows the analysis in its report; `bertie evaluate --json` prints part of it.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bertie.base.arrays import Float32s, Float64s, Int64s
from bertie.tasks.metrics import LabelArray, confusion_matrix, label_scores, percent
from bertie.tasks.probabilities import softmax

MAX_MATRIX_CLASSES = 20  # a larger confusion matrix does not fit a page
MAX_CONFUSED_PAIRS = 20
MAX_MISTAKES = 10
MISTAKE_LENGTH = 200  # characters of a mistake's text


class LabelScores(NamedTuple):
    """Scores of a label or entity type in percent, and its number of gold examples."""

    precision: float
    recall: float
    f1: float
    support: int


class Mistake(NamedTuple):
    """A wrong prediction, as text for a reader.

    probability  the model's probability of its prediction; None if it is unknown
    """

    text: str
    gold: str
    predicted: str
    probability: float | None = None


class ThresholdCurve(NamedTuple):
    """Scores of n SQuAD v2.0 questions at every null threshold.

    The first entry is the score when no question is answered. From each threshold on, one more
    question is answered; equal null odds count one by one, as in evaluate-v2.0.py.

    thresholds   float64 (n + 1,)  null odds of the questions, ascending; the lowest one twice
    exact_match  float64 (n + 1,)  in percent
    f1           float64 (n + 1,)  in percent
    chosen       the threshold that the predictions use
    """

    thresholds: Float64s
    exact_match: Float64s
    f1: Float64s
    chosen: float


@dataclass(frozen=True)
class ErrorAnalysis:
    """Details of predictions; a field is empty where it does not apply to the task.

    by_label            scores by label, entity type or choice
    confusion_matrix    int64 (L, L), gold labels in rows, predicted ones in columns; None for
                        multi-label examples, and for more than MAX_MATRIX_CLASSES classes
    confused_pairs      (gold, predicted, count), the most frequent first, where there are too
                        many classes for a matrix
    gold_and_predicted  the values of a regression, float64 (n,) each
    threshold_curve     where a question may have no answer
    mistakes            a sample of the wrong predictions, the most confident ones or the largest
                        errors first; for classes, of varied kinds
    """

    by_label: dict[str, LabelScores] = field(default_factory=dict)
    confusion_matrix: Int64s | None = None
    confused_pairs: Sequence[tuple[str, str, int]] = ()
    gold_and_predicted: tuple[Float64s, Float64s] | None = None
    threshold_curve: ThresholdCurve | None = None
    mistakes: Sequence[Mistake] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the scores by label and the confusion matrix, where they apply."""
        values: dict[str, Any] = {}
        if self.by_label:
            values["by_label"] = {label: scores._asdict() for label, scores in self.by_label.items()}
        if self.confusion_matrix is not None:
            values["confusion_matrix"] = self.confusion_matrix.tolist()
        return values


def analyze_classes(
    labels: Sequence[str], gold: Int64s, predicted: Int64s, mistakes: Sequence[Mistake]
) -> ErrorAnalysis:
    """Analyze predictions of one class for each example.

    Args:
        labels: the names of the classes.
        gold: class indices, int64 (n,).
        predicted: likewise.
        mistakes: a sample of the wrong predictions.
    """
    by_label = scores_by_label(labels, gold, predicted)
    if len(labels) <= MAX_MATRIX_CLASSES:
        matrix = confusion_matrix(gold, predicted, len(labels))
        return ErrorAnalysis(by_label, confusion_matrix=matrix, mistakes=mistakes)
    counts = Counter((truth, guess) for truth, guess in _pairs(gold, predicted) if truth != guess)
    confused = [
        (labels[truth], labels[guess], count)
        for (truth, guess), count in counts.most_common(MAX_CONFUSED_PAIRS)
    ]
    return ErrorAnalysis(by_label, confused_pairs=confused, mistakes=mistakes)


def scores_by_label(labels: Sequence[str], gold: LabelArray, predicted: LabelArray) -> dict[str, LabelScores]:
    """Return the scores of each label.

    `gold` and `predicted` are int64 (n,) class indices, or bool (n, L) for multi-label examples.
    """
    scores = label_scores(gold, predicted, len(labels))
    fractions = (scores.precision, scores.recall, scores.f1)
    percents = (map(percent, column.tolist()) for column in fractions)
    rows: Iterable[Any] = zip(*percents, scores.support.tolist(), strict=True)
    return {label: LabelScores(*row) for label, row in zip(labels, rows, strict=True)}


def sample_confusions(gold: Int64s, predicted: Int64s, confidence: Float64s | None = None) -> list[int]:
    """Return the indices of at most MAX_MISTAKES wrong predictions, of varied kinds.

    The sample has the most confident mistake of each confused pair of classes, in the order of the
    pairs' frequency; then the second of each pair, and so on. The most confident ones come first.
    Without `confidence`, the first examples are taken, in turns.
    """
    wrong = np.flatnonzero(gold != predicted)
    if confidence is not None:
        wrong = wrong[np.argsort(-confidence[wrong], kind="stable")]
    pairs = _pairs(gold[wrong], predicted[wrong])
    counts, seen = Counter(pairs), Counter[tuple[int, int]]()
    turns = []
    for pair in pairs:
        turns.append((seen[pair], -counts[pair]))
        seen[pair] += 1
    sample = sorted(range(len(pairs)), key=turns.__getitem__)[:MAX_MISTAKES]
    return [int(wrong[i]) for i in (sample if confidence is None else sorted(sample))]


def top_probabilities(logits: Float32s) -> Float64s:
    """Return the softmax probability of the likeliest class: float64 (n,).

    The logits are (n, L).
    """
    return np.asarray(softmax(logits).max(axis=1))


def probability_at(confidence: Float64s | None, i: int) -> float | None:
    """Return the probability of prediction `i`, None if it is unknown."""
    return None if confidence is None else float(confidence[i])


def largest_errors(errors: npt.NDArray[Any], confidence: Float64s | None = None) -> list[int]:
    """Return the indices of the MAX_MISTAKES largest errors, without zeros.

    Of equal errors, the most confident ones come first.
    """
    order = np.lexsort((np.zeros(len(errors)) if confidence is None else -confidence, -errors))
    return [int(i) for i in order[: min(MAX_MISTAKES, np.count_nonzero(errors))]]


def shorten(text: str, length: int = MISTAKE_LENGTH) -> str:
    """Cut a text to one line of at most `length` characters, with an ellipsis."""
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 1] + "…"


def join_names(names: Iterable[str | None], separator: str = ", ") -> str:
    """Join names in one short line; "nothing" if all of them are empty."""
    return shorten(separator.join(filter(None, names))) or "nothing"


def _pairs(gold: Int64s, predicted: Int64s) -> list[tuple[int, int]]:
    return list(zip(gold.tolist(), predicted.tolist(), strict=True))
