"""LevelDB's table of sorted keys and values, the form of a TensorFlow checkpoint's index.

Blocks of entries, whose keys leave out what they share with the key before; a block of metadata, empty here;
a block that gives each block's last key and place; a footer. After a block stand a byte for its compression
and its checksum. (tensorflow/core/lib/io/format.cc, table_builder.cc, block_builder.cc)
"""

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from bertie.base.errors import ModelError
from bertie.model.formats.crc32c import masked_crc32c

MAGIC = 0xDB4775248B80FB57
FOOTER_BYTES = 48  # two places of at most 20 bytes, zeros, the magic number
TRAILER_BYTES = 5
UNCOMPRESSED, SNAPPY = 0, 1
# table_options.h
BLOCK_BYTES = 262_144
RESTART_INTERVAL = 16  # every so many entries a key stands whole


def varint(value: int) -> bytes:
    """A number in groups of seven bits, the lowest first; all but the last have the high bit set."""
    groups = bytearray()
    while value > 127:
        groups.append(value & 127 | 128)
        value >>= 7
    return bytes([*groups, value])


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at a place, and where it ends.

    Raises:
        ValueError: the data ends inside it.
    """
    value = 0
    for end in range(at, len(data)):
        value |= (data[end] & 127) << 7 * (end - at)
        if data[end] < 128:
            return value, end + 1
    raise ValueError("it ends inside a number")


def read_table(path: Path) -> list[tuple[bytes, bytes]]:
    """The keys and values of a file, in order.

    Raises:
        ModelError: the file is absent, is no table, or is damaged or cut off; it names the block.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror})") from None
    footer = data[-FOOTER_BYTES:]
    if footer[40:] != MAGIC.to_bytes(8, "little"):
        raise ModelError(f"{path}: no TensorFlow checkpoint index, or cut off; fetch it once more")
    entries: list[tuple[bytes, bytes]] = []
    block = "the footer"
    try:
        _, at = _read_place(footer, 0)
        place, _ = _read_place(footer, at)
        block = "the block of blocks"
        places = [_read_place(value, 0)[0] for _, value in _entries(_read_block(data, *place))]
        for i, place in enumerate(places, start=1):
            block = f"block {i} of {len(places)}"
            entries += _entries(_read_block(data, *place))
    except ValueError as error:
        raise ModelError(f"{path}: {block} is damaged ({error}); fetch the file once more") from None
    return entries


def write_table(path: Path, entries: Iterable[tuple[bytes, bytes]]) -> None:
    """Write entries, which are sorted, byte for byte as TensorFlow's TableBuilder does."""
    index, block = _Block(restart_interval=1), _Block()
    written = b""  # where `block` stands; its key in the index waits for the next one
    with path.open("wb") as file:
        for key, value in entries:
            if written:
                index.add(_separator(block.last_key, key), written)
                block, written = _Block(), b""
            block.add(key, value)
            if len(block) >= BLOCK_BYTES:
                written = _write_block(file, block)
        index.add(_successor(block.last_key), written or _write_block(file, block))
        footer = _write_block(file, _Block()) + _write_block(file, index)
        file.write(footer.ljust(FOOTER_BYTES - 8, b"\0") + MAGIC.to_bytes(8, "little"))


class _Block:
    """A block as it grows."""

    def __init__(self, restart_interval: int = RESTART_INTERVAL) -> None:
        self._interval = restart_interval
        self._entries, self._restarts, self._count = bytearray(), [0], 0
        self.last_key = b""

    def __len__(self) -> int:
        """How long its contents are."""
        return len(self._entries) + 4 * len(self._restarts) + 4

    def add(self, key: bytes, value: bytes) -> None:
        shared = _shared(self.last_key, key)
        if self._count and self._count % self._interval == 0:
            self._restarts.append(len(self._entries))
            shared = 0
        for number in (shared, len(key) - shared, len(value)):
            self._entries += varint(number)
        self._entries += key[shared:] + value
        self.last_key = key
        self._count += 1

    def contents(self) -> bytes:
        return bytes(self._entries) + struct.pack(
            f"<{len(self._restarts) + 1}I", *self._restarts, len(self._restarts)
        )


