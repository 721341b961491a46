"""Files with one vector for each text: how rows are read in chunks, and their exact contents."""

import io
import json

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertie.base.errors import DataError
from bertie.inference import embedding_files
from bertie.inference.embedding_files import (
    TextChunk,
    chunk_records,
    infer_schema,
    write_embeddings,
    write_json_lines,
)
from bertie.inference.records import Record


def chunk(*rows):
    return TextChunk([""] * len(rows), list(rows), "a.jsonl, line 1")


def vectors(count):
    """Return vectors of size 3, of which the first is void."""
    values = np.random.default_rng(count).standard_normal((count, 3)).astype(np.float32)
    values[0] = np.nan
    return values


@pytest.mark.parametrize(("sizes", "expected"), [([2, 3, 4, 1, 9, 1, 1, 1, 1, 1], [2, 2, 2, 3, 1]), ([], [])])
def test_a_chunk_ends_with_its_last_row_or_character(monkeypatch, sizes, expected):
    monkeypatch.setattr(embedding_files, "CHUNK_ROWS", 3)
    monkeypatch.setattr(embedding_files, "CHUNK_CHARACTERS", 5)
    records = [Record(f"line {i}", {"text": size * "x"}, (size * "x",)) for i, size in enumerate(sizes)]
    chunks = list(chunk_records(iter(records)))
    assert [len(chunk.texts) for chunk in chunks] == expected
    assert [text for chunk in chunks for text in chunk.texts] == [size * "x" for size in sizes]
    assert [row for chunk in chunks for row in chunk.rows] == [record.row for record in records]
    assert [chunk.location for chunk in chunks] == [f"line {sum(expected[:i])}" for i in range(len(chunks))]


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1))
def test_json_lines_hold_the_exact_numbers(values):
    file = io.StringIO()
    write_json_lines([(chunk({"a": 1}, {}), np.array([values] * 2, np.float32))], file)
    first, second = map(json.loads, file.getvalue().splitlines())
    assert list(first) == ["a", "embedding"]
    assert np.array(first["embedding"], np.float32).tolist() == values
    assert second == {"embedding": first["embedding"]}


def test_chunks_are_written_one_after_another(tmp_path):
    expected = np.concatenate([vectors(1), vectors(2000)])
    chunks = [(chunk(*({"text": "x"} for _ in range(count))), vectors(count)) for count in (1, 2000)]
    for suffix in (".npy", ".parquet", ".jsonl"):
        write_embeddings(chunks, tmp_path / f"out{suffix}", 3)
    array = np.load(tmp_path / "out.npy")
    assert array.dtype == np.float32
    np.testing.assert_array_equal(array, expected)
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    for rows in (lines, pyarrow.parquet.read_table(tmp_path / "out.parquet").to_pylist()):
        assert [row["embedding"] is None for row in rows] == np.isnan(expected[:, 0]).tolist()
        found = [row["embedding"] for row in rows if row["embedding"]]
        np.testing.assert_array_equal(np.array(found, np.float32), expected[~np.isnan(expected[:, 0])])


def test_only_the_rows_have_dictionaries_and_statistics(tmp_path):
    """For vectors both cost time, and save no space."""
    write_embeddings([(chunk({"a": "x"}, {"a": "y"}), vectors(2))], tmp_path / "out.parquet", 3)
    group = pyarrow.parquet.read_metadata(tmp_path / "out.parquet").row_group(0)
    assert [
        (column.path_in_schema, column.has_dictionary_page, column.is_stats_set)
        for column in map(group.column, range(group.num_columns))
    ] == [("a", True, True), ("embedding.list.element", False, False)]


def test_a_parquet_file_without_rows_has_the_columns(tmp_path):
    write_embeddings([], tmp_path / "out.parquet", 3, pyarrow.schema({"a": pyarrow.int16()}))
    assert pyarrow.parquet.read_schema(tmp_path / "out.parquet") == pyarrow.schema(
        {"a": pyarrow.int16(), "embedding": pyarrow.list_(pyarrow.float32(), 3)}
    )


def test_types_of_all_chunks_are_unified(tmp_path):
    schema = infer_schema([chunk({"a": 1, "b": None}), chunk({"a": 0.5, "b": "x"}, {"c": [1]})], tmp_path)
    types = {"a": pyarrow.float64(), "b": pyarrow.string(), "c": pyarrow.list_(pyarrow.int64())}
    assert schema == pyarrow.schema(types)


def test_lone_surrogates_are_written_as_their_escapes(tmp_path):
    row = {"a\ud800": "b\ud801", "c": [{"d\ud802": ["e\ud803", None]}]}
    for schema in (None, infer_schema([chunk(row)], tmp_path)):
        write_embeddings([(chunk(row), vectors(1))], tmp_path / "out.parquet", 3, schema)
        assert pyarrow.parquet.read_table(tmp_path / "out.parquet").to_pylist() == [
            {"a\\ud800": "b\\ud801", "c": [{"d\\ud802": ["e\\ud803", None]}], "embedding": None}
        ]
    write_embeddings([(chunk(row), vectors(1))], tmp_path / "out.jsonl", 3)
    assert json.loads((tmp_path / "out.jsonl").read_text()) == row | {"embedding": None}


@pytest.mark.parametrize("values", [[1, "x"], [[1], 2], [2**63]])
def test_columns_of_several_types_are_reported(tmp_path, values):
    with pytest.raises(DataError, match=r"^a\.jsonl, line 1 and below: column 'a' holds values of several "):
        infer_schema([chunk(*({"a": value} for value in values))], tmp_path)
