"""Read the sizes that the pages of a Parquet file decompress to, from their headers.

A page header is a Thrift struct in the compact protocol, before the compressed page (Parquet's
parquet.thrift, PageHeader; Thrift's thrift-compact-protocol.md). Rows share the values of a dictionary
page, and prefixes of values, but no value is longer than a page. The metadata at the end of the file
promises sizes, too, but nothing compares them with the pages.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Any, BinaryIO

UNCOMPRESSED_SIZE, COMPRESSED_SIZE = 2, 3  # fields of PageHeader
_MAX_DEPTH = 3  # structs in a PageHeader: DataPageHeader, and in it Statistics
_MAX_BYTES = 1 << 31


def largest_page(path: Path, metadata: Any, group: int, columns: Collection[str]) -> int:
    """Return the largest size in bytes of a page, decompressed, of some columns in a row group.

    Args:
        path: the file.
        metadata: its `pyarrow.parquet.FileMetaData`.
        group: the number of the row group.
        columns: the names of the columns.

    Raises:
        EOFError, ValueError: a header is damaged.
    """
    largest = 0
    with path.open("rb") as file:
        for index in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(index)
            names = chunk.path_in_schema
            if not any(names == name or names.startswith(f"{name}.") for name in columns):
                continue
            start = chunk.data_page_offset
            if chunk.has_dictionary_page:
                start = min(start, chunk.dictionary_page_offset)
            largest = max(largest, _largest_page(file, start, start + chunk.total_compressed_size))
    return largest


def _largest_page(file: BinaryIO, start: int, stop: int) -> int:
    largest = 0
    while start < stop:
        file.seek(start)
        fields = _read_struct(file)
        sizes = fields.get(COMPRESSED_SIZE, -1), fields.get(UNCOMPRESSED_SIZE, -1)
        if not 0 <= min(sizes) <= max(sizes) < _MAX_BYTES:
            raise ValueError("a page header has no valid size")
        largest = max(largest, *sizes)
        start = file.tell() + sizes[0]
    return largest


def _read_struct(file: BinaryIO, depth: int = 1) -> dict[int, int]:
    """Return the whole numbers of a struct by field; skip other values and nested structs."""
    if depth > _MAX_DEPTH:
        raise ValueError("a page header is nested too deeply")
    fields, number = dict[int, int](), 0
    while kind := _read_byte(file):
        delta, kind = kind >> 4, kind & 15
        number = number + delta if delta else _read_signed(file)
        value = _read_value(file, kind, depth)
        if value is not None:
            fields[number] = value
    return fields


def _read_value(file: BinaryIO, kind: int, depth: int) -> int | None:
    """Return a whole number; skip a value of another type."""
    match kind:
        case 1 | 2:  # true and false, without a byte of their own
            pass
        case 3:
            _read_byte(file)
        case 4 | 5 | 6:
            return _read_signed(file)
        case 7:
            file.seek(8, 1)
        case 8:
            file.seek(min(_read_unsigned(file), _MAX_BYTES), 1)
        case 12:
            _read_struct(file, depth + 1)
        case _:  # lists, sets and maps, of which a page header has none
            raise ValueError(f"a page header has a field of type {kind}")
    return None


def _read_byte(file: BinaryIO) -> int:
    byte = file.read(1)
    if not byte:
        raise EOFError("a page header is cut off")
    return byte[0]


def _read_unsigned(file: BinaryIO) -> int:
    value = shift = 0
    while (byte := _read_byte(file)) & 128:
        value |= (byte & 127) << shift
        shift += 7
    return value | byte << shift


def _read_signed(file: BinaryIO) -> int:
    """Return a number in zigzag encoding: 0, -1, 1, -2, …"""
    value = _read_unsigned(file)
    return value >> 1 ^ -(value & 1)
