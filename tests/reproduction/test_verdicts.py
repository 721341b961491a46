"""Verdicts on the orderings of a table, from cells whose truth is known."""

from pathlib import Path

import numpy as np
import pytest

from bertie.base.settings import resolve
from bertie.reproduction.cells import Cell
from bertie.reproduction.report import format_p_value
from bertie.reproduction.tables import Table
from bertie.reproduction.verdicts import judge_orderings

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
        {},
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
    for verdict in judge_orderings(TABLE, make_cells({"worse": worse, "better": better}), {}):
        assert verdict.decision == "unresolved"
        assert (verdict.difference.n if verdict.difference else 0) == n


def test_equal_differences_are_unresolved():
    """The models of a row predict the same class for every example."""
    cells = make_cells({"worse": [(50.0, 3.0)] * 5, "better": [(51.0, 2.0)] * 5})
    for verdict in judge_orderings(TABLE, cells, {}):
        assert verdict.decision == "unresolved"


def test_differences_that_vary_by_rounding_are_unresolved():
    """Two more of 408 are right with each seed; percentages differ in the last bit."""
    num_right = [277, 279, 281]
    worse, better = ([(100 * (k + more) / 408, 3.0) for k in num_right] for more in (0, 2))
    accuracy, _ = judge_orderings(TABLE, make_cells({"worse": worse, "better": better}), {})
    assert 0 <= accuracy.difference.half_width < 1e-9
    assert accuracy.decision == "unresolved"


def test_interval_excluding_0_is_not_enough_for_two_orderings():
    """Each p-value is about 0.03, and 0.06 after Holm's adjustment."""
    worse = [(50.0, 3.0)] * 3
    better = [(52.4, 2.76), (53.0, 2.70), (54.3, 2.57)]
    verdicts = judge_orderings(TABLE, make_cells({"worse": worse, "better": better}), {})
    for verdict in verdicts:
        assert 0.025 < verdict.difference.p_value < 0.05
        assert verdict.difference.half_width < verdict.difference.mean
        assert verdict.p_value == pytest.approx(
            2 * min(each.difference.p_value for each in verdicts), rel=0.5
        )
        assert verdict.decision == "unresolved"


@pytest.mark.parametrize(
    ("worse", "better", "majority", "decision"),
    [
        pytest.param([40, 40.1, 40.2], [50, 50.2, 50.1], 45, "held", id="winner above"),
        pytest.param([40, 40.1, 40.2], [50, 50.2, 50.1], 50.1, "at chance", id="winner at chance"),
        pytest.param([50, 50.1, 50.2], [40, 40.2, 40.1], 50.1, "at chance", id="reversed, at chance"),
        pytest.param([50, 50.1, 50.2], [40, 40.2, 40.1], 45, "reversed", id="reversed, above"),
        pytest.param([50, 50.1, 50.2], [50.1, 50, 50.3], 55, "at chance", id="no difference, at chance"),
        pytest.param([50, 50.1, 50.2], [50.1, 50, 50.3], 45, "unresolved", id="no difference, above"),
        pytest.param([50, 50.1, 50.2], [30, 50, 80], 45, "unresolved", id="one row above"),
        pytest.param([50.0] * 3, [50.0] * 3, 50.0, "at chance", id="all seeds predict the majority class"),
    ],
)
def test_ordering_of_models_at_chance_is_at_chance(worse, better, majority, decision):
    cells = make_cells({"worse": [(x, 3.0) for x in worse], "better": [(x, 3.0) for x in better]})
    accuracy, _ = judge_orderings(TABLE, cells, {"task/dev/accuracy": majority})
    assert accuracy.decision == decision


def test_loss_at_the_unigram_baseline_is_at_chance():
    """The models differ, but none of them predicts tokens better than their frequencies do."""
    cells = make_cells(
        {"worse": [(50, 7.20), (50, 7.21), (50, 7.22)], "better": [(50, 7.00), (50, 7.01), (50, 7.03)]}
    )
    for unigram_loss, decision in ((7.01, "at chance"), (7.4, "held")):
        known = [
            cell._replace(outcomes=cell.outcomes | {"held_out/unigram_loss": unigram_loss}) for cell in cells
        ]
        assert judge_orderings(TABLE, known, {})[1].decision == decision


