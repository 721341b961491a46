"""LevelDB's sorted string tables, the format of a TensorFlow checkpoint's index.

A table is a sequence of blocks and a footer:

- Data blocks hold the sorted keys and values. A key is stored without the prefix that it has in
  common with the key before it.
- The metaindex block is empty in TensorFlow's files.
- The index block has an entry for each data block: a key that is not below the last key of the
  block, and the handle of the block, its offset and size in the file.
- The footer holds the handles of the metaindex and index blocks.

After each block come one byte for its compression and its masked CRC-32C.
(tensorflow/core/lib/io/format.cc, table_builder.cc, block_builder.cc)
"""

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from bertie.base.errors import ModelError
from bertie.model.formats.crc32c import masked_crc32c

MAGIC = 0xDB4775248B80FB57
FOOTER_BYTES = 48  # two handles of at most 20 bytes each, zeros, the magic number
TRAILER_BYTES = 5  # after each block: its compression and its checksum
UNCOMPRESSED, SNAPPY = 0, 1
MAX_VARINT_BYTES = 10  # of a number of 64 bits
# tensorflow/core/lib/io/table_options.h
BLOCK_BYTES = 262_144
RESTART_INTERVAL = 16  # every 16th key of a block is stored whole


class Handle(NamedTuple):
    """The location of a block in its file, without the trailer."""

    offset: int
    size: int


def encode_varint(value: int) -> bytes:
    """Encode a number as a varint: groups of seven bits, the lowest first.

    All bytes but the last have the high bit set.
    """
    groups = bytearray()
    while value > 127:
        groups.append(value & 127 | 128)
        value >>= 7
    return bytes([*groups, value])


def decode_varint(data: bytes, position: int) -> tuple[int, int]:
    """Return the varint at a position, and the position after it.

    Raises:
        ValueError: the data end inside the number, or it has more than 64 bits.
    """
    value = 0
    for i in range(position, len(data)):
        if i - position == MAX_VARINT_BYTES:
            raise ValueError("a number has too many bytes")
        value |= (data[i] & 127) << 7 * (i - position)
        if data[i] < 128:
            return value, i + 1
    raise ValueError("it ends inside a number")


