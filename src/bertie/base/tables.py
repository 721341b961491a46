"""Read text columns of a Parquet or Arrow file in small batches."""

import difflib
import os
import struct
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Literal
from unicodedata import normalize

from bertie.base.arrow_messages import read_bodies
from bertie.base.environment import install_command, require_memory
from bertie.base.errors import BertieError, DataError, SettingsError
from bertie.base.parquet_pages import DELTA_BYTE_ARRAY, Chunk, read_chunks, read_pages
from bertie.base.storage import RemotePath

Values = dict[str, bytes | None]  # of a row, by column

_BATCH_ROWS = 256  # small, because a row may hold a book
_BATCH_BYTES = 1 << 26  # of the values of a batch in one column; pages usually have 1 MiB
_MAX_PAGE_BYTES = 1 << 30
_MAX_ROW_BYTES = 1 << 30  # of a row in one column
_MAX_GROUP_BYTES = 1 << 32  # of the lists of a column in a row group
_MAX_RATIO = 16  # of these lists to their compressed bytes, above `_MAX_GROUP_BYTES`
_VALUE_BYTES = sys.getsizeof("")  # of a value in memory, without its content
# Of the physical types of Parquet, in memory; strings are read as indices into a dictionary.
_WIDTHS = {
    "BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8, "BYTE_ARRAY": 4,
}  # fmt: skip


