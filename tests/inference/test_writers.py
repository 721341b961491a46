"""Results in every output format, one row for each record."""

import csv
import io
import json
import math
from dataclasses import asdict
from pathlib import Path

import pytest

from bertie.base.errors import DataError, SettingsError
from bertie.inference.records import Record
from bertie.inference.results import (
    Answer,
    Choice,
    Entity,
    Label,
    MaskPrediction,
    Results,
    TaggedWord,
)
from bertie.inference.writers import output_format, with_free_columns, write_results

PREDICTIONS = [
    MaskPrediction(0.5, 7, "##s", "cats on a [MASK]"),
    MaskPrediction(0.25, 8, "cat", "cat cat on a [MASK]"),
]
# By method: the texts, the results, the lines of the text format, and the cells of a table.
CASES = {
    "fill_mask": (
        ("cat [MASK] on a [MASK]",),
        [PREDICTIONS, [MaskPrediction(0.75, 9, "mat", "cat [MASK] on a mat")]],
        [
            "cat [MASK] on a [MASK]",
            "   50.0%  cats on a [MASK]",
            "   25.0%  cat cat on a [MASK]",
            "cat [MASK] on a [MASK]",
            "   75.0%  cat [MASK] on a mat",
        ],
        {"prediction": "##s mat"},
    ),
    "classify": (
        ("a", "b"),
        [Label("good", 0.75), Label("bad", 0.25)],
        ["a | b", "   75.0%  good", "   25.0%  bad"],
        {"prediction": "good", "score": "0.75"},
    ),
    "next_sentence": (("a", "b"), 0.25, ["a | b", "  0.25"], {"prediction": "0.25"}),
    "regress": (("a",), 2.5, ["a", "  2.5"], {"prediction": "2.5"}),
    "tag": (
        ("in Paris",),
        [Entity("LOC", "Paris", 3, 8, 0.5)],
        ["in Paris", "   50.0%  LOC  Paris  (3-8)"],
        {"prediction": '[{"label": "LOC", "text": "Paris", "start": 3, "end": 8, "score": 0.5}]'},
    ),
    "answer": (
        ("where?", "in Paris"),
        [Answer("", 0, 0, 0.5), Answer("Paris", 3, 8, 0.25)],
        ["where?", "   50.0%  (no answer)", "   25.0%  Paris  (3-8)"],
        {"prediction": "", "start": "0", "end": "0", "score": "0.5"},
    ),
    "choose": (
        ("a", ["b", "c"]),
        [Choice(1, "c", 0.75), Choice(0, "b", 0.25)],
        ["a", "   75.0%  c", "   25.0%  b"],
        {"prediction": "1", "ending": "c", "score": "0.75"},
    ),
}


RETURN_NUMBERS = ("next_sentence", "regress")


def write(answered, format, method, thresholds=None) -> str:
    file = io.StringIO()
    write_results(answered, file, format, method, thresholds)
    return file.getvalue()


@pytest.fixture(params=CASES)
def case(request):
    """The method, a record with results and a blank one, the expected lines and cells."""
    method = request.param
    texts, results, lines, cells = CASES[method]
    record = Record("a.jsonl, line 1", {"id": 1, "of": [texts[0]], "score": "old"}, texts)
    blank = Record("a.jsonl, line 2", {"id": 2, "more": True}, ("",))
    if method in RETURN_NUMBERS:
        return method, [(record, results), (blank, None)], lines, cells
    return method, [(record, Results(results)), (blank, Results())], lines, cells


def test_text_shows_each_record_with_its_results(case):
    method, answered, lines, _ = case
    assert write(answered, "text", method).splitlines() == [*lines, ""]


def test_json_lines_keep_the_row_and_all_results(case):
    method, answered, _, _ = case
    first, second = map(json.loads, write(answered, "jsonl", method).splitlines())
    prediction = first.pop("prediction")
    assert first == dict(answered[0][0].row)
    assert second == {"id": 2, "more": True, "prediction": None if method in RETURN_NUMBERS else []}
    results = answered[0][1]
    if method in RETURN_NUMBERS:
        assert prediction == results
    elif method == "fill_mask":
        assert prediction == [[asdict(result) for result in mask] for mask in results]
    else:
        assert prediction == [asdict(result) for result in results]


