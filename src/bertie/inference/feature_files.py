"""Write the vectors of texts to Parquet or Arrow files, chunk by chunk.

Each text is a row. Its first column, `tokens` or `words`, is a list of strings. Each other column
holds one vector for each of these strings. With pooling it holds one vector for the whole text, or
null if the text has no tokens.
"""

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from bertie.base.arrays import Float32s, Int64s
from bertie.base.files import atomic_file
from bertie.base.tables import import_pyarrow, open_arrow_file
from bertie.inference.features import Features

Unit = Literal["tokens", "words"]
Pooling = Literal["mean", "max"]

SUFFIXES = (".parquet", ".arrow")


def write_features(
    chunks: Iterable[Features],
    path: Path,
    unit: Unit,
    dtype: type[np.float32] | type[np.float16] = np.float32,
    pooling: Pooling | None = None,
) -> None:
    """Write chunks of features to a Parquet or Arrow file.

    Each chunk is freed before the next one is computed, and becomes a row group of a Parquet file.
    An .arrow file is in the streaming format, like the files of Hugging Face data sets.

    Args:
        chunks: the features; at least one chunk, which may hold no texts.
        path: the file to write; it appears once it is complete.
        unit: whether the vectors belong to tokens or words; the name of the first column.
        dtype: type of the vectors in the file.
        pooling: how to pool the vectors of each text into one. Default: write all vectors.

    Raises:
        BertieError: pyarrow is not installed.
    """
    pyarrow = import_pyarrow(path)
    writer: Any = None
    with ExitStack() as stack:
        temporary = stack.enter_context(atomic_file(path))
        for features in chunks:
            table = _to_table(features, unit, dtype, pooling, pyarrow)
            if writer is None:
                file = stack.enter_context(open_arrow_file(temporary, "wb"))
                writer = stack.enter_context(_open(file, path.suffix.lower(), table.schema, pyarrow))
            writer.write_table(table)
            del features, table


def _open(file: Any, suffix: str, schema: Any, pyarrow: Any) -> Any:
    if suffix == ".arrow":
        return pyarrow.ipc.new_stream(file, schema)
    from pyarrow.parquet import ParquetWriter

    # Vectors hardly ever repeat a value, and nobody filters by their minimum: with compression,
    # dictionaries and statistics writing took more than twice as long, for files no smaller.
    strings = [f"{unit}.list.element" for unit in get_args(Unit)]
    return ParquetWriter(file, schema, compression="none", use_dictionary=strings, write_statistics=False)


def _to_table(
    features: Features, unit: Unit, dtype: npt.DTypeLike, pooling: Pooling | None, pyarrow: Any
) -> Any:
    bounds = pyarrow.array(features.bounds.astype(np.int32))
    # A lone surrogate, which JSON can express and UTF-8 cannot, is written as its escape sequence.
    strings = [token.encode("utf-8", "backslashreplace").decode() for token in features.tokens]
    columns: dict[str, Any] = {
        unit: pyarrow.ListArray.from_arrays(bounds, pyarrow.array(strings, pyarrow.string()))
    }
    is_empty = pyarrow.array(np.diff(features.bounds) == 0)
    for column, vectors in zip(features.columns, features.vectors, strict=True):
        width = vectors.shape[1]
        if pooling is not None:
            vectors = _pool(vectors, features.bounds, pooling)
        values = pyarrow.array(vectors.astype(dtype, copy=False).reshape(-1))
        if pooling is not None:
            columns[column] = pyarrow.FixedSizeListArray.from_arrays(values, width, mask=is_empty)
        else:
            rows = pyarrow.FixedSizeListArray.from_arrays(values, width)
            columns[column] = pyarrow.ListArray.from_arrays(bounds, rows)
    return pyarrow.table(columns)


def _pool(vectors: Float32s, bounds: Int64s, pooling: Pooling) -> Float32s:
    """Pool vectors (P, W) into (n, W), with zeros for texts without tokens."""
    sizes = np.diff(bounds)
    filled = sizes > 0
    pooled = np.zeros((len(sizes), vectors.shape[1]), np.float32)
    if pooling == "max":
        pooled[filled] = np.maximum.reduceat(vectors, bounds[:-1][filled])
    else:
        pooled[filled] = np.add.reduceat(vectors, bounds[:-1][filled]) / sizes[filled, None]
    return pooled
