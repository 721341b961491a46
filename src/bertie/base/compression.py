"""Files opened by their name: .gz, .bz2, .xz and .zst are decompressed as they are read."""

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from bertie.base.errors import BertieError, DataError

_BUFFER_BYTES = 1 << 16
# A block of 4 bytes can hold 128 kB of zeros (RFC 8878, 3.1.1.2), so this much may grow to 128 MB, no more.
_ZSTD_READ_BYTES = 1 << 12
_ZSTD_WINDOW_BYTES = 1 << 31  # `zstd --long=31`, the most there is


def is_compressed(path: Path) -> bool:
    return path.suffix in _COMPRESSED


@contextmanager
def open_binary(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading, decompressed where its name says so. Read all of it inside the block.

    Raises:
        DataError: the file is missing, cannot be read, or is damaged or cut off.
        BertieError: it is a .zst file, and the package for these is not installed.
    """
    opener: Callable[..., Any] = _COMPRESSED.get(path.suffix, io.FileIO)
    try:
        # The library's readers of compressed files give lines by way of four calls in Python for each.
        with opener(path, "rb") as raw, io.BufferedReader(raw, _BUFFER_BYTES) as file:
            yield file
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise DataError(f"{path}: cannot be read: a folder, where a file is wanted") from None
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: damaged or cut-off compressed file ({error})") from None
    except OSError as error:  # bz2 has no error of its own
        raise DataError(f"{path}: cannot be read ({error})") from None


def _open_zstd(path: Path, mode: str) -> io.RawIOBase:
    try:
        import zstandard
    except ImportError:
        raise BertieError(f"{path}: to read .zst files, pip install 'bertie[data]'") from None
    return _ZstdFile(path, zstandard)


class _ZstdFile(io.RawIOBase):
    """The frames of a .zst file, one after the other. The package's own reader takes a cut for the end."""

    def __init__(self, path: Path, zstandard: Any) -> None:
        self._file = path.open("rb")
        self._frame_type = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES).decompressobj
        self._error: type[Exception] = zstandard.ZstdError
        self._frame: Any = None
        self._left = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._left and (data := self._next_input()):
            try:
                self._left = self._frame.decompress(data)
            except self._error as error:
                raise OSError(error) from None
        count = min(len(buffer), len(self._left))
        buffer[:count], self._left = self._left[:count], self._left[count:]
        return count

    def _next_input(self) -> bytes:
        between_frames = self._frame is None or self._frame.eof
        unused = self._frame.unused_data if self._frame is not None and between_frames else b""
        data: bytes = unused or self._file.read(_ZSTD_READ_BYTES)
        if data and between_frames:
            self._frame = self._frame_type()
        elif not data and not between_frames:
            raise EOFError("the last frame has no end")
        return data

    def close(self) -> None:
        self._file.close()
        super().close()


_COMPRESSED: dict[str, Callable[..., Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": _open_zstd,
}
