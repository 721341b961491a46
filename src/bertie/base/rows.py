"""Read tables that fit in memory from csv, tsv, jsonl and Parquet files.

There are two kinds of .tsv file. `read_rows` reads the usual kind, quoted like csv. `read_unquoted`
reads the kind that GLUE uses, in which a quotation mark is part of the text and every line is a row.
"""

import csv
import json
import os
import sys
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from bertie.base.compression import compression_suffix, is_compressed, open_binary
from bertie.base.errors import DataError, SettingsError
from bertie.base.files import reject_changes
from bertie.base.memory import MemoryTable, Source
from bertie.base.tables import held_bytes, iterate_batches, missing_column, open_parquet, separator_hint
from bertie.base.texts import count_noun

_MAX_TABLE_BYTES = 1 << 32  # of a Parquet or compressed file whose rows are all held in memory
_MAX_SHOWN_LINES = 10  # in an error about many malformed lines, and of skipped rows

TableFormat = Literal["csv", "tsv", "jsonl", "parquet"]
TABLE_FORMATS: dict[str, TableFormat] = {  # by suffix
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
}
DELIMITERS = {"csv": ",", "tsv": "\t"}

ErrorHandler = Callable[[DataError], None]
Skipped = list[DataError] | None
Options = Mapping[str, str]  # the option that chooses a column, by column
NO_OPTIONS: Options = MappingProxyType({})
NumberedRow = tuple[int, dict[str, Any]]  # the line on which a row begins, from 1, and its values by column


@dataclass(frozen=True)
class Rows:
    """Some columns of a table.

    source   the file, or the table in memory
    columns  {name: values}; every list has one value per row
    numbers  for each row, the line on which it begins, from 1; in a Parquet file or a table in memory,
             the number of the row, from 1
    unit     "line" if `numbers` are line numbers, "row" if they are row numbers
    """

    source: Source
    columns: dict[str, list[Any]]
    numbers: Sequence[int]
    unit: str = "line"

    def __len__(self) -> int:
        return len(self.numbers)

    def location(self, i: int) -> str:
        """Return the location of row `i` for error messages: `train.csv, line 12`."""
        return f"{self.source}, {self.unit} {self.numbers[i]}"

    def select(self, indices: Sequence[int]) -> "Rows":
        """Return some of the rows."""
        columns = {name: [values[i] for i in indices] for name, values in self.columns.items()}
        return replace(self, columns=columns, numbers=[self.numbers[i] for i in indices])


def report_skipped(source: Source, skipped: Sequence[DataError], kept: int) -> None:
    """Print the first errors about skipped rows, and the number of these rows."""
    for error in skipped[:_MAX_SHOWN_LINES]:
        print(f"skipped: {error}", file=sys.stderr)
    if skipped:
        print(f"{source}: skipped {len(skipped):,} of {kept + len(skipped):,} rows", file=sys.stderr)


def read_rows(
    source: Source,
    columns: Sequence[str],
    skipped: Skipped = None,
    options: Options = NO_OPTIONS,
    optional: Sequence[str] = (),
) -> Rows:
    """Read columns of a file or of a table in memory.

    The file is a .csv, .tsv, .jsonl, .ndjson or .parquet file. All but Parquet files may be
    compressed (.gz, .bz2, .xz, .zst). Values of csv and tsv files are strings; values of the other
    formats keep their types. Blank lines are skipped. Compressed and Parquet files may need at most
    4 GiB for their lines or values.

    Args:
        source: the file or the table.
        columns: the names of the columns to read.
        skipped: a list that collects the errors about malformed rows. These are then left out; without a
            list, the first one is raised.
        options: the options that choose the columns, by column, such as {"review": "--text NAME"}.
        optional: the names of more columns, whose values are None where they do not exist.

    Raises:
        SettingsError: a column does not exist; the message names the nearest one, and its option.
        DataError: the file is missing, damaged, empty or of another format, or a row is malformed;
            the message names the line.
        BertieError: the package that reads the file is not installed.
    """
    if isinstance(source, MemoryTable):
        _column_indices(columns, list(source.columns), source.name, options)
        missing = [None] * len(source)
        values = {column: source.columns.get(column, missing) for column in (*columns, *optional)}
        return Rows(source, values, range(1, len(source) + 1), "row")
    path, handle = source, raise_error if skipped is None else skipped.append
    reject_spreadsheet(path)
    format = TABLE_FORMATS.get(format_suffix(path))
    if format is None and os.path.isdir(path):  # unlike `Path.is_dir`, also for a text in place of a path
        raise DataError(f"{path}: is a directory; expected a file")
    if format is None:
        raise DataError(f"{path}: unknown table format; use .csv, .tsv, .jsonl or .parquet")
    if format == "parquet":
        rows = _read_parquet(path, columns, options, optional)
    else:
        with closing(read_held_lines(path)) as lines:
            _, parsed = parse_rows(lines, str(path), format, handle)
            rows = _select_columns(path, columns, parsed, skipped, options, optional)
    if not rows:
        if skipped:
            raise skipped[0]
        below = " below the header" if format in DELIMITERS else ""
        raise DataError(f"{path}: empty: no rows{below}; add at least one")
    return rows


