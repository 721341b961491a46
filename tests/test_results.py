"""The table of `make bench`: what it says of measurements, and that documents quote it."""

import ast
import importlib
import json
import re
import time
from functools import partial
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def bench():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        return importlib.import_module("bench")


@pytest.fixture(scope="module")
def measure():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        return importlib.import_module("measure")


def test_the_benchmark_of_examples_finds_the_oracle_of_the_tests():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        examples = importlib.import_module("examples")
    documents = [[[number, number + 1], [number + 2, number + 3]] for number in (1000, 2000, 3000)]
    oracle = examples.Oracle(documents, examples.ExampleSettings(max_seq_length=16), range(5000))
    pairs = [example.pair for example in oracle.examples(3)]
    assert len(pairs) >= 3
    assert all(len(pair.a) + len(pair.b) <= 13 for pair in pairs)


def seconds(measure, *processor):
    return [measure.Seconds(value, 2 * value) for value in processor]


def make_results(measure):
    ours, theirs = seconds(measure, 1.0, 1.0, 2.0), seconds(measure, 4.0, 6.0, 7.0)
    row = measure.compare("fast", "work", "peer 1.0", "items/s", 12, ours, theirs, bar=4.5)
    growth = measure.Growth("growth-work", "work", "s", (1, 4, 16), (2.0, 8.0, 32.0))
    rows = [{**one.as_dict(), "group": "squad", "load": 0.5, "commit": "c"} for one in (row, growth)]
    machine = {"processor": "P", "instructions": [], "cores": 2, "python": "3", "versions": {}}
    return {"date": "2026-01-02", "machine": machine, "rows": rows}


def test_documents_quote_the_measured_figures(bench):
    documents = bench.quoted_documents()
    assert {path.name for path in documents} >= {"README.md", "benchmarks.md", "results.md", "scaling.md"}
    for path in documents:
        text = path.read_text(encoding="utf-8")
        assert bench.QUOTED.search(text), f"{path} names a file of results, but quotes none of its figures"
        lines = zip(text.splitlines(), bench.update(text).splitlines(), strict=True)
        outdated = [line for line, current in lines if line != current]
        assert not outdated, f"run `python benchmarks/bench.py --quote`: {path} differs in {outdated}"


def test_table_of_all_processors_has_a_column_for_each_and_marks_missed_bars(bench, measure):
    first, second = make_results(measure), make_results(measure)
    for row in second["rows"]:
        row["met"] = not row["met"]
    second["rows"][0]["peer"] = "rival, unsorted"
    del second["rows"][1]
    compare = partial(bench.compare_processors, {"A": first, "B": second})
    assert compare("ratio").splitlines() == [
        "|  | peer | bar | A | B |",
        "| --- | --- | --- | --- | --- |",
        "| work | peer or rival | ≥ 4.5 | **4.00** | 4.00 |",
    ]
    assert compare("exponent").splitlines()[2:] == ["| work | ≤ 1.1 | 1.00 |  |"]


def test_table_of_all_processors_has_no_rows_without_a_bar(bench, measure):
    results = make_results(measure)
    results["rows"][0]["bar"] = None
    assert len(bench.compare_processors({"A": results}, "ratio").splitlines()) == 2


def test_every_processor_of_the_table_has_a_file_and_a_section(bench):
    text = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    for name in bench.PROCESSORS.values():
        assert f"`benchmarks/results/{name}.md`" in text
    assert text.count(" on all processors -->") == 2


def test_every_mark_belongs_to_a_figure(bench):
    for path in bench.DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        marks = re.findall(r"<!-- [\w-]+\.[\w.]+ -->", text)
        assert len(marks) == len(bench.QUOTED.findall(text)), f"{path}: a mark follows no figure"
        assert not marks or path in bench.quoted_documents(), (
            f"{path}: has marks, but names no file of results"
        )


def test_tables_of_results_are_those_of_their_figures(bench):
    paths = [*(ROOT / "benchmarks" / "results").glob("*.json")]
    assert paths
    for path in paths:
        results = json.loads(path.read_text(encoding="utf-8"))
        assert path.with_suffix(".md").read_text(encoding="utf-8") == bench.to_markdown(results)


