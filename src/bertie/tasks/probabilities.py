"""Turn logits into probabilities, and rank them."""

import numpy as np
import numpy.typing as npt

Float32s = npt.NDArray[np.float32]
Float64s = npt.NDArray[np.float64]


def softmax(logits: Float32s | Float64s) -> Float64s:
    """Return the softmax over the last axis, in float64."""
    exponentials = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    probabilities: Float64s = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return probabilities


def sigmoid(logits: Float32s | Float64s) -> Float64s:
    """Return the sigmoid of each logit, in float64."""
    values: Float64s = (1 + np.tanh(logits.astype(np.float64) / 2)) / 2  # exp(-x) may overflow
    return values


def rank(probabilities: Float64s, limits: Float64s | float = 0.0) -> list[tuple[int, float]]:
    """Return the (index, probability) pairs of one row, the one furthest above its limit first."""
    order = np.argsort(limits - probabilities, kind="stable")
    return list(zip(order.tolist(), probabilities[order].tolist(), strict=True))


def top_softmax(logits: Float32s, count: int) -> tuple[npt.NDArray[np.int64], Float32s]:
    """Return the most likely entries of each row, best first.

    The softmax is computed in float32, since a row holds a logit for every entry of the vocabulary.

    Args:
        logits: float32 (rows, V).
        count: number of entries to return, at most V.

    Returns:
        The indices, int64 (rows, count), and their probabilities, float32 (rows, count).
    """
    count = min(count, logits.shape[1])
    best = np.argpartition(logits, -count, axis=1)[:, -count:]
    best = np.take_along_axis(best, np.take_along_axis(-logits, best, 1).argsort(1, kind="stable"), 1)
    highest = logits.max(1, keepdims=True)
    exponentials = np.exp(np.take_along_axis(logits, best, 1) - highest)
    return best, exponentials / np.exp(logits - highest).sum(1, keepdims=True)
