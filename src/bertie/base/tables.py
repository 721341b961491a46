"""Read text columns of a Parquet or Arrow file in small batches."""

import difflib
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from bertie.base.environment import install_command, require_memory
from bertie.base.errors import BertieError, DataError, SettingsError
from bertie.base.parquet_pages import largest_page, read_chunks
from bertie.base.storage import RemotePath

Values = dict[str, bytes | None]  # of a row, by column

_BATCH_ROWS = 256  # small, because a row may hold a book
_BATCH_BYTES = 1 << 26  # of the values of a batch in one column; pages usually have 1 MiB
_MAX_PAGE_BYTES = 1 << 30


def missing_column(location: str, column: str, names: Sequence[str], advice: str = "") -> SettingsError:
    """Return the error about a column that does not exist; it lists the columns of the table."""
    near = difflib.get_close_matches(column, names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    if len(names) == 1 and ";" in names[0]:  # as spreadsheets write where the decimal separator is a comma
        hint = "are the fields separated by semicolons? save the file with commas; "
    return SettingsError(
        f"{location}: no column {column!r}; {hint}the columns are {', '.join(names)}{advice}"
    )


def row_group_sizes(path: Path) -> list[int]:
    """Return the size in bytes of each row group of a Parquet file.

    A row group is the smallest part of the file that can be read on its own.

    Raises:
        DataError: the file is missing or damaged.
        BertieError: pyarrow is not installed.
    """
    with open_parquet(path) as file:
        groups = range(file.metadata.num_row_groups)
        return [file.metadata.row_group(group).total_byte_size for group in groups]


def read_parquet_columns(
    path: Path, columns: Mapping[str, str], start: int = 0, stop: int | None = None
) -> Iterator[tuple[int, Values]]:
    """Iterate over text columns in a range of row groups.

    Args:
        path: a Parquet file.
        columns: the names of columns of strings, with the options that choose them.
        start: the first row group to read.
        stop: the row group before which to stop; None reads to the end.

    Yields:
        The number of the row in the file, from 1, and its values: None, or bytes that should be
        UTF-8 but are not checked.

    Raises:
        SettingsError: a column does not exist or does not hold text.
        DataError: the file is missing or damaged.
        BertieError: pyarrow is not installed.
    """
    with open_parquet(path) as file:
        groups = range(file.metadata.num_row_groups)
        first = sum(file.metadata.row_group(group).num_rows for group in groups[:start])
        _check_text_columns(path, columns, file.schema_arrow)
        batches = iterate_batches(path, file, list(columns), groups=groups[start:stop])
        yield from enumerate(_values(columns, batches), first + 1)


def iterate_batches(
    path: Path,
    file: Any,
    columns: Sequence[str],
    rows: int = _BATCH_ROWS,
    groups: Sequence[int] | None = None,
) -> Iterator[Any]:
    """Iterate over the rows of a Parquet file in record batches whose size in memory is bounded.

    No value is longer than a page of its column, so a batch has fewer rows where pages are large. This
    does not bound lists, whose values are not counted, nor remote files, whose headers are not read.

    Args:
        path: the path of the file, for errors.
        file: the file, from `open_parquet`.
        columns: the columns to read.
        rows: the largest number of rows in a batch.
        groups: the row groups to read; None for all.

    Raises:
        DataError: a page is too large, or its header is damaged.
    """
    groups = range(file.metadata.num_row_groups) if groups is None else groups
    try:
        chunks = {} if isinstance(path, RemotePath) else dict(enumerate(read_chunks(path)))
        sizes = {group: largest_page(path, chunks.get(group, ()), columns) for group in groups}
    except (EOFError, ValueError, OverflowError) as error:
        raise DataError(f"{path}: damaged or truncated ({error})") from None
    for group, size in sizes.items():
        if size > _MAX_PAGE_BYTES:
            raise DataError(
                f"{path}: a page decompresses to {size:,} bytes, more than {_MAX_PAGE_BYTES:,}; "
                f"write the file with smaller pages"
            )
        limited = max(1, min(rows, _BATCH_BYTES // max(1, size)))
        yield from file.iter_batches(limited, row_groups=[group], columns=columns)


def read_arrow_columns(path: Path, columns: Mapping[str, str]) -> Iterator[tuple[int, Values]]:
    """Iterate over text columns of an Arrow IPC file or stream.

    Hugging Face's `datasets` saves data sets as Arrow streams. Yields and raises as
    `read_parquet_columns` does.
    """
    pyarrow = import_pyarrow(path)
    with _data_errors(path, pyarrow), _open_arrow(path, pyarrow) as file:
        is_file = file.read(6) == b"ARROW1"  # Arrow Columnar Format, IPC File Format
        file.seek(0)
        reader = (pyarrow.ipc.open_file if is_file else pyarrow.ipc.open_stream)(file)
        batches = map(reader.get_batch, range(reader.num_record_batches)) if is_file else reader
        _check_text_columns(path, columns, reader.schema)
        yield from enumerate(_values(columns, batches), 1)


def _values(columns: Collection[str], batches: Iterable[Any]) -> Iterator[Values]:
    for rows in map(partial(_batch_values, columns), batches):  # `map` keeps no batch while it reads the next
        yield from rows


def _batch_values(columns: Collection[str], batch: Any) -> Iterator[Values]:
    import pyarrow

    # As bytes, so that one value that is not UTF-8 does not make the whole batch unreadable.
    strings = [batch.column(column).cast(pyarrow.large_string()) for column in columns]
    values = [column.cast(pyarrow.large_binary()).to_pylist() for column in strings]
    return (dict(zip(columns, row, strict=True)) for row in zip(*values, strict=True))


def _check_text_columns(path: Path, columns: Mapping[str, str], schema: Any) -> None:
    import pyarrow

    for column, option in columns.items():
        if column not in schema.names:
            raise missing_column(str(path), column, schema.names, f"; choose one with {option} NAME")
        dtype = schema.field(column).type
        if pyarrow.types.is_dictionary(dtype):
            dtype = dtype.value_type
        if dtype not in (pyarrow.string(), pyarrow.large_string()):
            raise SettingsError(f"{path}: column {column!r} holds {dtype}, not text; choose another column")


@contextmanager
def open_parquet(path: Path) -> Iterator[Any]:
    """Open a Parquet file as a `pyarrow.parquet.ParquetFile`.

    Raises:
        DataError: the file is missing or damaged.
        BertieError: pyarrow is not installed.
    """
    pyarrow = import_pyarrow(path)
    from pyarrow.parquet import ParquetFile

    with _data_errors(path, pyarrow):
        source = path.open() if isinstance(path, RemotePath) else path
        with ParquetFile(source) as file:
            yield file


def _open_arrow(path: Path, pyarrow: Any) -> Any:
    return pyarrow.PythonFile(path.open()) if isinstance(path, RemotePath) else pyarrow.OSFile(str(path))


@contextmanager
def _data_errors(path: Path, pyarrow: Any) -> Iterator[None]:
    """Turn the errors of pyarrow and of the system into DataError."""
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except MemoryError:
        raise
    except (pyarrow.ArrowException, UnicodeDecodeError, OSError) as error:
        raise DataError(f"{path}: damaged or truncated ({str(error).splitlines()[0]})") from None


def import_pyarrow(path: Path) -> Any:
    """Import pyarrow, which is needed to read or write `path`.

    Raises:
        BertieError: pyarrow is not installed.
        OSError: the memory does not suffice.
    """
    if "pyarrow" not in sys.modules:
        require_memory(256)  # pyarrow 26 maps 223 MiB, and aborts without them
    try:
        import pyarrow
    except ModuleNotFoundError:  # its own libraries may fail to load, if the memory is too small
        raise BertieError(f"{path}: {path.suffix} files need pyarrow; {install_command('data')}") from None
    return pyarrow
