"""Read documents from JSON lines and tables, one document per row."""

import json
from collections.abc import Callable, Iterator

from bertie.base.compression import open_binary
from bertie.base.errors import DataError
from bertie.base.rows import decode_lines, parse_csv
from bertie.base.tables import CHOOSE_COLUMN, missing_column, read_arrow_column, read_parquet_column
from bertie.corpus.documents import Document, InputError, make_documents, split_long_text
from bertie.corpus.formats import Format
from bertie.corpus.sources import Source, not_utf8


def _read_jsonl(source: Source) -> Iterator[Document]:
    # A document belongs to the range in which its line begins.
    with open_binary(source.path) as file:
        for index, offset, line in source.lines(file):
            if source.is_past_end(offset):
                return
            if line.isspace():
                continue
            try:
                text = _parse_json_line(source, line, index)
            except InputError as error:
                source.errors.handle(error)
            else:
                yield from make_documents(split_long_text(text))


def _parse_json_line(source: Source, line: bytes, index: int) -> str:
    try:
        text = json.loads(source.decode(line, index))[source.column]
        text.encode()
    except UnicodeEncodeError:
        # Half of a surrogate pair becomes U+FFFD, as with JavaScript's toWellFormed.
        return str(text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace"))
    except ValueError as error:
        problem = f"not valid JSON ({getattr(error, 'msg', error)}); fix or remove the line"
        raise source.malformed(index, problem) from None
    except (KeyError, TypeError, AttributeError, RecursionError):
        expected = f'expected a JSON object with a string under "{source.column}"'
        problem = f"{expected}; fix the line, or choose another key with --column KEY"
        raise source.malformed(index, problem) from None
    return str(text)


def _read_csv(source: Source) -> Iterator[Document]:
    yield from _read_delimited(source, ",")


def _read_tsv(source: Source) -> Iterator[Document]:
    yield from _read_delimited(source, "\t")


def _read_delimited(source: Source, delimiter: str) -> Iterator[Document]:
    is_empty = True

    def skip(error: DataError) -> None:
        nonlocal is_empty
        is_empty = False
        source.errors.handle(InputError(str(error), "malformed_documents"))

    with open_binary(source.path) as file:
        # Bytes that are not UTF-8 become surrogates, so that only their row is skipped.
        lines = decode_lines(file, str(source.path), errors="surrogateescape")
        for number, row in parse_csv(lines, str(source.path), delimiter, skip):
            if source.column not in row:
                raise missing_column(str(source.path), source.column, list(row), CHOOSE_COLUMN)
            is_empty = False
            text = row[source.column]
            try:
                text.encode()
            except UnicodeEncodeError:
                message = f"{source.path}, line {number}: not UTF-8; convert the file to UTF-8"
                source.errors.handle(InputError(message, "misencoded_documents"))
            else:
                yield from make_documents(split_long_text(text))
    if is_empty:
        raise InputError(f"{source.path}: a table without rows; remove it from the inputs", "empty_files")


def _read_parquet(source: Source) -> Iterator[Document]:
    yield from _read_rows(source, read_parquet_column(source.path, source.column, source.start, source.stop))


def _read_arrow(source: Source) -> Iterator[Document]:
    yield from _read_rows(source, read_arrow_column(source.path, source.column))


def _read_rows(source: Source, rows: Iterator[tuple[int, bytes | None]]) -> Iterator[Document]:
    for number, value in rows:
        location = f"{source.path}, row {number}"
        if value is None:
            message = f"{location}: no text in column {source.column!r}; fill it in or remove the row"
            source.errors.handle(InputError(message, "malformed_documents"))
            continue
        try:
            text = value.decode()
        except UnicodeDecodeError as error:
            source.errors.handle(not_utf8(location, error))
            continue
        yield from make_documents(split_long_text(text))


ROW_READERS: dict[Format, Callable[[Source], Iterator[Document]]] = {
    "jsonl": _read_jsonl,
    "csv": _read_csv,
    "tsv": _read_tsv,
    "parquet": _read_parquet,
    "arrow": _read_arrow,
}
