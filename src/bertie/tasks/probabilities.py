"""Turn logits into probabilities, and rank them."""

from collections.abc import Iterator

import numpy as np

from bertie.base.arrays import Float32s, Float64s, Int64s

BLOCK_LOGITS = 1 << 22  # in float64 at a time, 32 MiB: there may be thousands of classes


def softmax(logits: Float32s | Float64s) -> Float64s:
    """Return the softmax over the last axis, in float64."""
    exponentials = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    probabilities: Float64s = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return probabilities


def blocks(logits: Float32s | Float64s) -> Iterator[tuple[slice, Float64s]]:
    """Iterate over rows of logits (n, classes), about `BLOCK_LOGITS` at a time.

    Yields:
        The range of the rows, and their logits in float64.
    """
    size = max(1, BLOCK_LOGITS // logits.shape[1])
    for start in range(0, len(logits), size):
        rows = slice(start, start + size)
        yield rows, logits[rows].astype(np.float64)


def chosen_softmax(logits: Float32s | Float64s, choices: Int64s, temperature: float = 1.0) -> Float64s:
    """Return the probability of one class of each row.

    It is from the softmax of logits / temperature.

    Args:
        logits: (n, classes).
        choices: the index of a class of each row, int64 (n,).
        temperature: the number that logits are divided by.
    """
    chosen = np.empty(len(logits))
    for rows, block in blocks(logits):
        chosen[rows] = softmax(block / temperature)[np.arange(len(block)), choices[rows]]
    return chosen


def sigmoid(logits: Float32s | Float64s) -> Float64s:
    """Return the sigmoid of each logit, in float64."""
    values: Float64s = (1 + np.tanh(logits.astype(np.float64) / 2)) / 2  # exp(-x) may overflow
    return values


def label_probabilities(logits: Float32s, is_multilabel: bool, temperature: float | None) -> Float64s:
    """Return the probabilities of a classifier's labels, in float64.

    A threshold may lie between two logits that are equal in float32 after their division by the temperature,
    so evaluation and prediction both use this function.

    Args:
        logits: float32 (n, labels).
        is_multilabel: whether the labels are independent: the sigmoid of each, instead of the softmax.
        temperature: the number that logits are divided by; None for 1.
    """
    scaled = logits.astype(np.float64) / (temperature or 1)
    return sigmoid(scaled) if is_multilabel else softmax(scaled)


def rank(probabilities: Float64s, limits: Float64s | float = 0.0) -> list[tuple[int, float]]:
    """Return the (index, probability) pairs of one row.

    The one furthest above its limit is first.
    """
    order = np.argsort(limits - probabilities, kind="stable")
    return list(zip(order.tolist(), probabilities[order].tolist(), strict=True))


def top_softmax(logits: Float32s, count: int) -> tuple[Int64s, Float32s]:
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
