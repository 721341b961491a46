"""Tables that fit in memory: rows of named columns from csv, tsv, jsonl and Parquet files.

There are two kinds of .tsv. A person's own has the quoting of csv (`read_rows`); in those of GLUE a quotation
mark is text, and a line is a row (`read_unquoted`).
"""

import csv
import difflib
import json
import sys
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertie.base.compression import is_compressed, open_binary
from bertie.base.errors import DataError, SettingsError
from bertie.base.tables import open_parquet

_SHOWN = 10  # of many malformed lines
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_JSON_LINES = (".jsonl", ".ndjson")


@dataclass(frozen=True)
class Rows:
    """Some columns of a file.

    path     the file
    columns  the values of each column, as many as there are rows
    numbers  the line on which each row begins, from 1; the row's number where the file has no lines
    unit     what the numbers count: "line" or "row"
    """

    path: Path
    columns: dict[str, list[Any]]
    numbers: Sequence[int]
    unit: str = "line"

    def __len__(self) -> int:
        return len(self.numbers)

    def location(self, i: int) -> str:
        """Where row `i` stands, for a message."""
        return f"{self.path}: {self.unit} {self.numbers[i]}"


def read_rows(path: Path, columns: Sequence[str]) -> Rows:
    """Read columns of a .csv, .tsv, .jsonl, .ndjson (these also .gz, .bz2, .xz, .zst) or .parquet file.

    The values of csv and tsv are strings, those of the others are what the file has. Blank lines are no rows.

    Raises:
        SettingsError: there is no such column; the message names the nearest.
        DataError: the file is missing, damaged, empty, of no such kind, or has a malformed row, which the
            message names.
        BertieError: the package that reads such files is not installed.
    """
    kind = suffix_of(path)
    if kind == ".parquet":
        rows = _read_parquet(path, columns)
    elif kind in _JSON_LINES:
        with closing(read_lines(path)) as lines:
            rows = _gather(path, columns, parse_json_lines(lines, str(path)))
    elif kind in _DELIMITERS:
        with closing(read_lines(path)) as lines:
            rows = _gather(path, columns, parse_csv(lines, str(path), _DELIMITERS[kind]))
    else:
        raise DataError(f"{path}: not a kind of table known here; name it .csv, .tsv, .jsonl or .parquet")
    if not rows:
        raise DataError(f"{path}: empty: no rows")
    return rows


def suffix_of(path: Path) -> str:
    """The suffix that names the kind of a file, whatever it is compressed with: .csv of a.csv.gz."""
    return path.with_suffix("").suffix if is_compressed(path) else path.suffix


def read_header(path: Path) -> list[str]:
    """The fields of the first line of a file of `read_unquoted`'s kind."""
    return next(read_lines(path), "").split("\t")


def read_unquoted(
    path: Path, columns: Sequence[str], header: Sequence[str] = (), leave_out_malformed: bool = False
) -> Rows:
    """Read columns of a file of lines cut by tabs, quotation marks being text; empty lines are no rows.

    Args:
        path: the file.
        columns: those wanted.
        header: names the columns where the first line does not.
        leave_out_malformed: whether lines with too many fields, or too few, are left out, with a line on
            stderr, and no error.

    Raises:
        SettingsError: there is no such column.
        DataError: the file is missing, empty or not UTF-8, or a line is malformed.
    """
    lines = read_lines(path)
    names = list(header) or next(lines, "").split("\t")
    places = _find(columns, names, str(path))
    first = 1 if header else 2
    numbers: list[int] = []
    values: list[list[str]] = []
    malformed: dict[int, int] = {}
    for number, line in enumerate(lines, first):
        if not line:
            continue
        fields = line.split("\t")
        if len(fields) == len(names):
            numbers.append(number)
            values.append([fields[place] for place in places])
        else:
            malformed[number] = len(fields)
    if malformed and leave_out_malformed:
        message = f"{len(malformed)} lines do not have {len(names)} fields (first: line {min(malformed)})"
        print(f"{path}: {message}; they are left out", file=sys.stderr)
    elif malformed:
        number, count = next(iter(malformed.items()))
        others = ", ".join(map(str, list(malformed)[:_SHOWN])) + ", …" * (len(malformed) > _SHOWN)
        raise DataError(
            f"{path}: line {number}: {count} fields, where there are {len(names)} columns; mend or delete "
            f"such lines, of which there are {len(malformed)}: {others}"
        )
    if not values:
        raise DataError(f"{path}: empty: no rows")
    return Rows(path, _transpose(columns, values), numbers)


