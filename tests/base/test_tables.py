"""Text columns of Parquet and Arrow files; other columns, damaged files."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Literal

import numpy as np
import polars
import pyarrow
import pyarrow.parquet
import pytest

from bertie.base.arrow_messages import read_bodies
from bertie.base.errors import BertieError, DataError, SettingsError
from bertie.base.parquet_pages import read_chunks, read_pages
from bertie.base.tables import (
    iterate_batches,
    open_parquet,
    read_arrow_columns,
    read_parquet_columns,
    row_group_sizes,
)

PAGES: list[dict[str, Any]] = [
    {},
    {"data_page_version": "2.0", "compression": "zstd"},
    {"use_dictionary": False, "data_page_size": 100},
    {"store_schema": False, "dictionary_pagesize_limit": 20},
]
TEXTS = [*(f"Text {number}, é." for number in range(1000)), None]


@pytest.mark.parametrize(
    "dtype",
    [
        pyarrow.string(),
        pyarrow.large_string(),
        pyarrow.string_view(),
        pyarrow.dictionary(pyarrow.int32(), pyarrow.string()),
    ],
    ids=str,
)
def test_text_columns_of_every_type_are_read(tmp_path: Path, dtype: pyarrow.DataType) -> None:
    table = pyarrow.table({"n": range(1001), "text": pyarrow.array(TEXTS).cast(dtype)})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=300)
    with pyarrow.ipc.new_stream(tmp_path / "a.arrow", table.schema) as writer:
        writer.write_table(table)
    expected = [(number, {"text": text and text.encode()}) for number, text in enumerate(TEXTS, 1)]
    assert list(read_parquet_columns(tmp_path / "a.parquet", {"text": "--column"})) == expected
    assert list(read_arrow_columns(tmp_path / "a.arrow", {"text": "--column"})) == expected
    with pyarrow.ipc.new_file(tmp_path / "a.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=300)
    assert list(read_arrow_columns(tmp_path / "a.arrow", {"text": "--column"})) == expected
    assert len(row_group_sizes(tmp_path / "a.parquet")) == 4
    parts = [
        row
        for start, stop in ((0, 1), (1, 3), (3, 4))
        for row in read_parquet_columns(tmp_path / "a.parquet", {"text": "--column"}, start, stop)
    ]
    assert parts == expected


@pytest.mark.parametrize("folder", [b"x:y", b"caf\xe9"])
def test_any_path_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: bytes) -> None:
    """Even one that looks like a URL, or is not UTF-8."""
    table = pyarrow.table({"text": TEXTS})
    monkeypatch.chdir(tmp_path)
    path = Path(os.fsdecode(folder))
    path.mkdir()
    with pyarrow.OSFile(os.fsencode(path / "a.parquet"), "wb") as file:
        pyarrow.parquet.write_table(table, file)
    with (
        pyarrow.OSFile(os.fsencode(path / "a.arrow"), "wb") as file,
        pyarrow.ipc.new_stream(file, table.schema) as writer,
    ):
        writer.write_table(table)
    rows = list(read_parquet_columns(path / "a.parquet", {"text": "--column"}))
    assert len(rows) == len(TEXTS)
    assert list(read_arrow_columns(path / "a.arrow", {"text": "--column"})) == rows


def test_column_without_text_is_rejected(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"n": [1], "words": [["a"]]}), tmp_path / "a.parquet")
    for column, message in (
        ("n", "'n' holds int64, not text"),
        ("x", "no column 'x'; the columns are n, words; choose one with --column NAME"),
    ):
        with pytest.raises(SettingsError, match=f"a.parquet: .*{message}"):
            list(read_parquet_columns(tmp_path / "a.parquet", {column: "--column NAME"}))


def test_sizes_are_read_from_every_kind_of_page(tmp_path: Path) -> None:
    """A chunk has as many bytes, decompressed, as its pages and their headers."""
    file = tmp_path / "a.parquet"
    table = pyarrow.table({"n": range(1001), "text.a": TEXTS, "words": [["a", "b"]] * 1001})
    for options in (
        {"data_page_version": "2.0"},
        {"compression": "zstd", "use_dictionary": False},
        {"use_dictionary": False, "column_encoding": {"text.a": "DELTA_BYTE_ARRAY"}},
        {"compression": "none", "write_statistics": False},
    ):
        pyarrow.parquet.write_table(table, file, **options)
        metadata = pyarrow.parquet.read_metadata(file)
        chunk = metadata.row_group(0).column(1)
        ((_, texts, words),) = read_chunks(file)
        assert (texts.column, words.column) == ("text.a", "words")
        with file.open("rb") as opened:
            size, values, _ = read_pages(opened, texts)
            assert read_pages(opened, words).values == 2002
        assert 0.5 * chunk.total_uncompressed_size < size < chunk.total_uncompressed_size, options
        assert values == 1001
    content = bytearray(file.read_bytes())
    content[chunk.data_page_offset] = 0
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"a\.parquet: damaged or truncated"):
        list(read_parquet_columns(file, {"text.a": "--column"}))


@pytest.mark.parametrize("dtype", [pyarrow.string(), pyarrow.dictionary(pyarrow.int8(), pyarrow.string())])
def test_a_column_without_rows_is_read(tmp_path: Path, dtype: pyarrow.DataType) -> None:
    """The offset of its data page is 0, where there is no page."""
    pyarrow.parquet.write_table(pyarrow.table({"text": pyarrow.array([], dtype)}), tmp_path / "a.parquet")
    assert list(read_parquet_columns(tmp_path / "a.parquet", {"text": "--column"})) == []


def test_lists_nested_too_deeply_in_a_page_header_are_reported(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    table = pyarrow.table({"text": [f"text {number}" for number in range(1000)]})
    pyarrow.parquet.write_table(table, file, use_dictionary=False, compression="none")
    content = file.read_bytes()
    file.write_bytes(content[:4] + b"\x19" * 3000 + content[3004:])  # each byte begins a list in a list
    with pytest.raises(DataError, match=r"a\.parquet: damaged or truncated \(a list .* nested too deeply"):
        list(read_parquet_columns(file, {"text": "--column"}))


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
def test_sizes_of_arrow_messages_are_those_of_their_buffers(tmp_path: Path, compression: str | None) -> None:
    """The schema has none. Buffers are padded, and bitmaps of columns without nulls are left out."""
    table = pyarrow.table({"text": TEXTS, "kind": pyarrow.array(TEXTS).dictionary_encode(), "n": range(1001)})
    options = pyarrow.ipc.IpcWriteOptions(compression=compression)
    for create in (pyarrow.ipc.new_stream, pyarrow.ipc.new_file):
        with create(tmp_path / "a.arrow", table.schema, options=options) as writer:
            writer.write_table(table, max_chunksize=300)
        expected = [table["kind"].chunk(0).dictionary.nbytes]
        expected += [
            batch["text"].nbytes + batch["kind"].indices.nbytes + batch["n"].nbytes
            for batch in table.to_batches(300)
        ]
        bodies = [body for body in read_bodies(tmp_path / "a.arrow") if body.stored]
        assert [size for _, size in bodies] == pytest.approx(expected, abs=100)
        assert all(stored < 0.7 * size for stored, size in bodies) == bool(compression)
        assert (tmp_path / "a.arrow").stat().st_size > sum(stored for stored, _ in bodies)


@pytest.mark.parametrize("options", PAGES, ids=str)
def test_nested_columns_are_read_as_pyarrow_reads_them(tmp_path: Path, options: dict[str, Any]) -> None:
    random = Random(0)

    def draw(make: Callable[[], object], longest: int = 4) -> list[object] | None:
        length = random.randrange(-1, longest)
        return None if length < 0 else [make() for _ in range(length)]

    def word() -> str | None:
        return random.choice([None, "", "a", "é", "word" * random.randrange(9)])

    strings = pyarrow.list_(pyarrow.string())
    columns = {
        "words": (strings, lambda: draw(word)),
        "lists": (pyarrow.list_(strings), lambda: draw(lambda: draw(word))),
        "large": (pyarrow.large_list(pyarrow.large_string()), lambda: draw(word)),
        "fixed": (pyarrow.list_(pyarrow.string(), 2), lambda: [word(), word()]),
        "bytes": (pyarrow.list_(pyarrow.binary()), lambda: draw(lambda: random.randbytes(2))),
        "tags": (pyarrow.list_(pyarrow.int16()), lambda: draw(lambda: random.randrange(99))),
        "map": (pyarrow.map_(pyarrow.string(), strings), lambda: [("k", draw(word)), ("l", None)]),
        "struct": (pyarrow.struct({"a": strings, "b": pyarrow.int8()}), lambda: {"a": draw(word), "b": 1}),
        "shared": (pyarrow.list_(pyarrow.dictionary(pyarrow.int8(), pyarrow.string())), lambda: draw(word)),
        "text": (pyarrow.string(), word),
    }  # fmt: skip
    arrays = {
        name: pyarrow.array([make() for _ in range(1000)], dtype) for name, (dtype, make) in columns.items()
    }
    table = pyarrow.table(arrays)
    file = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(table, file, row_group_size=400, **options)
    with open_parquet(file) as opened:
        batches = list(iterate_batches(file, opened, [*reversed(columns)]))
    assert pyarrow.Table.from_batches(batches).to_pydict() == table.to_pydict()
    assert batches[0].schema.names == [*reversed(columns)]
    assert batches[0].schema.field("words").type == strings


@pytest.mark.parametrize("compression", ["uncompressed", "zstd"])
def test_arrow_files_of_polars_are_read(tmp_path: Path, compression: Literal["uncompressed", "zstd"]) -> None:
    """Their strings are views, and their batches do not form a stream."""
    schema = {"text": polars.String, "kind": polars.Categorical}
    table = polars.DataFrame({"text": TEXTS, "kind": TEXTS}, schema)
    table.slice(1).write_ipc(tmp_path / "a.arrow", compression=compression)
    texts = [text and text.encode() for text in TEXTS[1:]]
    expected = [(number, {"text": text, "kind": text}) for number, text in enumerate(texts, 1)]
    columns = {"text": "--column", "kind": "--column"}
    assert list(read_arrow_columns(tmp_path / "a.arrow", columns)) == expected
    assert len(read_bodies(tmp_path / "a.arrow")) == 2  # a dictionary and a batch


def test_views_that_share_bytes_are_bounded(tmp_path: Path) -> None:
    views = np.zeros((1000, 4), dtype=np.int32)
    views[:, 0] = 1 << 23
    buffers = [None, pyarrow.py_buffer(views), pyarrow.py_buffer(bytes(1 << 23))]
    array = pyarrow.Array.from_buffers(pyarrow.string_view(), 1000, buffers)
    table = pyarrow.table({"text": array})
    with pyarrow.ipc.new_stream(tmp_path / "a.arrow", table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(DataError, match=r"a\.arrow: the views of a column need 8,388,608,000 bytes"):
        list(read_arrow_columns(tmp_path / "a.arrow", {"text": "--column"}))


@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_two_columns_with_the_name_of_the_text_are_refused(tmp_path: Path, format: str) -> None:
    table = pyarrow.Table.from_arrays([pyarrow.array(TEXTS)] * 2, names=["text", "text"])
    if format == "parquet":
        pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    else:
        with pyarrow.ipc.new_file(tmp_path / "a.arrow", table.schema) as writer:
            writer.write_table(table)
    read = read_parquet_columns if format == "parquet" else read_arrow_columns
    with pytest.raises(DataError, match=rf"a\.{format}: two columns are called 'text'; rename one"):
        list(read(tmp_path / f"a.{format}", {"text": "--column"}))


@pytest.mark.parametrize("create", [pyarrow.ipc.new_stream, pyarrow.ipc.new_file])
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_damaged_arrow_files_are_refused_or_read(
    tmp_path: Path, create: Callable[..., Any], compression: str | None
) -> None:
    """Offsets and indices behind the end of a buffer ended the process."""
    random = Random(0)
    texts = pyarrow.array(TEXTS)
    columns = {"text": texts, "kind": texts.dictionary_encode(), "view": texts.cast(pyarrow.string_view())}
    table = pyarrow.table(columns).slice(900)
    file = tmp_path / "a.arrow"
    options = pyarrow.ipc.IpcWriteOptions(compression=compression)
    with create(file, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=50)
    content, outcomes = file.read_bytes(), set()
    for _ in range(300):
        damaged = bytearray(content)
        damaged[random.randrange(len(damaged))] = random.randrange(256)
        file.write_bytes(damaged)
        try:
            outcomes.add(len(list(read_arrow_columns(file, dict.fromkeys(columns, "--column")))))
        except (DataError, SettingsError) as error:
            outcomes.add(type(error))
    assert {101, DataError} <= outcomes


def test_column_name_that_is_not_utf8_is_damage(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": TEXTS}), file, store_schema=False)
    file.write_bytes(file.read_bytes().replace(b"text", b"\xfftex"))
    with pytest.raises(DataError, match=r"a\.parquet: damaged or truncated"):
        list(read_parquet_columns(file, {"text": "--column"}))


def test_damaged_and_missing_files_are_named(tmp_path: Path) -> None:
    table = pyarrow.table({"text": TEXTS})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    (tmp_path / "a.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-100])
    with pytest.raises(DataError, match=r"a\.parquet: damaged or truncated"):
        list(read_parquet_columns(tmp_path / "a.parquet", {"text": "--column"}))
    with pytest.raises(DataError, match=r"b\.parquet: no such file"):
        row_group_sizes(tmp_path / "b.parquet")


def test_missing_pyarrow_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(
        BertieError, match=r"a\.parquet: \.parquet files need pyarrow; pip install 'pyarrow>="
    ):
        row_group_sizes(tmp_path / "a.parquet")
