"""Files -> documents. Large files are streamed, in ranges where their format allows it."""

import codecs
import glob
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO
from xml.etree import ElementTree

from bertie.base.compression import open_binary
from bertie.base.errors import DataError
from bertie.base.tables import read_arrow_column, read_parquet_column
from bertie.corpus.documents import (
    PIECE_CHARACTERS,
    Document,
    InputError,
    Problems,
    cut_at_lines,
    cut_text,
    make_documents,
)
from bertie.corpus.formats import BYTE_ORDER_MARK, Format, settle_format
from bertie.corpus.wikipedia import parse_page, plain_text, read_hidden_namespaces


def list_inputs(paths: Iterable[str | Path], without: Iterable[Path] = ()) -> list[Path]:
    """The files that `paths` (files, directories, patterns such as `text/*.xz`) name, each once.

    They come in the order of `paths`; those of a directory (at any depth, links followed) or a pattern are
    sorted. Hidden files and folders are left out, and so is what Hugging Face's `datasets` saves beside its
    tables. What stands at or below a place of `without` is no input either, unless a path leads below it.

    Raises:
        DataError: a path does not exist or is no regular file, a folder cannot be read, a link in it leads
            to nothing, a directory or pattern has no file, or all files are left out.
    """
    files: dict[Path, None] = {}
    places = [place.resolve() for place in without]
    for path in map(Path, paths):
        matches = [path] if path.exists() else [Path(match) for match in glob.glob(str(path), recursive=True)]
        if not matches:
            raise DataError(f"{path}: no such file or directory")
        below = {file for match in matches for file in _list_below(match) if _is_readable(file)}
        if not below and any(map(Path.is_dir, matches)):
            raise DataError(f"{path}: no files in this directory")
        if not below:
            raise DataError(f"{path}: no regular file; write what it gives to one first")
        hidden = [place for place in places if place not in path.resolve().parents]
        found = [file for file in below if not any(file.resolve().is_relative_to(place) for place in hidden)]
        files.update(dict.fromkeys(sorted(found, key=lambda file: file.parts)))
    if places and not files:
        raise DataError("the inputs hold no files but the tokenizer's and the output's; keep the text apart")
    return list(files)


def _list_below(path: Path) -> Iterator[Path]:
    """The files of a directory, or the one that `path` is. A folder that links lead to again comes once."""
    if not path.is_dir():
        yield path
        return
    seen = set()
    for folder, folders, names in os.walk(path, onerror=_refuse_folder, followlinks=True):
        status = os.stat(folder)
        if (status.st_dev, status.st_ino) in seen:
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders[:] = sorted(name for name in folders if name[0] != ".")
        is_data_set = "dataset_info.json" in names
        for name in names:
            wanted = name.endswith(".arrow") if is_data_set else name != "dataset_dict.json"
            if is_data_set and name.startswith("cache-"):  # what `map` or `filter` made of the tables
                wanted = False
            if wanted and name[0] != ".":
                yield Path(folder, name)


def _is_readable(path: Path) -> bool:
    if path.is_symlink() and not path.exists():
        raise DataError(f"{path}: a link that leads to nothing; mend it, or take it away")
    return path.is_file()


def _refuse_folder(error: OSError) -> None:
    raise DataError(f"{error.filename}: cannot be read ({error.strerror}); mend that, or move it away")


def read_documents(
    path: Path,
    format: Format | None = None,
    start: int = 0,
    stop: int | None = None,
    column: str = "text",
    problems: Problems | None = None,
) -> Iterator[Document]:
    """The documents of a file, in order, in the `format` given or detected; long ones in pieces.

    `start` and `stop` are byte offsets, of a file that is not compressed and holds many documents, or row
    groups of a Parquet file: ranges that cut a file anywhere give each of its documents once. `column` is
    the key or column of the text. What cannot be read ends the reading, or is counted in `problems`.

    Raises:
        DataError: the file is missing, damaged, cut off, binary or no UTF-8, or is not of its format; the
            message names the file, and the line where there is one.
        SettingsError: a table has no such column.
        BertieError: the package that reads such files is not installed.
    """
    problems = problems or Problems()
    try:
        if not (start and format):
            format = settle_format(path, format)
        yield from _READERS[format](_Range(path, start, stop, column, problems))
    except DataError as error:
        problems.add(error)


Lines = Iterator[tuple[int, int, bytes]]  # number, counted from the start of the range; offset; line


