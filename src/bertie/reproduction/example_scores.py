"""The score of every dev example, which intervals over examples are computed from.

A cell keeps the scores of its examples in `examples.npz`, with an array of shape (examples, k) for
each outcome:

    k = 1   the score of an example. The outcome is the mean of the scores, in percent unless it is
            a loss
    k = 3   the numbers of matched, predicted and gold items of an example, such as entities. The
            outcome is F1 in percent, from their sums
"""

import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from bertie.base.arrays import Float64s
from bertie.base.errors import DataError
from bertie.base.files import atomic_file

EXAMPLES_FILE = "examples.npz"

ExampleScores = npt.NDArray[Any]  # float32 or int32, (examples, 1 or 3)


def write_example_scores(directory: Path, scores: Mapping[str, ExampleScores]) -> None:
    """Write the scores of a cell's examples.

    Args:
        directory: the cell's directory, or a fine-tuning run.
        scores: by outcome name, float32 or int32 (examples, 1 or 3).
    """
    with atomic_file(directory / EXAMPLES_FILE) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **scores)


def read_example_scores(directory: Path) -> dict[str, ExampleScores]:
    """Read the scores of a cell's examples by outcome name; empty if there is no file.

    Raises:
        DataError: the file is damaged.
    """
    path = directory / EXAMPLES_FILE
    if not path.exists():
        return {}
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (EOFError, ValueError, BadZipFile, zlib.error):
        raise DataError(
            f"{path}: damaged; delete it and the result.json beside it, and the same command computes them "
            f"again"
        ) from None


def score_of(outcome: str, scores: ExampleScores) -> float:
    """Return the outcome that the scores of its examples give.

    Args:
        outcome: the outcome's name, such as `sst-2/dev/accuracy`.
        scores: (examples, 1 or 3).
    """
    if scores.shape[1] == 3:
        matched, predicted, gold = scores.sum(axis=0, dtype=np.float64)
        return float(200.0 * matched / max(predicted + gold, 1.0))
    return float(scores.mean(dtype=np.float64)) * _unit(outcome)


def deviations(outcome: str, scores: ExampleScores) -> Float64s:
    """Return how far each example moves the outcome from its value.

    The deviations are linear: an outcome of other examples is the present one plus the mean of
    their deviations. This is exact for means. For F1 it holds to first order (the delta method),
    and so well for the thousands of sentences of a dev set.

    Args:
        outcome: the outcome's name.
        scores: (examples, 1 or 3).

    Returns:
        float64 (examples,), with mean 0.
    """
    score, scores = score_of(outcome, scores), scores.astype(np.float64)
    if scores.shape[1] == 3:
        items = scores[:, 1] + scores[:, 2]  # predicted and gold
        moved: Float64s = (200.0 * scores[:, 0] - score * items) / max(items.mean(), 1e-12)
        return moved
    return scores[:, 0] * _unit(outcome) - score


def _unit(outcome: str) -> float:
    return 1.0 if outcome.endswith("loss") else 100.0  # percent
