"""Files of vectors: their contents, and the memory needed to write them."""

import os
import weakref
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from bertie.base.errors import SettingsError
from bertie.inference.feature_files import write_features
from bertie.inference.features import Features

SIZES = [[2, 0, 3], [0], [1, 4]]  # tokens of each text of each chunk


def make(chunk: int, columns: int = 2) -> Features:
    sizes = SIZES[chunk]
    vectors = np.random.default_rng(chunk).standard_normal((columns, sum(sizes), 4)).astype(np.float32)
    tokens = [f"{chunk}-{number}" for number in range(sum(sizes))]
    bounds = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return Features([f"layer_{n}" for n in range(columns)], vectors, tokens, bounds)


CHUNKS = [make(chunk) for chunk in range(len(SIZES))]
VECTORS = [text.vectors for features in CHUNKS for text in features]  # of each text (2, tokens, 4)


def read(path: Path) -> pyarrow.Table:
    if path.suffix == ".parquet":
        return pyarrow.parquet.read_table(path)
    with pyarrow.OSFile(str(path)) as file:
        return pyarrow.ipc.open_stream(file).read_all()


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_a_file_holds_the_vectors_of_every_text(tmp_path, suffix, dtype):
    path = tmp_path / "new" / f"out{suffix}"
    write_features(CHUNKS, path, "words", dtype)
    table = read(path)
    assert table.column_names == ["words", "layer_0", "layer_1"]
    tokens = [*(["0-0", "0-1"], [], ["0-2", "0-3", "0-4"]), [], *(["2-0"], ["2-1", "2-2", "2-3", "2-4"])]
    assert table["words"].to_pylist() == tokens
    for column in (0, 1):
        for row, vectors in zip(table[f"layer_{column}"].to_pylist(), VECTORS, strict=True):
            assert row == vectors[column].astype(dtype).tolist()
    arrow_type = pyarrow.float32() if dtype is np.float32 else pyarrow.float16()
    assert table.schema.field("layer_0").type.value_type.value_type == arrow_type


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_pooling_writes_one_vector_and_null_for_a_blank_text(tmp_path, suffix):
    path = tmp_path / f"out{suffix}"
    for pooling, pool in (("mean", np.mean), ("max", np.max)):
        write_features(CHUNKS, path, "tokens", pooling=pooling)
        for row, vectors in zip(read(path)["layer_1"].to_pylist(), VECTORS, strict=True):
            if vectors.shape[1]:
                np.testing.assert_allclose(row, pool(vectors[1], axis=0), rtol=1e-6)
            else:
                assert row is None


def test_a_chunk_is_a_row_group_and_only_one_is_in_memory(tmp_path):
    path = tmp_path / "out.parquet"
    created: list[weakref.ref] = []
    bytes_written = []

    def chunks():
        for chunk in range(len(SIZES)):
            assert not any(reference() for reference in created)
            bytes_written.append(sum(file.stat().st_size for file in tmp_path.iterdir()))
            features = make(chunk)
            created.append(weakref.ref(features.vectors))
            yield features
            del features

    write_features(chunks(), path, "tokens")
    metadata = pyarrow.parquet.read_metadata(path)
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [3, 1, 2]
    assert bytes_written == sorted(bytes_written)
    assert bytes_written[1] < bytes_written[2] < path.stat().st_size


def test_a_failure_leaves_the_old_file(tmp_path):
    path = tmp_path / "out.parquet"
    path.write_text("before")

    def chunks():
        yield make(0)
        raise SettingsError("stop")

    with pytest.raises(SettingsError):
        write_features(chunks(), path, "tokens")
    assert [file.read_text() for file in tmp_path.iterdir()] == ["before"]


def test_a_lone_surrogate_is_written_as_its_escape(tmp_path):
    features = Features(["layer_0"], np.zeros((1, 1, 4), np.float32), ["a\ud800"], np.array([0, 1]))
    write_features([features], tmp_path / "out.arrow", "words")
    assert read(tmp_path / "out.arrow")["words"].to_pylist() == [["a\\ud800"]]


@pytest.mark.parametrize("folder", [b"x:y", b"caf\xe9"])
@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_any_path_is_written(tmp_path, monkeypatch, folder, suffix):
    """Even one that looks like a URL, or is not UTF-8."""
    monkeypatch.chdir(tmp_path)
    path = Path(os.fsdecode(folder), f"out{suffix}")
    write_features(CHUNKS, path, "tokens")
    path.rename(tmp_path / path.name)
    assert len(read(tmp_path / path.name)) == len(VECTORS)


@pytest.mark.parametrize("name", ["out.PARQUET", "out.Arrow"])
def test_suffixes_may_have_capital_letters(name, tmp_path):
    features = Features(["layer_0"], np.zeros((1, 1, 4), np.float32), ["a"], np.array([0, 1]))
    write_features([features], tmp_path / name, "words")
    (tmp_path / name).rename(tmp_path / name.lower())
    assert read(tmp_path / name.lower())["words"].to_pylist() == [["a"]]


def test_only_the_strings_have_a_dictionary(tmp_path):
    """For vectors compression, dictionaries and statistics cost time, and save no space."""
    for unit in ("tokens", "words"):
        write_features(CHUNKS, tmp_path / "out.parquet", unit)
        group = pyarrow.parquet.read_metadata(tmp_path / "out.parquet").row_group(0)
        columns = {group.column(i).path_in_schema.split(".")[0]: group.column(i) for i in range(3)}
        assert {name: column.has_dictionary_page for name, column in columns.items()} == {
            unit: True,
            "layer_0": False,
            "layer_1": False,
        }
        assert {(column.compression, column.is_stats_set) for column in columns.values()} == {
            ("UNCOMPRESSED", False)
        }
