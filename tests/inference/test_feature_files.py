"""Files of vectors: what comes back, whatever reads them, and how much is in memory."""

import weakref
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from bertie.base.errors import SettingsError
from bertie.inference.feature_files import check_suffix, write_features
from bertie.inference.features import Features

SIZES = [[2, 0, 3], [0], [1, 4]]  # pieces of each text of each chunk


def make(chunk: int, columns: int = 2) -> Features:
    sizes = SIZES[chunk]
    vectors = np.random.default_rng(chunk).standard_normal((columns, sum(sizes), 4)).astype(np.float32)
    names = [f"{chunk}-{number}" for number in range(sum(sizes))]
    bounds = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return Features([f"layer_{n}" for n in range(columns)], vectors, names, bounds)


CHUNKS = [make(chunk) for chunk in range(len(SIZES))]
ROWS = [features[i] for features in CHUNKS for i in range(len(features))]  # each (2, pieces, 4)


def read(path: Path) -> pyarrow.Table:
    if path.suffix == ".parquet":
        return pyarrow.parquet.read_table(path)
    with pyarrow.OSFile(str(path)) as file:
        return pyarrow.ipc.open_stream(file).read_all()


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_rows_come_back_as_they_are(tmp_path, suffix, dtype):
    path = tmp_path / "new" / f"out{suffix}"
    write_features(CHUNKS, path, "words", dtype)
    table = read(path)
    assert table.column_names == ["words", "layer_0", "layer_1"]
    names = [*(["0-0", "0-1"], [], ["0-2", "0-3", "0-4"]), [], *(["2-0"], ["2-1", "2-2", "2-3", "2-4"])]
    assert table["words"].to_pylist() == names
    for column in (0, 1):
        for found, row in zip(table[f"layer_{column}"].to_pylist(), ROWS, strict=True):
            assert found == row[column].astype(dtype).tolist()
    number = pyarrow.float32() if dtype is np.float32 else pyarrow.float16()
    assert table.schema.field("layer_0").type.value_type.value_type == number


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_one_vector_for_a_text_and_none_for_a_blank_one(tmp_path, suffix):
    path = tmp_path / f"out{suffix}"
    for pooling, pool in (("mean", np.mean), ("max", np.max)):
        write_features(CHUNKS, path, "tokens", pooling=pooling)
        for found, row in zip(read(path)["layer_1"].to_pylist(), ROWS, strict=True):
            if row.shape[1]:
                np.testing.assert_allclose(found, pool(row[1], axis=0), rtol=1e-6)
            else:
                assert found is None


def test_chunks_are_row_groups_written_as_they_come_and_one_is_in_memory(tmp_path):
    path = tmp_path / "out.parquet"
    alive: list[weakref.ref] = []
    written = []

    def chunks():
        for chunk in range(len(SIZES)):
            assert not any(reference() for reference in alive)
            written.append(sum(file.stat().st_size for file in tmp_path.iterdir()))
            features = make(chunk)
            alive.append(weakref.ref(features.vectors))
            yield features
            del features

    write_features(chunks(), path, "tokens")
    metadata = pyarrow.parquet.read_metadata(path)
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [3, 1, 2]
    assert written == sorted(written)
    assert written[1] < written[2] < path.stat().st_size


def test_what_fails_leaves_what_was_there(tmp_path):
    path = tmp_path / "out.parquet"
    path.write_text("before")

    def chunks():
        yield make(0)
        raise SettingsError("stop")

    with pytest.raises(SettingsError):
        write_features(chunks(), path, "tokens")
    assert [file.read_text() for file in tmp_path.iterdir()] == ["before"]


def test_half_a_surrogate_pair_is_its_escape(tmp_path):
    features = Features(["layer_0"], np.zeros((1, 1, 4), np.float32), ["a\ud800"], np.array([0, 1]))
    write_features([features], tmp_path / "out.arrow", "words")
    assert read(tmp_path / "out.arrow")["words"].to_pylist() == [["a\\ud800"]]


def test_a_name_says_the_format():
    with pytest.raises(SettingsError, match=r"--output out\.csv: name it \.parquet or \.arrow"):
        check_suffix(Path("out.csv"))
