"""The range of a file to read, and the locations of errors in it."""

import codecs
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

from bertie.base.compression import open_binary
from bertie.corpus.documents import InputError, InputErrors


@dataclass(frozen=True)
class Source:
    """The range of a file to read; `read_documents` explains the attributes."""

    path: Path
    start: int
    stop: int | None
    column: str
    errors: InputErrors

    def lines(self, file: BinaryIO) -> Iterator[tuple[int, int, bytes]]:
        """Yield the lines that begin at `start` or later, including those beyond `stop`.

        Yields:
            The index of the line in the range, its byte offset in the file, and the line.
        """
        offset = self.start
        if self.start:
            file.seek(self.start - 1)
            offset += len(file.readline()) - 1
        for index, line in enumerate(file):
            yield index, offset, line if offset else line.removeprefix(codecs.BOM_UTF8)
            offset += len(line)

    def is_past_end(self, offset: int) -> bool:
        """Return whether a byte offset lies beyond the range."""
        return self.stop is not None and offset >= self.stop

    def malformed(self, line_index: int, problem: str) -> InputError:
        """Make the error about a malformed document that begins on a line."""
        return InputError(f"{self._location(line_index)}: {problem}", "malformed_documents")

    def decode(self, data: bytes, line_index: int) -> str:
        """Decode `data`, which begins with the line `line_index`."""
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            location = self._location(line_index + data.count(b"\n", 0, error.start))
            raise not_utf8(location, error) from None

    def _location(self, line_index: int) -> str:
        return f"{self.path}, line {_count_lines_before(self.path, self.start) + line_index + 1}"


@lru_cache(1)  # needed for error messages only, but a range may have many of them
def _count_lines_before(path: Path, offset: int) -> int:
    """Count the lines that begin before `offset`, which is 0 for compressed files."""
    if not offset:
        return 0
    with open_binary(path) as file:
        # The line that holds the byte before `offset` belongs to the range before.
        count = 0
        for line in file:
            offset -= len(line)
            count += 1
            if offset <= 0:
                break
    return count


def not_utf8(location: str, error: UnicodeDecodeError) -> InputError:
    """Make the error about bytes that are not UTF-8."""
    message = f"{location}: not UTF-8 ({error.reason}); convert the file to UTF-8"
    return InputError(message, "misencoded_documents")
