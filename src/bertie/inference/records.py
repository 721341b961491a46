"""Read the texts of a file as records, a few rows in memory at a time.

Every row becomes a record, in order. A blank line of plain text is a record too, with an empty
result, so a file of n lines has n results.
"""

import difflib
import shlex
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from itertools import count, takewhile
from pathlib import Path
from typing import Any, Literal, NamedTuple

from bertie.base.errors import DataError, SettingsError
from bertie.base.files import reject_changes
from bertie.base.memory import is_missing
from bertie.base.progress import open_stdin
from bertie.base.rows import (
    DELIMITERS,
    TABLE_FORMATS,
    decode_lines,
    format_suffix,
    parse_rows,
    raise_error,
    read_lines,
    reject_duplicates,
    reject_spreadsheet,
)
from bertie.base.schemas import shorten
from bertie.base.storage import as_path
from bertie.base.tables import header_hint, iterate_batches, missing_column, open_parquet
from bertie.base.texts import is_blank
from bertie.tasks.squad.questions import read_questions

InputFormat = Literal["text", "jsonl", "csv", "tsv", "parquet", "conll", "squad"]

_FORMATS: dict[str, InputFormat] = {**TABLE_FORMATS, ".conll": "conll", ".json": "squad"}  # by suffix


class Record(NamedTuple):
    """The texts that a model reads together, and the row they come from.

    Attributes:
        location: file and line of the row, for error messages.
        row: all columns of the row.
        texts: one text, or several that belong together; the endings of a context are one list, and so are
            the words of a sentence.
    """

    location: str
    row: Mapping[str, Any]
    texts: tuple[Any, ...]

    @property
    def is_blank(self) -> bool:
        """Whether there is nothing to answer.

        One of the texts is blank, or has no words.
        """
        return any(is_blank(text) if isinstance(text, str) else not text for text in self.texts)


def input_format(path: Path) -> InputFormat:
    """Return the format that an input file's suffix indicates; plain text by default.

    Raises:
        DataError: the suffix is a spreadsheet's.
    """
    reject_spreadsheet(path)
    return _FORMATS.get(format_suffix(path), "text")


def find_input(name: str | None, format: InputFormat | None) -> tuple[Path | None, InputFormat]:
    """Return the path and the format of a file or of standard input.

    Args:
        name: name or URL of a file; "-" or None for standard input.
        format: format of the input. Default: by the file's suffix, plain text for standard input.

    Returns:
        The path, None for standard input, and the format.

    Raises:
        SettingsError: standard input cannot have the format.
    """
    if name not in (None, "-"):
        path = as_path(name, "--input")
        return path, format or input_format(path)
    if format in ("parquet", "conll"):
        raise SettingsError(f"--format {format}: cannot be read from standard input; give a file")
    return None, format or "text"


def read_records(
    path: Path | None,
    format: InputFormat,
    columns: Mapping[str, str],
    whole_rows: bool = True,
    skipped: Callable[[DataError], None] | None = None,
) -> Iterator[Record]:
    """Read the records of a file or of standard input.

    Only a few rows are in memory at a time.

    Args:
        path: the file; None for standard input.
        format: any format except conll. Each line of plain text is a text.
        columns: the column of each field (text, pair, words, question, context, endings). `endings`
            may be a column of lists or several columns separated by commas. If the file has no such
            column, the columns ending0, ending1, … are read. If both `words` and `text` are given, the
            words of a row are read if it has them, otherwise its text.
        whole_rows: read the other columns of a Parquet file too.
        skipped: receives the error of each row with a value that is not text, or without a column that
            other rows have, which then counts as blank, and of each malformed row of a csv, tsv or
            jsonl file, which is left out. None raises the error.

    Raises:
        SettingsError: no row has a column, or a header lacks it; or plain text cannot have all the fields.
        DataError: the file is missing or damaged, or changes while it is read, two columns have the
            same name, or a row or a column cannot be read; or SQuAD's JSON is read for other fields.
    """
    if format == "text" and len(columns) > 1:
        fields = ", ".join(columns)
        raise SettingsError(
            f"plain text cannot have the columns {fields}; give a .csv, .tsv, .jsonl or .parquet file"
        )
    name = str(path or "standard input")
    has_columns, missing = False, None
    for location, row in _rows(path, name, format, columns, whole_rows, skipped or raise_error):
        texts: tuple[Any, ...]
        present = _present_columns(row, columns)
        try:
            texts = tuple(_pick(row, field, column, location) for field, column in present.items())
            has_columns = True
        except (DataError, SettingsError) as error:
            if isinstance(error, SettingsError):  # a column is missing
                missing = missing or error
            # Only rows of JSON lines can differ in their columns.
            if skipped is None or (missing and format != "jsonl"):
                raise
            skipped(DataError(str(error)))
            texts = ("",) * len(present)
        yield Record(location, row, texts)
    if missing and not has_columns:  # the name of the column is wrong
        raise missing