@dataclass(frozen=True)
class _Range:
    """What a reader of a format is given."""

    path: Path
    start: int
    stop: int | None
    column: str
    problems: Problems

    def lines(self, file: BinaryIO) -> Lines:
        """The lines that begin at `start` or after it, beyond `stop` too."""
        offset = self.start
        if self.start:
            file.seek(self.start - 1)
            offset += len(file.readline()) - 1
        for number, line in enumerate(file):
            yield number, offset, line if offset else line.removeprefix(BYTE_ORDER_MARK)
            offset += len(line)

    def ends_before(self, offset: int) -> bool:
        return self.stop is not None and offset >= self.stop

    def malformed(self, number: int, what: str) -> InputError:
        """The error about the line of this number."""
        return InputError(f"{self._line(number)}: {what}", "malformed_documents")

    def decode(self, data: bytes, number: int) -> str:
        """`data`, which begins with the line of this number, as text."""
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            place = self._line(number + data.count(b"\n", 0, error.start))
            raise _not_utf8(place, error) from None

    def _line(self, number: int) -> str:
        return f"{self.path}: line {_lines_before(self.path, self.start) + number + 1}"


@lru_cache(1)  # a range may have many bad lines, but only they need to know where it begins
def _lines_before(path: Path, offset: int) -> int:
    """How many lines begin before `offset`, which only files that are not compressed have."""
    if not offset:
        return 0
    with open_binary(path) as file:
        # The line that holds the byte before `offset` is read by the range before.
        count = 0
        for line in file:
            offset -= len(line)
            count += 1
            if offset <= 0:
                break
    return count


def _not_utf8(place: str, error: UnicodeDecodeError) -> InputError:
    message = f"{place}: not UTF-8 ({error.reason}); convert the file first"
    return InputError(message, "misencoded_documents")


def _read_plain(source: _Range) -> Iterator[Document]:
    yield from make_documents(_read_checked_parts(source.path))


def _read_wrapped(source: _Range) -> Iterator[Document]:
    yield from make_documents(_unwrap(_read_checked_parts(source.path)))


def _read_checked_parts(path: Path) -> Iterator[str]:
    """A file in pieces; one of several pieces is read to its end first, for it is to enter whole or not."""
    with open_binary(path) as file:
        parts = _decode_parts(path, file)
        first = next(parts)
        others = sum(1 for _ in parts)
    if not others:
        yield first
        return
    with open_binary(path) as file:
        yield from cut_at_lines(_decode_parts(path, file))


def _decode_parts(path: Path, file: BinaryIO) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    lines = 0
    while True:
        data = file.read(PIECE_CHARACTERS)
        try:
            part = decoder.decode(data, final=not data)
        except UnicodeDecodeError as error:
            lines += error.object.count(b"\n", 0, error.start)
            raise _not_utf8(f"{path}: line {lines + 1}", error) from None
        if not data:
            return
        lines += data.count(b"\n")
        yield part


def _unwrap(pieces: Iterable[str]) -> Iterator[str]:
    """One line for each paragraph, of text in pieces that end lines."""
    paragraph: list[str] = []
    finished: list[str] = []
    for piece in pieces:
        if finished:
            yield "".join(finished)
            finished = []
        for line in map(str.strip, piece.splitlines()):
            if line:
                paragraph.append(line)
            elif paragraph:
                finished.append(" ".join(paragraph) + "\n")
                paragraph = []
    yield "".join([*finished, " ".join(paragraph)])


def _read_sentences(source: _Range) -> Iterator[Document]:
    # A document belongs to the range that holds the line before it, which is blank.
    with open_binary(source.path) as file:
        owned = source.start == 0
        begin, document = 0, list[bytes]()
        for number, offset, line in source.lines(file):
            if not line.isspace():
                if owned:
                    begin = begin if document else number
                    document.append(line)
                continue
            if document:
                yield from _sentence_lines(source, document, begin)
                document = []
            owned = not source.ends_before(offset)
            if not owned:
                return
        if document:
            yield from _sentence_lines(source, document, begin)


def _sentence_lines(source: _Range, lines: list[bytes], begin: int) -> Iterator[Document]:
    try:
        text = source.decode(b"".join(lines), begin)
    except InputError as error:
        source.problems.add(error)
    else:
        # The last line of a file may lack its end, and is the same document.
        text = text.replace("\r\n", "\n").removesuffix("\n")
        yield from make_documents(cut_text(text), lines_are_sentences=True)


