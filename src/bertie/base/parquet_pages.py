"""Read the decompressed sizes of the pages of a Parquet file, from their headers.

The metadata at the end of the file and the header before each page are Thrift structs in the compact
protocol (Parquet's parquet.thrift; Thrift's thrift-compact-protocol.md). Rows share the values of a
dictionary page, and prefixes of values, but no value is longer than a page. The metadata have sizes too,
but nothing compares these with the pages. (pyarrow 26 can locate pages, but crashes on damaged metadata of
a column.)
"""

from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

# Numbers of fields in parquet.thrift.
ROW_GROUPS = 4  # of FileMetaData
COLUMNS = 1  # of RowGroup
META_DATA = 3  # of ColumnChunk
# Of ColumnMetaData:
PATH_IN_SCHEMA, TOTAL_COMPRESSED_SIZE, DATA_PAGE_OFFSET, DICTIONARY_PAGE_OFFSET = 3, 7, 9, 11
# Of PageHeader:
UNCOMPRESSED_SIZE, COMPRESSED_SIZE, DATA_PAGE, DICTIONARY_PAGE, DATA_PAGE_V2 = 2, 3, 5, 7, 8
NUM_VALUES = 1  # of DataPageHeader, DictionaryPageHeader and DataPageHeaderV2
ENCODINGS = {DATA_PAGE: 2, DATA_PAGE_V2: 4}  # the number of the field `encoding`

DELTA_BYTE_ARRAY = 7  # the encoding in which values share prefixes

_MAX_DEPTH = 12
_MAX_BYTES = 1 << 31


class Chunk(NamedTuple):
    """The pages of a column in a row group, from byte `start` to `stop` of the file."""

    column: str
    start: int
    stop: int


class Pages(NamedTuple):
    """Facts from the page headers of a column chunk.

    largest    the size in bytes of the largest page, decompressed
    values     the number of values in the data pages, including nulls
    encodings  the encodings of the data pages
    """

    largest: int
    values: int
    encodings: set[int]


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
        start = min(start or dictionary, dictionary)  # pyarrow writes 0 if there is no data page
    if start < 0:
        raise ValueError("a column has a negative offset")
    column = metadata[PATH_IN_SCHEMA][0].decode(errors="replace")
    return Chunk(column, start, start + metadata[TOTAL_COMPRESSED_SIZE])


def read_pages(file: BinaryIO, chunk: Chunk) -> Pages:
    """Read the headers of the pages of a column chunk.

    Raises:
        EOFError, ValueError: a header is damaged.
    """
    largest, values, encodings, start = 0, 0, set[int](), chunk.start
    while start < chunk.stop:
        file.seek(start)
        header = _read_struct(file)
        try:
            compressed, size = header[COMPRESSED_SIZE], header[UNCOMPRESSED_SIZE]
            data = [kind for kind in ENCODINGS if kind in header]
            counts = [header[kind][NUM_VALUES] for kind in data]
            encodings |= {header[kind][ENCODINGS[kind]] for kind in data}
            entries = header.get(DICTIONARY_PAGE, {NUM_VALUES: 0})[NUM_VALUES]
            # An entry of a dictionary has at least one byte.
            is_valid = min(compressed, *counts, entries) >= 0 and entries <= max(compressed, size)
        except (LookupError, TypeError):
            is_valid = False
        if not is_valid:
            raise ValueError("a page header has no valid size")
        largest = max(largest, compressed, size)
        values += sum(counts)
        start = file.tell() + compressed
    return Pages(largest, values, encodings)


def _read_struct(file: BinaryIO, depth: int = 0) -> dict[int, Any]:
    """Return the values of a struct by field: numbers, bytes, lists and structs."""
    fields, number = dict[int, Any](), 0
    while kind := _read_byte(file):
        delta, kind = kind >> 4, kind & 15
        number = number + delta if delta else _read_signed(file)
        # A field that is a Boolean has its value in its type.
        fields[number] = kind == 1 if kind in (1, 2) else _read_value(file, kind, depth)
    return fields


def _read_value(file: BinaryIO, kind: int, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise ValueError("a list or a struct is nested too deeply")
    match kind:
        case 1 | 2 | 3:
            return _read_byte(file)
        case 4 | 5 | 6:
            return _read_signed(file)
        case 7:
            return _read_bytes(file, 8)  # a float, which is not needed
        case 8:
            return _read_bytes(file, min(_read_unsigned(file), _MAX_BYTES))
        case 9 | 10:
            byte = _read_byte(file)
            size = _read_unsigned(file) if byte >> 4 == 15 else byte >> 4
            return [_read_value(file, byte & 15, depth + 1) for _ in range(size)]
        case 12:
            return _read_struct(file, depth + 1)
    raise ValueError(f"a field has the unknown type {kind}")


def _read_bytes(file: BinaryIO, size: int) -> bytes:
    content = file.read(size)
    if len(content) < size:
        raise EOFError("the file is cut off")
    return content


def _read_byte(file: BinaryIO) -> int:
    return _read_bytes(file, 1)[0]


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
