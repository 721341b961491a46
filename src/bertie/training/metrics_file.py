"""Read and write metrics.jsonl, the log of a run: one JSON object per line.

JSON has no NaN and no infinity. A value that is not finite, such as the loss of a run that has diverged, is
null in the file.
"""

import json
import math
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from bertie import __version__
from bertie.base.errors import DataError
from bertie.base.files import add_path_to_errors, fsync
from bertie.base.progress import spell_duration


def read_metrics(path: Path, needed: Mapping[str, Sequence[str]] | None = None) -> list[dict[str, Any]]:
    """Read the rows of a metrics.jsonl.

    An incomplete last line, which a killed run may leave, is skipped. A value that is null becomes NaN.

    Args:
        path: the file.
        needed: kinds of which there must be a row, such as "train", because a finished run has logged
            them; and by kind, the keys of numbers that its last row must have.

    Raises:
        DataError: the file is missing or a directory, another line is not a row, or a row or a number that
            is needed is missing.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (IsADirectoryError, NotADirectoryError):
        raise DataError(f"{path}: not a file; restore the file") from None
    last_row = _parse_row(lines.pop())  # no newline ends this line: it is empty, torn or just complete
    rows = []
    for number, line in enumerate(lines, start=1):
        row = _parse_row(line)
        if row is None:
            problem = "not a row of metrics; restore the file from a copy, or delete this line"
            raise DataError(f"{path}, line {number}: {problem}")
        rows.append(row)
    if last_row is not None:
        rows.append(last_row)
    for kind, keys in (needed or {}).items():
        numbers = [number for number, row in enumerate(rows, start=1) if row["kind"] == kind]
        if not numbers:
            raise DataError(f"{path}: no row of the kind {kind!r}; restore the file from a copy")
        last = rows[numbers[-1] - 1]
        for key in keys:
            if not isinstance(last.get(key), int | float):
                problem = f"{key!r} is missing or not a number"
                raise DataError(f"{path}, line {numbers[-1]}: {problem}; restore the file from a copy")
    return rows


def _parse_row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):  # not JSON, or not even UTF-8
        return None
    if not isinstance(row, dict) or not _is_row(row):
        return None
    return {key: math.nan if value is None else value for key, value in row.items()}


def _finite_or_none(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _is_row(row: Mapping[str, Any]) -> bool:
    """Return whether an object has the keys that every row has."""
    return isinstance(row.get("kind"), str) and isinstance(row.get("step"), int)


class MetricsFile:
    """A run's metrics.jsonl, open for appending inside a `with` block."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> Self:
        self._file = self.path.open("ab")
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def append(self, row: dict[str, Any]) -> None:
        """Append a row and flush it to the operating system."""
        finite = {key: _finite_or_none(value) for key, value in row.items()}
        with add_path_to_errors(self.path):
            self._file.write(json.dumps(finite).encode() + b"\n")
            self._file.flush()

    def sync(self) -> int:
        """Wait until all rows are on the disk; return the size of the file in bytes."""
        fsync(self.path)
        return self._file.tell()

    def truncate(self, size: int, step: int) -> bool:
        """Drop the rows that were logged after a checkpoint, and return whether all earlier ones are there.

        Some are missing if the file was cut, edited or removed.

        Args:
            size: the size of the file when the checkpoint was written, in bytes.
            step: the step of the checkpoint.
        """
        kept = 0
        content = self.path.read_bytes()
        for line in content[:size].splitlines(keepends=True):
            row = _parse_row(line)  # None for a damaged line, which `read_metrics` reports
            if line.endswith(b"\n") and (row is None or row["step"] <= step):
                kept += len(line)
        if kept < len(content):  # even to its own size, truncating would change the run's date
            self._file.truncate(kept)
            self._file.seek(0, os.SEEK_END)  # truncating leaves the position behind the new end
        return kept == size


def last_change(run: Path) -> datetime:
    """Return when a run logged its last row, in UTC."""
    return datetime.fromtimestamp((run / "metrics.jsonl").stat().st_mtime, UTC)


def run_facts(run: Path, rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the facts about a run of training.

    These are its directory, date and duration, and bertie's version.

    Args:
        run: the run's directory.
        rows: the rows of its metrics.jsonl.
    """
    seconds = next(row["seconds"] for row in reversed(rows) if row["kind"] == "train")
    return {
        "run": str(run),
        "date": f"{last_change(run):%Y-%m-%d %H:%M} UTC",
        "training time": spell_duration(seconds),
        "bertie": __version__,
    }
