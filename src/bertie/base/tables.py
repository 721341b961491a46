"""A column of text from a Parquet or an Arrow file, some rows at a time."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bertie.base.errors import BertieError, DataError, SettingsError

_BATCH_ROWS = 256  # a row may be a book


def row_group_sizes(path: Path) -> list[int]:
    """The bytes of each row group of a Parquet file: the parts of it that can be read alone.

    Raises:
        DataError: the file is missing or damaged.
        BertieError: the package that reads these files is not installed.
    """
    with open_parquet(path) as file:
        groups = range(file.metadata.num_row_groups)
        return [file.metadata.row_group(group).total_byte_size for group in groups]


def read_parquet_column(
    path: Path, column: str, start: int = 0, stop: int | None = None
) -> Iterator[tuple[int, bytes | None]]:
    """(number of the row from 1, value) of the row groups from `start` to before `stop`.

    A value is UTF-8, not checked, or None. One row group's column is in memory at a time.

    Raises:
        SettingsError: there is no such column, or it holds no text.
        DataError, BertieError: as in `row_group_sizes`.
    """
    with open_parquet(path) as file:
        groups = range(file.metadata.num_row_groups)
        first = sum(file.metadata.row_group(group).num_rows for group in groups[:start])
        _require_text(path, column, file.schema_arrow)
        batches = file.iter_batches(_BATCH_ROWS, row_groups=list(groups[start:stop]), columns=[column])
        yield from enumerate(_values(column, batches), first + 1)


def read_arrow_column(path: Path, column: str) -> Iterator[tuple[int, bytes | None]]:
    """The same of an Arrow file or stream; of streams a saved data set of Hugging Face consists.

    Raises:
        SettingsError, DataError, BertieError: as in `read_parquet_column`.
    """
    pyarrow = import_pyarrow(path)
    with _damage_named(path, pyarrow), pyarrow.OSFile(str(path)) as file:
        is_file = file.read(6) == b"ARROW1"  # Arrow Columnar Format, IPC File Format
        file.seek(0)
        reader = (pyarrow.ipc.open_file if is_file else pyarrow.ipc.open_stream)(file)
        batches = map(reader.get_batch, range(reader.num_record_batches)) if is_file else reader
        _require_text(path, column, reader.schema)
        yield from enumerate(_values(column, batches), 1)


def _values(column: str, batches: Iterable[Any]) -> Iterator[bytes | None]:
    import pyarrow

    for batch in batches:
        # As bytes, for a value that is not UTF-8 must not end the reading of the others.
        yield from batch.column(column).cast(pyarrow.large_string()).cast(pyarrow.large_binary()).to_pylist()


def _require_text(path: Path, column: str, schema: Any) -> None:
    import pyarrow

    if column not in schema.names:
        raise SettingsError(f"{path}: no column {column!r}; choose one of {', '.join(schema.names)}")
    dtype = schema.field(column).type
    if pyarrow.types.is_dictionary(dtype):
        dtype = dtype.value_type
    if dtype not in (pyarrow.string(), pyarrow.large_string()):
        raise SettingsError(f"{path}: the column {column!r} holds {dtype}, not text; choose another")


@contextmanager
def open_parquet(path: Path) -> Iterator[Any]:
    pyarrow = import_pyarrow(path)
    from pyarrow.parquet import ParquetFile

    with _damage_named(path, pyarrow), ParquetFile(path) as file:
        yield file


@contextmanager
def _damage_named(path: Path, pyarrow: Any) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise DataError(f"{path}: damaged or cut off ({str(error).splitlines()[0]})") from None


def import_pyarrow(path: Path) -> Any:
    """The package that reads and writes a file of this kind. Raises BertieError where it is not there."""
    try:
        import pyarrow
    except ImportError:
        raise BertieError(f"{path}: for {path.suffix} files, pip install 'bertie[data]'") from None
    return pyarrow
