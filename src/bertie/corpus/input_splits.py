"""Split the input files into tasks of about equal size.

The splits depend on the files only, not on the number of workers, so that the same inputs always
give the same corpus.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from bertie.base.compression import is_compressed
from bertie.base.errors import DataError
from bertie.base.tables import row_group_sizes
from bertie.corpus.documents import Document, InputErrors
from bertie.corpus.formats import Format, resolve_format
from bertie.corpus.readers import read_documents
from bertie.corpus.sources import LanguageColumn, choose_errors

# Formats with many documents per file, of which a range of bytes can be read.
SPLITTABLE_FORMATS: tuple[Format, ...] = ("sentences", "wikiextractor", "wikipedia", "jsonl")

# Some seconds of work: little is lost if a worker dies, and the time to start a task is negligible.
TASK_BYTES = 1 << 24
FILE_OVERHEAD_BYTES = 1 << 13  # text that could be prepared in the time it takes to open a file
COMPRESSION_RATIO = 4  # approximate, of English prose in .xz files


@dataclass(frozen=True)
class InputSplit:
    """A file, or a range of a file, that one task reads.

    Attributes:
        path: the file.
        format: its format; None to detect it when the file is read.
        size: the approximate size of its text in bytes.
        start: the beginning of the range, as in `read_documents`.
        stop: the end of the range, exclusive; None for the end of the file.
        language: the column of languages and the one to read; None to read all documents.
    """

    path: Path
    format: Format | None
    size: int
    start: int = 0
    stop: int | None = None
    language: LanguageColumn | None = None


def read_splits(splits: Iterable[InputSplit], column: str, errors: InputErrors) -> Iterator[Document]:
    """Read the documents of the splits in order.

    Raises as `read_documents` does.
    """
    for split in splits:
        yield from read_documents(
            split.path, split.format, split.start, split.stop, column, errors, split.language
        )


def split_inputs(
    inputs: Iterable[Path],
    format: Format | None = None,
    errors: InputErrors | None = None,
    language: LanguageColumn | None = None,
) -> list[list[InputSplit]]:
    """Split the inputs, in order, into tasks of at most about `TASK_BYTES` of text.

    A large file is split into ranges if its format allows it, and is a single split otherwise. Only
    large files are opened here; the others are checked when they are read.

    Args:
        inputs: the files.
        format: the format of all files; None to detect the format of each.
        errors: raises or collects the errors about large files; by default it raises the first one.
        language: the column of languages and the one to read, as in `read_documents`.

    Raises:
        DataError: a large file cannot be read.
    """
    tasks: list[list[InputSplit]] = []
    remaining = 0  # bytes that the last task can still take
    errors = choose_errors(errors, language)
    for path in inputs:
        try:
            splits = _split_file(path, format, language)
        except DataError as error:
            errors.handle(error)
            continue
        for split in splits:
            if not tasks or split.size > remaining:
                tasks.append([])
                remaining = TASK_BYTES
            tasks[-1].append(replace(split, language=language))
            remaining -= split.size + FILE_OVERHEAD_BYTES
    return tasks


def _split_file(path: Path, format: Format | None, language: LanguageColumn | None) -> list[InputSplit]:
    size = path.stat().st_size
    if is_compressed(path):
        return [InputSplit(path, format, size * COMPRESSION_RATIO)]
    if size <= TASK_BYTES:
        return [InputSplit(path, format, size)]
    format = resolve_format(path, format, language.name if language else None)
    if format == "parquet":
        return _split_row_groups(path)
    if format not in SPLITTABLE_FORMATS:
        return [InputSplit(path, format, size)]
    count = -(-size // TASK_BYTES)
    offsets = [size * index // count for index in range(count + 1)]
    return [InputSplit(path, format, stop - start, start, stop) for start, stop in pairwise(offsets)]


def _split_row_groups(path: Path) -> list[InputSplit]:
    """Make one split for each row group of a Parquet file.

    The size of a row group counts all of its columns, so such tasks may hold less text than others.
    """
    return [
        InputSplit(path, "parquet", size, group, group + 1)
        for group, size in enumerate(row_group_sizes(path))
    ]
