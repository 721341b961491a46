"""Decide whether the orderings of a table hold here.

The test for "row A is better than row B in a column" compares cells of the same seed, on the same
dev examples. `intervals` gives the mean of the differences A - B, with the sign changed where lower
is better, its 95 % interval over seeds and examples, and a p-value. The spread over the seeds is estimated
with the help of the table's other orderings, of scores and of losses separately. Holm's method adjusts
the p-values for the number of orderings in the table. The ordering is

    at chance    if the row with the better mean is not above the baseline: its own 95 % interval
                 does not exclude the score of the majority class, or the loss of the unigram
                 baseline. If the adjusted p-value is above 5 %, neither row may be above it
    held         if the adjusted p-value is at most 5 %, and A is better
    reversed     if it is at most 5 %, and B is better
    unresolved   otherwise

Perplexities are compared as logarithms, which are losses.
"""

import math
import statistics
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from bertie.base.arrays import Float64s
from bertie.reproduction.cells import Cell, Outcomes
from bertie.reproduction.example_scores import deviations
from bertie.reproduction.intervals import (
    LEVEL,
    ROUNDING_ERROR,
    ConfidenceInterval,
    adjust_p_values,
    confidence_interval,
    prior_variance,
)
from bertie.reproduction.tables import HELD_OUT, Column, Row, Table, source_of

Decision = Literal["held", "reversed", "unresolved", "at chance"]

# Metrics of the held-out text, and the baselines on the same text.
HELD_OUT_BASELINES = {
    "loss": "unigram_loss",  # of the tokens that the row predicts
    "masked_lm_loss": "unigram_loss",
    "language_model_loss": "unigram_loss",
    "perplexity": "unigram_loss",
    "next_sentence_accuracy": "majority_accuracy",
}


class Verdict(NamedTuple):
    """The test of one ordering.

    Attributes:
        better: the row that should be better.
        worse: the row that should be worse.
        column: the column of the ordering.
        paper_difference: advantage of `better` in the paper; None if the paper has no numbers.
        difference: advantage of `better` here; None if no seed has both rows.
        p_value: adjusted for the number of orderings in the table.
        decision: the result of the test.

    Differences of perplexities are differences of their logarithms.
    """

    better: Row
    worse: Row
    column: Column
    paper_difference: float | None
    difference: ConfidenceInterval | None
    p_value: float
    decision: Decision


class PairedDifferences(NamedTuple):
    """The advantages of one row over another, seed by seed.

    Attributes:
        values: by seed; empty if no seed has both rows.
        deviations: float64 (seeds, examples), the contribution of each example to each value; None if
            only seeds vary.
    """

    values: list[float]
    deviations: Float64s | None


def cells_by_seed(cells: Sequence[Cell], row: Row, column: Column) -> dict[int, Cell]:
    """Return the finished cells of a row that have the outcome of a column, by seed."""
    name = row.outcome(column)
    return {
        cell.seed: cell
        for cell in cells
        if cell.row.name == row.name and cell.outcomes and name in cell.outcomes
    }


def values_by_seed(cells: Sequence[Cell], row: Row, column: Column) -> dict[int, float]:
    """Return the values of a row in a column by seed, from the finished cells."""
    return {
        seed: (cell.outcomes or {})[row.outcome(column)]
        for seed, cell in cells_by_seed(cells, row, column).items()
    }


def row_interval(cells: Sequence[Cell], row: Row, column: Column) -> ConfidenceInterval | None:
    """Return the interval of a row's mean in a column; None if no seed has a value.

    For a perplexity it is the interval of the logarithm.
    """
    found = list(cells_by_seed(cells, row, column).values())
    if not found:
        return None
    return confidence_interval([_value(cell, row, column) for cell in found], _deviations(found, row, column))


def judge_orderings(table: Table, cells: Sequence[Cell], majority_baseline: Outcomes) -> list[Verdict]:
    """Test every ordering of the table.

    Args:
        table: the table.
        cells: its cells, done or not.
        majority_baseline: the scores of always predicting the majority class, by outcome.
    """
    orderings = table.orderings()
    pairs = [_paired_differences(cells, *ordering) for ordering in orderings]
    # Scores are in percent and losses in nats, so their spreads have nothing in common.
    is_loss = [column.lower_is_better for _, _, column in orderings]
    priors = {
        kind: prior_variance(
            [pair.values for pair, found in zip(pairs, is_loss, strict=True) if found == kind]
        )
        for kind in (False, True)
    }
    differences = [
        confidence_interval(pair.values, pair.deviations, priors[kind]) if pair.values else None
        for pair, kind in zip(pairs, is_loss, strict=True)
    ]
    p_values = adjust_p_values([1.0 if interval is None else interval.p_value for interval in differences])
    verdicts = []
    for (better, worse, column), difference, p_value in zip(orderings, differences, p_values, strict=True):
        decision: Decision = "unresolved"
        above = [_is_above_chance(cells, row, column, majority_baseline) for row in (better, worse)]
        if difference is not None and p_value <= LEVEL:
            decision = "held" if difference.mean > 0 else "reversed"
            if above[0 if difference.mean > 0 else 1] is False:
                decision = "at chance"
        elif above == [False, False]:
            decision = "at chance"
        paper_difference = _paper_difference(better, worse, column)
        verdicts.append(Verdict(better, worse, column, paper_difference, difference, p_value, decision))
    return verdicts


