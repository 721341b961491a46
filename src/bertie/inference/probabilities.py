"""Logits -> probabilities, in float64."""

import numpy as np
import numpy.typing as npt

Float32s = npt.NDArray[np.float32]
Float64s = npt.NDArray[np.float64]


def softmax(logits: Float32s) -> Float64s:
    """Over the last axis."""
    exponentials = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    probabilities: Float64s = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return probabilities


def sigmoid(logits: Float32s) -> Float64s:
    """Of each logit by itself."""
    values: Float64s = (1 + np.tanh(logits.astype(np.float64) / 2)) / 2  # exp(-x) may overflow
    return values


def ranked(probabilities: Float64s) -> list[tuple[int, float]]:
    """Numbers and probabilities, the likeliest first."""
    order = np.argsort(-probabilities, kind="stable")
    return list(zip(order.tolist(), probabilities[order].tolist(), strict=True))


def likeliest(logits: Float32s, count: int) -> tuple[npt.NDArray[np.int64], Float32s]:
    """Numbers and probabilities of each row's best entries, the likeliest first, both (rows, count).

    In float32: a row is a vocabulary.
    """
    count = min(count, logits.shape[1])
    best = np.argpartition(logits, -count, axis=1)[:, -count:]
    best = np.take_along_axis(best, np.take_along_axis(-logits, best, 1).argsort(1, kind="stable"), 1)
    top = logits.max(1, keepdims=True)
    scores = np.exp(np.take_along_axis(logits, best, 1) - top) / np.exp(logits - top).sum(1, keepdims=True)
    return best, scores
