"""TensorFlow's tensor bundles, the file format of its checkpoints.

`PREFIX.index` names the tensors and `PREFIX.data-00000-of-00001` holds their bytes. The index is a
sorted table (sorted_table.py) that maps names to BundleEntryProto messages, and the empty name to a
BundleHeaderProto. These two protocol buffers are encoded and decoded here.
(tensorflow/core/protobuf/tensor_bundle.proto, tensorflow/core/util/tensor_bundle)
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from bertie.base.arrays import UInt8s
from bertie.base.errors import ModelError
from bertie.model.formats.crc32c import masked_crc32c
from bertie.model.formats.sorted_table import decode_varint, encode_varint, read_table, write_table

Array = npt.NDArray[Any]

# tensorflow/core/framework/types.proto
DTYPES: dict[int, np.dtype[Any]] = {
    1: np.dtype(np.float32),
    2: np.dtype(np.float64),
    3: np.dtype(np.int32),
    9: np.dtype(np.int64),
    19: np.dtype(np.float16),
}
BFLOAT16 = 14  # numpy has no bfloat16: it is read as float32
DTYPE_CODES = {dtype: code for code, dtype in DTYPES.items()}

VARINT, BYTES, FIXED32 = 0, 2, 5  # wire types of protocol buffers


@dataclass(frozen=True)
class Entry:
    """An entry of the index, which describes one tensor.

    Attributes:
        dtype: TensorFlow's code of the tensor's type
        shape: the dimensions of the tensor
        shard: the index of the data file that holds the tensor
        offset: the position of the tensor's first byte in that file
        size: the number of bytes
        crc32c: the masked checksum of the bytes
        is_sliced: whether the tensor is a partitioned variable, with slices stored under other keys
    """

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    crc32c: int
    is_sliced: bool


class Bundle:
    """The tensors of a checkpoint; `read` loads one of them.

    Attributes:
        prefix: the prefix of the checkpoint's files
        entries: the index: one entry for each tensor, by name, in sorted order
    """

    def __init__(
        self, prefix: Path, entries: dict[str, Entry], num_shards: int, byteorder: Literal["<", ">"]
    ) -> None:
        self.prefix = prefix
        self.entries = entries
        self._num_shards = num_shards
        self._byteorder = byteorder
        self._shards: dict[int, UInt8s] = {}

    def read(self, name: str) -> Array:
        """Return a tensor after verifying its checksum; bfloat16 becomes float32.

        The data file is memory-mapped at the first read.

        Raises:
            ModelError: the tensor is damaged, truncated, partitioned or of an unsupported type, or
                its data file is missing.
        """
        entry = self.entries[name]
        dtype = np.dtype(np.uint16) if entry.dtype == BFLOAT16 else DTYPES.get(entry.dtype)
        if entry.is_sliced:
            raise ModelError(f"{self.prefix}: {name} is partitioned; bertie reads only whole tensors")
        if dtype is None:
            raise ModelError(
                f"{self.prefix}: {name} has TensorFlow's type {entry.dtype} (types.proto); bertie reads only "
                f"numeric tensors"
            )
        path = _shard_path(self.prefix, entry.shard, self._num_shards)
        if entry.shard not in self._shards:
            self._shards[entry.shard] = _map_file(path)
        raw = self._shards[entry.shard][entry.offset : entry.offset + entry.size]
        if len(raw) < entry.size:
            raise ModelError(f"{path}: truncated in {name}; download the file again")
        if masked_crc32c(raw.data) != entry.crc32c:
            raise ModelError(f"{path}: {name} is damaged (its checksum differs); download the file again")
        try:
            values: Array = raw.view(dtype.newbyteorder(self._byteorder)).astype(dtype).reshape(entry.shape)
        except (ValueError, OverflowError):  # also for dimensions that no array has
            raise ModelError(
                f"{index_path(self.prefix)}: {name} has {entry.size:,} bytes, which do not fit its shape "
                f"{entry.shape}; download it again"
            ) from None
        if entry.dtype == BFLOAT16:
            return (values.astype(np.uint32) << 16).view(np.float32)
        return values


def read_bundle(prefix: Path) -> Bundle:
    """Read the index of a checkpoint.

    Raises:
        ModelError: the index is missing or damaged, or does not belong to a TensorFlow checkpoint.
    """
    path = index_path(prefix)
    table = read_table(path)
    try:
        (key, header), *items = table
        if key:
            raise ValueError("it has no header")
        header_fields = _decode_message(header)
        num_shards, is_big_endian = _get_int(header_fields, 1), _get_int(header_fields, 2)
        # The slices of partitioned variables have keys that begin with a zero byte.
        entries = {key.decode(): _decode_entry(value) for key, value in items if not key.startswith(b"\0")}
    except ValueError as error:
        raise ModelError(
            f"{path}: not the index of a TensorFlow checkpoint ({error}); download it again"
        ) from None
    return Bundle(prefix, entries, num_shards, ">" if is_big_endian else "<")


def write_bundle(prefix: Path, tensors: Mapping[str, Array]) -> None:
    """Write tensors byte for byte as TensorFlow's BundleWriter does.

    The tensors are stored one after the other in one data file, sorted by name. A transposed view
    is copied only when it is written, so at most one copy is in memory at a time.
    """
    items = [(b"", HEADER)]
    offset = 0
    with _shard_path(prefix, 0, 1).open("wb") as file:
        for name in sorted(tensors, key=str.encode):
            tensor = tensors[name]
            raw = np.ascontiguousarray(tensor, tensor.dtype.newbyteorder("<")).view(np.uint8).ravel()
            # Read-only like memory-mapped data: numba would compile the checksum again for writable arrays.
            raw.flags.writeable = False
            crc = masked_crc32c(raw.data)
            file.write(raw.data)
            dtype = DTYPE_CODES[tensor.dtype]
            entry = Entry(dtype, tensor.shape, 0, offset, raw.size, crc, is_sliced=False)
            items.append((name.encode(), _encode_entry(entry)))
            offset += raw.size
    write_table(index_path(prefix), items)


def index_path(prefix: Path) -> Path:
    """Return the path of a checkpoint's index."""
    return prefix.with_name(f"{prefix.name}.index")