def test_few_examples_widen_the_interval():
    """One row is right about two more of 20 examples with every seed: seeds agree, examples do not."""
    rng = np.random.default_rng(0)
    cells = []
    for cell in make_cells({"worse": [(0, 0)] * 3, "better": [(0, 0)] * 3}):
        right = np.arange(20) < (12 if cell.row.name == "better" else 10)
        right = np.repeat(right, 50)
        right ^= rng.random(1000) < 0.001  # the seeds differ a little
        few = right[::50][:, None].astype(np.float32)
        scores = {"task/dev/accuracy": right[:, None].astype(np.float32)}
        outcomes = {"task/dev/accuracy": 100.0 * right.mean(), "held_out/loss": 1.0}
        cells.append((cell._replace(outcomes=outcomes, examples=scores), few))
    whole = [cell for cell, _ in cells]
    without = [cell._replace(examples={}) for cell in whole]
    few = [cell._replace(examples={"task/dev/accuracy": scores}) for cell, scores in cells]
    seeds_only, of_1000, of_20 = (judge_orderings(TABLE, each, {})[0] for each in (without, whole, few))
    assert seeds_only.difference.mean == of_1000.difference.mean == of_20.difference.mean
    assert seeds_only.difference.half_width < of_1000.difference.half_width < of_20.difference.half_width
    assert (seeds_only.decision, of_20.decision) == ("held", "unresolved")


def test_perplexities_are_compared_as_logarithms():
    values = {
        "title": "toy",
        "columns": [{"name": "perplexity", "outcome": "held_out/perplexity", "lower_is_better": True}],
        "rows": [{"name": "a", "paper": {"perplexity": 4.0}}, {"name": "b", "paper": {"perplexity": 8.0}}],
    }
    table = resolve(Table, values)
    cells = [
        Cell(row, seed, Path(), {"held_out/perplexity": perplexity * factor})
        for row, factor in zip(table.rows, (1.0, 3.0), strict=True)
        for seed, perplexity in enumerate((100.0, 200.0, 201.0))
    ]
    cells[0] = cells[0]._replace(outcomes={"held_out/perplexity": 101.0})
    (verdict,) = judge_orderings(table, cells, {})
    assert verdict.paper_difference == pytest.approx(np.log(2))
    assert verdict.difference.mean == pytest.approx(np.log(3) - np.log(1.01) / 3)
    assert verdict.decision == "held"


def test_losses_and_scores_have_different_spreads():
    """A loss in nats varies a hundred times less than an accuracy in percent."""
    random = np.random.default_rng(0)
    names = ["a", "b", "c", "d", "e"]
    columns = [
        {"name": "accuracy", "outcome": "task/dev/accuracy"},
        {"name": "loss", "outcome": "held_out/loss", "lower_is_better": True},
    ]
    rows = [{"name": name, "paper": {"accuracy": i, "loss": -i}} for i, name in enumerate(names)]
    table = resolve(Table, {"title": "toy", "columns": columns, "rows": rows})
    cells = [
        Cell(
            row,
            seed,
            Path(),
            {
                "task/dev/accuracy": 60 + 2 * random.normal(),
                "held_out/loss": 5 - 0.3 * i + 0.02 * random.normal(),
            },
        )
        for i, row in enumerate(table.rows)
        for seed in range(3)
    ]
    verdicts = judge_orderings(table, cells, {})
    decisions = {"accuracy": [], "loss": []}
    for verdict in verdicts:
        decisions[verdict.column.name].append(verdict.decision)
    assert decisions == {"accuracy": ["unresolved"] * 4, "loss": ["held"] * 4}


def test_no_p_value_is_0():
    assert [format_p_value(p) for p in (0.0, 0.0004, 0.0006, 0.05, 1.0)] == [
        "< 0.001",
        "< 0.001",
        "0.001",
        "0.050",
        "1.000",
    ]
