"""Files of texts -> what a model is asked, few rows in memory at a time.

Every row gives one record, in order. So does a blank line of plain text, which has an empty answer: a file of
n lines has n answers.
"""

import sys
from collections.abc import Collection, Iterator, Mapping
from itertools import count, takewhile
from pathlib import Path
from typing import Any, Literal, NamedTuple

from bertie.base.errors import DataError, SettingsError
from bertie.base.rows import (
    decode_lines,
    parse_csv,
    parse_json_lines,
    read_lines,
    reject_duplicates,
    suffix_of,
)
from bertie.base.tables import open_parquet

InputFormat = Literal["text", "jsonl", "csv", "tsv", "parquet", "conll"]

DELIMITERS = {"csv": ",", "tsv": "\t"}
_SUFFIXES: dict[str, InputFormat] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".conll": "conll",
}
_BATCH_ROWS = 256  # of a Parquet file, in memory at a time


class Record(NamedTuple):
    """What is asked of a model at a time.

    location  where it stands, for messages
    row    all columns of its row
    texts  what is asked, in the order of the columns asked for; a list of endings is one
    """

    location: str
    row: Mapping[str, Any]
    texts: tuple[Any, ...]

    @property
    def is_blank(self) -> bool:
        """Whether nothing is asked."""
        return not self.texts[0].strip()


def input_format(path: Path) -> InputFormat:
    """The format that a file's name says; plain text, a text a line, where it says none."""
    return _SUFFIXES.get(suffix_of(path), "text")


def find_input(name: str | None, format: InputFormat | None) -> tuple[Path | None, InputFormat]:
    """The file of a name, None for standard input, which is - or no name; its format, if none is given.

    Raises:
        SettingsError: standard input cannot have the format.
    """
    if name not in (None, "-"):
        return Path(name), format or input_format(Path(name))
    if format in ("parquet", "conll"):
        raise SettingsError(f"--format {format}: standard input cannot be that; give a file")
    return None, format or "text"


def read_records(
    path: Path | None, format: InputFormat, columns: Mapping[str, str], whole_rows: bool = True
) -> Iterator[Record]:
    """Read the records of a file, or of standard input where `path` is None; few are in memory at a time.

    Args:
        path: the file.
        format: any but conll.
        columns: of each text asked for, by what it is, the column. `endings` is a column of lists, several
            columns with commas between, or else the columns ending0, ending1, ….
        whole_rows: whether the other columns of a Parquet file are read too.

    Raises:
        SettingsError: there is no such column, or plain text cannot have what is asked for.
        DataError: the file is missing or damaged, two of its columns have one name, or a row or a column
            cannot be read; the message names it.
    """
    if format == "text" and len(columns) > 1:
        wanted = ", ".join(columns)
        raise SettingsError(f"plain text has no columns for {wanted}: give a .csv, .tsv, .jsonl or .parquet")
    name = str(path or "standard input")
    for place, row in _rows(path, name, format, columns, whole_rows):
        texts = tuple(_pick(row, role, column, place) for role, column in columns.items())
        yield Record(place, row, texts)


def _pick(row: Mapping[str, Any], role: str, column: str, place: str) -> Any:
    """The text, or the list of endings, that a column holds."""
    if role == "endings" and column not in row:
        numbered = takewhile(row.__contains__, (f"ending{number}" for number in count()))
        names = column.split(",") if "," in column else list(numbered)
        if names:
            return [_pick(row, "ending", name, place) for name in names]
    if column not in row:
        raise SettingsError(
            f"{place}: no column {column!r}; name another with --column {role}=…, there are: {', '.join(row)}"
        )
    value = row[column]
    if role == "endings" and isinstance(value, list) and all(isinstance(ending, str) for ending in value):
        return value
    if role == "endings" or not isinstance(value, str):
        kind = "list of texts" if role == "endings" else "text"
        raise DataError(f"{place}: {value!r} in the column {column!r} is no {kind}")
    return value


def _rows(
    path: Path | None, name: str, format: InputFormat, columns: Mapping[str, str], whole_rows: bool
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each row, and its place."""
    if format == "parquet":
        assert path is not None
        yield from _parquet_rows(path, None if whole_rows else columns.values())
        return
    lines = read_lines(path) if path else decode_lines(sys.stdin.buffer, name)
    if format in DELIMITERS:
        rows = parse_csv(lines, name, DELIMITERS[format])
    elif format == "jsonl":
        rows = parse_json_lines(lines, name)
    else:
        (column,) = columns.values()
        rows = ((number, {column: line}) for number, line in enumerate(lines, 1))
    for number, row in rows:
        yield f"{name}: line {number}", row


def _parquet_rows(path: Path, wanted: Collection[str] | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Of the `wanted` columns; of all where that is None, or the file has none of them."""
    with open_parquet(path) as file:
        names = file.schema_arrow.names
        reject_duplicates(names, str(path))
        if wanted is not None:
            names = [name for name in names if name in wanted] or names
        number = 0
        for batch in file.iter_batches(_BATCH_ROWS, columns=names):
            columns = [_values(batch.column(name), name, path) for name in names]
            for row in zip(*columns, strict=True):
                number += 1
                yield f"{path}: row {number}", dict(zip(names, row, strict=True))


def _values(column: Any, name: str, path: Path) -> list[Any]:
    """The values of a column as Python has them; dates and times as text, in UTC where they have a zone."""
    import pyarrow
    from pyarrow.compute import binary_join_element_wise

    # Python's own end with the year 9999 and with microseconds, and may not know the zone.
    try:
        if pyarrow.types.is_timestamp(column.type):
            zone = "Z" if column.type.tz else ""
            column = column.cast(pyarrow.timestamp(column.type.unit)).cast(pyarrow.string())
            column = binary_join_element_wise(column, zone, "")
        elif pyarrow.types.is_date(column.type) or pyarrow.types.is_time(column.type):
            column = column.cast(pyarrow.string())
        values: list[Any] = column.to_pylist()
    except (ValueError, OverflowError) as error:  # also what is not UTF-8, and what pyarrow itself refuses
        reason = str(error).splitlines()[0]
        raise DataError(f"{path}: the column {name!r} cannot be read ({reason}); leave it out") from None
    return values
