"""Files -> documents. Large files are streamed, by byte range where their format allows it.

Formats (a file is one of them throughout):
  plain          the file is one document, its lines are paragraphs
  wrapped        the same, but lines are broken at a fixed width, and blank lines part the paragraphs
  sentences      one sentence a line, blank lines between documents (google-research/bert's layout)
  wikiextractor  `<doc …>` line, title, text, `</doc>` line. The title is dropped: it is no running text, and
                 the paper (A.2) takes text passages only
  jsonl          one JSON object a line, its text under the key "text"
Each may be compressed: .gz, .bz2, .xz. A file's end always ends a document.
"""

import bz2
import glob
import gzip
import json
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, Literal, get_args

from bertie.base.errors import DataError
from bertie.text.sentences import split_sentences

Format = Literal["plain", "wrapped", "sentences", "wikiextractor", "jsonl"]
FORMATS: tuple[str, ...] = get_args(Format)
# Formats of many documents a file, which are read by byte range.
RANGED_FORMATS: tuple[Format, ...] = ("sentences", "wikiextractor", "jsonl")

TASK_BYTES = (
    1 << 24
)  # seconds of work: little is lost with a worker, and starting a task costs nothing beside it
COMPRESSION = 4  # raw bytes for a compressed one, roughly: English prose in .xz

_COMPRESSED: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_HEAD_BYTES = 1 << 16
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_SENTENCE_FINAL = tuple(".!?;:…。！？।\"'”’»)")
_MAX_WRAPPED_WIDTH = 100  # characters; books are wrapped at 65 to 80


@dataclass(frozen=True)
class Document:
    """A text, and whether its lines are its sentences or are still to be split."""

    text: str
    lines_are_sentences: bool = False

    def sentences(self, language: str = "en") -> list[str]:
        """The sentences, in order; none is empty or white space alone."""
        if self.lines_are_sentences:
            return [line for line in self.text.split("\n") if line and not line.isspace()]
        return split_sentences(self.text, language)


def list_inputs(paths: Iterable[str | Path]) -> list[Path]:
    """The files that `paths` (files, directories, patterns such as `text/*.xz`) name, each once.

    They come in the order of `paths`; those of a directory (at any depth) or a pattern are sorted. Hidden
    files and folders are left out.

    Raises:
        DataError: a path does not exist, or a directory or pattern has no file.
    """
    files: dict[Path, None] = {}
    for path in map(Path, paths):
        if path.is_file():
            found = [path]
        elif path.is_dir():
            below = (file for file in path.rglob("*") if file.is_file())
            found = sorted(
                file for file in below if not any(part[0] == "." for part in file.relative_to(path).parts)
            )
            if not found:
                raise DataError(f"{path}: no files in this directory")
        else:
            found = sorted(file for file in map(Path, glob.glob(str(path), recursive=True)) if file.is_file())
            if not found:
                raise DataError(f"{path}: no such file or directory")
        files.update(dict.fromkeys(found))
    return list(files)


def is_compressed(path: Path) -> bool:
    return path.suffix in _COMPRESSED


def detect_format(path: Path) -> Format:
    """The format of a file, from its name (.jsonl) and its first 64 kB.

    Plain text tells its layout by its line ends. Where blank lines part it, lines that nearly all end as
    sentences do, and hold hardly more than one each, are `sentences`; short lines that mostly do not are
    `wrapped`.

    Raises:
        DataError: the file is missing, empty or damaged.
    """
    with _open(path) as file:
        head = file.read(_HEAD_BYTES).removeprefix(_BYTE_ORDER_MARK)
    if not head.strip():
        raise DataError(f"{path}: there is no text in this file; leave it out")
    name = path.with_suffix("").name if is_compressed(path) else path.name
    if name.endswith((".jsonl", ".ndjson")):
        return "jsonl"
    if head.lstrip().startswith(b"<doc "):
        return "wikiextractor"
    if head.lstrip().startswith(b'{"'):
        return "jsonl"
    lines = [line.strip() for line in head.decode("utf-8", errors="ignore").splitlines()]
    inner = [line for line, following in pairwise(lines) if line and following]
    if not inner or "" not in lines[:-1]:
        return "plain"
    final = sum(line.endswith(_SENTENCE_FINAL) for line in inner) / len(inner)
    if final > 0.8 and sum(len(split_sentences(line)) for line in inner) < 1.5 * len(inner):
        return "sentences"
    narrow = sum(len(line) <= _MAX_WRAPPED_WIDTH for line in inner) / len(inner)
    return "wrapped" if final < 0.5 and narrow > 0.95 else "plain"


def read_documents(
    path: Path, format: Format | None = None, start: int = 0, stop: int | None = None
) -> Iterator[Document]:
    """The documents of a file, in order, in the `format` given or detected.

    `start` and `stop` are byte offsets for `RANGED_FORMATS`, uncompressed: ranges that cut a file anywhere
    give each of its documents once.

    Raises:
        DataError: the file is missing, empty, damaged or cut off, is not UTF-8, or is not of its format; the
            message names the file, and the line where there is one.
    """
    format = format or detect_format(path)
    with _open(path) as file:
        if format in ("plain", "wrapped"):
            text = _decode(path, file.read().removeprefix(_BYTE_ORDER_MARK), 0)
            yield Document(_unwrap(text) if format == "wrapped" else text)
            return
        lines = _read_lines(file, start)
        read = {"sentences": _read_sentences, "wikiextractor": _read_wikiextractor, "jsonl": _read_jsonl}
        yield from read[format](path, lines, start, stop)