def read_lines(path: Path) -> Generator[str, None, None]:
    """The lines of a UTF-8 file, without their ends and a byte order mark.

    Only a line feed ends a line: U+2028, U+0085 and the like stand in the texts of data sets.

    Raises:
        DataError: the file is missing, damaged or not UTF-8.
    """
    with open_binary(path) as file:
        yield from decode_lines(file, str(path))


def decode_lines(file: Iterable[bytes], name: str) -> Iterator[str]:
    """The same of an open file, which messages call `name`."""
    for number, line in enumerate(file, 1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            message = f"{name}: line {number}: not UTF-8 ({error.reason}); convert the file first"
            raise DataError(message) from None
        yield text.removesuffix("\n").removesuffix("\r")


Numbered = tuple[int, dict[str, Any]]  # the line a row begins on, and the row


def _gather(path: Path, columns: Sequence[str], rows: Iterable[Numbered]) -> Rows:
    numbers, values = [], []
    wanted = set(columns)
    for number, row in rows:
        if not row.keys() >= wanted:
            # Every object of JSON lines names its own columns, a table has one header.
            place = f"{path}: line {number}" if suffix_of(path) in _JSON_LINES else str(path)
            _find(columns, list(row), place)
        numbers.append(number)
        values.append([row[column] for column in columns])
    return Rows(path, _transpose(columns, values), numbers)


def _transpose(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> dict[str, list[Any]]:
    return {column: [row[place] for row in rows] for place, column in enumerate(columns)}


def parse_csv(lines: Iterable[str], name: str, delimiter: str) -> Iterator[Numbered]:
    """The rows of a table whose first line names the columns; blank lines are none.

    Raises:
        DataError: two columns have one name, or a row is malformed; the message names the line of `name` on
            which it begins.
    """
    csv.field_size_limit(sys.maxsize)  # the library's own limit, 131,072 characters, is less than a book
    reader = csv.reader((f"{line}\n" for line in lines), delimiter=delimiter, strict=True)
    begin = 1
    try:
        columns = next(reader, [])
        reject_duplicates(columns, f"{name}: line 1")
        begin = reader.line_num + 1
        for fields in reader:
            if fields and len(fields) != len(columns):
                raise DataError(
                    f"{name}: line {begin}: {len(fields)} fields, where there are {len(columns)} columns; "
                    f"put a field that holds the separator between quotation marks"
                )
            if fields:
                yield begin, dict(zip(columns, fields, strict=True))
            begin = reader.line_num + 1
    except csv.Error as error:
        raise DataError(
            f"{name}: line {begin}: the row that begins here is malformed ({error}); put a field with "
            f'quotation marks between quotation marks, and write "" for each of them'
        ) from None


def parse_json_lines(lines: Iterable[str], name: str) -> Iterator[Numbered]:
    """The rows of lines that are JSON objects; blank lines are none.

    Raises:
        DataError: a line is something else; the message names the line of `name`.
    """
    for number, line in enumerate(lines, 1):
        if not line or line.isspace():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{name}: line {number}: not valid JSON ({error})") from None
        if not isinstance(row, dict):
            raise DataError(f"{name}: line {number}: not a JSON object; write one object a line")
        yield number, row


def _read_parquet(path: Path, columns: Sequence[str]) -> Rows:
    with open_parquet(path) as file:
        reject_duplicates(file.schema_arrow.names, str(path))
        _find(columns, file.schema_arrow.names, str(path))
        table = file.read(columns=list(columns))
        try:
            values = {column: table.column(column).to_pylist() for column in columns}
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: a value is not UTF-8 ({error.reason}); write the file anew") from None
        return Rows(path, values, range(1, table.num_rows + 1), "row")


def reject_duplicates(names: Sequence[str], place: str) -> None:
    """Raises DataError where two columns have one name; columns without one may be many."""
    if doubled := [name for name in names if name and names.count(name) > 1]:
        raise DataError(f"{place}: two columns are called {doubled[0]!r}; rename one")


def _find(columns: Sequence[str], names: Sequence[str], place: str) -> list[int]:
    """Where `columns` stand among `names`; the error about the first that does not names `location`."""
    if not any(names):
        raise DataError(f"{place}: empty: no columns")
    for column in columns:
        if column not in names:
            near = difflib.get_close_matches(column, names, n=1)
            guess = f"did you mean {near[0]!r}? " if near else ""
            if len(names) == 1 and ";" in names[0]:  # as spreadsheets save where the comma is decimal
                guess = "are its fields cut by semicolons? save it with commas; "
            raise SettingsError(f"{place}: no column {column!r}; {guess}there are: {', '.join(names)}")
    return [names.index(column) for column in columns]
