"""Inputs -> tasks of about equal size. The cuts follow from the files, not from the number of workers."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from bertie.base.compression import is_compressed
from bertie.base.errors import DataError
from bertie.base.tables import row_group_sizes
from bertie.corpus.documents import Document, Problems
from bertie.corpus.formats import Format, settle_format
from bertie.corpus.readers import read_documents

# Formats of many documents a file, which are read by byte range.
RANGED_FORMATS: tuple[Format, ...] = ("sentences", "wikiextractor", "wikipedia", "jsonl")

# Seconds of work: little is lost with a worker, and starting a task costs nothing beside it.
TASK_BYTES = 1 << 24
FILE_BYTES = 1 << 13  # what opening a file costs, in bytes of text that could be prepared meanwhile
COMPRESSION = 4  # raw bytes for a compressed one, roughly: English prose in .xz


@dataclass(frozen=True)
class InputSplit:
    """A file, or a range of one, to be read by one task; `size` is about how many bytes of text it holds.

    `start` and `stop` are those of `read_documents`; a format of None is detected when the file is read.
    """

    path: Path
    format: Format | None
    size: int
    start: int = 0
    stop: int | None = None


def read_splits(spans: Iterable[InputSplit], column: str, problems: Problems) -> Iterator[Document]:
    """The documents of the spans, in order; errors as in `read_documents`."""
    for span in spans:
        yield from read_documents(span.path, span.format, span.start, span.stop, column, problems)


def cut_into_tasks(
    inputs: Iterable[Path], format: Format | None = None, problems: Problems | None = None
) -> list[list[InputSplit]]:
    """Spans that cover all files in order, in tasks of at most about `TASK_BYTES` where they can be cut.

    A large file of a format that can be cut is many spans; the others are looked at when they are read.

    Raises:
        DataError: a large file cannot be read; or it is counted in `problems`.
    """
    tasks: list[list[InputSplit]] = []
    room = 0
    problems = problems or Problems()
    for path in inputs:
        try:
            spans = _splits(path, format)
        except DataError as error:
            problems.add(error)
            continue
        for span in spans:
            if span.size > room:
                tasks.append([])
                room = TASK_BYTES
            tasks[-1].append(span)
            room -= span.size + FILE_BYTES
    return tasks


def _splits(path: Path, format: Format | None) -> list[InputSplit]:
    size = path.stat().st_size
    if is_compressed(path):
        return [InputSplit(path, format, size * COMPRESSION)]
    if size <= TASK_BYTES:
        return [InputSplit(path, format, size)]
    format = settle_format(path, format)
    if format == "parquet":
        return _row_group_splits(path)
    if format not in RANGED_FORMATS:
        return [InputSplit(path, format, size)]
    count = -(-size // TASK_BYTES)
    cuts = [size * index // count for index in range(count + 1)]
    return [InputSplit(path, format, stop - start, start, stop) for start, stop in pairwise(cuts)]


def _row_group_splits(path: Path) -> list[InputSplit]:
    """One for each row group; its size is that of all columns, so tasks may be smaller than usual."""
    return [
        InputSplit(path, "parquet", size, group, group + 1)
        for group, size in enumerate(row_group_sizes(path))
    ]
