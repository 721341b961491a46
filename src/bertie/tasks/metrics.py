"""Scores of predictions against gold labels."""

import numpy as np
import numpy.typing as npt


def accuracy(gold: npt.NDArray[np.int64], predicted: npt.NDArray[np.int64]) -> float:
    """The share of predictions that are right."""
    return float((gold == predicted).mean())


def confusion_matrix(
    gold: npt.NDArray[np.int64], predicted: npt.NDArray[np.int64], classes: int
) -> npt.NDArray[np.int64]:
    """int64 (classes, classes): how often class `row` was predicted as class `column`."""
    cells = np.bincount(gold * classes + predicted, minlength=classes * classes)
    return cells.reshape(classes, classes)