def _read_wikiextractor(source: _Range) -> Iterator[Document]:
    for begin, lines in _read_elements(source, b"<doc ", b"</doc>"):
        first, *body = lines
        title = first.partition(b' title="')[2].rpartition(b'">')[0]
        if body and body[0].strip() == title:
            del body[0]
        try:
            text = source.decode(b"".join(body), begin + len(lines) - len(body))
        except InputError as error:
            source.problems.add(error)
            continue
        # Later versions of wikiextractor escape these three (--html-safe), and only these.
        text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&").strip()
        yield from make_documents(cut_text(text))


def _read_wikipedia(source: _Range) -> Iterator[Document]:
    hidden_namespaces = read_hidden_namespaces(source.path)
    for begin, lines in _read_elements(source, b"<page>", b"</page>"):
        try:
            wikitext = parse_page(b"".join([*lines, b"</page>"]))
        except ElementTree.ParseError as error:
            source.problems.add(source.malformed(begin, f"a <page> that is not well-formed ({error})"))
            continue
        if wikitext is not None:
            yield from make_documents(cut_text(plain_text(wikitext, hidden_namespaces)))


def _read_elements(source: _Range, opening: bytes, closing: bytes) -> Iterator[tuple[int, list[bytes]]]:
    """Each element, as its first line's number and its lines without the closing one.

    An element belongs to the range that holds its first line.
    """
    name = f"<{opening.decode().strip('< >')}>"
    begin, element = 0, list[bytes]()
    with open_binary(source.path) as file:
        for number, offset, line in source.lines(file):
            stripped = line.strip()
            if stripped.startswith(opening):
                if element:
                    source.problems.add(
                        source.malformed(begin, f"this {name} is not closed before the next one")
                    )
                if source.ends_before(offset):
                    return
                begin, element = number, [line]
            elif stripped == closing and element:
                yield begin, element
                element = []
            elif element:
                element.append(line)
    if element:
        source.problems.add(source.malformed(begin, f"this {name} is not closed; the file is cut off"))


def _read_jsonl(source: _Range) -> Iterator[Document]:
    # A document belongs to the range in which its line begins.
    with open_binary(source.path) as file:
        for number, offset, line in source.lines(file):
            if source.ends_before(offset):
                return
            if line.isspace():
                continue
            try:
                text = _parse_json_line(source, line, number)
            except InputError as error:
                source.problems.add(error)
            else:
                yield from make_documents(cut_text(text))


def _parse_json_line(source: _Range, line: bytes, number: int) -> str:
    try:
        text = json.loads(source.decode(line, number))[source.column]
        text.encode()
    except UnicodeEncodeError:
        # Half of a surrogate pair becomes U+FFFD, as by JavaScript's toWellFormed.
        return str(text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace"))
    except ValueError as error:
        raise source.malformed(number, f"not valid JSON ({getattr(error, 'msg', error)})") from None
    except (KeyError, TypeError, AttributeError, RecursionError):
        raise source.malformed(number, f'expected an object with a string under "{source.column}"') from None
    return str(text)


def _read_parquet(source: _Range) -> Iterator[Document]:
    yield from _read_rows(source, read_parquet_column(source.path, source.column, source.start, source.stop))


def _read_arrow(source: _Range) -> Iterator[Document]:
    yield from _read_rows(source, read_arrow_column(source.path, source.column))


def _read_rows(source: _Range, rows: Iterator[tuple[int, bytes | None]]) -> Iterator[Document]:
    for number, value in rows:
        place = f"{source.path}: row {number}"
        if value is None:
            message = f"{place}: no text in the column {source.column!r}"
            source.problems.add(InputError(message, "malformed_documents"))
            continue
        try:
            text = value.decode()
        except UnicodeDecodeError as error:
            source.problems.add(_not_utf8(place, error))
            continue
        yield from make_documents(cut_text(text))


_READERS: dict[Format, Callable[[_Range], Iterator[Document]]] = {
    "plain": _read_plain,
    "wrapped": _read_wrapped,
    "sentences": _read_sentences,
    "wikiextractor": _read_wikiextractor,
    "wikipedia": _read_wikipedia,
    "jsonl": _read_jsonl,
    "parquet": _read_parquet,
    "arrow": _read_arrow,
}
