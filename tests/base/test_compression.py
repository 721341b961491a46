"""Compressed files are read to the end; damaged and truncated ones are rejected."""

import bz2
import gzip
import lzma
import sys
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bertie.base.compression import is_compressed, open_binary
from bertie.base.errors import BertieError, DataError

COMPRESS = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
COMPRESS[".zst"] = zstandard.compress


@pytest.mark.parametrize("suffix", COMPRESS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(st.lists(st.binary(max_size=50), min_size=1), st.integers(0, 300))
def test_concatenated_streams_are_read_to_the_end(
    tmp_path: Path, suffix: str, streams: list[bytes], repeats: int
) -> None:
    """`cat a.gz b.gz`, pigz, pbzip2 and pzstd write such files."""
    streams = [data * repeats for data in streams]
    (tmp_path / f"a{suffix}").write_bytes(b"".join(map(COMPRESS[suffix], streams)))
    with open_binary(tmp_path / f"a{suffix}") as file:
        assert b"".join(file) == b"".join(streams)
    with open_binary(tmp_path / f"a{suffix}") as file:
        assert file.read() == b"".join(streams)


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
@pytest.mark.parametrize("data", [b"text " * 1000, b""])
def test_compressed_file_without_its_suffix_is_rejected(tmp_path: Path, suffix: str, data: bytes) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(COMPRESS[suffix](data))
    message = rf"a\.csv: \{suffix} data; give the file a name that ends in \{suffix}"
    with pytest.raises(DataError, match=message), open_binary(path):
        pass


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
@pytest.mark.parametrize("cut", [1, 5, 12])
def test_truncated_file_is_rejected(tmp_path: Path, suffix: str, cut: int) -> None:
    (tmp_path / f"a{suffix}").write_bytes(COMPRESS[suffix](b"text " * 1000)[:-cut])
    assert is_compressed(tmp_path / f"a{suffix}")
    with (
        pytest.raises(DataError, match=rf"a\{suffix}: damaged or truncated"),
        open_binary(tmp_path / f"a{suffix}") as file,
    ):
        file.read()


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
def test_damage_at_the_start_of_a_later_stream_is_reported(tmp_path: Path, suffix: str) -> None:
    """`bz2.open` and `lzma.open` take it for the end of the file."""
    first, second = COMPRESS[suffix](b"first\n"), COMPRESS[suffix](b"second\n" * 1000)
    for damaged in (b"x" + second[1:], b"garbage"):
        (tmp_path / f"a{suffix}").write_bytes(first + damaged + first)
        with (
            pytest.raises(DataError, match=rf"a\{suffix}: damaged or truncated compressed file \("),
            open_binary(tmp_path / f"a{suffix}") as file,
        ):
            file.read()


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
def test_zeros_between_streams_are_skipped(tmp_path: Path, suffix: str) -> None:
    """The format of .xz files allows them (section 2.2)."""
    stream = COMPRESS[suffix](b"text\n")
    (tmp_path / f"a{suffix}").write_bytes(stream + bytes(8192) + stream + bytes(4))
    with open_binary(tmp_path / f"a{suffix}") as file:
        assert file.read() == b"text\ntext\n"
    (tmp_path / f"a{suffix}").write_bytes(bytes(8192))  # as after a power loss
    with pytest.raises(DataError, match="damaged"), open_binary(tmp_path / f"a{suffix}") as file:
        file.read()


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
def test_file_without_bytes_is_rejected(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"a{suffix}").touch()
    with (
        pytest.raises(
            DataError, match=rf"a\{suffix}: damaged or truncated compressed file \(it has no bytes"
        ),
        open_binary(tmp_path / f"a{suffix}") as file,
    ):
        file.read()


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
def test_file_with_a_wrong_suffix_is_rejected(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"a{suffix}").write_bytes(b"no such thing")
    with (
        pytest.raises(DataError, match=rf"a\{suffix}: damaged or truncated compressed file \("),
        open_binary(tmp_path / f"a{suffix}") as file,
    ):
        file.read()


def test_zstd_frame_with_the_longest_window_is_read(tmp_path: Path) -> None:
    """A frame of `zstd --long=31` (RFC 8878, 3.1.1.1.2)."""
    # The magic number, the header, the window descriptor, and a raw block.
    frame = bytes.fromhex("28b52ffd 00 a8") + (len(b"text") << 3 | 1).to_bytes(3, "little") + b"text"
    (tmp_path / "a.zst").write_bytes(frame)
    with open_binary(tmp_path / "a.zst") as file:
        assert file.read() == b"text"


def test_missing_file_and_directory_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="a: no such file"), open_binary(tmp_path / "a"):
        pass
    with pytest.raises(DataError, match="is a directory; expected a file"), open_binary(tmp_path):
        pass


def test_missing_zstandard_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(BertieError, match=r"a\.zst: .* pip install 'pyarrow>="):
        open_binary(tmp_path / "a.zst").__enter__()


def test_unreadable_file_is_reported_with_the_reason() -> None:
    """As without permission, which root does not need."""
    message = (
        r"^/proc/self/mem: cannot be read \(Input/output error\); make it readable or choose another file$"
    )
    with pytest.raises(DataError, match=message), open_binary(Path("/proc/self/mem")) as file:
        file.read()
