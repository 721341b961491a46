"""The range of a file to read, and the locations of errors in it."""

import codecs
import reprlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

from bertie.base.compression import open_binary
from bertie.corpus.documents import InputError, InputErrors
from bertie.text.languages import is_language


@dataclass(frozen=True)
class LanguageColumn:
    """The column of the language of each document, and the language to read.

    Inputs are read once for each language.

    Attributes:
        name: the name of the key or column.
        code: the language to read; documents of the other languages are left out.
        codes: all languages. A document of another one is malformed.
    """

    name: str
    code: str
    codes: tuple[str, ...]

    @property
    def reports_errors(self) -> bool:
        """Whether this reading reports the errors in the inputs.

        Every reading finds the same ones.
        """
        return self.code == self.codes[0]

    def describe_problem(self, value: object) -> str:
        """Describe the problem with a value that is none of the codes, and its remedy."""
        codes = ", ".join(self.codes)
        if value is None or value == "":
            problem = f"no language under {self.name!r}; fill in one of {codes}"
            return f"{problem}, or choose another key or column with --language-column NAME"
        remedy = f"add --language {value}" if isinstance(value, str) and is_language(value) else "correct it"
        return f"{self.name} is {reprlib.repr(value)}, which is none of {codes}; {remedy}"


def choose_errors(errors: InputErrors | None, language: LanguageColumn | None) -> InputErrors:
    """Return the handler of the errors that one reading of the inputs finds.

    It is `errors`, by default a new one, unless another reading reports the errors.
    """
    if language and not language.reports_errors:
        return InputErrors("skip")
    return errors or InputErrors()


@dataclass(frozen=True)
class Source:
    """The range of a file to read; `read_documents` explains the attributes."""

    path: Path
    start: int
    stop: int | None
    column: str
    errors: InputErrors
    language: LanguageColumn | None = None

    @property
    def columns(self) -> dict[str, str]:
        """The columns to read, with the options that name them."""
        columns = {self.column: "--column NAME (column='NAME')"}
        if self.language:
            columns[self.language.name] = "--language-column NAME (language_column='NAME')"
        return columns

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

    def selects(self, row: Mapping[str, object], index: int, unit: str = "line") -> bool:
        """Return whether a row has the language to read.

        Args:
            row: the values of the row, by column.
            index: the index of the row, or of the line on which it begins in the range.
            unit: "line" if `index` counts lines, "row" if it counts rows.

        Raises:
            InputError: the row has no language, or another one than the column should have.
        """
        if not self.language:
            return True
        code = row.get(self.language.name)
        if code in self.language.codes:
            return code == self.language.code
        location = self._location(index) if unit == "line" else f"{self.path}, {unit} {index + 1}"
        raise InputError(f"{location}: {self.language.describe_problem(code)}", "malformed_documents")

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
