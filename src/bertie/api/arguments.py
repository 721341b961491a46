"""Helpers for the arguments of the API: paths, settings as keywords, worker processes."""

import os
import sys
from collections.abc import Iterable, Mapping
from itertools import count, islice
from pathlib import Path
from typing import Any

from bertie.base.settings import Tree, merge

PathLike = str | Path
MAX_MESSAGES = 10  # about skipped inputs; all of them are in a file


def as_paths(paths: PathLike | Iterable[PathLike]) -> list[Path]:
    """Return a list of paths, given one path or several."""
    return [Path(path) for path in ([paths] if isinstance(paths, str | Path) else paths)]


def nest_settings(*layers: Mapping[str, Any] | None) -> Tree:
    """Merge settings into one tree; a dotted key belongs to an inner section.

    Later layers take precedence.

    Example:
        >>> nest_settings({"batch_size": 64}, {"optimizer.learning_rate": 1e-3})
        {'batch_size': 64, 'optimizer': {'learning_rate': 0.001}}
    """
    tree: Tree = {}
    for key, value in (item for layer in layers for item in (layer or {}).items()):
        *sections, name = key.split(".")
        branch: Tree = {name: value}
        for section in reversed(sections):
            branch = {section: branch}
        tree = merge(tree, branch)
    return tree


def free_directory(name: str) -> Path:
    """Return the first of `name`, `name-2`, `name-3`, … that does not exist."""
    candidates = (Path(name if number == 1 else f"{name}-{number}") for number in count(1))
    return next(path for path in candidates if not path.exists())


def available_cpus() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0))


def print_skipped(counts: Mapping[str, int], messages: Iterable[str]) -> None:
    """Print the first messages about skipped inputs, and a count of each reason."""
    for message in islice(messages, MAX_MESSAGES):
        print(message, file=sys.stderr)
    if sum(counts.values()) > MAX_MESSAGES:
        print("…", file=sys.stderr)
    if counts:
        reasons = (f"{count:,} {reason.replace('_', ' ')}" for reason, count in counts.items())
        print(f"skipped: {', '.join(reasons)}", file=sys.stderr)
