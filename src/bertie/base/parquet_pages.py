"""Read the sizes that the pages of a Parquet file decompress to, from their headers.

The metadata at the end of the file and the header before each page are Thrift structs in the compact
protocol (Parquet's parquet.thrift; Thrift's thrift-compact-protocol.md). Rows share the values of a
dictionary page, and prefixes of values, but no value is longer than a page. The metadata promise sizes,
too, but nothing compares them with the pages. (pyarrow would give the places of the pages, but damaged
metadata of a column end the process there, with pyarrow 26.)
"""

from collections.abc import Collection
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

# Numbers of fields in parquet.thrift.
ROW_GROUPS = 4  # of FileMetaData
COLUMNS = 1  # of RowGroup
META_DATA = 3  # of ColumnChunk
# Of ColumnMetaData:
PATH_IN_SCHEMA, TOTAL_COMPRESSED_SIZE, DATA_PAGE_OFFSET, DICTIONARY_PAGE_OFFSET = 3, 7, 9, 11
UNCOMPRESSED_SIZE, COMPRESSED_SIZE = 2, 3  # of PageHeader

_MAX_DEPTH = 12
_MAX_BYTES = 1 << 31


class Chunk(NamedTuple):
    """The pages of a column in a row group, from byte `start` to `stop` of the file."""

    column: str
    start: int
    stop: int


def read_chunks(path: Path) -> list[list[Chunk]]:
    """Return the column chunks of each row group.

    Raises:
        EOFError, ValueError: the metadata are damaged.
    """
    with path.open("rb") as file:
        end = file.seek(0, 2) - 8  # the length of the metadata, and "PAR1"
        file.seek(max(0, end))
        length = int.from_bytes(file.read(4), "little")
        if length > end:
            raise ValueError("the metadata are longer than the file")
        file.seek(end - length)
        metadata = _read_struct(BytesIO(file.read(length)))
    try:
        return [[_chunk(column[META_DATA]) for column in group[COLUMNS]] for group in metadata[ROW_GROUPS]]
    except (LookupError, TypeError, AttributeError):
        raise ValueError("the metadata lack a column") from None


def _chunk(metadata: dict[int, Any]) -> Chunk:
    start: int = metadata[DATA_PAGE_OFFSET]
    if dictionary := metadata.get(DICTIONARY_PAGE_OFFSET):
        start = min(start, dictionary)
    if start < 0:
        raise ValueError("a column has a negative offset")
    column = metadata[PATH_IN_SCHEMA][0].decode(errors="replace")
    return Chunk(column, start, start + metadata[TOTAL_COMPRESSED_SIZE])


def largest_page(path: Path, chunks: Collection[Chunk], columns: Collection[str]) -> int:
    """Return the largest size in bytes of a page, decompressed, of some columns.

    Raises:
        EOFError, ValueError: a header is damaged.
    """
    largest = 0
    with path.open("rb") as file:
        for _, start, stop in (chunk for chunk in chunks if chunk.column in columns):
            while start < stop:
                file.seek(start)
                header = _read_struct(file)
                compressed, size = header.get(COMPRESSED_SIZE), header.get(UNCOMPRESSED_SIZE)
                if not (isinstance(compressed, int) and isinstance(size, int) and compressed >= 0):
                    raise ValueError("a page header has no valid size")
                largest = max(largest, compressed, size)
                start = file.tell() + compressed
    return largest


def _read_struct(file: BinaryIO, depth: int = 0) -> dict[int, Any]:
    """Return the values of a struct by field: numbers, bytes, lists and structs."""
    if depth > _MAX_DEPTH:
        raise ValueError("a struct is nested too deeply")
    fields, number = dict[int, Any](), 0
    while kind := _read_byte(file):
        delta, kind = kind >> 4, kind & 15
        number = number + delta if delta else _read_signed(file)
        # A field that is a Boolean has its value in its type.
        fields[number] = kind == 1 if kind in (1, 2) else _read_value(file, kind, depth)
    return fields


def _read_value(file: BinaryIO, kind: int, depth: int) -> Any:
    match kind:
        case 1 | 2 | 3:
            return _read_byte(file)
        case 4 | 5 | 6:
            return _read_signed(file)
        case 7:
            return file.read(8)  # a float, which is not needed
        case 8:
            return file.read(min(_read_unsigned(file), _MAX_BYTES))
        case 9 | 10:
            byte = _read_byte(file)
            size = _read_unsigned(file) if byte >> 4 == 15 else byte >> 4
            return [_read_value(file, byte & 15, depth + 1) for _ in range(size)]
        case 12:
            return _read_struct(file, depth + 1)
    raise ValueError(f"a field has the unknown type {kind}")


def _read_byte(file: BinaryIO) -> int:
    byte = file.read(1)
    if not byte:
        raise EOFError("the file is cut off")
    return byte[0]


def _read_unsigned(file: BinaryIO) -> int:
    value = shift = 0
    while (byte := _read_byte(file)) & 128:
        value |= (byte & 127) << shift
        shift += 7
        if shift > 63:
            raise ValueError("a number has more than 64 bits")
    return value | byte << shift


def _read_signed(file: BinaryIO) -> int:
    """Return a number in zigzag encoding: 0, -1, 1, -2, …"""
    value = _read_unsigned(file)
    return value >> 1 ^ -(value & 1)
