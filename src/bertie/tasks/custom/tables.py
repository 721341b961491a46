"""Tables of custom examples: read their rows, and check the values."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bertie.base.compression import is_compressed, open_binary
from bertie.base.errors import BertieError, DataError, SettingsError
from bertie.base.memory import Source, is_missing
from bertie.base.rows import Rows, format_suffix, read_rows, report_skipped
from bertie.base.schemas import shorten
from bertie.base.texts import is_blank

# {"version": …, "data": [{"title": …, "paragraphs": […, indented or not.
_SQUAD_START = re.compile(rb'(\xef\xbb\xbf)?\s*\{[^][]*"data"\s*:\s*\[\s*\{[^][]*"paragraphs"\s*:')
_START_BYTES = 1 << 16


@dataclass(frozen=True)
class CustomFiles:
    """Mixin for tasks on custom files, which have no official names.

    on_error  what to do at a row of a table that is malformed or incomplete: stop, or skip and report it
    """

    on_error: Literal["stop", "skip"] = "stop"

    def file(self, data: Path, part: str) -> Path:
        """Return `data`, the file itself."""
        return data

    def _check_stops(self, path: Path, format: str) -> None:
        """Raise SettingsError if rows are to be skipped in a file that is not a table."""
        if self.on_error == "skip":
            raise SettingsError(
                f"{path}: --on-error skip (on_error) is for rows of tables, and this file is {format}; "
                f"correct the file, and leave the option out"
            )

    def _read_rows(
        self,
        source: Source,
        columns: Mapping[str, str],
        *checks: Callable[[Rows, int], object],
        optional: Sequence[str] = (),
    ) -> Rows:
        """Read the rows of a table that pass all checks.

        Args:
            source: the file, or the table in memory.
            columns: the option that chooses each column, for an error message.
            *checks: functions that raise DataError for a bad row. Each one sees only the rows that the
                checks before it accept.
            optional: the names of columns that may not exist; see `read_rows`.

        Raises:
            SettingsError: a column is missing.
            DataError: the table cannot be read (see `read_rows`), or a row is not skipped, or all would be.
        """
        if isinstance(source, Path) and format_suffix(source) == ".json":
            raise DataError(
                f"{source}: a .json file is not a table; write each row on a line of a .jsonl file (an "
                f"array: jq --compact-output '.[]'), or, for a file in the form of SQuAD, pass --kind "
                f"questions (kind='questions')"
            )
        if isinstance(source, Path) and format_suffix(source) == ".conll":
            raise DataError(
                f"{source}: a .conll file has tagged words; pass --kind tags (kind='tags'), or another file"
            )
        skipped: list[DataError] | None = [] if self.on_error == "skip" else None
        try:
            rows = read_rows(source, list(columns), skipped, columns, optional)
        except BertieError:
            if isinstance(source, Path) and format_suffix(source) in (".jsonl", ".ndjson"):
                _reject_squad(source)
            raise
        for check in checks:
            kept = []
            for i in range(len(rows)):
                try:
                    check(rows, i)
                except DataError as error:
                    if skipped is None:
                        raise
                    skipped.append(error)
                else:
                    kept.append(i)
            if not kept:
                assert skipped
                raise skipped[0]
            if len(kept) < len(rows):
                rows = rows.select(kept)
        report_skipped(source, skipped or (), len(rows))
        return rows


def _reject_squad(path: Path) -> None:
    """Raise DataError if a file that cannot be read as a table begins as SQuAD's JSON does."""
    with open_binary(path) as file:
        start = file.read(_START_BYTES)
    if _SQUAD_START.match(start):
        rename = f"rename it to {path.with_suffix('.json').name}"
        if is_compressed(path):
            rename = f"decompress it to {path.with_suffix('').with_suffix('.json').name}"
        raise DataError(
            f"{path}: seems to be one JSON object in the form of SQuAD, not a table; {rename}, and pass "
            f"--kind questions (kind='questions')"
        ) from None


def check_text(rows: Rows, i: int, column: str) -> None:
    """Raise DataError unless the value is a text that is not blank."""
    text = rows.columns[column][i]
    if not isinstance(text, str) or is_blank(text):
        problem, advice = f"{shorten(text)} is not text", "write it as a string"
        if isinstance(text, str) or is_missing(text):
            problem, advice = "no text", "add it or delete the row"
        raise DataError(f"{rows.location(i)}: {problem} in the column {column!r}; {advice}")


def check_strings(rows: Rows, i: int, column: str, role: str) -> list[str]:
    """Return a list of strings; raise DataError if the value is something else.

    `role` names the strings in messages, such as "words".
    """
    value = rows.columns[column][i]
    if value == [] or is_missing(value):
        raise DataError(f"{rows.location(i)}: no {role} in the column {column!r}; add them or delete the row")
    if not (isinstance(value, list) and all(isinstance(item, str) for item in value)):
        advice = 'write one such as ["a", "b"]'
        if isinstance(value, str):
            advice += ", in a .jsonl or .parquet file"
        elif isinstance(value, list) and all(isinstance(item, int) for item in value):
            advice = (
                f"if they are numbers of {role}, replace each by its name, or pass a datasets.Dataset that "
                f"has the names"
            )
        elif isinstance(value, list) and any(map(is_missing, value)):
            number = [*map(is_missing, value)].index(True) + 1
            advice = f"item {number} is missing (pandas reads NA as missing unless keep_default_na=False)"
        raise DataError(
            f"{rows.location(i)}: {shorten(value)} in the column {column!r} is not a list of strings; "
            f"{advice}"
        )
    return value
