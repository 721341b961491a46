"""TensorFlow's tensor bundle: `PREFIX.index` names tensors, `PREFIX.data-00000-of-00001` holds their bytes.

The index is a table (sorted_table.py) from names to protocol buffers, BundleEntryProto; under the empty name
stands BundleHeaderProto. (tensorflow/core/protobuf/tensor_bundle.proto, core/util/tensor_bundle)
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from bertie.base.errors import ModelError
from bertie.model.formats.crc32c import masked_crc32c
from bertie.model.formats.sorted_table import read_table, read_varint, varint, write_table

Tensor = npt.NDArray[Any]

# tensorflow/core/framework/types.proto
DTYPES: dict[int, np.dtype[Any]] = {
    1: np.dtype(np.float32),
    2: np.dtype(np.float64),
    3: np.dtype(np.int32),
    9: np.dtype(np.int64),
    19: np.dtype(np.float16),
}
BFLOAT16 = 14  # numpy has none: read as float32
DTYPE_NUMBERS = {dtype: number for number, dtype in DTYPES.items()}

VARINT, BYTES, FIXED32 = 0, 2, 5  # wire types of protocol buffers


@dataclass(frozen=True)
class Entry:
    """What the index says of a tensor.

    dtype    the number of its type in TensorFlow
    shape    its dimensions
    shard    which data file holds its bytes, from `offset`, `size` of them
    crc32c   their checksum, masked
    sliced   whether the bytes are elsewhere, in pieces: a partitioned variable
    """

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    crc32c: int
    sliced: bool


class Bundle:
    """The tensors of a checkpoint, each read when it is asked for.

    entries  what the index says of each, by name, in order
    """

    def __init__(
        self, prefix: Path, entries: dict[str, Entry], num_shards: int, byteorder: Literal["<", ">"]
    ) -> None:
        self.prefix = prefix
        self.entries = entries
        self._num_shards = num_shards
        self._byteorder = byteorder
        self._shards: dict[int, npt.NDArray[np.uint8]] = {}

    def read(self, name: str) -> Tensor:
        """A tensor, its checksum verified; bfloat16 becomes float32.

        Raises:
            ModelError: its bytes are damaged or absent, or it is not of `DTYPES`.
        """
        entry = self.entries[name]
        dtype = np.dtype(np.uint16) if entry.dtype == BFLOAT16 else DTYPES.get(entry.dtype)
        if dtype is None or entry.sliced:
            what = "is partitioned" if entry.sliced else f"has TensorFlow's type number {entry.dtype}"
            raise ModelError(f"{self.prefix}: {name} {what}; bertie reads whole tensors of numbers only")
        path = _shard_path(self.prefix, entry.shard, self._num_shards)
        if entry.shard not in self._shards:
            self._shards[entry.shard] = _map(path)
        raw = self._shards[entry.shard][entry.offset : entry.offset + entry.size]
        if len(raw) < entry.size:
            raise ModelError(f"{path}: cut off in {name}; fetch the file once more")
        if masked_crc32c(raw.data) != entry.crc32c:
            raise ModelError(f"{path}: {name} is damaged (its checksum differs); fetch the file once more")
        values: Tensor = raw.view(dtype.newbyteorder(self._byteorder)).astype(dtype).reshape(entry.shape)
        if entry.dtype == BFLOAT16:
            return (values.astype(np.uint32) << 16).view(np.float32)
        return values


def read_bundle(prefix: Path) -> Bundle:
    """Read the index of a checkpoint.

    Raises:
        ModelError: it is absent or damaged.
    """
    path = index_path(prefix)
    table = read_table(path)
    try:
        (key, header), *items = table
        if key:
            raise ValueError("it has no header")
        described = _message(header)
        # Pieces of partitioned variables have keys that begin with a zero byte.
        entries = {key.decode(): _entry(value) for key, value in items if not key.startswith(b"\0")}
    except ValueError as error:
        raise ModelError(f"{path}: a table, but not of a TensorFlow checkpoint ({error})") from None
    return Bundle(prefix, entries, _number(described, 1), ">" if _number(described, 2) else "<")


def write_bundle(prefix: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors as TensorFlow's BundleWriter does: one data file, sorted by name, end to end.

    Each is laid out only when its turn comes, so views that are transposed take no memory before.
    """
    items = [(b"", HEADER)]
    offset = 0
    with _shard_path(prefix, 0, 1).open("wb") as file:
        for name in sorted(tensors, key=str.encode):
            tensor = tensors[name]
            values = np.ascontiguousarray(tensor, tensor.dtype.newbyteorder("<")).view(np.uint8).ravel()
            values.flags.writeable = False  # as what is read: the kernel is compiled for either
            crc = masked_crc32c(values.data)
            file.write(values.data)
            entry = Entry(
                DTYPE_NUMBERS[tensor.dtype], tensor.shape, 0, offset, values.size, crc, sliced=False
            )
            items.append((name.encode(), _entry_bytes(entry)))
            offset += values.size
    write_table(index_path(prefix), items)


