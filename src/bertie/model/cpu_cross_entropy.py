"""Cross-entropy on a CPU: a kernel that reads each row of logits while it is in a core's cache."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertie.base.kernels import float_kernel, vectorize_loops
from bertie.base.threads import run_in_threads
from bertie.model.cpu import count_threads
from bertie.model.cpu_math import LOG2_E, ONE, ZERO, power_of_2
from bertie.model.objectives import IGNORE_INDEX

DTYPES = (torch.float32, torch.bfloat16)
CHUNK = 2**19  # converted logits at a time: 2 MiB in float32, which stay in a core's cache
LANES = 64  # numbers that the search for the highest logit compares at a time

Float32s = NDArray[np.float32]


def cpu_cross_entropy(logits: Tensor, labels: Tensor, overwrite: bool) -> tuple[Tensor, Tensor]:
    """Compute `cross_entropy` of logits in one of DTYPES.

    Args:
        logits: (n, classes).
        labels: classes, int64 (n,); rows with IGNORE_INDEX are not targets.
        overwrite: whether to replace the logits by their gradient.

    Returns:
        The sum, float32 (), and the number of correct predictions, int64 ().
    """
    losses, correct = np.empty(len(logits), np.float32), np.empty(len(logits), np.bool_)
    n = max(len(logits) if logits.dtype == torch.float32 else CHUNK // logits.shape[1], 1)
    for start in range(0, len(logits), n):
        rows = slice(start, start + n)
        scores = logits[rows].float().contiguous()  # if possible, the logits themselves
        arguments = (scores.numpy(), labels[rows].numpy(), overwrite, losses[rows], correct[rows])
        run_in_threads(
            lambda first, last: _compute_rows(first, last, *arguments),  # noqa: B023
            len(scores),
            count_threads(scores.numel()),
        )
        if overwrite and scores.data_ptr() != logits[rows].data_ptr():
            logits[rows] = scores
    return torch.tensor(losses.sum(dtype=np.float64), dtype=torch.float32), torch.tensor(correct.sum())


@float_kernel
def _compute_rows(
    first: int,
    last: int,
    scores: Float32s,
    labels: NDArray[np.int64],
    overwrite: bool,
    losses: Float32s,
    correct: NDArray[np.bool_],
) -> None:
    """Compute the losses of rows first..last-1 and whether their predictions are correct."""
    vectorize_loops()
    lanes = np.empty(LANES, np.float32)
    for n in range(first, last):
        row, is_target = scores[n], labels[n] != IGNORE_INDEX
        label = labels[n] if is_target else 0
        score, best = row[label], _highest(row, lanes)
        # The prediction is the first class with the highest logit.
        correct[n] = is_target and score == best and not (row[:label] == best).any()
        total = ZERO
        if overwrite:
            for j in range(len(row)):
                row[j] = power_of_2((row[j] - best) * LOG2_E)
                total += row[j]
            scale = ONE / total if is_target else ZERO
            for j in range(len(row)):
                row[j] *= scale
            row[label] -= ONE if is_target else ZERO
        else:
            for j in range(len(row)):
                total += power_of_2((row[j] - best) * LOG2_E)
        losses[n] = best - score + np.log(total) if is_target else ZERO


@float_kernel
def _highest(row: Float32s, lanes: Float32s) -> np.float32:
    """Return the highest number of a row; `lanes` has LANES elements."""
    vectorize_loops()
    lanes[:] = -np.inf
    whole = len(row) - len(row) % LANES
    for j in range(0, whole, LANES):
        block = row[j : j + LANES]
        for i in range(LANES):
            lanes[i] = block[i] if block[i] > lanes[i] else lanes[i]
    best = np.float32(-np.inf)
    for i in range(LANES):
        best = max(best, lanes[i])
    for j in range(whole, len(row)):
        best = max(best, row[j])
    return best
