"""Scores of predictions against gold labels, as shares: a hundredth of what the official scorers print.

`gold` and `predicted` are int64 (n,), the classes' numbers; bool (n,), whether each is of one class; bool
(n, L) where a text has several labels; or float64 (n,), numbers. Where a score is 0 / 0 it is 0, which is
scikit-learn's choice for counts; the correlation with a constant, which scipy calls undefined, is 0 too.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Labels = npt.NDArray[Any]
Int64s = npt.NDArray[np.int64]
Float64s = npt.NDArray[np.float64]


class LabelScores(NamedTuple):
    """Float64 (L,) each, in the order of the labels; `support` int64 (L,): how many are gold."""

    precision: Float64s
    recall: Float64s
    f1: Float64s
    support: Int64s


def accuracy(gold: Labels, predicted: Labels) -> float:
    """The share of predictions that are right; of several labels, all of a text's have to be."""
    return float((gold == predicted).reshape(len(gold), -1).all(axis=1).mean())


def f1(gold: Labels, predicted: Labels) -> float:
    """Of all decisions, which are bool: of one class or not (MRPC, QQP), or about all labels together."""
    return float(_ratio(2 * (gold & predicted).sum(), gold.sum() + predicted.sum()))


def f1_macro(gold: Labels, predicted: Labels) -> float:
    """The mean over the labels; of one label a text, over the classes that are gold or predicted."""
    if gold.ndim == 1:
        present, numbers = np.unique(np.concatenate([gold, predicted]), return_inverse=True)
        gold, predicted = np.split(numbers.astype(np.int64), 2)
        return float(label_scores(gold, predicted, len(present)).f1.mean())
    return float(label_scores(gold, predicted, gold.shape[1]).f1.mean())


def matthews_correlation(gold: Int64s, predicted: Int64s) -> float:
    """Matthews' correlation of two classes (CoLA), or Gorodkin's R_K of more (the diagnostic set)."""
    cells = confusion_matrix(gold, predicted, int(max(gold.max(), predicted.max())) + 1).astype(np.float64)
    gold_counts, predicted_counts, total = cells.sum(axis=1), cells.sum(axis=0), cells.sum()
    covariance = cells.trace() * total - gold_counts @ predicted_counts
    gold_variance = total**2 - gold_counts @ gold_counts
    predicted_variance = total**2 - predicted_counts @ predicted_counts
    return float(_ratio(covariance, np.sqrt(gold_variance) * np.sqrt(predicted_variance)))


def pearson(gold: Float64s, predicted: Float64s) -> float:
    """The correlation of the numbers (STS-B)."""
    if (gold == gold[0]).all() or (predicted == predicted[0]).all():
        return 0.0
    gold, predicted = gold - gold.mean(), predicted - predicted.mean()
    return float(np.clip((gold / np.linalg.norm(gold)) @ (predicted / np.linalg.norm(predicted)), -1, 1))


def spearman(gold: Float64s, predicted: Float64s) -> float:
    """The correlation of their ranks, equal numbers sharing the mean of theirs (STS-B)."""
    return pearson(_ranks(gold), _ranks(predicted))


def label_scores(gold: Labels, predicted: Labels, classes: int) -> LabelScores:
    """Precision, recall and F1 of each label."""
    if gold.ndim == 1:
        found = np.bincount(gold[gold == predicted], minlength=classes)
        support, answered = (np.bincount(numbers, minlength=classes) for numbers in (gold, predicted))
    else:
        found, support, answered = (marks.sum(axis=0) for marks in (gold & predicted, gold, predicted))
    return LabelScores(
        _ratio(found, answered), _ratio(found, support), _ratio(2 * found, support + answered), support
    )


def confusion_matrix(gold: Int64s, predicted: Int64s, classes: int) -> Int64s:
    """int64 (classes, classes): how often class `row` was predicted as class `column`."""
    cells = np.bincount(gold * classes + predicted, minlength=classes * classes)
    return cells.reshape(classes, classes)


def _ratio(part: Any, whole: Any) -> Float64s:
    """`part` / `whole`, and 0 where `whole` is."""
    part, whole = np.asarray(part, dtype=np.float64), np.asarray(whole, dtype=np.float64)
    ratio: Float64s = np.divide(part, whole, out=np.zeros_like(whole), where=whole != 0)
    return ratio


def _ranks(numbers: Float64s) -> Float64s:
    _, places, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    ranks: Float64s = (np.cumsum(counts) - (counts - 1) / 2)[places]
    return ranks
