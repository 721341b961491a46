"""Read texts in chunks, and write one vector for each.

The files are .npy, .parquet or .jsonl. Every row of the input has a row in the output, in the same order. A
blank text has no vector: a row of NaN in a .npy file, null in the others.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TextIO

import numpy as np

from bertie.base.arrays import Float32s
from bertie.base.errors import DataError
from bertie.base.files import atomic_file
from bertie.base.tables import import_pyarrow, open_arrow_file
from bertie.inference.records import Record, read_arrow_batches, reject_column
from bertie.inference.writers import dump_json

SUFFIXES = (".npy", ".parquet", ".jsonl")
COLUMN = "embedding"  # the added column of a table

CHUNK_ROWS = 2048  # enough to batch texts of similar length
CHUNK_CHARACTERS = 1 << 22  # a row may hold a book


class TextChunk(NamedTuple):
    """Consecutive rows of the input.

    Attributes:
        texts: the text of each row.
        rows: all columns of the rows: a dict for each, or an Arrow record batch.
        location: file and line of the first row, for error messages.
    """

    texts: list[str]
    rows: Any
    location: str


def chunk_records(records: Iterable[Record]) -> Iterator[TextChunk]:
    """Yield records, each with one text, in chunks that fit in memory."""
    records = iter(records)
    while first := next(records, None):
        chunk, characters = [first], len(first.texts[0])
        for record in islice(records, CHUNK_ROWS - 1):
            chunk.append(record)
            characters += len(record.texts[0])
            if characters >= CHUNK_CHARACTERS:
                break
        yield TextChunk([record.texts[0] for record in chunk], [r.row for r in chunk], first.location)


def with_free_column(records: Iterable[Record]) -> Iterator[Record]:
    """Yield records; raise DataError at one with a column `embedding`.

    The output adds this column.
    """
    for record in records:
        reject_column(COLUMN, record.row, record.location)
        yield record


def with_strings(records: Iterable[Record], column: str) -> Iterator[Record]:
    """Yield records with strings or None in a column.

    A value of another type becomes JSON. A Parquet column has values of one type, but texts of rows that are
    skipped may have any.
    """
    for record in records:
        value = record.row.get(column)
        if not isinstance(value, str | None):
            record = record._replace(row={**record.row, column: dump_json(value)})
        yield record


def read_arrow_chunks(
    path: Path, column: str, skipped: Callable[[DataError], None] | None = None
) -> Iterator[TextChunk]:
    """Yield the rows of a Parquet file, whose columns keep their types.

    Raises:
        SettingsError, DataError: as `read_records` does.
    """
    for number, texts, batch in read_arrow_batches(path, column, CHUNK_ROWS, skipped):
        yield TextChunk(texts, batch, f"{path}, row {number}")


def infer_schema(chunks: Iterable[TextChunk], path: Path) -> Any:
    """Return the Arrow schema of all columns of all rows, for `write_embeddings`.

    Args:
        chunks: rows of JSON lines.
        path: the Parquet file that will be written.

    Raises:
        DataError: a column holds values of several types.
        BertieError: pyarrow is needed and not installed.
    """
    pyarrow = import_pyarrow(path)
    schema = pyarrow.schema([])
    for chunk in chunks:
        found = _to_batch(chunk.rows, None, chunk.location, pyarrow).schema
        try:  # of null and another type, the other; of integers and fractions, fractions
            schema = pyarrow.unify_schemas([schema, found], promote_options="permissive")
        except pyarrow.ArrowException as error:
            raise _several_types(chunk.location, "a column", error) from None
    return schema


def write_embeddings(
    chunks: Iterable[tuple[TextChunk, Float32s]], path: Path, vector_size: int, schema: Any = None
) -> None:
    """Write chunks of rows with their vectors; only one chunk is in memory at a time.

    Args:
        chunks: rows and their vectors, float32 (rows, H), with NaN for blank texts.
        path: the file to write; it appears once it is complete.
        vector_size: the size of a vector, H.
        schema: the Arrow schema of the rows. By default, the first chunk determines it.

    The rows have no column `embedding`; see `with_free_column`.

    Raises:
        DataError: a column cannot be written to a Parquet file.
        BertieError: pyarrow is needed and not installed.
    """
    suffix = path.suffix.lower()
    with atomic_file(path) as temporary:
        if suffix == ".npy":
            with temporary.open("wb") as file:
                _write_npy(chunks, file, vector_size)
        elif suffix == ".jsonl":
            with temporary.open("w", encoding="utf-8", errors="backslashreplace") as lines:
                write_json_lines(chunks, lines)
        else:
            _write_parquet(chunks, temporary, path, vector_size, schema)


def write_json_lines(chunks: Iterable[tuple[TextChunk, Float32s]], file: TextIO) -> None:
    """Write each row as a JSON object with its vector, or null, under `embedding`."""
    for chunk, vectors in chunks:
        rows = chunk.rows if isinstance(chunk.rows, list) else chunk.rows.to_pylist()
        for row, vector in zip(rows, vectors, strict=True):
            start = dump_json(row)[:-1]
            # Nine digits identify a float32.
            numbers = "null" if np.isnan(vector[0]) else f"[{', '.join(f'{x:.9g}' for x in vector.tolist())}]"
            print(f"{start}{', ' * (start != '{')}{json.dumps(COLUMN)}: {numbers}}}", file=file)


def _write_npy(chunks: Iterable[tuple[TextChunk, Float32s]], file: BinaryIO, vector_size: int) -> None:
    """Write one array, (rows, H).

    Its header is written again when the number of rows is known.
    """
    count = 0
    _write_npy_header(file, count, vector_size)
    start = file.tell()
    for _, vectors in chunks:
        file.write(np.ascontiguousarray(vectors, dtype="<f4").data)
        count += len(vectors)
    file.seek(0)
    _write_npy_header(file, count, vector_size)
    assert file.tell() == start  # numpy leaves room for the number of rows to grow


def _write_npy_header(file: BinaryIO, count: int, vector_size: int) -> None:
    header = {"descr": "<f4", "fortran_order": False, "shape": (count, vector_size)}
    np.lib.format.write_array_header_1_0(file, header)


def _write_parquet(
    chunks: Iterable[tuple[TextChunk, Float32s]], temporary: Path, path: Path, vector_size: int, schema: Any
) -> None:
    """Write the columns of the rows, and the column `embedding`."""
    pyarrow = import_pyarrow(path)
    from pyarrow.parquet import ParquetWriter

    vector_field = pyarrow.field(COLUMN, pyarrow.list_(pyarrow.float32(), vector_size))
    writer: Any = None
    with ExitStack() as stack:
        file = stack.enter_context(open_arrow_file(temporary, "wb"))
        for chunk, vectors in chunks:
            batch = chunk.rows
            if isinstance(batch, list):
                batch = _to_batch(batch, schema, chunk.location, pyarrow)
            schema = batch.schema
            names = schema.names
            fields = [*schema, vector_field]
            if writer is None:
                # Not for the vectors, where both would only cost time; see feature_files.py.
                options = {"use_dictionary": names, "write_statistics": names}
                writer = ParquetWriter(file, pyarrow.schema(fields), **options)
                stack.enter_context(writer)
            column = pyarrow.FixedSizeListArray.from_arrays(
                pyarrow.array(vectors.reshape(-1)), vector_size, mask=pyarrow.array(np.isnan(vectors[:, 0]))
            )
            columns = [*batch.columns, column]
            writer.write_table(pyarrow.Table.from_arrays(columns, schema=pyarrow.schema(fields)))
        if writer is None:  # no rows
            ParquetWriter(file, pyarrow.schema([*(schema or ()), vector_field])).close()


def _to_batch(rows: Sequence[Mapping[str, Any]], schema: Any, location: str, pyarrow: Any) -> Any:
    """Convert rows to an Arrow record batch.

    The types are from a schema, or from the values.
    """
    rows = _escaped(rows)
    names = schema.names if schema else list(dict.fromkeys(name for row in rows for name in row))
    columns = []
    for name in names:
        values = [row.get(name) for row in rows]
        try:
            columns.append(pyarrow.array(values, schema.field(name).type if schema else None))
        except (pyarrow.ArrowException, OverflowError) as error:
            if schema and schema.field(name).type == pyarrow.null():
                raise DataError(
                    f"{location} and below: column {name!r} has values, but the rows before are null there; "
                    f"write a .jsonl file, or read a file instead of standard input"
                ) from None
            raise _several_types(location, f"column {name!r}", error) from None
    if schema and (new := next((name for row in rows for name in row if name not in names), None)):
        raise DataError(
            f"{location} and below: column {new!r} is not in the first rows; write a .jsonl file, or "
            f"read a file instead of standard input"
        )
    return pyarrow.RecordBatch.from_arrays(columns, schema=schema, names=None if schema else names)


def _escaped(value: Any) -> Any:
    """Write lone surrogates, which JSON can express and UTF-8 cannot, as their escape sequences."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, list):
        return [_escaped(item) for item in value]
    if isinstance(value, dict):
        return {_escaped(name): _escaped(item) for name, item in value.items()}
    return value


def _several_types(location: str, column: str, error: Exception) -> DataError:
    return DataError(
        f"{location} and below: {column} holds values of several types ({str(error).splitlines()[0]}); write "
        f"a .jsonl file, or convert the column"
    )
