"""LevelDB's table: what is written is read, damage is noticed, Snappy's blocks against its own compressor."""

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.model.damage import damaged

from bertie.base.errors import ModelError
from bertie.model.formats import sorted_table
from bertie.model.formats.sorted_table import decompress_snappy, read_table, read_varint, varint, write_table

SNAPPY = pyarrow.Codec("snappy")
TABLE = st.dictionaries(st.text("ab/", max_size=12).map(str.encode), st.binary(max_size=60)).map(
    lambda table: sorted(table.items())
)
ENTRIES = [
    (f"layer_{number}/{name}".encode(), name.encode() * 3) for number in "0123" for name in ("a", "bc")
]


@given(st.integers(0, 2**64 - 1), st.binary(max_size=3))
def test_varints(value, around):
    data = varint(value)
    assert read_varint(around + data + around, len(around)) == (value, len(around + data))
    with pytest.raises(ValueError, match="ends inside"):
        read_varint(data[:-1], 0)


@given(TABLE, st.integers(1, 200))
def test_what_is_written_is_read(tmp_path_factory, entries, block_bytes):
    path = tmp_path_factory.getbasetemp() / "table"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorted_table, "BLOCK_BYTES", block_bytes)
        write_table(path, entries)
    assert read_table(path) == entries


def test_the_keys_of_the_index_are_short(tmp_path, monkeypatch):
    """Between two blocks the shortest that separates them, where one byte does; behind the last the next."""
    monkeypatch.setattr(sorted_table, "BLOCK_BYTES", 1)
    write_table(tmp_path / "table", [(key, b"value") for key in (b"bert/a", b"bert/ab", b"bert/xyz", b"cls")])
    data = (tmp_path / "table").read_bytes()
    _, at = sorted_table._read_place(data[-48:], 0)
    place, _ = sorted_table._read_place(data[-48:], at)
    index = list(sorted_table._entries(sorted_table._read_block(data, *place)))
    assert [key for key, _ in index] == [b"bert/a", b"bert/b", b"bert/xyz", b"d"]


def test_snappy_blocks(tmp_path, monkeypatch):
    contents = sorted_table._Block.contents
    with monkeypatch.context() as patch:
        patch.setattr(sorted_table, "UNCOMPRESSED", sorted_table.SNAPPY)
        patch.setattr(
            sorted_table._Block, "contents", lambda self: SNAPPY.compress(contents(self), asbytes=True)
        )
        write_table(tmp_path / "table", ENTRIES)
    assert read_table(tmp_path / "table") == ENTRIES
    (tmp_path / "unknown").write_bytes(b"")
    with monkeypatch.context() as patch:
        patch.setattr(sorted_table, "UNCOMPRESSED", 7)
        write_table(tmp_path / "unknown", ENTRIES)
    with pytest.raises(ModelError, match="its compression 7 is unknown"):
        read_table(tmp_path / "unknown")


def outcome(path):
    try:
        return read_table(path)
    except ModelError as error:
        return str(error)


def test_damage_is_noticed_or_does_not_matter(tmp_path, monkeypatch):
    monkeypatch.setattr(sorted_table, "BLOCK_BYTES", 60)  # several blocks
    path = tmp_path / "table"
    write_table(path, ENTRIES)
    data = path.read_bytes()
    harmless = 0
    for changed in damaged(data):
        path.write_bytes(changed)
        result = outcome(path)
        assert result == ENTRIES or str(result).startswith(f"{path}: ")
        harmless += result == ENTRIES
    # The block of metadata, its place, and what fills the footer are not read.
    assert harmless < 2 * (13 + 40)


@pytest.mark.parametrize("at", [0, 70])
def test_a_damaged_block_is_named(tmp_path, monkeypatch, at):
    monkeypatch.setattr(sorted_table, "BLOCK_BYTES", 60)
    path = tmp_path / "table"
    write_table(path, ENTRIES)
    data = bytearray(path.read_bytes())
    data[at] ^= 16
    path.write_bytes(data)
    with pytest.raises(ModelError, match=f"block {1 + (at > 0)} of 2 is damaged"):
        read_table(path)


def test_what_is_no_table(tmp_path):
    with pytest.raises(ModelError, match="cannot be read"):
        read_table(tmp_path / "none")
    (tmp_path / "other").write_bytes(b"version https://git-lfs.github.com/spec/v1\n" * 3)
    with pytest.raises(ModelError, match="no TensorFlow checkpoint index"):
        read_table(tmp_path / "other")


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=20), st.integers(1, 300)), max_size=30))
def test_snappy_against_its_own_compressor(parts):
    data = b"".join(part * times for part, times in parts)
    assert decompress_snappy(SNAPPY.compress(data, asbytes=True)) == data


def test_snappy_lengths_and_offsets():
    # The compressor writes no offsets of four bytes: "ab", then eight from two before, over themselves.
    assert decompress_snappy(bytes([10, 1 << 2]) + b"ab" + bytes([7 << 2 | 3, 2, 0, 0, 0])) == b"ab" * 5
    for size in (60, 61, 256, 257, 70_000):  # literals whose lengths have up to three bytes of their own
        data = bytes(i * i * 31 >> 3 & 255 for i in range(size))
        assert decompress_snappy(SNAPPY.compress(data, asbytes=True)) == data


@given(st.binary(max_size=40))
def test_what_is_not_snappys_is_refused(data):
    try:
        made = decompress_snappy(data)
    except ValueError:
        return
    assert len(made) == read_varint(data, 0)[0]