def read_table(path: Path) -> list[tuple[bytes, bytes]]:
    """Read the keys and values of a table, in order, and verify its checksums.

    Raises:
        ModelError: the file is missing, not a table, truncated or damaged. The message names the
            block.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror}); download it again") from None
    footer = data[-FOOTER_BYTES:]
    if footer[40:] != MAGIC.to_bytes(8, "little"):
        raise ModelError(f"{path}: not the index of a TensorFlow checkpoint, or truncated; download it again")
    entries: list[tuple[bytes, bytes]] = []
    block = "the footer"
    try:
        _metaindex, position = _decode_handle(footer, 0)
        index, _ = _decode_handle(footer, position)
        block = "the index block"
        handles = [_decode_handle(value, 0)[0] for _, value in _decode_entries(_read_block(data, index))]
        if sum(handle.size for handle in handles) > len(data):
            raise ValueError("blocks overlap")
        for i, handle in enumerate(handles, start=1):
            block = f"block {i} of {len(handles)}"
            entries += _decode_entries(_read_block(data, handle))
    except ValueError as error:
        raise ModelError(f"{path}: {block} is damaged ({error}); download the file again") from None
    return entries


def write_table(path: Path, entries: Iterable[tuple[bytes, bytes]]) -> None:
    """Write entries byte for byte as TensorFlow's TableBuilder does.

    Args:
        path: the file.
        entries: keys and values, sorted by key.
    """
    index, block = _Block(restart_interval=1), _Block()
    handle = b""  # of `block` once it is written; its index key also depends on the first key after it
    with path.open("wb") as file:
        for key, value in entries:
            if handle:
                index.add(_shortest_separator(block.last_key, key), handle)
                block, handle = _Block(), b""
            block.add(key, value)
            if len(block) >= BLOCK_BYTES:
                handle = _write_block(file, block)
        index.add(_short_successor(block.last_key), handle or _write_block(file, block))
        footer = _write_block(file, _Block()) + _write_block(file, index)
        file.write(footer.ljust(FOOTER_BYTES - 8, b"\0") + MAGIC.to_bytes(8, "little"))


class _Block:
    """A block under construction."""

    def __init__(self, restart_interval: int = RESTART_INTERVAL) -> None:
        self._restart_interval = restart_interval
        self._entries, self._restarts, self._count = bytearray(), [0], 0
        self.last_key = b""

    def __len__(self) -> int:
        """The number of bytes that `encode` will return."""
        return len(self._entries) + 4 * len(self._restarts) + 4

    def add(self, key: bytes, value: bytes) -> None:
        shared = _shared_prefix_length(self.last_key, key)
        if self._count and self._count % self._restart_interval == 0:
            self._restarts.append(len(self._entries))
            shared = 0
        for number in (shared, len(key) - shared, len(value)):
            self._entries += encode_varint(number)
        self._entries += key[shared:] + value
        self.last_key = key
        self._count += 1

    def encode(self) -> bytes:
        """Return the entries, the offsets of whole keys, and the number of these offsets."""
        return bytes(self._entries) + struct.pack(
            f"<{len(self._restarts) + 1}I", *self._restarts, len(self._restarts)
        )


def _write_block(file: BinaryIO, block: _Block) -> bytes:
    """Append a block to a file; return its encoded handle."""
    offset = file.tell()
    contents = block.encode()
    checked = contents + bytes([UNCOMPRESSED])
    file.write(checked + masked_crc32c(checked).to_bytes(4, "little"))
    return encode_varint(offset) + encode_varint(len(contents))


def _shared_prefix_length(first: bytes, second: bytes) -> int:
    length = min(len(first), len(second))
    return next((i for i in range(length) if first[i] != second[i]), length)


def _shortest_separator(last: bytes, following: bytes) -> bytes:
    """Return a short key that is at least `last` and below `following`.

    The result equals FindShortestSeparator's in table_builder.cc.
    """
    i = _shared_prefix_length(last, following)
    if i < len(last) and last[i] + 1 < following[i]:
        return last[:i] + bytes([last[i] + 1])
    return last


def _short_successor(last: bytes) -> bytes:
    """Return a short key that is at least `last`.

    The result equals FindShortSuccessor's in table_builder.cc, except that `last` must not begin with
    byte 255; no name of a tensor does.
    """
    return bytes([last[0] + 1]) if last else last


def _decode_handle(data: bytes, position: int) -> tuple[Handle, int]:
    """Return the handle at a position, and the position after it."""
    offset, position = decode_varint(data, position)
    size, position = decode_varint(data, position)
    return Handle(offset, size), position


def _read_block(data: bytes, handle: Handle) -> bytes:
    """Return the decompressed contents of a block, its checksum verified."""
    end = handle.offset + handle.size
    if end + TRAILER_BYTES > len(data):
        raise ValueError(
            f"it should end at byte {end + TRAILER_BYTES:,}, but the file has {len(data):,} bytes"
        )
    if masked_crc32c(data[handle.offset : end + 1]) != int.from_bytes(data[end + 1 : end + 5], "little"):
        raise ValueError("its checksum differs")
    if data[end] == SNAPPY:
        return decompress_snappy(data[handle.offset : end])
    if data[end] != UNCOMPRESSED:
        raise ValueError(f"unknown compression {data[end]}")
    return data[handle.offset : end]


def _decode_entries(contents: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of a block."""
    # In TensorFlow's files a byte is in at most RESTART_INTERVAL keys, since each interval has a whole key.
    # Any number of keys with one long prefix would need any amount of memory.
    key_bytes_left = RESTART_INTERVAL * len(contents)
    num_restarts = int.from_bytes(contents[-4:], "little")
    end = len(contents) - 4 * (num_restarts + 1)
    if end < 0:
        raise ValueError("it is shorter than the list of its keys")
    key, position = b"", 0
    while position < end:
        shared, position = decode_varint(contents, position)
        unshared, position = decode_varint(contents, position)
        value_size, position = decode_varint(contents, position)
        if shared > len(key) or position + unshared + value_size > end:
            raise ValueError("an entry is longer than the block")
        key_bytes_left -= shared + unshared
        if key_bytes_left < 0:
            raise ValueError("too many keys have a prefix in common")
        key = key[:shared] + contents[position : position + unshared]
        position += unshared + value_size
        yield key, contents[position - value_size : position]


def decompress_snappy(data: bytes) -> bytes:
    """Decompress a Snappy block (github.com/google/snappy, format_description.txt).

    It consists of literals and of copies of earlier output. TensorFlow has read compressed tables
    since version 1.1, but writes uncompressed ones (tensor_bundle.cc, TableBuilderOptions).

    Raises:
        ValueError: the data are not in Snappy's format.
    """
    size, position = decode_varint(data, 0)
    output = bytearray()
    while position < len(data):
        tag, position = data[position], position + 1
        kind, number = tag & 3, tag >> 2
        # After the tag come the length of a literal if it is over 60, or the offset of a copy.
        extra_bytes = max(number - 59, 0) if kind == 0 else (1, 2, 4)[kind - 1]
        extra = int.from_bytes(data[position : position + extra_bytes], "little")
        position += extra_bytes
        if kind == 0:
            length = (extra if extra_bytes else number) + 1
            output += data[position : position + length]
            position += length
            continue
        offset, length = extra, number + 1
        if kind == 1:  # a short copy, with three bits of its offset in the tag
            offset, length = extra | tag >> 5 << 8, (number & 7) + 4
        if not 0 < offset <= len(output):
            raise ValueError("a copy begins before the output")
        start = len(output) - offset
        for i in range(start, start + length):  # byte by byte: a copy may overlap its own output
            output.append(output[i])
    if position != len(data) or len(output) != size:
        raise ValueError(f"{len(output):,} bytes decompressed, {size:,} expected")
    return bytes(output)
