"""Whether an ordering of the paper holds here: a 95 % t interval of differences between cells of a seed."""

import math
import statistics
from collections.abc import Sequence
from typing import Literal, NamedTuple

from bertie.reproduction.runner import Cell
from bertie.reproduction.tables import Column, Row, Table

Word = Literal["held", "reversed", "unresolved"]

ROUNDING = 1e-9  # of figures up to some hundred
# Student's t: 97.5 % of it is below, by degrees of freedom from 1 on. With more, the last is a little wide.
T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145)


class Interval(NamedTuple):
    """A mean over n seeds, and the half width of its 95 % interval: infinite where n is 1."""

    mean: float
    half_width: float
    n: int


class Verdict(NamedTuple):
    """What was found of an ordering.

    better, worse, column  it
    paper                  by how much `better` is better in the paper; None where it has no numbers
    difference             by how much here, in pairs of one seed; None where no seed has both
    word                   held or reversed, where the interval leaves out 0
    """

    better: Row
    worse: Row
    column: Column
    paper: float | None
    difference: Interval | None
    word: Word


def interval(values: Sequence[float]) -> Interval:
    """Of the mean of one value or more, taken as drawn from a normal distribution."""
    n = len(values)
    half_width = math.inf
    if n > 1:
        t = T_975[min(n - 1, len(T_975)) - 1]
        half_width = t * statistics.stdev(values) / math.sqrt(n)
    return Interval(statistics.mean(values), half_width, n)


def values_of(cells: Sequence[Cell], row: Row, column: Column) -> dict[int, float]:
    """What a column has in a row, by seed, of the cells that did not fail."""
    return {
        cell.seed: cell.outcomes[row.outcome(column)]
        for cell in cells
        if cell.row.name == row.name and cell.outcomes and row.outcome(column) in cell.outcomes
    }


def judge(table: Table, cells: Sequence[Cell]) -> list[Verdict]:
    """Every ordering that the table claims."""
    verdicts = []
    for better, worse, column in table.claimed():
        sign = -1 if column.lower_is_better else 1
        paper = None
        if column.name in better.paper and column.name in worse.paper:
            paper = sign * (better.paper[column.name] - worse.paper[column.name])
        ours, theirs = (values_of(cells, row, column) for row in (better, worse))
        pairs = [sign * (ours[seed] - theirs[seed]) for seed in ours if seed in theirs]
        difference = interval(pairs) if pairs else None
        verdicts.append(Verdict(better, worse, column, paper, difference, _word(difference)))
    return verdicts


def _word(difference: Interval | None) -> Word:
    # Without variation but for rounding they are models that give all examples one answer, and tell nothing.
    if difference is None or not ROUNDING < difference.half_width < abs(difference.mean):
        return "unresolved"
    return "held" if difference.mean > 0 else "reversed"
