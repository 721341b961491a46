"""Text columns of Parquet and Arrow files; other columns, damaged files."""

import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from bertie.base.errors import BertieError, DataError, SettingsError
from bertie.base.parquet_pages import largest_page, read_chunks
from bertie.base.tables import read_arrow_columns, read_parquet_columns, row_group_sizes

TEXTS = [*(f"Text {number}, é." for number in range(1000)), None]


@pytest.mark.parametrize(
    "dtype",
    [pyarrow.string(), pyarrow.large_string(), pyarrow.dictionary(pyarrow.int32(), pyarrow.string())],
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


def test_column_without_text_is_rejected(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"n": [1], "words": [["a"]]}), tmp_path / "a.parquet")
    for column, message in (
        ("n", "'n' holds int64, not text"),
        ("x", "no column 'x'; the columns are n, words; choose one with --column NAME"),
    ):
        with pytest.raises(SettingsError, match=f"a.parquet: .*{message}"):
            list(read_parquet_columns(tmp_path / "a.parquet", {column: "--column"}))


def test_largest_page_is_read_from_every_kind_of_page(tmp_path: Path) -> None:
    """A chunk has as many bytes, decompressed, as its pages and their headers."""
    file = tmp_path / "a.parquet"
    table = pyarrow.table({"n": range(1001), "text.a": TEXTS, "words": [["a"]] * 1001})
    for options in (
        {"data_page_version": "2.0"},
        {"compression": "zstd", "use_dictionary": False},
        {"use_dictionary": False, "column_encoding": {"text.a": "DELTA_BYTE_ARRAY"}},
        {"compression": "none", "write_statistics": False},
    ):
        pyarrow.parquet.write_table(table, file, **options)
        metadata = pyarrow.parquet.read_metadata(file)
        chunk = metadata.row_group(0).column(1)
        (chunks,) = read_chunks(file)
        size = largest_page(file, chunks, ["text.a"])
        assert 0.5 * chunk.total_uncompressed_size < size < chunk.total_uncompressed_size, options
        assert largest_page(file, chunks, ["words"]) > 0
    content = bytearray(file.read_bytes())
    content[chunk.data_page_offset] = 0
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"a\.parquet: damaged or truncated"):
        list(read_parquet_columns(file, {"text.a": "--column"}))


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