def format_suffix(path: Path) -> str:
    """Return the suffix that names a file's format, ignoring a compression suffix.

    It is `.csv` for both a.csv and a.csv.gz.
    """
    return (path.with_suffix("") if is_compressed(path) else path).suffix.lower()


def reject_spreadsheet(path: Path) -> None:
    """Check that the name of a file is not the name of a spreadsheet.

    Raises:
        DataError: it is.
    """
    if format_suffix(path) in (".xlsx", ".xls", ".ods"):
        raise DataError(f"{path}: a spreadsheet; save it as .csv, in UTF-8, and give that file")


def read_header(path: Path) -> list[str]:
    """Return the fields of the first line of an unquoted, tab-separated file."""
    return next(read_lines(path), "").split("\t")


def read_unquoted(
    path: Path, columns: Sequence[str], header: Sequence[str] = (), skip_malformed: bool = False
) -> Rows:
    """Read columns of a tab-separated file in which quotation marks are text.

    Empty lines are skipped.

    Args:
        path: the file, which may be compressed.
        columns: the names of the columns to read.
        header: the names of all columns, for a file whose first line is a row.
        skip_malformed: skip lines that have too many or too few fields, and report them on stderr,
            instead of raising.

    Raises:
        SettingsError: a column does not exist.
        DataError: the file is missing, empty, not UTF-8 or has other separators, or a line is malformed.
    """
    lines = read_held_lines(path)
    names = list(header) or next(lines, "").split("\t")
    if len(names) == 1 and separator_hint(names):
        raise DataError(f"{path}, line 1: {names[0]!r} has no tabs; separate the columns by tabs")
    indices = _column_indices(columns, names, str(path))
    numbers: list[int] = []
    values: list[list[str]] = []
    malformed: dict[int, int] = {}  # {line number: number of fields}
    for number, line in enumerate(lines, 1 if header else 2):
        if not line:
            continue
        fields = line.split("\t")
        if len(fields) == len(names):
            numbers.append(number)
            values.append([fields[index] for index in indices])
        else:
            malformed[number] = len(fields)
    if malformed:
        _report_malformed(path, malformed, len(names), skip_malformed)
    if not values:
        raise DataError(f"{path}: empty: no rows; add at least one")
    return Rows(path, _transpose(columns, values), numbers)


def _report_malformed(path: Path, malformed: dict[int, int], columns: int, skip: bool) -> None:
    """Report malformed lines: on stderr if `skip`, else by raising DataError."""
    first, fields = next(iter(malformed.items()))
    if skip:
        print(
            f"{path}: skipped lines that do not have {count_noun(columns, 'field')}: {len(malformed)} "
            f"(first: line {first})",
            file=sys.stderr,
        )
        return
    shown = ", ".join(map(str, list(malformed)[:_MAX_SHOWN_LINES]))
    more = ", …" * (len(malformed) > _MAX_SHOWN_LINES)
    raise DataError(
        f"{path}, line {first}: expected {count_noun(columns, 'field')}, got {fields}; fix or delete the "
        f"malformed lines ({len(malformed)} in all: {shown}{more})"
    )


def read_lines(path: Path) -> Generator[str, None, None]:
    r"""Iterate over the lines of a UTF-8 file, without line ends and byte order mark.

    Lines end with \n or \r\n only. Texts of data sets contain U+2028, U+0085 and other characters
    at which `str.splitlines` would split.

    Raises:
        DataError: the file is missing, damaged or not UTF-8, or it changes before all lines are read.
    """
    with open_binary(path) as file, reject_changes(path):
        yield from decode_lines(file, str(path))


def read_held_lines(path: Path) -> Generator[str, None, None]:
    """Iterate over the lines of a file whose rows are all held in memory.

    Everything else is as in `read_lines`.

    Raises:
        DataError: also if the file is compressed, and its lines have more than 4 GiB in memory.
    """
    limit = _MAX_TABLE_BYTES if is_compressed(path) else sys.maxsize
    size = 0
    with closing(read_lines(path)) as lines:
        for line in lines:
            size += sys.getsizeof(line)
            if size > limit:
                raise DataError(
                    f"{path}: decompresses to lines of more than {limit:,} bytes, and all rows are held in "
                    f"memory; split the file, or decompress it first if you trust it"
                )
            yield line


