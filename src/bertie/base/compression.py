"""Read files that may be compressed: .gz, .bz2, .xz and .zst, by suffix."""

import bz2
import gzip
import io
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from bertie.base.environment import install_command
from bertie.base.errors import BertieError, DataError
from bertie.base.storage import RemotePath

_BUFFER_BYTES = 1 << 16
# In a .zst file, a block of 4 bytes can hold 128 kB of zeros (RFC 8878, 3.1.1.2), so one read decompresses
# to at most 128 MB.
_READ_BYTES = 1 << 12
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
        # Damage is an OSError in gzip and `_StreamFile`, but only errors of the system have a number.
        if isinstance(error, OSError) and error.errno is not None:
            raise DataError(
                f"{path}: cannot be read ({error.strerror}); make it readable or choose another file"
            ) from None
        raise DataError(f"{path}: damaged or truncated compressed file ({error})") from None


def _reject_compressed(path: Path, start: bytes) -> None:
    """Raise DataError if a file without the suffix of a compression format starts as a compressed one."""
    if suffix := compression_suffix(start):
        raise DataError(f"{path}: {suffix} data; give the file a name that ends in {suffix}")


def compression_suffix(start: bytes) -> str | None:
    """Return the suffix of the compression format of data that begin with `start`; None if there is none."""
    return next((suffix for suffix, pattern in _SIGNATURES.items() if pattern.match(start)), None)


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


def _open_bz2(path: Path | BinaryIO, mode: str) -> io.RawIOBase:
    return _StreamFile(path, bz2.BZ2Decompressor, OSError)


def _open_xz(path: Path | BinaryIO, mode: str) -> io.RawIOBase:
    # By default, lzma also reads .lzma files, and takes a file of zeros for an empty one.
    return _StreamFile(path, partial(lzma.LZMADecompressor, lzma.FORMAT_XZ), lzma.LZMAError)


def _open_zstd(path: Path | BinaryIO, mode: str) -> io.RawIOBase:
    try:
        import zstandard
    except ImportError:
        raise BertieError(f"{path}: reading .zst files needs zstandard; {install_command('data')}") from None
    decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
    return _StreamFile(path, decompressor.decompressobj, zstandard.ZstdError, is_limited=False)


class _StreamFile(io.RawIOBase):
    """Reader of all streams, or frames, of a file.

    It raises OSError if a stream is damaged, and EOFError if one is truncated. `bz2.open` and `lzma.open`
    take damage near the start of a second stream for the end of the file, and
    `zstandard.ZstdDecompressor.stream_reader` takes a truncated frame for it.

    Args:
        path: the file, or an open one.
        new_stream: makes the decompressor of a stream.
        error: the exception that the decompressor raises if the stream is damaged.
        is_limited: whether the decompressor can limit the length of its result.
    """

    def __init__(
        self,
        path: Path | BinaryIO,
        new_stream: Callable[[], Any],
        error: type[Exception],
        is_limited: bool = True,
    ) -> None:
        self._file = path.open("rb") if isinstance(path, Path) else path
        self._new_stream, self._error, self._is_limited = new_stream, error, is_limited
        self._stream: Any = None
        # Not returned yet. A view, because copying the rest at each call takes minutes for a bomb.
        self._decompressed = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        limit = (len(buffer),) if self._is_limited else ()
        while not self._decompressed and (data := self._next_input()) is not None:
            try:
                self._decompressed = memoryview(self._stream.decompress(data, *limit))
            except self._error as error:
                raise OSError(error) from None
        count = min(len(buffer), len(self._decompressed))
        buffer[:count], self._decompressed = self._decompressed[:count], self._decompressed[count:]
        return count

    def _next_input(self) -> bytes | None:
        """Return compressed bytes of the current stream, or of a new one after its end.

        They are empty if the stream has more output, and None at the end of the file.
        """
        data: bytes
        if self._stream is not None and not self._stream.eof:
            if self._is_limited and not self._stream.needs_input:
                return b""
            data = self._file.read(_READ_BYTES)
            if not data:
                raise EOFError("the last stream is incomplete")
            return data
        if self._stream is None:
            data = self._file.read(_READ_BYTES)
        else:
            # Zeros may pad a stream (The .xz File Format, 2.2), as in .gz files.
            data = self._stream.unused_data.lstrip(b"\0")
            while not data and (block := self._file.read(_READ_BYTES)):
                data = block.lstrip(b"\0")
        if not data:
            return None
        self._stream = self._new_stream()
        return data

    def close(self) -> None:
        self._file.close()
        super().close()


_OPENERS: dict[str, Callable[..., Any]] = {
    ".gz": gzip.open,
    ".bz2": _open_bz2,
    ".xz": _open_xz,
    ".zst": _open_zstd,
}