@pytest.mark.parametrize(
    "file", [*ROOT.glob("benchmarks/*.py"), *ROOT.glob("scripts/*.py")], ids=lambda file: file.stem
)
def test_benchmarks_and_scripts_import_what_exists(file):
    # Without running them, since their peers may not be installed.
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "bertie":
            names: dict[str, object] = {}
            exec(ast.unparse(node), names)
            assert names.keys() >= {alias.asname or alias.name for alias in node.names}


def test_ratio_is_the_median_over_rounds(measure):
    row = make_results(measure)["rows"][0]
    assert row["ratio"] == 4.0
    assert row["spread"] == (3.5, 6.0)
    assert (row["ours"], row["theirs"]) == (12.0, 2.0)
    assert row["met"] is False


@pytest.mark.parametrize(
    ("ratio", "at_most", "met"), [(2.0, False, True), (2.0, True, False), (0.5, True, True)]
)
def test_bar_is_a_least_or_a_largest_ratio(measure, ratio, at_most, met):
    row = measure.Row("n", "c", "p", "u", 1, 1, ratio, (ratio, ratio), bar=1.0, at_most=at_most)
    assert row.met is met


@pytest.mark.parametrize(("bar", "met"), [(1.0, True), (0.9, False), (None, None)])
def test_cost_is_divided_by_the_peers(measure, bar, met):
    row = measure.at_most("n", "c", "p", "s", [1.0, 2.0, 6.0], [2.0, 2.0, 4.0], bar)
    assert (row.ours, row.theirs, row.ratio, row.spread) == (2.0, 2.0, 1.0, (0.5, 1.5))
    assert row.met is met


@pytest.mark.parametrize(("power", "met"), [(0, True), (1, True), (1.5, False)])
def test_growth_finds_the_exponent(measure, power, met):
    growth = measure.Growth("n", "c", "s", (1, 4, 16), tuple(3.0 * size**power for size in (1, 4, 16)))
    assert growth.exponent == pytest.approx(power)
    assert growth.last_exponent == pytest.approx(power)
    assert growth.met is met


def test_sides_take_turns(measure, monkeypatch):
    monkeypatch.setattr("gc.collect", lambda: 0)  # seconds among the objects of all tests
    calls = []
    taken = measure.take_turns({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=2)
    assert calls == ["a", "b", "b", "a", "a", "b"]  # the first round is not timed
    assert [len(values) for values in taken.values()] == [2, 2]


def test_side_works_in_a_separate_process(measure, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")  # where the process finds `measure`
    monkeypatch.setattr("gc.collect", lambda: 0)
    sides = {"here": lambda: None, "there": measure.OwnProcess(partial, time.sleep, 0.2)}
    taken = measure.take_turns(sides, rounds=2)
    assert all(seconds.clock >= 0.2 > seconds.processor for seconds in taken["there"])  # it sleeps there


def test_quote_keeps_the_number_of_decimals(bench, measure):
    results = make_results(measure)
    text = (
        "**9.9**<!-- fast.ratio --> × as fast, 7<!-- fast.ours --> items/s, 1.5<!-- growth-work.costs.2 --> s"
    )
    quoted = bench.quote(text, results)
    assert quoted.startswith("**4.0**<!-- fast.ratio --> ×")
    assert "12<!-- fast.ours -->" in quoted
    assert "32.0<!-- growth-work.costs.2 -->" in quoted


def test_figures_are_from_the_file_named_last(bench, measure, tmp_path, monkeypatch):
    (tmp_path / "results").mkdir()
    for name in ("first", "second"):
        results = make_results(measure)
        results["rows"][0]["ratio"] = {"first": 1.5, "second": 2.5}[name]
        (tmp_path / "results" / f"{name}.json").write_text(json.dumps(results))
    monkeypatch.setattr(bench, "FOLDER", tmp_path)
    figure = "0.0<!-- fast.ratio -->"
    text = bench.update(
        f"{figure} benchmarks/results/first.md {figure} benchmarks/results/second.md {figure}"
    )
    assert re.findall(r"[\d.]+(?=<)", text) == ["1.5", "1.5", "2.5"]


def test_quote_rejects_an_unknown_row(bench, measure):
    with pytest.raises(KeyError, match="slow"):
        bench.quote("5<!-- slow.ratio -->", make_results(measure))


def test_table_shows_missed_bars(bench, measure):
    table = bench.to_markdown(make_results(measure))
    assert "| **4.00** | 3.50–6.00 | 4.00 | ≥ 4.5 | **no** |" in table
    assert "| **1.00** | 1.00 | ≤ 1.1 | yes |" in table