def table_columns(path: Path | None, format: InputFormat, columns: Mapping[str, str]) -> list[str]:
    """Return the columns of a table, for an output that has no rows.

    Formats without a header, and a pipe, which can be read only once, have the columns that are read.

    Raises:
        DataError: the file is missing or damaged, or has no header.
    """
    if path and path.is_file():
        if format == "parquet":
            with open_parquet(path) as file:
                return list(file.schema_arrow.names)
        if format in DELIMITERS:
            with closing(read_lines(path)) as lines:
                return parse_rows(lines, str(path), format, raise_error)[0]
    return list(columns.values())


def reject_column(name: str, row: Container[str], location: str) -> None:
    """Check that the input does not have the column `name`, which the output adds.

    Raises:
        DataError: the input has it; the message begins with `location`.
    """
    if name in row:
        raise DataError(
            f"{location}: column {name!r} would be replaced by the column of the results; rename or remove it"
        )


def _present_columns(row: Container[str], columns: Mapping[str, str]) -> Mapping[str, str]:
    """Return the columns to read; of `words` and `text`, only one."""
    if not {"words", "text"} <= columns.keys():
        return columns
    chosen = "words" if columns["words"] in row else "text"
    return {chosen: columns[chosen]}


def _check_header(names: Iterable[str], columns: Mapping[str, str], name: str) -> None:
    """Raise SettingsError if a table without rows lacks a column."""
    row = dict.fromkeys(names)
    for field, column in _present_columns(row, columns).items():
        with suppress(DataError):  # the values are missing
            _pick(row, field, column, name)


def _pick(row: Mapping[str, Any], field: str, column: str, location: str) -> Any:
    """Return the text in a column, or the list of endings."""
    if field == "endings" and column not in row:
        numbered = takewhile(row.__contains__, (f"ending{number}" for number in count()))
        names = column.split(",") if "," in column else list(numbered)
        if names:
            return [_pick(row, "ending", name, location) for name in names]
    if column not in row:
        raise _missing_column(row, field, column, location)
    value = row[column]
    is_list = field in ("endings", "words")
    if is_list and isinstance(value, list) and all(isinstance(item, str) for item in value):
        return value
    if is_list or not isinstance(value, str):
        expected = {"endings": "a list of texts", "words": "a list of words"}.get(field, "text")
        problem = f"column {column!r} is empty; fill it in"
        if not is_missing(value):
            problem = f"{shorten(value)} in column {column!r} is not {expected}; correct it"
        raise DataError(f"{location}: {problem}, or choose another column with --column {field}=NAME")
    return value


def _missing_column(row: Mapping[str, Any], field: str, column: str, location: str) -> SettingsError:
    """Return the error for a missing column.

    It lists the columns and suggests one of them.
    """
    if header_hint(column, names := list(row)):
        return missing_column(location, column, names)
    near = [field] if field in row else difflib.get_close_matches(column, row, n=1)
    longest = max(row, key=lambda name: len(row[name]) if isinstance(row[name], str) else 0, default="NAME")
    # The longest column is probably the text; it is not suggested for other fields.
    is_text = isinstance(row.get(longest), str | None)
    best = near[0] if near else longest if field == "text" and is_text else None
    example = (
        f", such as --column {shlex.quote(f'{field}={best}')}" if best else f" with --column {field}=NAME"
    )
    return SettingsError(
        f"{location}: no column {column!r}; the columns are {', '.join(row)}; choose one of them{example}"
    )


