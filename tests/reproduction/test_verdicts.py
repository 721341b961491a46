"""What the differences between cells say of an ordering."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from bertie.base.settings import resolve
from bertie.reproduction.runner import Cell
from bertie.reproduction.tables import Table
from bertie.reproduction.verdicts import T_975, interval, judge

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


def cells(values: dict[str, list[tuple[float, float] | None]]) -> list[Cell]:
    """Of each row one for each seed: its accuracy and its loss, or None where it failed."""
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


def test_quantiles():
    assert pytest.approx(stats.t.ppf(0.975, np.arange(1, len(T_975) + 1)), abs=5e-4) == T_975


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=15).filter(lambda values: np.std(values) > 1))
def test_an_interval_is_that_of_scipy(values):
    mean, half_width, n = interval(values)
    low, high = stats.t.interval(0.95, n - 1, np.mean(values), stats.sem(values))
    assert (mean, half_width) == pytest.approx(((low + high) / 2, (high - low) / 2), rel=1e-3)


def test_an_interval_covers_the_mean_as_often_as_it_says():
    samples = np.random.default_rng(0).normal(3.0, 2.0, (4000, 5))
    covered = [abs(mean - 3.0) <= half for mean, half, _ in map(interval, samples.tolist())]
    assert np.mean(covered) == pytest.approx(0.95, abs=0.012)


def test_seeds_are_paired_and_lower_may_be_better():
    """Between seeds the rows vary by tens, within a seed hardly: only pairs can tell."""
    noise = [0.0, 30.0, -20.0, 10.0, 50.0]
    accuracy, loss = judge(
        TABLE,
        cells(
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
    assert accuracy.word == "held"
    assert accuracy.paper == 2.5
    assert accuracy.difference.mean == pytest.approx(1.014)
    assert loss.word == "reversed"
    assert loss.paper == 1.0
    assert loss.difference.mean == pytest.approx(-1.014)


@pytest.mark.parametrize(
    ("worse", "better", "n"),
    [
        ([(50.0, 3.0)], [(90.0, 1.0)], 1),  # one seed can tell nothing
        ([(50.0, 3.0), (51.0, 3.1)], [(60.0, 2.0), (90.0, 1.0)], 2),  # two can tell only much
        ([(50.0, 3.0), None], [None, (90.0, 1.0)], 0),  # no seed has both
    ],
)
def test_too_few_seeds_leave_it_unresolved(worse, better, n):
    for verdict in judge(TABLE, cells({"worse": worse, "better": better})):
        assert verdict.word == "unresolved"
        assert (verdict.difference.n if verdict.difference else 0) == n


def test_differences_without_any_variation_tell_nothing():
    """Models that give every example one answer, each row another one."""
    for verdict in judge(TABLE, cells({"worse": [(50.0, 3.0)] * 5, "better": [(51.0, 2.0)] * 5})):
        assert verdict.word == "unresolved"


def test_rounding_is_no_variation():
    """Two more of 408 right with each seed; as percentages, the differences are not equal to the last bit."""
    right = [277, 279, 281]
    worse, better = ([(100 * (k + more) / 408, 3.0) for k in right] for more in (0, 2))
    accuracy, _ = judge(TABLE, cells({"worse": worse, "better": better}))
    assert 0 < accuracy.difference.half_width < 1e-9
    assert accuracy.word == "unresolved"