@dataclass(frozen=True)
class Span:
    """A file, or a range of one, to be read by one task; `size` is about how many bytes of text it holds."""

    path: Path
    format: Format
    size: int
    start: int = 0
    stop: int | None = None

    def documents(self) -> Iterator[Document]:
        return read_documents(self.path, self.format, self.start, self.stop)


def cut_into_tasks(inputs: Iterable[Path], format: Format | None = None) -> list[list[Span]]:
    """Spans that cover all files in order, in tasks of at most about `TASK_BYTES` where they can be cut.

    The cuts follow from the files alone, so the work is the same for any number of workers.

    Raises:
        DataError: as in `detect_format`.
    """
    tasks: list[list[Span]] = []
    room = 0
    for span in (span for path in inputs for span in _spans(path, format or detect_format(path))):
        if span.size > room:
            tasks.append([])
            room = TASK_BYTES
        tasks[-1].append(span)
        room -= span.size
    return tasks


def _spans(path: Path, format: Format) -> list[Span]:
    size = path.stat().st_size
    if is_compressed(path):
        return [Span(path, format, size * COMPRESSION)]
    if format not in RANGED_FORMATS:
        return [Span(path, format, size)]
    count = -(-size // TASK_BYTES)
    cuts = [size * index // count for index in range(count + 1)]
    return [Span(path, format, stop - start, start, stop) for start, stop in pairwise(cuts)]


Lines = Iterator[tuple[int, bytes]]  # the offset of each line in the file, and the line with its end


def _read_sentences(path: Path, lines: Lines, start: int, stop: int | None) -> Iterator[Document]:
    # A document belongs to the range that holds the line before it, which is blank.
    owned = start == 0
    begin, document = 0, list[bytes]()
    for offset, line in lines:
        if not line.isspace():
            if owned:
                begin = begin if document else offset
                document.append(line)
            continue
        if document:
            yield _sentence_lines(path, document, begin)
            document = []
        owned = stop is None or offset < stop
        if not owned:
            return
    if document:
        yield _sentence_lines(path, document, begin)


def _sentence_lines(path: Path, lines: list[bytes], begin: int) -> Document:
    text = _decode(path, b"".join(lines), begin)
    return Document(text.replace("\r\n", "\n"), lines_are_sentences=True)


def _read_wikiextractor(path: Path, lines: Lines, start: int, stop: int | None) -> Iterator[Document]:
    # A document belongs to the range that holds its first line.
    for begin, first in lines:
        if not first.startswith(b"<doc "):
            continue
        if stop is not None and begin >= stop:
            return
        body = []
        for _, line in lines:
            if line.rstrip() == b"</doc>":
                break
            if line.startswith(b"<doc "):
                raise DataError(f"{_place(path, begin)}: this <doc …> is not closed before the next one")
            body.append(line)
        else:
            raise DataError(f"{_place(path, begin)}: this <doc …> is not closed; the file is cut off")
        title = first.partition(b' title="')[2].rpartition(b'">')[0]
        if body and body[0].strip() == title:
            del body[0]
        text = _decode(path, b"".join(body), begin)
        # Later versions of wikiextractor escape these three (--html-safe), and only these.
        yield Document(text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&").strip())


def _read_jsonl(path: Path, lines: Lines, start: int, stop: int | None) -> Iterator[Document]:
    # A document belongs to the range in which its line begins.
    for offset, line in lines:
        if stop is not None and offset >= stop:
            return
        if line.isspace():
            continue
        try:
            text = json.loads(_decode(path, line, offset))["text"]
            text.encode()
        except json.JSONDecodeError as error:
            raise DataError(f"{_place(path, offset)}: not valid JSON ({error.msg})") from None
        except UnicodeEncodeError:
            raise DataError(f"{_place(path, offset)}: half of a surrogate pair in the text") from None
        except (KeyError, TypeError, AttributeError):
            raise DataError(
                f'{_place(path, offset)}: expected an object with a string under "text"'
            ) from None
        yield Document(text)


@contextmanager
def _open(path: Path) -> Iterator[BinaryIO]:
    opener: Callable[..., Any] = _COMPRESSED.get(path.suffix, open)
    try:
        with opener(path, "rb") as file:
            yield file
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: damaged or cut-off compressed file ({error})") from None
    except OSError as error:  # bz2 has no error of its own
        raise DataError(f"{path}: cannot be read ({error})") from None


def _read_lines(file: BinaryIO, start: int) -> Lines:
    """The lines that begin at `start` or after it."""
    offset = start
    if start:
        file.seek(start - 1)
        offset += len(file.readline()) - 1
    for line in file:
        yield offset, line if offset else line.removeprefix(_BYTE_ORDER_MARK)
        offset += len(line)


def _decode(path: Path, data: bytes, begin: int) -> str:
    """`data`, which stands at `begin` in the file, as text."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{_place(path, begin + error.start)}: not UTF-8 ({error.reason}); convert the file first"
        ) from None


def _place(path: Path, offset: int) -> str:
    """The file and the number of the line at `offset`, for messages; readers of ranges do not count lines."""
    number = 1
    with _open(path) as file:
        for line in file:
            offset -= len(line)
            if offset < 0:
                break
            number += 1
    return f"{path}: line {number}"


def _unwrap(text: str) -> str:
    """One line for each paragraph."""
    paragraphs: list[list[str]] = [[]]
    for line in text.splitlines():
        if line.strip():
            paragraphs[-1].append(line.strip())
        else:
            paragraphs.append([])
    return "\n".join(" ".join(paragraph) for paragraph in paragraphs if paragraph)