def _shard_path(prefix: Path, shard: int, num_shards: int) -> Path:
    return prefix.with_name(f"{prefix.name}.data-{shard:05}-of-{num_shards:05}")


def _map_file(path: Path) -> UInt8s:
    """Return the bytes of a file, memory-mapped."""
    try:
        if path.stat().st_size == 0:  # an empty file cannot be mapped
            return np.empty(0, np.uint8)
        return np.asarray(np.memmap(path, np.uint8, mode="r"))
    except OSError as error:
        raise ModelError(
            f"{path}: cannot be read ({error.strerror}); the model is incomplete without it"
        ) from None


def _decode_entry(data: bytes) -> Entry:
    """Decode a BundleEntryProto."""
    fields = _decode_message(data)
    shape = _decode_message(b"".join(_get_bytes(fields, 2)))
    return Entry(
        dtype=_get_int(fields, 1),
        shape=tuple(_get_int(_decode_message(dimension), 1) for dimension in _get_bytes(shape, 2)),
        shard=_get_int(fields, 3),
        offset=_get_int(fields, 4),
        size=_get_int(fields, 5),
        crc32c=_get_int(fields, 6),
        is_sliced=7 in fields,
    )


def _encode_entry(entry: Entry) -> bytes:
    """Encode a BundleEntryProto, its fields in ascending order."""
    shape = b"".join(_encode_field(2, _encode_field(1, size)) for size in entry.shape)
    return (
        _encode_field(1, entry.dtype)
        + _encode_field(2, shape)
        + _encode_field(3, entry.shard)
        + _encode_field(4, entry.offset)
        + _encode_field(5, entry.size)
        + encode_varint(6 << 3 | FIXED32)
        + entry.crc32c.to_bytes(4, "little")
    )


def _decode_message(data: bytes) -> dict[int, list[Any]]:
    """Decode a protocol buffer into the values of its fields, by field number.

    Values are integers or bytes.

    Raises:
        ValueError: it has a wire type that the bundle's messages do not use, or ends inside a
            number or a field.
    """
    fields: dict[int, list[Any]] = {}
    position = 0
    while position < len(data):
        tag, position = decode_varint(data, position)
        value: int | bytes
        wire_type = tag & 7
        if wire_type == VARINT:
            value, position = decode_varint(data, position)
        elif wire_type == BYTES:
            size, position = decode_varint(data, position)
            if position + size > len(data):
                raise ValueError("it ends inside a field")
            value, position = data[position : position + size], position + size
        elif wire_type == FIXED32:
            if position + 4 > len(data):
                raise ValueError("it ends inside a field")
            value, position = int.from_bytes(data[position : position + 4], "little"), position + 4
        else:
            raise ValueError(f"unexpected wire type {wire_type}")
        fields.setdefault(tag >> 3, []).append(value)
    return fields


def _encode_field(number: int, value: int | bytes) -> bytes:
    """Encode one field of a protocol buffer; the integer 0, the default, is omitted."""
    if isinstance(value, bytes):
        return encode_varint(number << 3 | BYTES) + encode_varint(len(value)) + value
    return encode_varint(number << 3 | VARINT) + encode_varint(value) if value else b""


def _get_int(fields: dict[int, list[Any]], number: int) -> int:
    """Return an integer field; its default is 0."""
    value = fields.get(number, [0])[-1]
    if not isinstance(value, int):
        raise ValueError(f"field {number} is not a number")
    return value


def _get_bytes(fields: dict[int, list[Any]], number: int) -> list[bytes]:
    """Return all values of a field of bytes."""
    values = fields.get(number, [])
    if not all(isinstance(value, bytes) for value in values):
        raise ValueError(f"field {number} is a number")
    return values


HEADER = _encode_field(1, 1) + _encode_field(3, _encode_field(1, 1))  # one shard, little-endian, version 1
