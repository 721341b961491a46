"""Confidence intervals, and verdicts on orderings."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from bertie.base.settings import resolve
from bertie.reproduction.cells import Cell
from bertie.reproduction.tables import Table
from bertie.reproduction.verdicts import T_975, confidence_interval, judge_orderings

TABLE = resolve(
    Table,
    {
        "title": "toy",
        "columns": [
            {"name": "accuracy", "outcome": "task/dev/accuracy"},
            {"name": "loss", "outcome": "held_out/loss", "lower_is_better": True},
        ],
        "rows": [
            {"name": "worse", "paper": {"accuracy": 80.0, "loss": 3.0}},
            {"name": "better", "paper": {"accuracy": 82.5, "loss": 2.0}},
        ],
    },
)


def make_cells(values: dict[str, list[tuple[float, float] | None]]) -> list[Cell]:
    """Make cells from the (accuracy, loss) of each row's seeds; None is a failed cell."""
    return [
        Cell(
            row,
            seed,
            Path(),
            None if value is None else {"task/dev/accuracy": value[0], "held_out/loss": value[1]},
        )
        for row in TABLE.rows
        for seed, value in enumerate(values[row.name])
    ]


def test_quantiles_equal_scipy():
    assert pytest.approx(stats.t.ppf(0.975, np.arange(1, len(T_975) + 1)), abs=5e-4) == T_975


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=15).filter(lambda values: np.std(values) > 1))
def test_confidence_interval_equals_scipy(values):
    mean, half_width, n = confidence_interval(values)
    low, high = stats.t.interval(0.95, n - 1, np.mean(values), stats.sem(values))
    assert (mean, half_width) == pytest.approx(((low + high) / 2, (high - low) / 2), rel=1e-3)


def test_confidence_interval_covers_the_mean_in_95_percent():
    samples = np.random.default_rng(0).normal(3.0, 2.0, (4000, 5))
    intervals = map(confidence_interval, samples.tolist())
    covered = [abs(mean - 3.0) <= half_width for mean, half_width, _ in intervals]
    assert np.mean(covered) == pytest.approx(0.95, abs=0.012)


def test_seeds_are_paired_and_lower_may_be_better():
    """Scores vary by tens between seeds, so that only pairs show a difference."""
    noise = [0.0, 30.0, -20.0, 10.0, 50.0]
    accuracy, loss = judge_orderings(
        TABLE,
        make_cells(
            {
                "worse": [(50 + x, 3 + x) for x in noise],
                "better": [(51 + x + x / 1000, 4 + x + x / 1000) for x in noise],
            }
        ),
    )
    assert (accuracy.better.name, accuracy.worse.name, accuracy.column.name) == (
        "better",
        "worse",
        "accuracy",
    )
    assert accuracy.decision == "held"
    assert accuracy.paper_difference == 2.5
    assert accuracy.difference.mean == pytest.approx(1.014)
    assert loss.decision == "reversed"
    assert loss.paper_difference == 1.0
    assert loss.difference.mean == pytest.approx(-1.014)


@pytest.mark.parametrize(
    ("worse", "better", "n"),
    [
        pytest.param([(50.0, 3.0)], [(90.0, 1.0)], 1, id="one seed"),
        pytest.param([(50.0, 3.0), (51.0, 3.1)], [(60.0, 2.0), (90.0, 1.0)], 2, id="two seeds"),
        pytest.param([(50.0, 3.0), None], [None, (90.0, 1.0)], 0, id="no common seed"),
    ],
)
def test_too_few_seeds_leave_orderings_unresolved(worse, better, n):
    for verdict in judge_orderings(TABLE, make_cells({"worse": worse, "better": better})):
        assert verdict.decision == "unresolved"
        assert (verdict.difference.n if verdict.difference else 0) == n


def test_equal_differences_are_unresolved():
    """The models of a row predict the same class for every example."""
    cells = make_cells({"worse": [(50.0, 3.0)] * 5, "better": [(51.0, 2.0)] * 5})
    for verdict in judge_orderings(TABLE, cells):
        assert verdict.decision == "unresolved"


def test_differences_that_vary_by_rounding_are_unresolved():
    """Two more of 408 are right with each seed; percentages differ in the last bit."""
    num_right = [277, 279, 281]
    worse, better = ([(100 * (k + more) / 408, 3.0) for k in num_right] for more in (0, 2))
    accuracy, _ = judge_orderings(TABLE, make_cells({"worse": worse, "better": better}))
    assert 0 < accuracy.difference.half_width < 1e-9
    assert accuracy.decision == "unresolved"
