"""Records of files in every format, and the errors of damaged ones."""

import bz2
import gzip
import io
import json
import lzma
import sys
from itertools import islice
from types import SimpleNamespace

import pyarrow.parquet
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from bertie.base.errors import BertieError, DataError, SettingsError
from bertie.base.rows import format_suffix
from bertie.base.texts import is_blank
from bertie.inference.records import Record, input_format, read_arrow_batches, read_records

ROWS = [
    {"id": "1", "text": "one, two", "pair": 'a "b"'},
    {"id": "2", "text": "", "pair": "c"},
    {"id": "3", "text": "drei\u2028vier", "pair": ""},
]


def write(path, rows):
    """Write rows in the format of the file's suffix."""
    if path.suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow.parquet import write_table

        write_table(pyarrow.Table.from_pylist(rows), path)
        return path
    if ".jsonl" in path.name:
        content = "\n".join(json.dumps(row) for row in rows) + "\n\n"
    else:
        delimiter = "\t" if ".tsv" in path.name else ","
        cells = [list(rows[0]), *(row.values() for row in rows)]
        quoted = [['"' + str(cell).replace('"', '""') + '"' for cell in row] for row in cells]
        content = "".join(delimiter.join(row) + "\n" for row in quoted)
    data = content.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def read(path, columns=None, format=None):
    columns = columns or {"text": "text"}
    return list(read_records(path, format or input_format(path), columns))


@pytest.mark.parametrize("name", ["a.json", "a.JSON", "a.json.gz"])
def test_json_that_is_not_lines_is_refused(tmp_path, name):
    """It was read as plain text."""
    with pytest.raises(DataError, match=r"a .json file is not a table; write each row on a line of a .jsonl"):
        read(tmp_path / name)


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.jsonl.gz", "a.csv.gz", "a.parquet"])
def test_every_format_has_the_same_records(tmp_path, name):
    path = write(tmp_path / name, ROWS)
    records = read(path, {"text": "text", "pair": "pair"})
    assert [record.row for record in records] == ROWS
    assert [record.texts for record in records] == [(row["text"], row["pair"]) for row in ROWS]
    assert [record.is_blank for record in records] == [False, True, True]
    unit, first = ("row", 1) if name == "a.parquet" else ("line", 1 if "jsonl" in name else 2)
    assert [record.location for record in records] == [f"{path}, {unit} {first + i}" for i in range(3)]


@pytest.mark.parametrize(
    ("texts", "blank"),
    [
        (("a", "b"), False),
        (("a", " "), True),
        (("\u200b\ufeff",), True),
        (("who?", "\u200b"), True),
        (("a", ["b", ""]), False),
        (("a", []), True),
        ((["a"],), False),
        (([],), True),
    ],
)
def test_a_record_is_blank_if_one_of_its_texts_is(texts, blank):
    assert Record("a.csv, line 2", {}, texts).is_blank is blank


@given(st.lists(st.text(st.characters(exclude_characters="\n\r", exclude_categories=["Cs"]))))
def test_every_line_of_plain_text_is_a_record(tmp_path_factory, lines):
    path = tmp_path_factory.mktemp("texts") / "a.txt"
    path.write_bytes("".join(f"{line}\r\n" for line in lines).encode())
    records = read(path)
    assert [record.texts[0] for record in records] == [
        line.removeprefix("\ufeff") for line in lines[:1]
    ] + lines[1:]
    assert [record.is_blank for record in records] == [is_blank(record.texts[0]) for record in records]


def test_standard_input_is_read_line_by_line(monkeypatch):
    def lines():
        number = 0
        while True:
            number += 1
            yield b'{"review": "text %d"}\n' % number

    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=lines(), isatty=lambda: False))
    records = islice(read_records(None, "jsonl", {"text": "review"}), 3)
    assert [(record.location, record.texts) for record in records] == [
        (f"standard input, line {number}", (f"text {number}",)) for number in (1, 2, 3)
    ]


