"""Read files that may be compressed: .gz, .bz2, .xz and .zst, by suffix."""

import bz2
import gzip
import io
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from bertie.base.environment import install_command
from bertie.base.errors import BertieError, DataError
from bertie.base.storage import RemotePath

_BUFFER_BYTES = 1 << 16
# A block of 4 bytes can hold 128 kB of zeros (RFC 8878, 3.1.1.2), so one read decompresses to at most 128 MB.
_ZSTD_READ_BYTES = 1 << 12
# A line is in memory as a whole. A file of a few kB can decompress to a line of any length.
MAX_LINE_BYTES = 1 << 30
_ZSTD_WINDOW_BYTES = 1 << 31  # `zstd --long=31`, the format's maximum
# The first bytes of a compressed file, by its suffix. No text starts like this.
_SIGNATURES = {
    ".gz": re.compile(rb"\x1f\x8b"),
    ".bz2": re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"),
    ".xz": re.compile(rb"\xfd7zXZ\0"),
    ".zst": re.compile(rb"\x28\xb5\x2f\xfd"),
}


def is_compressed(path: Path) -> bool:
    """Return whether `path` has the suffix of a supported compression format."""
    return path.suffix.lower() in _OPENERS


@contextmanager
def open_binary(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading, and decompress it according to its suffix.

    Read the file inside the block, because damage is found only while reading.

    Raises:
        DataError: the file is missing, unreadable, damaged or truncated, decompresses to a huge line, or
            lacks the suffix of its compression format.
        BertieError: it is a .zst file, and the package `zstandard` is not installed.
    """
    opener: Callable[..., Any] = _OPENERS.get(path.suffix.lower(), io.FileIO)
    try:
        # Without the buffer, every line of a gzip, bz2 or lzma file costs four calls in Python.
        with ExitStack() as stack:
            source: Any = path
            if isinstance(path, RemotePath):
                source = stack.enter_context(path.open("rb"))
                if not is_compressed(path):
                    yield source
                    return
            raw = stack.enter_context(opener(source, "rb"))
            if is_compressed(path) and path.stat().st_size == 0 and path.is_file():  # a pipe has no size
                raise EOFError("it has no bytes")
            limited = _LimitedLines(raw, path) if is_compressed(path) else raw
            file = stack.enter_context(io.BufferedReader(limited, _BUFFER_BYTES))
            if not is_compressed(path):
                _reject_compressed(path, file.peek())
            yield file
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise DataError(f"{path}: is a directory; expected a file") from None
    except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        # Damage is an OSError in gzip, bz2 and `_ZstdFile`, but only errors of the system have a number.
        if isinstance(error, OSError) and error.errno is not None:
            raise DataError(
                f"{path}: cannot be read ({error.strerror}); make it readable or choose another file"
            ) from None
        raise DataError(f"{path}: damaged or truncated compressed file ({error})") from None


def _reject_compressed(path: Path, start: bytes) -> None:
    """Raise DataError if a file without the suffix of a compression format starts as a compressed one."""
    for suffix, pattern in _SIGNATURES.items():
        if pattern.match(start):
            raise DataError(f"{path}: {suffix} data; give the file a name that ends in {suffix}")


class _LimitedLines(io.RawIOBase):
    """The decompressed bytes of a file, whose lines have a limited length.

    No line is longer than `MAX_LINE_BYTES`.
    """

    def __init__(self, raw: Any, path: Path) -> None:
        self._raw, self._path, self._length = raw, path, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count: int = self._raw.readinto(buffer)
        newline = bytes(buffer[:count]).rfind(b"\n")
        self._length = self._length + count if newline < 0 else count - newline - 1
        if self._length > MAX_LINE_BYTES:
            raise DataError(
                f"{self._path}: decompresses to a line of more than {MAX_LINE_BYTES:,} bytes; split the "
                f"line, or decompress the file first if you trust it"
            )
        return count


def _open_zstd(path: Path | BinaryIO, mode: str) -> io.RawIOBase:
    try:
        import zstandard
    except ImportError:
        raise BertieError(f"{path}: reading .zst files needs zstandard; {install_command('data')}") from None
    return _ZstdFile(path, zstandard)


class _ZstdFile(io.RawIOBase):
    """Reader of all frames of a .zst file.

    It raises EOFError if a frame is truncated. `zstandard.ZstdDecompressor.stream_reader` takes a
    truncated frame for the end of the file.
    """

    def __init__(self, path: Path | BinaryIO, zstandard: Any) -> None:
        self._file = path.open("rb") if isinstance(path, Path) else path
        self._new_frame = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES).decompressobj
        self._error: type[Exception] = zstandard.ZstdError
        self._frame: Any = None
        # Not returned yet. A view, because copying the rest at each call takes minutes for a bomb.
        self._decompressed = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._decompressed and (data := self._next_input()):
            try:
                self._decompressed = memoryview(self._frame.decompress(data))
            except self._error as error:
                raise OSError(error) from None
        count = min(len(buffer), len(self._decompressed))
        buffer[:count], self._decompressed = self._decompressed[:count], self._decompressed[count:]
        return count

    def _next_input(self) -> bytes:
        """Return compressed bytes of the current frame, or of a new one after its end."""
        between_frames = self._frame is None or self._frame.eof
        unused = self._frame.unused_data if self._frame is not None and between_frames else b""
        data: bytes = unused or self._file.read(_ZSTD_READ_BYTES)
        if data and between_frames:
            self._frame = self._new_frame()
        elif not data and not between_frames:
            raise EOFError("the last frame is incomplete")
        return data

    def close(self) -> None:
        self._file.close()
        super().close()


_OPENERS: dict[str, Callable[..., Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": _open_zstd,
}
