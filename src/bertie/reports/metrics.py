"""The measurements that a run leaves behind: `metrics.jsonl`."""

import json
from pathlib import Path
from typing import Any

from bertie.base.errors import DataError


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of `metrics.jsonl`; a last line that a killed run left unfinished is left out.

    Raises:
        DataError: there is no such file, or a line is not a JSON object.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    unfinished = lines.pop()
    rows = []
    for number, line in enumerate(lines, start=1):
        row = _row(line)
        if row is None:
            raise DataError(f"{path}:{number}: not a JSON object; remove the line or restore the file")
        rows.append(row)
    last = _row(unfinished)
    return rows if last is None else [*rows, last]


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:  # not JSON, or not even UTF-8
        return None
    return row if isinstance(row, dict) else None
