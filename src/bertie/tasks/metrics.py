"""Metrics that compare predictions with gold labels.

Metrics are fractions between 0 and 1, correlations are between -1 and 1; the tasks report `percent`.
`gold` and `predicted` are arrays of the same shape and type:

    int64 (n,)    class indices
    bool (n,)     whether each example belongs to one class
    bool (n, L)   multi-label: whether each example has each of L labels
    float64 (n,)  regression values

A score that would be 0 / 0 is 0. For counts this is scikit-learn's choice; scipy leaves the
correlation with a constant undefined.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bertie.base.arrays import Float64s, Int64s

LabelArray = npt.NDArray[Any]  # any of the arrays in the docstring above


class PerLabelScores(NamedTuple):
    """Scores of each of L labels.

    precision  float64 (L,)
    recall     float64 (L,)
    f1         float64 (L,)
    support    int64 (L,)    number of gold examples
    """

    precision: Float64s
    recall: Float64s
    f1: Float64s
    support: Int64s


def percent(fraction: float) -> float:
    """Return a fraction in percent, without the rounding error of the product.

    Example:
        >>> 100 * 0.55, percent(0.55)
        (55.00000000000001, 55.0)
    """
    return round(100 * fraction, 10)


def accuracy(gold: LabelArray, predicted: LabelArray) -> float:
    """Return the fraction of correct predictions.

    A multi-label example is correct if all its labels are.
    """
    return float((gold == predicted).reshape(len(gold), -1).all(axis=1).mean())


def f1(gold: LabelArray, predicted: LabelArray) -> float:
    """Return the F1 of boolean decisions.

    The decisions are about one class (MRPC, QQP), or about all labels together (micro F1).
    """
    return float(_ratio(2 * (gold & predicted).sum(), gold.sum() + predicted.sum()))


def f1_macro(gold: LabelArray, predicted: LabelArray) -> float:
    """Return the mean F1 of all labels.

    For class indices, only the classes that are gold or predicted somewhere count.
    """
    if gold.ndim == 1:
        classes, indices = np.unique(np.concatenate([gold, predicted]), return_inverse=True)
        gold, predicted = np.split(indices.astype(np.int64), 2)
        return float(label_scores(gold, predicted, len(classes)).f1.mean())
    return float(label_scores(gold, predicted, gold.shape[1]).f1.mean())


def matthews_correlation(gold: Int64s, predicted: Int64s) -> float:
    """Return Matthews' correlation of class indices (CoLA).

    For more than two classes this is Gorodkin's R_K (GLUE's diagnostic set).
    """
    matrix = confusion_matrix(gold, predicted, int(max(gold.max(), predicted.max())) + 1).astype(np.float64)
    gold_counts, predicted_counts, total = matrix.sum(axis=1), matrix.sum(axis=0), matrix.sum()
    covariance = matrix.trace() * total - gold_counts @ predicted_counts
    gold_variance = total**2 - gold_counts @ gold_counts
    predicted_variance = total**2 - predicted_counts @ predicted_counts
    return float(_ratio(covariance, np.sqrt(gold_variance) * np.sqrt(predicted_variance)))


def pearson(gold: Float64s, predicted: Float64s) -> float:
    """Return Pearson's correlation (STS-B)."""
    if (gold == gold[0]).all() or (predicted == predicted[0]).all():
        return 0.0
    gold, predicted = gold - gold.mean(), predicted - predicted.mean()
    return float(np.clip((gold / np.linalg.norm(gold)) @ (predicted / np.linalg.norm(predicted)), -1, 1))


def spearman(gold: Float64s, predicted: Float64s) -> float:
    """Return Spearman's rank correlation (STS-B); equal values share their mean rank."""
    return pearson(_ranks(gold), _ranks(predicted))


def label_scores(gold: LabelArray, predicted: LabelArray, num_labels: int) -> PerLabelScores:
    """Return precision, recall, F1 and support of each label."""
    if gold.ndim == 1:
        correct = np.bincount(gold[gold == predicted], minlength=num_labels)
        support, answered = (np.bincount(indices, minlength=num_labels) for indices in (gold, predicted))
    else:
        correct, support, answered = (marks.sum(axis=0) for marks in (gold & predicted, gold, predicted))
    return PerLabelScores(
        _ratio(correct, answered), _ratio(correct, support), _ratio(2 * correct, support + answered), support
    )


def confusion_matrix(gold: Int64s, predicted: Int64s, num_classes: int) -> Int64s:
    """Count how often each class (row) was predicted as each class (column).

    Returns:
        int64 (num_classes, num_classes).
    """
    counts = np.bincount(gold * num_classes + predicted, minlength=num_classes * num_classes)
    return counts.reshape(num_classes, num_classes)


def _ratio(part: Any, whole: Any) -> Float64s:
    """Divide element by element; where `whole` is 0 the result is 0."""
    part, whole = np.asarray(part, dtype=np.float64), np.asarray(whole, dtype=np.float64)
    ratio: Float64s = np.divide(part, whole, out=np.zeros_like(whole), where=whole != 0)
    return ratio


def _ranks(values: Float64s) -> Float64s:
    """Return the rank of each value, from 1; equal values share their mean rank."""
    _, indices, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Float64s = (np.cumsum(counts) - (counts - 1) / 2)[indices]
    return ranks
