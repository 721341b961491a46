"""Tables round-trip in every format; errors name the file, line and column."""

import bz2
import csv
import gzip
import itertools
import json
import lzma
import re
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import zstandard
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from bertie.base.errors import DataError, SettingsError
from bertie.base.memory import MemoryTable
from bertie.base.rows import read_header, read_lines, read_rows, read_unquoted, report_skipped

COMPRESSORS = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.compress,
}
TABLE = {"a": ["x", "two\nlines", 'a "quoted" word', "", "comma, tab\t"], "b": ["1", "2", "3", "4", "é"]}


def write(path, suffix, table, ending="\n"):
    rows = list(zip(*table.values(), strict=True))
    if suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.table(table), path)
        return
    if suffix == ".jsonl":
        text = "".join(json.dumps(dict(zip(table, row, strict=True))) + ending for row in rows)
    else:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, delimiter="," if suffix == ".csv" else "\t", lineterminator=ending)
            writer.writerows([list(table), *rows])
        text = path.read_bytes().decode()
    path.write_bytes(COMPRESSORS.get(path.suffix, bytes)(text.encode()))


@pytest.mark.parametrize(
    ("suffix", "compression"),
    [*itertools.product([".csv", ".tsv", ".jsonl"], COMPRESSORS), (".parquet", "")],
)
def test_every_format_and_compression_is_read(tmp_path, suffix, compression):
    path = tmp_path / f"table{suffix}{compression}"
    write(path, suffix, TABLE)
    rows = read_rows(path, ["b", "a"])
    assert rows.columns == {"b": TABLE["b"], "a": TABLE["a"]}
    assert len(rows) == 5
    numbers = [2, 3, 5, 6, 7] if suffix in (".csv", ".tsv") else [1, 2, 3, 4, 5]
    unit = "row" if suffix == ".parquet" else "line"
    assert [rows.location(i) for i in range(5)] == [f"{path}, {unit} {number}" for number in numbers]


# csv's own writer and reader do not round-trip a lone carriage return, which is another line end.
values = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\0"))


@given(st.lists(st.tuples(values, values), min_size=1), st.sampled_from([".csv", ".tsv", ".jsonl"]))
@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_round_trips(tmp_path, rows, suffix):
    table = {"a": [row[0] for row in rows], "b": [row[1] for row in rows]}
    path = tmp_path / f"table{suffix}"
    write(path, suffix, table)
    assert read_rows(path, ["a", "b"]).columns == table


def test_parquet_rejects_duplicate_column_names(tmp_path):
    table = pyarrow.table([[1], ["a"], ["b"]], names=["id", "text", "text"])
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet: two columns are called 'text'; rename one"):
        read_rows(tmp_path / "a.parquet", ["text"])


def test_json_and_parquet_values_keep_their_types(tmp_path):
    table = {"words": [["a", "b"], []], "n": [1, None], "answers": [{"start": [3]}, {"start": []}]}
    for suffix in (".jsonl", ".parquet"):
        write(tmp_path / f"a{suffix}", suffix, table)
        assert read_rows(tmp_path / f"a{suffix}", list(table)).columns == table


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_line_ends_and_byte_order_mark_are_dropped(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    write(path, suffix, {"a": ["x", "y"]}, ending="\r\n")
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes() + b"\r\n\r\n")
    assert read_rows(path, ["a"]).columns == {"a": ["x", "y"]}


def test_blank_lines_of_json_are_skipped_and_ndjson_is_the_same(tmp_path):
    (tmp_path / "a.ndjson").write_text('{"a": "x"}\n \t\n\n{"a": "y"}\n')
    rows = read_rows(tmp_path / "a.ndjson", ["a"])
    assert rows.columns == {"a": ["x", "y"]}
    assert rows.location(1) == f"{tmp_path / 'a.ndjson'}, line 4"


def test_only_the_first_line_loses_a_byte_order_mark(tmp_path):
    (tmp_path / "a.tsv").write_text("\ufeffa\tb\n\ufeffx\ty\n", encoding="utf-8")
    assert read_rows(tmp_path / "a.tsv", ["a"]).columns == {"a": ["\ufeffx"]}


