"""Read documents from JSON lines and tables, one document per row.

A row is checked whole before its language is compared, so that each reading of a file in several
languages finds the same errors.
"""

import json
from collections.abc import Callable, Iterator

from bertie.base.compression import open_binary
from bertie.base.errors import DataError
from bertie.base.rows import decode_lines, parse_csv, rewrite_json
from bertie.base.tables import Values, missing_column, read_arrow_columns, read_parquet_columns
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
                if text is not None:
                    yield from make_documents(split_long_text(text))


def _parse_json_line(source: Source, line: bytes, index: int) -> str | None:
    """Return the text of a line, or None if its language is not the one to read."""
    try:
        row = json.loads(source.decode(line, index))
        text = row[source.column]
        text.encode()
    except UnicodeEncodeError:
        # Half of a surrogate pair becomes U+FFFD, as with JavaScript's toWellFormed.
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    except ValueError as error:
        remedy = rewrite_json(line.decode(errors="replace")) or "fix or remove the line"
        problem = f"not valid JSON ({getattr(error, 'msg', error)}); {remedy}"
        raise source.malformed(index, problem) from None
    except (KeyError, TypeError, AttributeError, RecursionError):
        remedy = "fix the line, or choose another key with --column KEY (column='KEY')"
        remedy = rewrite_json(line.decode()) or remedy
        problem = f'expected a JSON object with a string under "{source.column}"; {remedy}'
        raise source.malformed(index, problem) from None
    return str(text) if source.selects(row, index) else None


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
        _, rows = parse_csv(lines, str(source.path), delimiter, skip)
        for number, row in rows:
            for column, option in source.columns.items():
                if column not in row:
                    advice = f"; choose one with {option}"
                    raise missing_column(str(source.path), column, list(row), advice)
            is_empty = False
            text = row[source.column]
            try:
                text.encode()
                is_selected = source.selects(row, number - 1)
            except InputError as error:
                source.errors.handle(error)
            except UnicodeEncodeError:
                message = f"{source.path}, line {number}: not UTF-8; convert the file to UTF-8"
                source.errors.handle(InputError(message, "misencoded_documents"))
            else:
                if is_selected:
                    yield from make_documents(split_long_text(text))
    if is_empty:
        raise InputError(f"{source.path}: a table without rows; remove it from the inputs", "empty_files")


def _read_parquet(source: Source) -> Iterator[Document]:
    yield from _read_rows(
        source, read_parquet_columns(source.path, source.columns, source.start, source.stop)
    )


def _read_arrow(source: Source) -> Iterator[Document]:
    yield from _read_rows(source, read_arrow_columns(source.path, source.columns))


def _read_rows(source: Source, rows: Iterator[tuple[int, Values]]) -> Iterator[Document]:
    for number, values in rows:
        location = f"{source.path}, row {number}"
        try:
            row = {column: None if value is None else value.decode() for column, value in values.items()}
            text = row[source.column]
            if text is None:
                problem = f"no text in column {source.column!r}; fill it in or remove the row"
                raise InputError(f"{location}: {problem}", "malformed_documents")
            is_selected = source.selects(row, number - 1, "row")
        except UnicodeDecodeError as error:
            source.errors.handle(not_utf8(location, error))
        except InputError as error:
            source.errors.handle(error)
        else:
            if is_selected:
                yield from make_documents(split_long_text(text))


ROW_READERS: dict[Format, Callable[[Source], Iterator[Document]]] = {
    "jsonl": _read_jsonl,
    "csv": _read_csv,
    "tsv": _read_tsv,
    "parquet": _read_parquet,
    "arrow": _read_arrow,
}
