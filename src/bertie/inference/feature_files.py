"""Vectors of texts -> a Parquet or an Arrow file, with a row for each text, written chunk by chunk.

A row has `tokens` or `words`, a list of strings, and for each column of vectors a list of as many vectors; or
one vector for the whole text, which is null where the text has nothing.
"""

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from bertie.base.errors import SettingsError
from bertie.base.files import atomic_file
from bertie.base.tables import import_pyarrow
from bertie.inference.features import Features

Names = Literal["tokens", "words"]
Pooling = Literal["mean", "max"]

SUFFIXES = (".parquet", ".arrow")


def check_suffix(path: Path) -> None:
    """Raises SettingsError where the name of a file to be written says no format."""
    if path.suffix not in SUFFIXES:
        raise SettingsError(f"--output {path}: name it {' or '.join(SUFFIXES)}")


def write_features(
    chunks: Iterable[Features],
    path: Path,
    names: Names,
    dtype: type[np.float32] | type[np.float16] = np.float32,
    pooling: Pooling | None = None,
) -> None:
    """Write at least one chunk; in Parquet each is a row group. None stays in memory while the next is made.

    An .arrow file is a stream, as those are of which a data set of Hugging Face consists.

    Raises:
        BertieError: the package that writes these files is not installed.
    """
    pyarrow = import_pyarrow(path)
    writer: Any = None
    with ExitStack() as stack:
        temporary = stack.enter_context(atomic_file(path))
        for features in chunks:
            table = _table(features, names, dtype, pooling, pyarrow)
            if writer is None:
                writer = stack.enter_context(_open(temporary, path.suffix, table.schema, pyarrow))
            writer.write_table(table)
            del features, table


def _open(path: Path, suffix: str, schema: Any, pyarrow: Any) -> Any:
    if suffix == ".arrow":
        return pyarrow.ipc.new_stream(str(path), schema)
    from pyarrow.parquet import ParquetWriter

    # No two numbers of vectors are alike, and nobody looks for the least: compression, dictionaries and
    # statistics of them made writing take more than twice as long, and the file no smaller.
    strings = [f"{names}.list.element" for names in get_args(Names)]
    return ParquetWriter(path, schema, compression="none", use_dictionary=strings, write_statistics=False)


def _table(
    features: Features, names: Names, dtype: npt.DTypeLike, pooling: Pooling | None, pyarrow: Any
) -> Any:
    bounds = pyarrow.array(features.bounds.astype(np.int32))
    # Half of a surrogate pair, which JSON can name, becomes its own escape.
    strings = [name.encode("utf-8", "backslashreplace").decode() for name in features.names]
    columns: dict[str, Any] = {
        names: pyarrow.ListArray.from_arrays(bounds, pyarrow.array(strings, pyarrow.string()))
    }
    empty = pyarrow.array(np.diff(features.bounds) == 0)
    for column, vectors in zip(features.columns, features.vectors, strict=True):
        width = vectors.shape[1]
        if pooling is not None:
            vectors = _pool(vectors, features.bounds, pooling)
        numbers = pyarrow.array(vectors.astype(dtype, copy=False).reshape(-1))
        if pooling is not None:
            columns[column] = pyarrow.FixedSizeListArray.from_arrays(numbers, width, mask=empty)
        else:
            values = pyarrow.FixedSizeListArray.from_arrays(numbers, width)
            columns[column] = pyarrow.ListArray.from_arrays(bounds, values)
    return pyarrow.table(columns)


def _pool(
    vectors: npt.NDArray[np.float32], bounds: npt.NDArray[np.int64], pooling: Pooling
) -> npt.NDArray[np.float32]:
    """(P, W) -> (n, W); zeros for a text that has nothing."""
    sizes = np.diff(bounds)
    filled = sizes > 0
    pooled = np.zeros((len(sizes), vectors.shape[1]), np.float32)
    if pooling == "max":
        pooled[filled] = np.maximum.reduceat(vectors, bounds[:-1][filled])
    else:
        pooled[filled] = np.add.reduceat(vectors, bounds[:-1][filled]) / sizes[filled, None]
    return pooled