def test_several_columns_may_have_no_name(tmp_path):
    (tmp_path / "a.csv").write_text("a,,\n1,2,3\n")
    assert read_rows(tmp_path / "a.csv", ["a"]).columns == {"a": ["1"]}


def test_selected_rows_keep_their_lines(tmp_path):
    (tmp_path / "a.csv").write_text('a,b\n1,2\n"two\nlines",3\n4,5\n')
    rows = read_rows(tmp_path / "a.csv", ["a", "b"]).select([0, 2])
    assert rows.columns == {"a": ["1", "4"], "b": ["2", "5"]}
    assert [rows.location(i) for i in range(2)] == [
        f"{tmp_path / 'a.csv'}, line {number}" for number in (2, 5)
    ]


def test_malformed_rows_can_be_skipped(tmp_path):
    """Rows of JSON lines may also lack a column; if all rows are malformed, the first error is raised."""
    lines = ['{"a": "x"}', '{"b": 1}', "{", "[" * 100_000, '{"a": "y"}']
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    skipped: list[DataError] = []
    rows = read_rows(tmp_path / "a.jsonl", ["a"], skipped)
    assert (rows.columns, rows.numbers) == ({"a": ["x", "y"]}, [1, 5])
    start = re.escape(f"{tmp_path / 'a.jsonl'}, line ")
    patterns = ("2: no column 'a'", "3: not valid JSON", "4: not valid JSON")
    found = sorted(skipped, key=str)
    assert all(re.match(start + pattern, str(e)) for pattern, e in zip(patterns, found, strict=True))
    (tmp_path / "a.jsonl").write_text("{\n[1]\n")
    with pytest.raises(DataError, match="line 1: not valid JSON"):
        read_rows(tmp_path / "a.jsonl", ["a"], [])
    (tmp_path / "a.csv").write_text("a\nx\n")
    with pytest.raises(SettingsError, match="no column 'b'"):  # no row has it
        read_rows(tmp_path / "a.csv", ["b"], [])


def test_a_malformed_row_names_the_lines_that_it_takes_in(tmp_path):
    (tmp_path / "a.tsv").write_text('a\tb\n"x\t1\ny\t2\nz "z"\t3\nw\t4\n')
    skipped: list[DataError] = []
    assert read_rows(tmp_path / "a.tsv", ["a"], skipped).columns == {"a": ["w"]}
    (error,) = skipped
    assert "a.tsv, line 2: the row that begins here and reaches line 4 is malformed" in str(error)


def test_ten_skipped_rows_are_shown_and_all_are_counted(tmp_path, capsys):
    skipped = [DataError(f"row {number}") for number in range(1, 1013)]
    report_skipped(tmp_path / "a.csv", skipped, kept=988)
    *shown, count = capsys.readouterr().err.splitlines()
    assert shown == [f"skipped: row {number}" for number in range(1, 11)]
    assert count == f"{tmp_path / 'a.csv'}: skipped 1,012 of 2,000 rows"
    report_skipped(tmp_path / "a.csv", [], kept=988)
    assert capsys.readouterr().err == ""


def test_text_of_parquet_that_is_not_utf8_is_reported(tmp_path):
    table = pyarrow.table({"a": pyarrow.array([b"\xff"]).view("string")})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(
        DataError, match=r"a\.parquet: a value is not UTF-8 \(invalid start byte\); write the"
    ):
        read_rows(tmp_path / "a.parquet", ["a"])


