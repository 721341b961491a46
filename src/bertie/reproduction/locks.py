"""Processes that share an `out` take what they do, one each: a cell, a pre-training, the corpus."""

import fcntl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Taken(Exception):  # noqa: N818 (it is no error)
    """Another process is at this."""


@contextmanager
def taken(path: Path, wait: bool = False) -> Iterator[None]:
    """Have `path`, which need not exist, for this process alone while the block runs.

    It is free again when the process ends, however it ends. The lock stands beside `path`: a run locks its
    own directory.

    Raises:
        Taken: another process has it, and this one is not to wait.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f".{path.name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not wait:
                raise Taken from None
            print(f"waiting for another process that makes {path}", file=sys.stderr, flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
