"""Test whether the orderings of a table hold here: paired t-tests over seeds.

The test for "row A is better than row B in a column" compares cells of the same seed. The seeds
give n paired differences A - B, with the sign changed where lower is better. Their mean has the
two-sided 95 % confidence interval

    mean ± t · s / √n

where s is the standard deviation of the differences and t the 97.5 % quantile of Student's t
distribution with n - 1 degrees of freedom. The ordering is "held" if the whole interval is above 0,
"reversed" if it is below 0, and otherwise "unresolved". This is a paired t-test at the 5 % level.
It assumes normally distributed differences, and is not corrected for the number of orderings:
without any real difference, one ordering in twenty would be held or reversed.
"""

import math
import statistics
from collections.abc import Sequence
from typing import Literal, NamedTuple

from bertie.reproduction.cells import Cell
from bertie.reproduction.tables import Column, Row, Table

Decision = Literal["held", "reversed", "unresolved"]

# Rounding errors of scores in percent and of perplexities are smaller, real differences are larger.
ROUNDING_ERROR = 1e-9
# 97.5 % quantiles of Student's t distribution, for 1, 2, … degrees of freedom. For more degrees of freedom,
# the last one is used, which makes the interval a little wider than 95 %.
T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145)


class ConfidenceInterval(NamedTuple):
    """The mean of n values and its 95 % confidence interval, mean ± half_width.

    The half-width is infinite for one value.
    """

    mean: float
    half_width: float
    n: int


class Verdict(NamedTuple):
    """The test of one ordering.

    Attributes:
        better: the row that should be better.
        worse: the row that should be worse.
        column: the column of the ordering.
        paper_difference: advantage of `better` in the paper; None if the paper has no numbers.
        difference: advantage of `better` here; None if no seed has both rows.
        decision: the result of the test.
    """

    better: Row
    worse: Row
    column: Column
    paper_difference: float | None
    difference: ConfidenceInterval | None
    decision: Decision


def confidence_interval(values: Sequence[float]) -> ConfidenceInterval:
    """Return the 95 % t interval of the mean of one or more values."""
    n = len(values)
    half_width = math.inf
    if n > 1:
        t = T_975[min(n - 1, len(T_975)) - 1]
        half_width = t * statistics.stdev(values) / math.sqrt(n)
    return ConfidenceInterval(statistics.mean(values), half_width, n)


def values_by_seed(cells: Sequence[Cell], row: Row, column: Column) -> dict[int, float]:
    """Return the values of a row in a column by seed, from the finished cells."""
    name = row.outcome(column)
    return {
        cell.seed: cell.outcomes[name]
        for cell in cells
        if cell.row.name == row.name and cell.outcomes and name in cell.outcomes
    }


def judge_orderings(table: Table, cells: Sequence[Cell]) -> list[Verdict]:
    """Test every ordering of the table."""
    verdicts = []
    for better, worse, column in table.orderings():
        sign = -1 if column.lower_is_better else 1
        paper_difference = None
        if column.name in better.paper and column.name in worse.paper:
            paper_difference = sign * (better.paper[column.name] - worse.paper[column.name])
        better_values, worse_values = (values_by_seed(cells, row, column) for row in (better, worse))
        differences = [
            sign * (better_values[seed] - worse_values[seed])
            for seed in better_values
            if seed in worse_values
        ]
        difference = confidence_interval(differences) if differences else None
        verdicts.append(Verdict(better, worse, column, paper_difference, difference, _decide(difference)))
    return verdicts


def _decide(difference: ConfidenceInterval | None) -> Decision:
    # Differences that vary only by rounding come from models that predict the same class for every example,
    # and are no evidence.
    if difference is None or not ROUNDING_ERROR < difference.half_width < abs(difference.mean):
        return "unresolved"
    return "held" if difference.mean > 0 else "reversed"
