"""What the functions of the API return: the run's model and report, and its metrics as a table."""

import pytest

import bertie
from bertie.api.results import MAX_ROWS, Metrics

ROWS = [
    {"kind": "train", "step": 1, "loss": 2.5},
    {"kind": "evaluation", "step": 1, "perplexity": 12.25},
    {"kind": "train", "step": 2, "loss": 0.5},
]


def test_rows_columns_and_slices():
    metrics = Metrics(ROWS)
    assert (len(metrics), list(metrics)) == (3, ROWS)
    assert metrics[-1] == ROWS[2]
    assert metrics.columns == ["kind", "step", "loss", "perplexity"]
    assert metrics["loss"] == [2.5, None, 0.5]
    assert isinstance(metrics[1:], Metrics)
    assert list(metrics[1:]) == ROWS[1:]


def test_select_keeps_the_rows_with_a_value():
    assert list(Metrics(ROWS).select("kind", "train")) == [ROWS[0], ROWS[2]]
    assert list(Metrics(ROWS).select("kind", "warning")) == []


def test_unknown_column_is_a_key_error_that_lists_the_columns():
    with pytest.raises(KeyError, match="no column 'los'; there are: kind, step, loss, perplexity"):
        Metrics(ROWS)["los"]


def test_repr_is_a_table_without_empty_columns():
    assert repr(Metrics(ROWS)[::2]) == "kind   step  loss\ntrain  1     2.5\ntrain  2     0.5"
    assert repr(Metrics([])) == ""


def test_repr_shows_the_last_rows():
    lines = repr(Metrics([{"step": step} for step in range(MAX_ROWS + 3)])).splitlines()
    assert lines[:3] == ["… 3 earlier rows", "step", "3"]
    assert len(lines) == MAX_ROWS + 2


def test_html_of_a_notebook_is_escaped():
    html = Metrics([{"message": "loss < 1", "step": 1200}])._repr_html_()
    assert html.startswith("<table><thead><tr><th>message</th><th>step</th></tr></thead>")
    assert "<td>loss &lt; 1</td><td>1,200</td>" in html


def test_lists_and_truth_values_are_shown_as_such():
    shown = repr(Metrics([{"scores": [50.0, 100 / 3], "chosen": True}]))
    assert shown == "scores    chosen\n50, 33.3  True"


def test_to_pandas():
    table = Metrics(ROWS).to_pandas()
    assert list(table.columns) == ["kind", "step", "loss", "perplexity"]
    assert table["loss"].isna().tolist() == [False, True, False]


def test_run_has_metrics_report_and_model(model):
    rows = [{"text": f"the film was {label}", "label": label} for label in ["good", "bad"] * 8]
    run = bertie.finetune(model, train=rows, dev=rows, out="run", epochs=2, device="cpu")
    evaluations = run.metrics.select("kind", "evaluation")
    assert evaluations["step"] == [1, 2]
    assert run.scores["dev"]["accuracy"] in evaluations["dev/accuracy"]
    assert run.report.read_text().startswith("<!DOCTYPE html>")
    assert run.model_directory.is_dir()
    assert run.load("cpu").method == "classify"
    assert repr(run).startswith("FinetuningResult(path=PosixPath('run'), scores={'dev': ")


def test_long_cells_are_truncated_when_shown():
    metrics = Metrics([{"message": "x" * 100, "step": 1}])
    assert f"{'x' * 39}…  1" in repr(metrics)
    assert metrics["message"] == ["x" * 100]