def _paired_differences(cells: Sequence[Cell], better: Row, worse: Row, column: Column) -> PairedDifferences:
    """Return the advantages of a row, from the seeds that both rows have."""
    better_cells, worse_cells = (cells_by_seed(cells, row, column) for row in (better, worse))
    seeds = [seed for seed in better_cells if seed in worse_cells]
    sign = -1 if column.lower_is_better else 1
    better_found, worse_found = [better_cells[seed] for seed in seeds], [worse_cells[seed] for seed in seeds]
    values = [
        sign * (_value(a, better, column) - _value(b, worse, column))
        for a, b in zip(better_found, worse_found, strict=True)
    ]
    moved, moved_worse = _deviations(better_found, better, column), _deviations(worse_found, worse, column)
    if moved is None or moved_worse is None or moved.shape != moved_worse.shape:
        return PairedDifferences(values, None)
    return PairedDifferences(values, moved - moved_worse)


def _paper_difference(better: Row, worse: Row, column: Column) -> float | None:
    if column.name not in better.paper or column.name not in worse.paper:
        return None
    numbers = [_linear(better.outcome(column), row.paper[column.name]) for row in (better, worse)]
    return (-1 if column.lower_is_better else 1) * (numbers[0] - numbers[1])


def is_perplexity(outcome: str) -> bool:
    """Return whether an outcome is compared as its logarithm."""
    return outcome.endswith("/perplexity")


def _linear(outcome: str, value: float) -> float:
    """Return a value on the scale on which differences are tested."""
    return math.log(value) if is_perplexity(outcome) else value


def _value(cell: Cell, row: Row, column: Column) -> float:
    outcome = row.outcome(column)
    return _linear(outcome, (cell.outcomes or {})[outcome])


def _deviations(cells: Sequence[Cell], row: Row, column: Column) -> Float64s | None:
    """Return the deviations of the examples (seeds, examples).

    None if the seeds do not share them.
    """
    outcome = row.outcome(column)
    scores = [cell.examples[outcome] for cell in cells if outcome in cell.examples]
    if len(scores) < len(cells) or len({array.shape for array in scores}) != 1:
        return None
    return np.array([deviations(outcome, array) for array in scores])


def baseline_of(cells: Sequence[Cell], row: Row, column: Column, majority_baseline: Outcomes) -> float | None:
    """Return the score of a model that has learned nothing.

    It is the score of the majority class, or the mean over the seeds of the unigram baseline; None if there
    is neither.
    """
    outcome, found = row.outcome(column), cells_by_seed(cells, row, column).values()
    if source_of(outcome) != HELD_OUT:
        return majority_baseline.get(outcome)
    name = f"{HELD_OUT}/{HELD_OUT_BASELINES.get(outcome.removeprefix(f'{HELD_OUT}/'))}"
    values = [cell.outcomes[name] for cell in found if cell.outcomes and name in cell.outcomes]
    if not values:
        return None
    return math.exp(statistics.fmean(values)) if is_perplexity(outcome) else statistics.fmean(values)


def column_baseline(
    table: Table, cells: Sequence[Cell], column: Column, majority_baseline: Outcomes
) -> float | None:
    """Return the mean baseline of a column's rows.

    Only on held-out text does it differ between the rows.
    """
    baselines = [baseline_of(cells, row, column, majority_baseline) for row in table.rows]
    known = [baseline for baseline in baselines if baseline is not None]
    return statistics.fmean(known) if known else None


def _is_above_chance(
    cells: Sequence[Cell], row: Row, column: Column, majority_baseline: Outcomes
) -> bool | None:
    """Return whether a row is above the baseline by its interval.

    None if that is unknown.
    """
    interval = row_interval(cells, row, column)
    baseline = baseline_of(cells, row, column, majority_baseline)
    if interval is None or interval.n < 2 or baseline is None:
        return None
    advantage = interval.mean - _linear(row.outcome(column), baseline)
    return (-advantage if column.lower_is_better else advantage) > interval.half_width + ROUNDING_ERROR
