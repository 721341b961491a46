"""LevelDB's sorted tables: round trips, damage, and Snappy decompression."""

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.model.damage import damaged_versions

from bertie.base.errors import ModelError
from bertie.model.formats import sorted_table
from bertie.model.formats.sorted_table import (
    decode_varint,
    decompress_snappy,
    encode_varint,
    read_table,
    write_table,
)

SNAPPY = pyarrow.Codec("snappy")
TABLE = st.dictionaries(st.text("ab/", max_size=12).map(str.encode), st.binary(max_size=60)).map(
    lambda table: sorted(table.items())
)
ENTRIES = [(f"layer_{i}/{name}".encode(), name.encode() * 3) for i in range(4) for name in ("a", "bc")]


@given(st.integers(0, 2**64 - 1), st.binary(max_size=3))
def test_varints_survive_a_round_trip(value, padding):
    data = encode_varint(value)
    assert decode_varint(padding + data + padding, len(padding)) == (value, len(padding + data))
    with pytest.raises(ValueError, match="ends inside"):
        decode_varint(data[:-1], 0)


@given(TABLE, st.integers(1, 200))
def test_tables_survive_a_round_trip(tmp_path_factory, entries, block_bytes):
    path = tmp_path_factory.getbasetemp() / "table"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorted_table, "BLOCK_BYTES", block_bytes)
        write_table(path, entries)
    assert read_table(path) == entries


def test_index_keys_are_shortened(tmp_path, monkeypatch):
    """The index has short keys between two blocks and after the last one."""
    monkeypatch.setattr(sorted_table, "BLOCK_BYTES", 1)
    write_table(tmp_path / "table", [(key, b"value") for key in (b"bert/a", b"bert/ab", b"bert/xyz", b"cls")])
    data = (tmp_path / "table").read_bytes()
    _, position = sorted_table._decode_handle(data[-48:], 0)
    handle, _ = sorted_table._decode_handle(data[-48:], position)
    index = list(sorted_table._decode_entries(sorted_table._read_block(data, handle)))
    assert [key for key, _ in index] == [b"bert/a", b"bert/b", b"bert/xyz", b"d"]


def test_snappy_blocks_are_decompressed(tmp_path, monkeypatch):
    encode = sorted_table._Block.encode
    with monkeypatch.context() as patch:
        patch.setattr(sorted_table, "UNCOMPRESSED", sorted_table.SNAPPY)
        patch.setattr(sorted_table._Block, "encode", lambda self: SNAPPY.compress(encode(self), asbytes=True))
        write_table(tmp_path / "table", ENTRIES)
    assert read_table(tmp_path / "table") == ENTRIES
    with monkeypatch.context() as patch:
        patch.setattr(sorted_table, "UNCOMPRESSED", 7)
        write_table(tmp_path / "unknown", ENTRIES)
    with pytest.raises(ModelError, match="unknown compression 7"):
        read_table(tmp_path / "unknown")


def read_or_message(path):
    try:
        return read_table(path)
    except ModelError as error:
        return str(error)


def test_damage_is_detected_or_harmless(tmp_path, monkeypatch):
    monkeypatch.setattr(sorted_table, "BLOCK_BYTES", 60)  # for several blocks
    path = tmp_path / "table"
    write_table(path, ENTRIES)
    data = path.read_bytes()
    harmless = 0
    for damaged in damaged_versions(data):
        path.write_bytes(damaged)
        result = read_or_message(path)
        assert result == ENTRIES or str(result).startswith(f"{path}: ")
        harmless += result == ENTRIES
    # The reader skips the metaindex block, its handle and the padding of the footer.
    assert harmless < 2 * (13 + 40)


@pytest.mark.parametrize("position", [0, 70])
def test_damage_error_names_the_block(tmp_path, monkeypatch, position):
    monkeypatch.setattr(sorted_table, "BLOCK_BYTES", 60)
    path = tmp_path / "table"
    write_table(path, ENTRIES)
    data = bytearray(path.read_bytes())
    data[position] ^= 16
    path.write_bytes(data)
    with pytest.raises(ModelError, match=f"block {1 + (position > 0)} of 2 is damaged"):
        read_table(path)


def test_missing_file_and_other_format_are_rejected(tmp_path):
    with pytest.raises(ModelError, match="cannot be read"):
        read_table(tmp_path / "none")
    (tmp_path / "other").write_bytes(b"version https://git-lfs.github.com/spec/v1\n" * 3)
    with pytest.raises(ModelError, match="not the index of a TensorFlow checkpoint, or truncated"):
        read_table(tmp_path / "other")


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=20), st.integers(1, 300)), max_size=30))
def test_decompression_inverts_snappys_own_compressor(parts):
    data = b"".join(part * times for part, times in parts)
    assert decompress_snappy(SNAPPY.compress(data, asbytes=True)) == data


def test_snappy_literals_and_offsets_of_all_sizes():
    # The compressor never writes 4-byte offsets. Here: "ab", then a copy of 8 bytes from 2 bytes back.
    assert decompress_snappy(bytes([10, 1 << 2]) + b"ab" + bytes([7 << 2 | 3, 2, 0, 0, 0])) == b"ab" * 5
    for size in (60, 61, 256, 257, 70_000):  # literals with lengths of up to three extra bytes
        data = bytes(i * i * 31 >> 3 & 255 for i in range(size))
        assert decompress_snappy(SNAPPY.compress(data, asbytes=True)) == data


@given(st.binary(max_size=40))
def test_other_data_are_not_decompressed(data):
    try:
        output = decompress_snappy(data)
    except ValueError:
        return
    assert len(output) == decode_varint(data, 0)[0]
