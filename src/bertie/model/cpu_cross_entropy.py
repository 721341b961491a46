"""Compute cross-entropy on a CPU.

A kernel reads each row of logits while it is in a core's cache.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertie.base.arrays import Bools, Float32s, Int64s
from bertie.base.kernels import float_kernel, vectorize_loops
from bertie.base.threads import run_in_threads
from bertie.model.cpu import count_threads
from bertie.model.cpu_bfloat16 import rounded, to_numpy, widened
from bertie.model.cpu_math import LOG2_E, ONE, ZERO, power_of_2
from bertie.model.objectives import IGNORE_INDEX

DTYPES = (torch.float32, torch.bfloat16)
LANES = 64  # numbers that the search for the highest logit compares at a time


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
    arguments = (*to_numpy(logits, labels), overwrite, losses, correct)
    threads = count_threads(logits.numel())
    run_in_threads(lambda first, last: _compute_rows(first, last, *arguments), len(logits), threads)
    return torch.tensor(losses.sum(dtype=np.float64), dtype=torch.float32), torch.tensor(correct.sum())


@float_kernel
def _compute_rows(
    first: int,
    last: int,
    logits: NDArray[Any],
    labels: Int64s,
    overwrite: bool,
    losses: Float32s,
    correct: Bools,
) -> None:
    """Compute the losses of rows first..last-1.

    Also compute whether their predictions are correct.
    """
    vectorize_loops()
    lanes, row = np.empty(LANES, np.float32), np.empty(logits.shape[1], np.float32)
    for n in range(first, last):
        source, is_target = logits[n], labels[n] != IGNORE_INDEX
        for j in range(len(row)):
            row[j] = widened(source[j])
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
            row[label] -= total if is_target else ZERO
            for j in range(len(row)):
                source[j] = rounded(row[j] * scale, source[j])
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
