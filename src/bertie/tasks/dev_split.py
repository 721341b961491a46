"""Draw a dev set from training examples."""

from typing import Any

import numpy as np

from bertie.base.errors import DataError, SettingsError
from bertie.base.random import permutation
from bertie.base.texts import count_noun
from bertie.tasks.task import Task

MAX_FRACTION = 0.5  # a class of two examples keeps one of them for training
_SEED = 0  # not the run's, so that runs with other seeds have the same dev set


def check_fraction(fraction: float) -> None:
    """Raise SettingsError unless a dev set can be this fraction of the data."""
    if not 0 < fraction <= MAX_FRACTION:
        raise SettingsError(
            f"dev={fraction:g}: expected a fraction above 0 and at most {MAX_FRACTION} of the examples"
        )


def draw_dev_examples(task: Task[Any, Any], examples: Any, fraction: float, source: object) -> list[int]:
    """Draw a fraction of labelled examples for evaluation, always the same ones.

    The fraction of each label is about the same (`Task.strata`), and examples that share a text are
    not separated (`Task.groups`).

    Args:
        task: the task, fitted to the examples.
        examples: the examples to draw from.
        fraction: above 0, and at most 0.5.
        source: the file of the examples, for error messages.

    Returns:
        The indices of the drawn examples, ascending.

    Raises:
        SettingsError: the fraction is out of range.
        DataError: there are too few examples.
    """
    check_fraction(fraction)
    every_group = task.groups(examples)
    groups, first = np.unique(every_group, return_index=True)
    every_stratum = task.strata(examples)
    strata = [every_stratum[i] for i in first]
    rank = {value: number for number, value in enumerate(sorted(set(strata)))}
    order = np.lexsort((permutation(len(groups), _SEED), np.array([rank[value] for value in strata])))
    # Every n-th group in the order of the strata, where n is 1 / fraction.
    counts = np.floor(np.arange(len(groups) + 1) * fraction + 0.5)
    drawn = groups[order[np.diff(counts) > 0]]
    if not len(drawn) or len(drawn) == len(groups):
        found = str(len(groups))
        if len(groups) < len(every_group):
            found = f"{len(every_group):,}, which share {count_noun(len(groups), 'context or document')}"
        advice = "give a larger fraction or a dev file" if len(groups) > 1 else "give a dev file"
        raise DataError(f"{source}: too few examples for a dev set of {fraction:g}: {found}; {advice}")
    indices: list[int] = np.flatnonzero(np.isin(every_group, drawn)).tolist()
    return indices