@pytest.mark.parametrize(("format", "delimiter"), [("csv", ","), ("tsv", "\t")])
def test_tables_hold_the_best_result(case, format, delimiter):
    method, answered, _, cells = case
    first, second = csv.DictReader(io.StringIO(write(answered, format, method)), delimiter=delimiter)
    texts = answered[0][0].texts
    if "score" in cells:  # the row already has such a column
        cells = {**cells, "prediction_score": cells["score"]}
    assert first == {"id": "1", "of": json.dumps([texts[0]]), **cells, "score": "old"}
    assert second == {**dict.fromkeys(first, ""), "id": "2"}


@pytest.mark.parametrize(
    ("format", "row", "refused"),
    [
        ("jsonl", {"text": "a", "score": 1}, None),  # the score is in the prediction
        ("jsonl", {"prediction": "a"}, "prediction"),
        ("csv", {"text": "a", "score": 1}, None),
        ("csv", {"score": 1, "prediction_score": 2}, "prediction_score"),
        ("tsv", {"prediction": "a"}, "prediction"),
        ("text", {"prediction": "a"}, None),
        ("conll", {"prediction": "a"}, None),
    ],
)
def test_columns_of_the_results_replace_no_others(format, row, refused):
    records = [Record("in.csv, line 2", row, ("a",))]
    if refused is None:
        assert list(with_free_columns(records, format, "classify")) == records
        return
    with pytest.raises(DataError, match=rf"^in\.csv, line 2: column '{refused}' would be replaced by"):
        list(with_free_columns(records, format, "classify"))


def test_a_later_row_with_a_column_of_the_results_is_refused():
    records = [Record("line 1", {"text": "a"}, ("a",)), Record("line 2", {"score": 1}, ("a",))]
    with pytest.raises(DataError, match=r"^line 2: column 'score' would be replaced by"):
        list(with_free_columns(records, "csv", "classify"))


def test_a_table_reports_the_columns_of_later_rows_that_it_leaves_out(capsys):
    rows = [{"text": "a"}, {"text": "b", "id": "7"}, {"text": "c", "id": "8"}]
    records = [Record(f"in.jsonl, line {i}", row, (row["text"],)) for i, row in enumerate(rows, 1)]
    write_results([(record, [Label("good", 0.75)]) for record in records], io.StringIO(), "csv", "classify")
    assert capsys.readouterr().err == (
        "in.jsonl, line 2: the first row has no column 'id', so the table leaves it out; "
        "a .jsonl file keeps it\n"
    )


def test_nan_and_infinity_become_null_in_json_lines():
    row = {"nan": math.nan, "list": [math.inf, 1.5], "object": {"a": math.nan}, "text": "NaN"}
    line = write([(Record("", row, ("x",)), [])], "jsonl", "classify")
    assert (
        line == '{"nan": null, "list": [null, 1.5], "object": {"a": null}, "text": "NaN", "prediction": []}\n'
    )


@pytest.mark.parametrize(
    ("threshold", "names", "scores"), [(0.5, ["a", "b"], [0.9, 0.6]), (0.4, ["a", "b", "c"], [0.9, 0.6, 0.5])]
)
def test_a_multilabel_table_lists_labels_above_their_thresholds(threshold, names, scores):
    labels = [Label("a", 0.9), Label("b", 0.6), Label("c", 0.5)]
    answered = [(Record("", {"text": "x"}, ("x",)), labels)]
    thresholds = {"a": 0.5, "b": 0.5, "c": threshold}
    (row,) = csv.DictReader(io.StringIO(write(answered, "csv", "classify", thresholds)))
    assert json.loads(row["prediction"]) == names
    assert json.loads(row["score"]) == scores


def test_conll_has_a_line_for_each_word():
    words = [TaggedWord("in", "O", 0.5), TaggedWord("Paris", "B-LOC", 0.5)]
    answered = [(Record("", {}, ("in Paris",)), words), (Record("", {}, ("",)), Results())]
    assert write(answered, "conll", "tag") == "in\tO\nParis\tB-LOC\n\n\n"


def test_conll_has_a_space_for_each_separator_in_a_word():
    words = Results([TaggedWord("New\tYork", "B-LOC", 0.5), TaggedWord("a\r\nb", "O", 0.5)])
    assert write([(Record("", {}, ("",)), words)], "conll", "tag") == "New York\tB-LOC\na  b\tO\n\n"


@pytest.mark.parametrize("name", ["a.parquet", "a", "a.txt"])
def test_an_unknown_suffix_is_rejected(name):
    with pytest.raises(SettingsError, match=r"unknown format; name it \.jsonl, \.csv, \.tsv or \.conll"):
        output_format(Path(name))


def test_a_suffix_may_have_capital_letters():
    assert output_format(Path("a.CSV")) == "csv"