def _write_block(file: BinaryIO, block: _Block) -> bytes:
    """Append a block; returns its place."""
    place = varint(file.tell())
    contents = block.contents()
    checked = contents + bytes([UNCOMPRESSED])
    file.write(checked + masked_crc32c(checked).to_bytes(4, "little"))
    return place + varint(len(contents))


def _shared(one: bytes, other: bytes) -> int:
    """How many bytes two keys have in common at the start."""
    length = min(len(one), len(other))
    return next((i for i in range(length) if one[i] != other[i]), length)


def _separator(last: bytes, following: bytes) -> bytes:
    """A short key from `last` on and before `following` (table_builder.cc, FindShortestSeparator)."""
    i = _shared(last, following)
    if i < len(last) and last[i] + 1 < following[i]:
        return last[:i] + bytes([last[i] + 1])
    return last


def _successor(last: bytes) -> bytes:
    """A short key from `last` on (table_builder.cc, FindShortSuccessor); no name begins with the byte 255."""
    return bytes([last[0] + 1]) if last else last


def _read_place(data: bytes, at: int) -> tuple[tuple[int, int], int]:
    """The start and the size of a block, and where that ends."""
    start, at = read_varint(data, at)
    size, at = read_varint(data, at)
    return (start, size), at


def _read_block(data: bytes, start: int, size: int) -> bytes:
    """The contents of a block, checked."""
    end = start + size
    if end + TRAILER_BYTES > len(data):
        raise ValueError(f"it should end at byte {end + TRAILER_BYTES:,} of {len(data):,}")
    if masked_crc32c(data[start : end + 1]) != int.from_bytes(data[end + 1 : end + 5], "little"):
        raise ValueError("its checksum differs")
    if data[end] == SNAPPY:
        return decompress_snappy(data[start:end])
    if data[end] != UNCOMPRESSED:
        raise ValueError(f"its compression {data[end]} is unknown")
    return data[start:end]


def _entries(contents: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The keys and values of a block."""
    restarts = int.from_bytes(contents[-4:], "little")
    end = len(contents) - 4 * (restarts + 1)
    key, at = b"", 0
    while at < end:
        shared, at = read_varint(contents, at)
        unshared, at = read_varint(contents, at)
        size, at = read_varint(contents, at)
        if shared > len(key) or at + unshared + size > end:
            raise ValueError("an entry reaches beyond it")
        key = key[:shared] + contents[at : at + unshared]
        at += unshared + size
        yield key, contents[at - size : at]


def decompress_snappy(data: bytes) -> bytes:
    """Undo Snappy (github.com/google/snappy format_description.txt): literals, and copies of what was.

    Raises:
        ValueError: the data are not Snappy's.
    """
    size, at = read_varint(data, 0)
    made = bytearray()
    while at < len(data):
        tag, at = data[at], at + 1
        kind, number = tag & 3, tag >> 2
        # Bytes behind the tag: of a literal those of a length over 60, of a copy those of its offset.
        width = max(number - 59, 0) if kind == 0 else (1, 2, 4)[kind - 1]
        behind, at = int.from_bytes(data[at : at + width], "little"), at + width
        if kind == 0:
            length = (behind if width else number) + 1
            made += data[at : at + length]
            at += length
            continue
        offset, length = behind, number + 1
        if kind == 1:  # short: three bits of the offset stand in the tag
            offset, length = behind | tag >> 5 << 8, (number & 7) + 4
        if not 0 < offset <= len(made):
            raise ValueError("a copy of what is not there")
        for i in range(len(made) - offset, len(made) - offset + length):  # may reach into what it makes
            made.append(made[i])
    if at != len(data) or len(made) != size:
        raise ValueError(f"{len(made):,} bytes where {size:,} were promised")
    return bytes(made)