def _rows(
    path: Path | None,
    name: str,
    format: InputFormat,
    columns: Mapping[str, str],
    whole_rows: bool,
    handle: Callable[[DataError], None],
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the location and the columns of each row.

    `handle` gets the errors about malformed rows.
    """
    if format == "parquet":
        assert path is not None
        yield from _parquet_rows(path, columns, whole_rows)
        return
    if format == "squad":
        assert path is not None
        yield from _squad_rows(path, columns)
        return
    lines = read_lines(path) if path else decode_lines(open_stdin(), name)
    header: list[str] = []
    if format in ("csv", "tsv", "jsonl"):
        header, rows = parse_rows(lines, name, format, handle)
    else:
        (column,) = columns.values()
        rows = ((number, {column: line}) for number, line in enumerate(lines, 1))
    number = 0
    for number, row in rows:
        yield f"{name}, line {number}", row
    if header and not number:
        _check_header(header, columns, name)


def _squad_rows(path: Path, columns: Mapping[str, str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the questions of a file in SQuAD's JSON as rows with these columns and the id."""
    if "question" not in columns:
        raise DataError(
            f"{path}: a .json file is not a table; write each row on a line of a .jsonl file "
            "(an array: jq --compact-output '.[]')"
        )
    questions = read_questions(path, labelled=False)
    for name, question, index in zip(
        questions.ids, questions.questions, questions.context_indices, strict=True
    ):
        row = {"id": name, columns["question"]: question, columns["context"]: questions.contexts[index]}
        yield f"{path}, question {name}", row


def _parquet_rows(
    path: Path, columns: Mapping[str, str], whole_rows: bool
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the rows of a Parquet file with their locations.

    If not `whole_rows`, only `columns` are read, or all columns if the file has none of them.
    """
    with open_parquet(path) as file, reject_changes(path):
        names = file.schema_arrow.names
        reject_duplicates(names, str(path))
        if not file.metadata.num_rows:
            _check_header(names, columns, str(path))
        if not whole_rows:
            names = [name for name in names if name in columns.values()] or names
        number = 0
        for batch in iterate_batches(path, file, names):
            values = [_to_python(batch.column(name), name, path) for name in names]
            for row in zip(*values, strict=True):
                number += 1
                yield f"{path}, row {number}", dict(zip(names, row, strict=True))


def read_arrow_batches(
    path: Path, column: str, size: int, skipped: Callable[[DataError], None] | None = None
) -> Iterator[tuple[int, list[str], Any]]:
    """Yield the rows of a Parquet file in Arrow record batches.

    The columns keep their types.

    Args:
        path: the file.
        column: the column of the texts.
        size: the largest number of rows in a batch.
        skipped: receives the error of each value that is not text, which then counts as blank. None
            raises the error.

    Yields:
        The number of the first row, from 1, the texts and the batch.

    Raises:
        SettingsError, DataError: as `read_records` does.
    """
    number = 1
    with open_parquet(path) as file, reject_changes(path):
        names = file.schema_arrow.names
        reject_duplicates(names, str(path))
        if column not in names:
            raise _missing_column(dict.fromkeys(names), "text", column, str(path))
        for batch in iterate_batches(path, file, names, size):
            values = _to_python(batch.column(column), column, path)
            texts = []
            for i, value in enumerate(values, number):
                try:
                    texts.append(_pick({column: value}, "text", column, f"{path}, row {i}"))
                except DataError as error:
                    (skipped or raise_error)(error)
                    texts.append("")
            yield number, texts, batch
            number += len(texts)


def _to_python(column: Any, name: str, path: Path) -> list[Any]:
    """Convert a column to Python values.

    Dates and times become text, in UTC if they have a time zone: Python's own types
    support neither years after 9999 nor nanoseconds, and may not know the time zone.
    """
    import pyarrow
    from pyarrow.compute import binary_join_element_wise

    try:
        if pyarrow.types.is_timestamp(column.type):
            zone = "Z" if column.type.tz else ""
            column = column.cast(pyarrow.timestamp(column.type.unit)).cast(pyarrow.string())
            column = binary_join_element_wise(column, zone, "")
        elif pyarrow.types.is_date(column.type) or pyarrow.types.is_time(column.type):
            column = column.cast(pyarrow.string())
        values: list[Any] = column.to_pylist()
    except (ValueError, OverflowError) as error:  # includes text that is not UTF-8, and pyarrow's own errors
        reason = str(error).splitlines()[0]
        raise DataError(f"{path}: column {name!r} cannot be read ({reason}); leave it out") from None
    return values