def index_path(prefix: Path) -> Path:
    """The index of a checkpoint."""
    return prefix.with_name(f"{prefix.name}.index")


def _shard_path(prefix: Path, shard: int, num_shards: int) -> Path:
    return prefix.with_name(f"{prefix.name}.data-{shard:05}-of-{num_shards:05}")


def _map(path: Path) -> npt.NDArray[np.uint8]:
    """The bytes of a file, memory-mapped."""
    try:
        if path.stat().st_size == 0:  # which cannot be mapped
            return np.empty(0, np.uint8)
        return np.asarray(np.memmap(path, np.uint8, mode="r"))
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror}); fetch it too") from None


def _entry(data: bytes) -> Entry:
    """BundleEntryProto."""
    fields = _message(data)
    (shape,) = fields.get(2, [b""])
    return Entry(
        dtype=_number(fields, 1),
        shape=tuple(_number(_message(dimension), 1) for dimension in _message(shape).get(2, [])),
        shard=_number(fields, 3),
        offset=_number(fields, 4),
        size=_number(fields, 5),
        crc32c=_number(fields, 6),
        sliced=7 in fields,
    )


def _entry_bytes(entry: Entry) -> bytes:
    """BundleEntryProto, its fields in their order."""
    shape = b"".join(_field(2, _field(1, size)) for size in entry.shape)
    return (
        _field(1, entry.dtype)
        + _field(2, shape)
        + _field(3, entry.shard)
        + _field(4, entry.offset)
        + _field(5, entry.size)
        + varint(6 << 3 | FIXED32)
        + entry.crc32c.to_bytes(4, "little")
    )


def _message(data: bytes) -> dict[int, list[Any]]:
    """The fields of a protocol buffer by their numbers: integers, or bytes.

    Raises:
        ValueError: it has a wire type that these messages have not, or ends inside a number.
    """
    fields: dict[int, list[Any]] = {}
    at = 0
    while at < len(data):
        tag, at = read_varint(data, at)
        value: int | bytes
        wire_type = tag & 7
        if wire_type == VARINT:
            value, at = read_varint(data, at)
        elif wire_type == BYTES:
            size, at = read_varint(data, at)
            value, at = data[at : at + size], at + size
        elif wire_type == FIXED32:
            value, at = int.from_bytes(data[at : at + 4], "little"), at + 4
        else:
            raise ValueError(f"wire type {wire_type}")
        fields.setdefault(tag >> 3, []).append(value)
    return fields


def _number(fields: dict[int, list[Any]], number: int) -> int:
    """A field that is an integer; one that is not there is 0."""
    value: int = fields.get(number, [0])[-1]
    return value


def _field(number: int, value: int | bytes) -> bytes:
    """A field as it is written; an integer 0 is left out."""
    if isinstance(value, bytes):
        return varint(number << 3 | BYTES) + varint(len(value)) + value
    return varint(number << 3 | VARINT) + varint(value) if value else b""


# One data file, little-endian; version 1 of the format.
HEADER = _field(1, 1) + _field(3, _field(1, 1))