def decode_lines(file: Iterable[bytes], name: str, errors: str = "strict") -> Iterator[str]:
    """Iterate over the lines of an open file, as `read_lines` does.

    `errors` is an error handler of `bytes.decode`.

    Raises:
        DataError: a line is not UTF-8; the message calls the file `name`.
    """
    for number, line in enumerate(file, 1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8", errors)
        except UnicodeDecodeError as error:
            if number == 1 and (suffix := compression_suffix(line)):  # standard input, or a URL
                advice = f"decompress it first, or give a file whose name ends in {suffix}"
                raise DataError(f"{name}: {suffix} data; {advice}") from None
            raise DataError(
                f"{name}, line {number}: not UTF-8 ({error.reason}); convert the file to UTF-8"
            ) from None
        yield text.removesuffix("\n").removesuffix("\r")


def raise_error(error: DataError) -> None:
    """Raise an error about a malformed row.

    It is the handler of readers that do not skip rows.
    """
    raise error from None


def parse_rows(
    lines: Iterable[str], name: str, format: str, handle: ErrorHandler
) -> tuple[list[str], Iterator[NumberedRow]]:
    """Return the columns in the header of a csv, tsv or jsonl table, and an iterator over its rows.

    JSON lines have no header. See `parse_csv` and `parse_json_lines`.
    """
    if format == "jsonl":
        return [], parse_json_lines(lines, name, handle)
    return parse_csv(lines, name, DELIMITERS[format], handle)


def parse_csv(
    lines: Iterable[str], name: str, delimiter: str, handle: ErrorHandler = raise_error
) -> tuple[list[str], Iterator[NumberedRow]]:
    """Return the columns of a table, which its first line names, and an iterator over its rows.

    Blank lines are skipped. Errors call the file `name`. `handle` is called with the error about each
    malformed row; if it returns, the next rows are read.

    Raises:
        DataError: there is no header, two columns have the same name, or a row is malformed; the
            message names the line on which the row begins.
    """
    csv.field_size_limit(sys.maxsize)  # the library's default, 131,072 characters, is less than a book
    reader = csv.reader((f"{line}\n" for line in lines), delimiter=delimiter, strict=True)
    columns = _next_fields(reader, name, raise_error) or []
    if not columns:
        raise DataError(f"{name}: empty first line; write the names of the columns there")
    reject_duplicates(columns, f"{name}, line 1")
    return columns, _parse_fields(reader, columns, name, handle)


def _parse_fields(
    reader: Any, columns: Sequence[str], name: str, handle: ErrorHandler
) -> Iterator[NumberedRow]:
    """Iterate over the rows below the header."""
    hint = separator_hint(columns)
    number = reader.line_num + 1
    while (fields := _next_fields(reader, name, handle, hint)) is not None:
        if fields and len(fields) != len(columns):
            advice = hint or "quote fields that contain the separator"
            problem = f"expected {count_noun(len(columns), 'field')}, got {len(fields)}; {advice}"
            handle(DataError(f"{name}, line {number}: {problem}"))
        elif fields:
            yield number, dict(zip(columns, fields, strict=True))
        number = reader.line_num + 1


def _next_fields(reader: Any, name: str, handle: ErrorHandler, hint: str = "") -> list[str] | None:
    """Return the fields of the next row; None at the end.

    A blank or malformed row has none. `hint` is the advice in the error about a malformed row, if the header
    explains it.
    """
    number = reader.line_num + 1
    try:
        fields: list[str] | None = next(reader, None)
    except csv.Error as error:
        advice = hint or 'quote fields that contain quotation marks, and double these ("")'
        # An open quotation takes in the lines below.
        reach = f" and reaches line {reader.line_num}" if reader.line_num > number else ""
        problem = f"the row that begins here{reach} is malformed ({error}); {advice}"
        if "new-line character" in str(error):
            problem = "a field contains a CR without LF; quote it, or convert the line ends of the file to LF"
        handle(DataError(f"{name}, line {number}: {problem}"))
        return []
    return fields


def parse_json_lines(
    lines: Iterable[str], name: str, handle: ErrorHandler = raise_error
) -> Iterator[NumberedRow]:
    """Iterate over JSON objects, one per line.

    Blank lines are skipped. Errors call the file `name`, and go to `handle`, as in `parse_csv`.

    Raises:
        DataError: a line is not a JSON object.
    """
    for number, line in enumerate(lines, 1):
        if not line or line.isspace():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            problem = f"not valid JSON ({error}); {rewrite_json(line) or 'fix or remove the line'}"
        else:
            if isinstance(row, dict):
                yield number, row
                continue
            problem = f"not a JSON object; {rewrite_json(line) or 'write one object per line'}"
        handle(DataError(f"{name}, line {number}: {problem}"))


def rewrite_json(line: str) -> str:
    """Return how to write an array, or an indented object, as JSON lines.

    `line` is its first line, or a whole array. Return "" for any other line.
    """
    start = line.strip()
    values = "'.[]'" if start.startswith("[") else "." if start == "{" else ""
    return f"write one object per line (jq --compact-output {values})" if values else ""


def reject_duplicates(names: Sequence[str], location: str) -> None:
    """Check that no two columns have the same name.

    Any number of columns may have no name.

    Raises:
        DataError: two columns have the same name; the message begins with `location`.
    """
    if duplicates := [name for name in names if name and names.count(name) > 1]:
        raise DataError(f"{location}: two columns are called {duplicates[0]!r}; rename one")


def _select_columns(
    path: Path,
    columns: Sequence[str],
    rows: Iterable[NumberedRow],
    skipped: Skipped,
    options: Options,
    optional: Sequence[str],
) -> Rows:
    numbers, values = [], []
    required = set(columns)
    for number, row in rows:
        if not row.keys() >= required:
            # In JSON lines every row has its own columns; other tables have one header.
            is_json = TABLE_FORMATS[format_suffix(path)] == "jsonl"
            try:
                location = f"{path}, line {number}" if is_json else str(path)
                _column_indices(columns, list(row), location, options)
            except (DataError, SettingsError) as error:
                if skipped is None or not is_json:
                    raise
                skipped.append(DataError(str(error)))
                continue
        numbers.append(number)
        values.append([row[column] for column in columns] + [row.get(column) for column in optional])
    return Rows(path, _transpose([*columns, *optional], values), numbers)


def _transpose(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> dict[str, list[Any]]:
    return {column: [row[index] for row in rows] for index, column in enumerate(columns)}


def _read_parquet(path: Path, columns: Sequence[str], options: Options, optional: Sequence[str]) -> Rows:
    with open_parquet(path) as file, reject_changes(path):
        reject_duplicates(file.schema_arrow.names, str(path))
        names, number = file.schema_arrow.names, file.metadata.num_rows
        _column_indices(columns, names, str(path), options)
        missing = {column: [None] * number for column in optional if column not in names}
        columns = [*columns, *(column for column in optional if column in names)]
        values: dict[str, list[Any]] = {column: [] for column in columns}
        size = 0
        for batch in iterate_batches(path, file, columns):
            size += sum(map(held_bytes, batch.columns))
            if size > _MAX_TABLE_BYTES:
                raise DataError(
                    f"{path}: the columns have more than {_MAX_TABLE_BYTES:,} bytes, and all rows are held "
                    f"in memory; split the file"
                )
            try:
                for column in columns:
                    values[column] += batch.column(column).to_pylist()
            except UnicodeDecodeError as error:
                problem = f"a value is not UTF-8 ({error.reason})"
                raise DataError(f"{path}: {problem}; write the file again") from None
        return Rows(path, values | missing, range(1, number + 1), "row")


def _both_forms(options: Collection[str]) -> str:
    """Return options of a command with the arguments in Python.

    For example, `--text NAME (text='NAME')`.
    """
    arguments: dict[str, str] = {}
    columns: dict[str, str] = {}
    for option in options:
        flag, value = option.split()
        if flag == "--column":
            columns[value.removesuffix("=NAME")] = "NAME"
        else:
            arguments[flag.removeprefix("--")] = "NAME"
    in_python = [f"{name}={value!r}" for name, value in arguments.items()]
    in_python += [f"columns={columns}"] * bool(columns)
    return f"{' '.join(options)} ({', '.join(in_python)})"


def _column_indices(
    columns: Sequence[str], names: Sequence[str], location: str, options: Options = NO_OPTIONS
) -> list[int]:
    """Return the indices of `columns` among the names of all columns.

    Raises:
        DataError: there are no columns; the message begins with `location`.
        SettingsError: one of `columns` does not exist; the message begins with `location`.
    """
    if not any(names):
        raise DataError(f"{location}: empty: no columns")
    if missing := [column for column in columns if column not in names]:
        chosen = dict.fromkeys(options[column] for column in missing if column in options)
        raise missing_column(location, missing[0], names, f"; pass {_both_forms(chosen)}" if chosen else "")
    return [names.index(column) for column in columns]