@pytest.mark.parametrize(
    ("compress", "suffix"),
    [(gzip.compress, "gz"), (bz2.compress, "bz2"), (lzma.compress, "xz"), (zstandard.compress, "zst")],
)
@pytest.mark.parametrize("format", ["text", "csv", "jsonl"])
def test_compressed_standard_input_is_reported(monkeypatch, compress, suffix, format):
    data = compress(b"text\nfirst\nsecond\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    message = rf"^standard input: \.{suffix} data; decompress it first, or give a file whose name ends in"
    with pytest.raises(DataError, match=message):
        list(read_records(None, format, {"text": "text"}))


def test_closed_standard_input_is_reported(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)  # as by `<&-`
    with pytest.raises(DataError, match="standard input is closed; give a file"):
        list(read_records(None, "text", {"text": "text"}))


@pytest.mark.parametrize(
    ("row", "column"),
    [
        ({"context": "a", "endings": ["b", "c"]}, "endings"),
        ({"context": "a", "ending0": "b", "ending1": "c", "ending3": "d"}, "endings"),
        ({"context": "a", "right": "b", "wrong": "c"}, "right,wrong"),
    ],
)
def test_endings_are_a_list_or_several_columns(tmp_path, row, column):
    (record,) = read(write(tmp_path / "a.jsonl", [row]), {"context": "context", "endings": column})
    assert record.texts == ("a", ["b", "c"])


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_a_row_of_json_lines_that_lacks_the_text_can_be_skipped(tmp_path, bad):
    rows = [{"text": "a"}, {"text": "b"}]
    path = write(tmp_path / "a.jsonl", [*rows[:bad], {"x": 1}, *rows[bad:]])
    skipped: list[DataError] = []
    records = list(read_records(path, "jsonl", {"text": "text"}, skipped=skipped.append))
    texts = ["a", "b"]
    assert [record.texts for record in records] == [(text,) for text in [*texts[:bad], "", *texts[bad:]]]
    assert [str(error).partition(";")[0] for error in skipped] == [
        f"{path}, line {bad + 1}: no column 'text'"
    ]
    with pytest.raises(SettingsError, match="no column 'body'"):
        list(read_records(path, "jsonl", {"text": "body"}, skipped=skipped.append))


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.parquet"])
def test_a_table_without_rows_needs_its_columns(tmp_path, name):
    path = write(tmp_path / name, [{"context": "a", "ending0": "b"}])
    if name == "a.parquet":
        pyarrow.parquet.write_table(pyarrow.parquet.read_table(path)[:0], path)
    else:
        path.write_text(path.read_text().splitlines()[0])
    assert read(path, {"context": "context", "endings": "endings"}) == []
    for columns in ({"text": "text"}, {"text": "text", "words": "words"}):
        with pytest.raises(SettingsError) as error:
            read(path, columns)
        problem = "no column 'text'; the columns are context, ending0; choose one of them"
        assert str(error.value).startswith(f"{path}: {problem}")
    assert read(path, {"words": "context", "text": "text"}) == []


def test_the_suffix_of_a_format_may_be_in_upper_case(tmp_path):
    assert format_suffix(tmp_path / "A.CSV") == ".csv"
    assert format_suffix(tmp_path / "A.JSONL.GZ") == ".jsonl"


BAD = {
    "no such column": (
        "a.csv",
        b"id,body\n1,a\n",
        "line 2: no column 'text'; the columns are id, body; choose one of them, such as --column text=id",
    ),
    "no column of text": (
        "a.jsonl",
        b'{"id": 1, "words": ["a"]}\n',
        "the columns are id, words; choose one of them with --column text=NAME",
    ),
    "semicolons": (
        "a.csv",
        b"text;label\na;b\n",
        "line 2: no column 'text'; are the fields separated by semicolons",
    ),
    "too few fields": ("a.csv", b"id,text\n1,a\n2\n", "line 3: expected 2 fields, got 1"),
    "too many fields": ("a.tsv", b"id\ttext\n1\ta\tb\n", "line 2: expected 2 fields, got 3"),
    "open quotation": ("a.csv", b'id,text\n1,a\n2,"b\n', "line 3: the row that begins here is malformed"),
    "nothing": ("a.csv", b"", "a.csv: empty first line; write the names of the columns there"),
    "no header": ("a.tsv", b"\na\n", "a.tsv: empty first line"),
    "not JSON": ("a.jsonl", b'{"text": "a"}\n{"text"\n', "line 2: not valid JSON"),
    "not an object": ("a.jsonl", b"[1]\n", "line 1: not a JSON object"),
    "a number": (
        "a.jsonl",
        b'{"text": 1}\n',
        "line 1: 1 in column 'text' is not text; correct it",
    ),
    "not UTF-8": ("a.txt", b"a\n\xff\n", "line 2: not UTF-8"),
    "damaged": ("a.parquet", b"PAR1", "damaged"),
    "cut off": ("a.jsonl.gz", gzip.compress(b'{"text": "a"}\n' * 99)[:-9], "truncated"),
}


@pytest.mark.parametrize("case", BAD)
def test_errors_name_the_file_and_the_line(tmp_path, case):
    name, content, message = BAD[case]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BertieError, match=message) as error:
        read(tmp_path / name)
    assert str(error.value).startswith(str(tmp_path / name))