def missing_column(location: str, column: str, names: Sequence[str], advice: str = "") -> SettingsError:
    """Return the error about a missing column, with the columns of the table.

    `advice` is the end of the message, unless `header_hint` has better advice.
    """
    near = difflib.get_close_matches(column, names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    if better := header_hint(column, names):
        hint, advice = f"{better}; ", ""
    return SettingsError(
        f"{location}: no column {column!r}; {hint}the columns are {', '.join(names)}{advice}"
    )


def header_hint(column: str, names: Sequence[str]) -> str:
    """Return advice if a header has the column in another Unicode form, or another separator; or ""."""
    for name in names:
        if normalize("NFC", name) == normalize("NFC", column):  # `repr` would show the same letters
            return f"the file has the same letters in other code points, {name!a}: rename the column"
    return separator_hint(names)


def separator_hint(names: Sequence[str]) -> str:
    """Return advice about a header that has another separator, otherwise "".

    The header is then a single column. Spreadsheets write semicolons where the decimal separator is a comma,
    and tabs on request.
    """
    if len(names) == 1 and ";" in names[0]:
        return "are the fields separated by semicolons? save the file with commas"
    if len(names) == 1 and "\t" in names[0]:
        return "are the fields separated by tabs? give the file a name that ends in .tsv"
    if len(names) == 1 and "," in names[0]:
        return "are the fields separated by commas? give the file a name that ends in .csv"
    return ""


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
    """Iterate over the rows of a Parquet file in batches of bounded memory.

    No value is longer than a page of its column, so a batch has fewer rows where pages are large. A list
    may have any number of values that share the entries of a dictionary, so the strings of lists are read
    as a dictionary and indices, and expanded once their size is known.

    Args:
        path: the path of the file.
        file: the file, from `open_parquet`.
        columns: the columns to read.
        rows: the largest number of rows in a batch.
        groups: the row groups to read; None for all.

    Raises:
        DataError: a page or a row is too large, or the header of a page is damaged.
    """
    from pyarrow.parquet import ParquetFile

    leaves = [file.schema.column(i) for i in range(file.metadata.num_columns)]
    lists = [leaf for leaf in leaves if leaf.max_repetition_level]
    strings = [leaf.path for leaf in lists if leaf.physical_type == "BYTE_ARRAY"]
    types = _select_types(file.schema_arrow, dict.fromkeys(columns))
    with _damaged(path):
        chunks = read_chunks(path)
    for group in range(len(chunks)) if groups is None else groups:
        with _damaged(path):
            selected = [
                (leaf, chunk)
                for leaf, chunk in zip(leaves, chunks[group], strict=True)
                if chunk.column in columns
            ]
        with _open_chunks(path, [chunk for _, chunk in selected]) as source:
            size = max((_largest_page(path, source, leaf, chunk) for leaf, chunk in selected), default=0)
            limited = max(1, min(rows, _BATCH_BYTES // max(1, size)))
            options = {"metadata": file.metadata, "read_dictionary": strings}
            with (
                nullcontext(source) if isinstance(path, RemotePath) else open_arrow_file(path) as stored,
                ParquetFile(stored, **options) as part,
            ):
                batches = part.iter_batches(limited, row_groups=[group], columns=columns)
                # Neither `map` nor `chain` keeps a batch while the next one is read.
                yield from chain.from_iterable(map(partial(_expand, path, types), batches))


def _open_chunks(path: Path, chunks: Iterable[Chunk]) -> BinaryIO:
    """Open a file to read some of its chunks, which are fetched once if it is remote."""
    if isinstance(path, RemotePath):
        return path.open_ranges((chunk.start, chunk.stop) for chunk in chunks)
    return path.open("rb")


@contextmanager
def _damaged(path: Path) -> Iterator[None]:
    """Turn the errors of `parquet_pages` and `arrow_messages` into DataError."""
    try:
        yield
    except (EOFError, ValueError, OverflowError, struct.error) as error:
        raise DataError(f"{path}: damaged or truncated ({error})") from None


def _largest_page(path: Path, file: BinaryIO, leaf: Any, chunk: Chunk) -> int:
    """Return the size in bytes of the largest page of a chunk, decompressed.

    `leaf` is the `pyarrow.parquet.ColumnSchema` of the chunk.

    Raises:
        DataError: a page or the lists of the chunk are too large, or a header is damaged.
    """
    with _damaged(path):
        pages = read_pages(file, chunk)
    if pages.largest > _MAX_PAGE_BYTES:
        raise DataError(
            f"{path}: a page decompresses to {pages.largest:,} bytes, more than {_MAX_PAGE_BYTES:,}; "
            f"write the file with smaller pages"
        )
    if leaf.max_repetition_level:
        size = pages.values * _WIDTHS.get(leaf.physical_type, leaf.length)
        if size > max(_MAX_GROUP_BYTES, _MAX_RATIO * (chunk.stop - chunk.start)):
            raise DataError(
                f"{path}: the lists of column {chunk.column!r} need {size:,} bytes in a row group, more than "
                f"{_MAX_GROUP_BYTES:,}; write the file with smaller row groups"
            )
        if DELTA_BYTE_ARRAY in pages.encodings:
            raise DataError(
                f"{path}: the lists of column {chunk.column!r} have the encoding DELTA_BYTE_ARRAY, which is "
                f"not supported in lists; write the file with another encoding"
            )
    return pages.largest


def _expand(path: Path, types: Any, batch: Any) -> Iterator[Any]:
    """Yield a batch in parts that are small once their dictionaries are expanded.

    Args:
        path: the path of the file, for errors.
        types: the Arrow schema of the parts.
        batch: an Arrow record batch, with the columns of `types` and maybe others.

    Raises:
        DataError: a row is too large.
    """
    import pyarrow

    batch = batch.select(types.names)
    size = max(map(held_bytes, batch.columns))
    if size > _BATCH_BYTES and batch.num_rows > 1:
        middle = batch.num_rows // 2
        for part in (range(middle), range(middle, batch.num_rows)):
            # `slice` would leave the values of all lists in the batch, and `cast` would expand them.
            yield from _expand(path, types, batch.take(pyarrow.array(part)))
    elif size > _MAX_ROW_BYTES:
        raise DataError(
            f"{path}: a row needs {size:,} bytes in one column, more than {_MAX_ROW_BYTES:,}; split it"
        )
    else:
        yield batch.cast(types)


def held_bytes(array: Any) -> int:
    """Return about how many bytes the values of an Arrow array need as Python objects.

    A string of a dictionary counts for each value that refers to it.
    """
    import pyarrow
    from pyarrow import compute

    lists = (pyarrow.ListArray, pyarrow.LargeListArray, pyarrow.FixedSizeListArray)
    size = _VALUE_BYTES * len(array)
    if isinstance(array, pyarrow.MapArray):
        array = array.cast(pyarrow.list_(array.type.field(0)))
    if isinstance(array, lists):
        return size + held_bytes(array.flatten())
    if isinstance(array, pyarrow.StructArray):
        return size + sum(map(held_bytes, array.flatten()))
    if isinstance(array, pyarrow.DictionaryArray) and not pyarrow.types.is_primitive(array.type.value_type):
        lengths = compute.binary_length(array.dictionary).take(array.indices)
        return size + int(compute.sum(lengths).as_py() or 0)
    return size + int(array.nbytes)


def read_arrow_columns(path: Path, columns: Mapping[str, str]) -> Iterator[tuple[int, Values]]:
    """Iterate over text columns of an Arrow IPC file or stream.

    Hugging Face's `datasets` saves data sets as Arrow streams. Yields and raises as
    `read_parquet_columns` does.
    """
    pyarrow = import_pyarrow(path)
    _check_bodies(path)
    with _data_errors(path, pyarrow), open_arrow_file(path) as file:
        is_file = file.read(6) == b"ARROW1"  # Arrow Columnar Format, IPC File Format
        file.seek(0)
        reader = (pyarrow.ipc.open_file if is_file else pyarrow.ipc.open_stream)(file)
        batches = map(reader.get_batch, range(reader.num_record_batches)) if is_file else reader
        batches = map(partial(_check_batch, path, columns), batches)
        _check_text_columns(path, columns, reader.schema)
        types = _select_types(reader.schema, columns)
        parts = chain.from_iterable(map(partial(_expand, path, types), batches))
        yield from enumerate(_values(columns, parts), 1)


def _check_bodies(path: Path) -> None:
    """Check the decompressed sizes of the record batches of an Arrow file.

    Raises:
        DataError: a batch is too large, or the file is missing or damaged.
    """
    with _data_errors(path, import_pyarrow(path)), _damaged(path):
        bodies = read_bodies(path)
    for stored, size in bodies:
        if size > max(_MAX_PAGE_BYTES, _MAX_RATIO * stored):
            raise DataError(
                f"{path}: a record batch decompresses to {size:,} bytes, more than {_MAX_PAGE_BYTES:,}; "
                f"write the file with smaller batches"
            )


def _check_batch(path: Path, columns: Collection[str], batch: Any) -> Any:
    """Return the text columns of a batch, if all of their values lie within their buffers.

    pyarrow does not check this when it reads a value. The values need not be UTF-8.

    Raises:
        pyarrow.ArrowInvalid: a value lies outside.
        DataError: the views of a column are too large.
    """
    import pyarrow

    arrays = [_check_array(path, batch.column(column)) for column in columns]
    return pyarrow.RecordBatch.from_arrays(arrays, names=list(columns))


def _check_array(path: Path, array: Any) -> Any:
    """Return a text column, as `_check_batch` does, without views."""
    import numpy as np
    import pyarrow

    if isinstance(array, pyarrow.DictionaryArray):
        array.indices.validate(full=True)
        return pyarrow.DictionaryArray.from_arrays(array.indices, _check_array(path, array.dictionary))
    binary_types = {
        pyarrow.string(): pyarrow.binary(),
        pyarrow.large_string(): pyarrow.large_binary(),
        pyarrow.string_view(): pyarrow.binary_view(),
    }
    array.view(binary_types[array.type]).validate(full=True)
    if array.type != pyarrow.string_view():
        return array
    # A view begins with its length. Many views may show the same bytes.
    views = np.frombuffer(array.buffers()[1], np.int32).reshape(-1, 4)[array.offset :]
    size = int(views[: len(array), 0][array.is_valid()].sum(dtype=np.int64))
    if size > max(_MAX_GROUP_BYTES, _MAX_RATIO * array.get_total_buffer_size()):
        raise DataError(f"{path}: the views of a column need {size:,} bytes; write the file without views")
    return array.cast(pyarrow.large_string())


def _values(columns: Collection[str], batches: Iterable[Any]) -> Iterator[Values]:
    for rows in map(partial(_batch_values, columns), batches):  # `map` keeps no batch while it reads the next
        yield from rows


def _batch_values(columns: Collection[str], batch: Any) -> Iterator[Values]:
    import pyarrow

    # As bytes, so that one value that is not UTF-8 does not make the whole batch unreadable.
    strings = [batch.column(column).cast(pyarrow.large_string()) for column in columns]
    values = [column.cast(pyarrow.large_binary()).to_pylist() for column in strings]
    return (dict(zip(columns, row, strict=True)) for row in zip(*values, strict=True))


def _select_types(schema: Any, columns: Iterable[str]) -> Any:
    """Return the Arrow schema of some columns, with strings in place of views of strings.

    pyarrow can neither measure nor select views.
    """
    import pyarrow

    def without_views(dtype: Any) -> Any:
        if pyarrow.types.is_dictionary(dtype):
            return pyarrow.dictionary(dtype.index_type, without_views(dtype.value_type))
        return pyarrow.large_string() if dtype == pyarrow.string_view() else dtype

    fields = map(schema.field, columns)
    return pyarrow.schema([field.with_type(without_views(field.type)) for field in fields])


def _check_text_columns(path: Path, columns: Mapping[str, str], schema: Any) -> None:
    import pyarrow

    for column, option in columns.items():
        if column not in schema.names:
            raise missing_column(str(path), column, schema.names, f"; choose one with {option}")
        if schema.names.count(column) > 1:
            raise DataError(f"{path}: two columns are called {column!r}; rename one")
        dtype = schema.field(column).type
        if pyarrow.types.is_dictionary(dtype):
            dtype = dtype.value_type
        if dtype not in (pyarrow.string(), pyarrow.large_string(), pyarrow.string_view()):
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

    with _data_errors(path, pyarrow), open_arrow_file(path) as source, ParquetFile(source) as file:
        yield file


def open_arrow_file(path: Path, mode: Literal["rb", "wb"] = "rb") -> Any:
    """Open a file for pyarrow.

    pyarrow takes a name with a colon for a URL, and accepts only UTF-8.
    """
    import pyarrow

    if isinstance(path, RemotePath):
        return pyarrow.PythonFile(path.open(), mode)
    return pyarrow.OSFile(os.fsencode(path), mode)


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
