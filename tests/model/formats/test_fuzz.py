"""Any bytes in the place of a binary file give one error that the user can fix, or a result."""

import struct
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from bertie.base.errors import BertieError
from bertie.corpus.shards import check_shard, read_shard
from bertie.model.formats import sorted_table, tensor_bundle
from bertie.model.formats.huggingface import read_weights
from bertie.model.formats.sorted_table import write_table
from bertie.model.formats.tensor_bundle import Entry, index_path, read_bundle, write_bundle

BUDGET = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
BYTES = st.binary(max_size=120)
# Fragments of protocol buffers and varints, which random bytes rarely are.
FRAGMENTS = st.lists(
    st.one_of(BYTES, st.sampled_from([b"\x08", b"\x12\x02\x08\x01", b"\x1a", b"\xff" * 11, b"\x35", b"\0"])),
    max_size=6,
).map(b"".join)


@BUDGET
@given(FRAGMENTS)
@example(b"\x10\x05")  # a shape that is a number
@example(b"\x0a\x01a")  # a type that is bytes
@example(b"\x12\x7f")  # ends inside a field
@example(b"\x35\x01")
@example(b"\x80" * 30)
def test_any_message_is_decoded_or_a_value_error(data: bytes) -> None:
    with suppress(ValueError):
        assert isinstance(tensor_bundle._decode_entry(data), Entry)
    with suppress(ValueError):
        assert all(values for values in tensor_bundle._decode_message(data).values())


@BUDGET
@given(FRAGMENTS)
@example(b"\xff\xff\xff\xff")  # more restarts than the block has bytes
@example(b"")
def test_any_block_is_decoded_or_a_value_error(data: bytes) -> None:
    with suppress(ValueError):
        assert sum(len(value) for _, value in sorted_table._decode_entries(data)) <= len(data)
    with suppress(ValueError):
        assert isinstance(sorted_table.decompress_snappy(data), bytes)


@settings(BUDGET, max_examples=20)
@given(
    st.integers(0, 20), st.lists(st.integers(0, 2**64 - 1), max_size=3), st.integers(0, 2**63), st.booleans()
)
def test_any_entry_is_read_or_refused(
    tmp_path: Path, dtype: int, shape: list[int], offset: int, is_sliced: bool
) -> None:
    prefix = tmp_path / "model.ckpt"
    write_bundle(prefix, {"a": np.ones(4, np.float32)})
    whole = read_bundle(prefix).entries["a"]
    entry = Entry(dtype, tuple(shape), 0, offset % 20, 16, whole.crc32c, is_sliced)
    write_table(index_path(prefix), [(b"", tensor_bundle.HEADER), (b"a", tensor_bundle._encode_entry(entry))])
    with suppress(BertieError):
        assert read_bundle(prefix).read("a").nbytes == 16


@pytest.mark.parametrize(("shape", "size"), [((1,) * 70 + (4,), 16), ((0, 2**64 - 1), 0), ((2**69, 0), 0)])
def test_shape_that_no_array_has_is_refused(tmp_path: Path, shape: tuple[int, ...], size: int) -> None:
    """A tensor without elements fits any dimensions beside a 0, and 70 of 1 do not change the size."""
    prefix = tmp_path / "model.ckpt"
    write_bundle(prefix, {"a": np.ones(size // 4, np.float32)})
    entry = replace(read_bundle(prefix).entries["a"], shape=shape)
    write_table(index_path(prefix), [(b"", tensor_bundle.HEADER), (b"a", tensor_bundle._encode_entry(entry))])
    with pytest.raises(BertieError, match=r"model\.ckpt\.index: a has .* do not fit its shape"):
        read_bundle(prefix).read("a")


@pytest.mark.parametrize("field", [1, 2])
def test_header_with_text_for_a_number_is_refused(tmp_path: Path, field: int) -> None:
    """Found by a fuzzer."""
    write_table(tmp_path / "a.index", [(b"", tensor_bundle._encode_field(field, b"1"))])
    with pytest.raises(BertieError, match=rf"a\.index: not the index .*\(field {field} is not a number\)"):
        read_bundle(tmp_path / "a")


def test_keys_with_one_long_prefix_are_refused() -> None:
    """500 kB would become 10 GB of keys, each of which differs from the first one in its last byte."""
    entry = b"".join(map(sorted_table.encode_varint, (199_999, 1, 0))) + b"b"
    first = b"".join(map(sorted_table.encode_varint, (0, 200_000, 0))) + b"a" * 200_000
    contents = first + 50_000 * entry + struct.pack("<2I", 0, 1)
    with pytest.raises(ValueError, match="too many keys"):
        for _ in sorted_table._decode_entries(contents):
            pass


def test_many_handles_of_one_block_are_refused(tmp_path: Path) -> None:
    """They would multiply the entries of the block."""
    block, index = sorted_table._Block(), sorted_table._Block(restart_interval=1)
    block.add(b"a", bytes(1000))
    with (tmp_path / "a.index").open("wb") as file:
        handle = sorted_table._write_block(file, block)
        for number in range(200):
            index.add(b"%03d" % number, handle)
        footer = sorted_table._write_block(file, sorted_table._Block()) + sorted_table._write_block(
            file, index
        )
        file.write(footer.ljust(40, b"\0") + sorted_table.MAGIC.to_bytes(8, "little"))
    with pytest.raises(BertieError, match=r"the index block is damaged \(blocks overlap\)"):
        read_bundle(tmp_path / "a")


@BUDGET
@given(BYTES, st.none() | st.integers(0, 2**64 - 1))
def test_any_safetensors_header_is_read_or_refused(tmp_path: Path, header: bytes, length: int | None) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(struct.pack("<Q", len(header) if length is None else length) + header)
    with suppress(BertieError):
        weights = read_weights(file)
        assert sum(weight.nbytes for weight in weights.values()) <= len(header)


@BUDGET
@given(st.tuples(BYTES, BYTES, BYTES))
@example((b"\x05", b"", b""))  # found by a fuzzer: half an id
@example((b"\x05\0", b"\x01" + bytes(7), b"\x01" + bytes(6)))
def test_any_shard_is_read_or_refused(tmp_path: Path, files: tuple[bytes, bytes, bytes]) -> None:
    for name, content in zip(("tokens", "sentence_ends", "document_ends"), files, strict=True):
        (tmp_path / f"{name}.bin").write_bytes(content)
    with suppress(BertieError):
        check_shard(tmp_path, 90)
        shard = read_shard(tmp_path, 90)
        assert len(shard.tokens) == (shard.sentence_ends[-1] if len(shard.sentence_ends) else 0)


@pytest.mark.parametrize("size", range(0, 40, 3))
def test_any_truncated_index_is_refused(tmp_path: Path, size: int) -> None:
    (tmp_path / "a.index").write_bytes(b"\xff" * size + sorted_table.MAGIC.to_bytes(8, "little"))
    with pytest.raises(BertieError, match=r"a\.index: "):
        read_bundle(tmp_path / "a")