def test_the_column_with_the_name_of_the_field_is_suggested(tmp_path):
    (tmp_path / "a.csv").write_text("body,text\na much longer text,b\n")
    with pytest.raises(SettingsError, match=r"no column 'reviews'; .*, such as --column text=text$"):
        read(tmp_path / "a.csv", {"text": "reviews"})


def test_words_are_read_where_a_row_has_them(tmp_path):
    rows = [{"words": ["the", "cat"], "text": "ignored"}, {"text": "the cat"}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    records = read(tmp_path / "a.jsonl", {"words": "words", "text": "text"})
    assert [record.texts for record in records] == [(["the", "cat"],), ("the cat",)]


def test_rows_of_parquet_are_numbered_over_all_batches(tmp_path):
    path = tmp_path / "a.parquet"
    table = pyarrow.table({"text": [f"text {i}" for i in range(5)]})
    pyarrow.parquet.write_table(table, path, row_group_size=3)  # no batch has rows of two groups
    batches = list(read_arrow_batches(path, "text", 2))
    assert [(number, texts) for number, texts, _ in batches] == [
        (1, ["text 0", "text 1"]),
        (3, ["text 2"]),
        (4, ["text 3", "text 4"]),
    ]
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a", "b", None, "c"]}), path)
    with pytest.raises(DataError, match=r"a\.parquet, row 3: column 'text' is empty"):
        list(read_arrow_batches(path, "text", 2))
    skipped: list[DataError] = []
    texts = [texts for _, texts, _ in read_arrow_batches(path, "text", 2, skipped.append)]
    assert (texts, len(skipped)) == ([["a", "b"], ["", "c"]], 1)


def test_the_text_is_not_suggested_as_its_pair(tmp_path):
    (tmp_path / "a.csv").write_text("id,text\n1,a long text\n")
    with pytest.raises(
        SettingsError, match=r"no column 'pair'; .*; choose one of them with --column pair=NAME"
    ):
        list(read_records(tmp_path / "a.csv", "csv", {"text": "text", "pair": "pair"}))


def test_column_in_another_unicode_form_is_shown_with_its_code_points(tmp_path):
    (tmp_path / "a.csv").write_text("Gro\u0308ße\nx\n")
    with pytest.raises(SettingsError, match=r"no column 'Größe'; .* 'Gro\\u0308\\xdfe': rename the column"):
        list(read_records(tmp_path / "a.csv", "csv", {"text": "Größe"}))


def test_missing_files_and_damaged_input_are_reported(tmp_path, monkeypatch):
    with pytest.raises(DataError, match=r"nowhere\.txt: no such file"):
        read(tmp_path / "nowhere.txt")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\n\xff\n")))
    with pytest.raises(DataError, match="standard input, line 2: not UTF-8"):
        read(None, format="text")


@pytest.mark.parametrize("content", [b"", b"a longer one\n" * 1000])
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.csv", "a.parquet"])
def test_a_file_that_changes_while_it_is_read_is_rejected(tmp_path, name, content):
    path = tmp_path / name
    if name == "a.txt":
        path.write_text("a\n" * 1000)
    else:
        write(path, [{"text": "a"}] * 1000)
    records = read_records(path, input_format(path), {"text": "text"})
    next(records)
    path.write_bytes(content)  # the rows of the old content are in memory
    with pytest.raises(DataError, match=f"{name}: changed while it was read; wait until it is complete"):
        list(records)


def test_endings_that_are_not_a_list_are_rejected(tmp_path):
    path = write(tmp_path / "a.jsonl", [{"context": "a", "endings": "b"}])
    with pytest.raises(DataError, match="line 1: 'b' in column 'endings' is not a list of texts"):
        read(path, {"context": "context", "endings": "endings"})


def parquet(path, **columns):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow.parquet import write_table

    types = {"nanoseconds": pyarrow.timestamp("ns"), "years": pyarrow.timestamp("s")}
    types |= {"zoned": pyarrow.timestamp("s", "No/Where"), "days": pyarrow.date32()}
    arrays = [pyarrow.array(values, types.get(name)) for name, values in columns.items()]
    # Bytes become a damaged string column, which is not UTF-8.
    arrays = [array.view("string") if array.type == "binary" else array for array in arrays]
    write_table(pyarrow.Table.from_arrays(arrays, [name.partition("_")[0] for name in columns]), path)
    return path


def test_a_long_value_that_is_not_text_is_shortened(tmp_path):
    path = write(tmp_path / "a.jsonl", [{"text": [0.1] * 768}])
    with pytest.raises(DataError, match=r"line 1: \[0\.1, .{,40}\.\.\.\] in column 'text' is not text"):
        read(path)


def test_dates_and_times_of_parquet_become_text(tmp_path):
    columns = {"nanoseconds": [10**18 + 1, None], "years": [10**12, 0], "days": [1, 2], "zoned": [0, None]}
    path = parquet(tmp_path / "a.parquet", text=["a", "b"], **columns)
    first, second = (record.row for record in read(path))
    assert isinstance(first["years"], str)
    assert first == {
        "text": "a",
        "nanoseconds": "2001-09-09 01:46:40.000000001",
        "years": first["years"],
        "days": "1970-01-02",
        "zoned": "1970-01-01 00:00:00.000Z",
    }
    assert list(second.values()) == ["b", None, "1970-01-01 00:00:00.000", "1970-01-03", None]


def test_a_damaged_column_is_reported_unless_it_is_not_read(tmp_path):
    path = parquet(tmp_path / "a.parquet", text=["a"], name=[b"\xff"])
    with pytest.raises(DataError, match=r"a\.parquet: column 'name' cannot be read .*; leave it out"):
        read(path)
    (record,) = read_records(path, "parquet", {"text": "text"}, whole_rows=False)
    assert (record.row, record.texts) == ({"text": "a"}, ("a",))
    intact = parquet(tmp_path / "b.parquet", text=["a"])
    with pytest.raises(SettingsError, match="no column 'body'; the columns are text"):
        list(read_records(intact, "parquet", {"text": "body"}, whole_rows=False))


def test_columns_of_the_same_name_in_parquet_are_rejected(tmp_path):
    path = parquet(tmp_path / "a.parquet", text_1=["a"], text_2=["b"])
    with pytest.raises(DataError, match=r"a\.parquet: two columns are called 'text'; rename one"):
        read(path)


def test_plain_text_cannot_have_several_columns(tmp_path):
    with pytest.raises(SettingsError, match="plain text cannot have the columns question, context; give"):
        read(tmp_path / "a.txt", {"question": "question", "context": "context"})


def test_missing_texts_of_parquet_are_reported(tmp_path):
    path = tmp_path / "a.parquet"
    for values in ([float("nan")], pyarrow.array([None], pyarrow.string())):
        pyarrow.parquet.write_table(pyarrow.table({"text": values}), path)
        with pytest.raises(DataError, match="row 1: column 'text' is empty; fill it in, or choose another"):
            list(read_records(path, "parquet", {"text": "text"}))