def test_fields_may_exceed_the_default_limit_of_csv(tmp_path):
    text = "word " * 100_000
    write(tmp_path / "a.csv", ".csv", {"a": [text]})
    assert read_rows(tmp_path / "a.csv", ["a"]).columns == {"a": [text]}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"", r"a\.csv: empty"),
        ("a.csv", b"a,b\n", r"a\.csv: empty"),
        ("a.jsonl", b"\n\n", r"a\.jsonl: empty"),
        ("a.csv", b"a,b\n1,2\n1,2,3\n", r"a\.csv, line 3: expected 2 fields, got 3; quote .*"),
        ("a.csv", b'a,b\n"two\nlines",2\n1\n', r"a\.csv, line 4: expected 2 fields, got 1"),
        ("a.csv", b'a,b\n1,2\n"not closed,2\n1,2\n', r"a\.csv, line 3: the row that begins here"),
        ("a.csv", b"a,b\r1,2\r", r"a\.csv, line 1: a field contains a CR without LF; .* the line ends"),
        ("a.csv", b"a,b\n1,\xe9\n", r"a\.csv, line 2: not UTF-8"),
        ("a.csv", b"a,b,,,a\n1,2,,,3\n", r"a\.csv, line 1: two columns are called 'a'; rename one"),
        ("a.jsonl", b'{"a": 1, "b": 2}\n{"a": 1,\n', r"a\.jsonl, line 2: not valid JSON"),
        ("a.jsonl", b"\n[1]\n", r"a\.jsonl, line 2: not a JSON object; write one object per line \(jq"),
        ("a.jsonl", b"3\n", r"a\.jsonl, line 1: not a JSON object; write one object per line$"),
        ("a.jsonl", b'{\n "a": 1\n}', r"not valid JSON .*; write one object per line \(jq --c\S+ \.\)$"),
        ("a.jsonl", b'[{"a": 1},\n', r"not valid JSON .*; write one object per line \(jq --c\S+ '\.\[\]'\)$"),
        ("a.parquet", b"PAR1", r"a\.parquet: damaged or truncated"),
        ("a.xls", b"", r"a\.xls: a spreadsheet; save it as \.csv, in UTF-8, and give that file"),
        ("a.txt", b"", r"a\.txt: unknown table format; use \.csv"),
        ("a.txt.gz", b"", r"a\.txt\.gz: unknown table format"),
    ],
)
def test_malformed_file_is_named_with_its_line(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_rows(tmp_path / name, ["a", "b"])


def test_folder_or_text_in_place_of_a_table_is_refused(tmp_path):
    for path, message in ((tmp_path, "is a directory; expected a file"), (Path("a " * 200), "unknown table")):
        with pytest.raises(DataError, match=message):
            read_rows(path, ["a"])


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_missing_column_suggests_the_nearest(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    write(path, suffix, {"text": ["x"], "label": ["y"]})
    location = f"{path}, line 1" if suffix == ".jsonl" else f"{path}"
    for column, hint in (("labels", "did you mean 'label'? "), ("stars", "")):
        with pytest.raises(SettingsError) as raised:
            read_rows(path, ["text", column])
        assert str(raised.value) == f"{location}: no column {column!r}; {hint}the columns are text, label"


def test_column_in_another_unicode_form_is_shown_with_its_code_points(tmp_path):
    write(tmp_path / "a.csv", ".csv", {"Gro\u0308ße": ["x"]})
    message = (
        r"no column 'Größe'; the file has the same letters in other code points, 'Gro\u0308\xdfe': rename"
    )
    with pytest.raises(SettingsError, match=re.escape(message)):
        read_rows(tmp_path / "a.csv", ["Größe"])


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet", ""])
def test_missing_columns_name_their_options(tmp_path, suffix):
    table = {"review": ["x"], "label": ["y"]}
    source = MemoryTable("train", table)
    if suffix:
        source = tmp_path / f"a{suffix}"
        write(source, suffix, table)
    options = {"text": "--text NAME", "label": "--label NAME", "a": "--column b=NAME", "c": "--column b=NAME"}
    options["d"] = "--pair NAME"
    advice = "the columns are review, label; pass --text NAME --column b=NAME --pair NAME "
    advice += "(text='NAME', pair='NAME', columns={'b': 'NAME'})"
    with pytest.raises(SettingsError, match=f"no column 'text'; {re.escape(advice)}$"):
        read_rows(source, list(options), options=options)
    with pytest.raises(SettingsError, match=r"; pass --text NAME \(text='NAME'\)$"):
        read_rows(source, ["text"], options=options)


SEPARATORS = pytest.mark.parametrize(("separator", "name"), [(";", "semicolons"), ("\t", "tabs")])


@SEPARATORS
@pytest.mark.parametrize("row", ["Good, really;5", '"Good, really";5'])
def test_malformed_row_suggests_another_separator(tmp_path, row, separator, name):
    (tmp_path / "a.csv").write_text(f"text;label\n{row}\n".replace(";", separator))
    with pytest.raises(DataError, match=rf"a\.csv, line 2: .*are the fields separated by {name}\?"):
        read_rows(tmp_path / "a.csv", ["text", "label"])


@SEPARATORS
def test_missing_column_suggests_another_separator(tmp_path, separator, name):
    (tmp_path / "a.csv").write_text(f"text{separator}label\nx{separator}1\n")
    with pytest.raises(SettingsError, match=rf"no column 'text'; are the fields separated by {name}\?"):
        read_rows(tmp_path / "a.csv", ["text", "label"])


@pytest.mark.parametrize("row", ["x,1", '"x, y",1'])
def test_tsv_with_commas_is_recognized(tmp_path, row):
    (tmp_path / "a.tsv").write_text(f"text,label\n{row}\n")
    message = r"are the fields separated by commas\? give the file a name that ends in \.csv"
    with pytest.raises((DataError, SettingsError), match=message):
        read_rows(tmp_path / "a.tsv", ["text", "label"])


def test_advice_about_semicolons_replaces_that_about_options(tmp_path):
    (tmp_path / "a.csv").write_text("text;label\nx;1\n")
    with pytest.raises(SettingsError, match=r"the columns are text;label$"):
        read_rows(tmp_path / "a.csv", ["text"], options={"text": "--text NAME"})


def test_missing_file_is_named(tmp_path):
    for name in ("a.csv", "a.jsonl", "a.parquet"):
        with pytest.raises(DataError, match="no such file"):
            read_rows(tmp_path / name, ["a"])


def test_read_unquoted_keeps_quotation_marks(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_bytes('\ufeffid\ttext\tlabel\r\n7\t" one\u2028line\x85\t1\r\n8\ttwo"\t0'.encode())
    assert read_header(path) == ["id", "text", "label"]
    rows = read_unquoted(path, ["label", "text"])
    assert rows.columns == {"label": ["1", "0"], "text": ['" one\u2028line\x85', 'two"']}
    assert rows.location(1) == f"{path}, line 3"
    path.write_bytes(path.read_bytes() + b"\r\n\n")
    headless = read_unquoted(path, ["y"], header=("x", "y", "z"))
    assert headless.columns == {"y": ["text", '" one\u2028line\x85', 'two"']}
    assert headless.location(1) == f"{path}, line 2"
    assert list(read_lines(path))[2] == '8\ttwo"\t0'


@pytest.mark.parametrize("separator", [",", ";"])
def test_read_unquoted_asks_for_tabs(tmp_path, separator):
    path = tmp_path / "a.tsv"
    path.write_text(f"index{separator}prediction\n0{separator}1\n")
    with pytest.raises(DataError, match=r"a\.tsv, line 1: .* has no tabs; separate the columns by tabs$"):
        read_unquoted(path, ["index", "prediction"])


def test_read_unquoted_skips_malformed_lines_on_request(tmp_path, capsys):
    path = tmp_path / "a.tsv"
    path.write_text("a\tb\n1\t2\n3\n4\t5\t6\n7\t8\n")
    rows = read_unquoted(path, ["b"], skip_malformed=True)
    assert rows.columns == {"b": ["2", "8"]}
    assert rows.location(1) == f"{path}, line 5"
    message = f"{path}: skipped lines that do not have 2 fields: 2 (first: line 3)\n"
    assert capsys.readouterr() == ("", message)
    path.write_text("a\tb\n1\t2\n")
    read_unquoted(path, ["b"], skip_malformed=True)
    assert capsys.readouterr() == ("", "")
    path.write_text("a\tb\n1\n")
    with pytest.raises(DataError, match="empty"):
        read_unquoted(path, ["b"], skip_malformed=True)


def test_read_unquoted_lists_malformed_lines(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("a\tb\n1\n1\t2\n1\t2\t3\n")
    with pytest.raises(DataError, match=r"line 2: expected 2 fields, got 1; .* \(2 in all: 2, 4\)$"):
        read_unquoted(path, ["a"])
    path.write_text("a\tb\n" + "1\n" * 20)
    with pytest.raises(DataError, match=r"\(20 in all: 2, 3, .*, 11, …\)$"):
        read_unquoted(path, ["a"])
    for content in ("", "a\tb\n"):
        path.write_text(content)
        with pytest.raises(DataError, match="empty"):
            read_unquoted(path, ["a"])
