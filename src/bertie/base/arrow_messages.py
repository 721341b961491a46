"""Read the decompressed sizes of the record batches of an Arrow IPC file.

Nothing is decompressed. Each message begins with a flatbuffer (Message.fbs; Arrow Columnar Format, IPC), and
a file ends with another one (File.fbs). If a batch is compressed, each of its buffers begins with the size
that it decompresses to.
"""

from pathlib import Path
from struct import unpack_from
from typing import BinaryIO, NamedTuple

_CONTINUATION = b"\xff\xff\xff\xff"  # before each message, since Arrow 0.15
_MAGIC = b"ARROW1"  # at both ends of a file
# Numbers of fields, and size of a block, in File.fbs.
_DICTIONARIES, _RECORD_BATCHES = 2, 3  # of Footer
_BLOCK_BYTES = 24  # a start, two sizes and padding
# Numbers of fields and types in Message.fbs.
_HEADER_TYPE, _HEADER, _BODY_LENGTH = 1, 2, 3  # of Message
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3  # types of a header
_DATA = 1  # of DictionaryBatch
_BUFFERS, _COMPRESSION = 2, 3  # of RecordBatch
_NOT_COMPRESSED = -1  # of a buffer, instead of its size


class Body(NamedTuple):
    """The size in bytes of the buffers of a message, in the file and decompressed."""

    stored: int
    decompressed: int


def read_bodies(path: Path) -> list[Body]:
    """Return the sizes of all messages of a stream, or of the dictionaries and batches of a file.

    Raises:
        EOFError, ValueError, struct.error: a message is damaged.
    """
    size = path.stat().st_size
    bodies = []
    with path.open("rb") as file:
        # The footer of a file says where its messages are, and they need not form a stream, as in files
        # of polars.
        if file.read(len(_MAGIC)) == _MAGIC:
            for start in _message_starts(file, size):
                file.seek(start)
                if body := _read_body(file, size):
                    bodies.append(body)
        else:
            file.seek(0)
            while body := _read_body(file, size):
                bodies.append(body)
    return bodies


def _message_starts(file: BinaryIO, size: int) -> list[int]:
    """Return where the dictionaries and record batches of a file start, as its footer says."""
    file.seek(size - len(_MAGIC) - 4)
    length = int.from_bytes(file.read(4), "little")
    file.seek(size - len(_MAGIC) - 4 - length)
    footer = file.read(length)
    root = _follow(footer, 0)
    starts = []
    for field in (_DICTIONARIES, _RECORD_BATCHES):
        if position := _field(footer, root, field):
            blocks = _follow(footer, position)
            (count,) = unpack_from("<I", footer, blocks)
            starts += [unpack_from("<q", footer, blocks + 4 + _BLOCK_BYTES * i)[0] for i in range(count)]
    return starts


def _read_body(file: BinaryIO, size: int) -> Body | None:
    """Return the sizes of the message at the position of the file, and move to the next message.

    At the end of a stream, return None. `size` is the size of the file.
    """
    length = _message_length(file)
    if not length:
        return None
    if length > size:
        raise EOFError("the file is cut off")
    message = file.read(length)
    start = file.tell()
    stored, buffers = _read_message(message)
    sizes = [_decompressed_size(file, start + offset, length) for offset, length in buffers]
    file.seek(start + stored)
    return Body(stored, sum(sizes) if sizes else stored)


def _message_length(file: BinaryIO) -> int:
    """Return the length of the flatbuffer that follows; 0 at the end."""
    prefix = file.read(4)
    if prefix == _CONTINUATION:
        prefix = file.read(4)
    return int.from_bytes(prefix, "little")


def _read_message(message: bytes) -> tuple[int, list[tuple[int, int]]]:
    """Return the size of a message's body, and where its compressed buffers are.

    Each buffer has an offset and a length.
    """
    root = _follow(message, 0)
    length = _field(message, root, _BODY_LENGTH)
    stored = int(unpack_from("<q", message, length)[0]) if length else 0
    if stored < 0:
        raise ValueError("a message has a negative size")
    (kind,) = unpack_from("<B", message, _field(message, root, _HEADER_TYPE))
    if kind not in (_DICTIONARY_BATCH, _RECORD_BATCH):
        return stored, []
    batch = _follow(message, _field(message, root, _HEADER))
    if kind == _DICTIONARY_BATCH:
        batch = _follow(message, _field(message, batch, _DATA))
    if not _field(message, batch, _COMPRESSION):
        return stored, []
    buffers = _follow(message, _field(message, batch, _BUFFERS))
    (count,) = unpack_from("<I", message, buffers)
    return stored, [unpack_from("<qq", message, buffers + 4 + 16 * i) for i in range(count)]


def _decompressed_size(file: BinaryIO, start: int, length: int) -> int:
    if not length:
        return 0
    file.seek(start)
    size = int.from_bytes(file.read(8), "little", signed=True)
    return length if size == _NOT_COMPRESSED else size


def _follow(data: bytes, at: int) -> int:
    """Return the position to which the offset at `at` points."""
    return at + int(unpack_from("<I", data, at)[0])


def _field(data: bytes, table: int, number: int) -> int:
    """Return the position of a field of a table; 0 if the table does not have it."""
    vtable = table - int(unpack_from("<i", data, table)[0])
    size, position = unpack_from("<H", data, vtable)[0], 4 + 2 * number
    offset = unpack_from("<H", data, vtable + position)[0] if position < size else 0
    return table + int(offset) if offset else 0
