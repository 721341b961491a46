"""Locks between processes.

A lock is `flock` on an open file. The kernel releases it when the process ends, even if the process
is killed, so a lock file that stays on disk does not block anyone.
"""

import fcntl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from bertie.base.errors import BertieError
from bertie.base.files import remove_temporary_files


class LockedError(Exception):
    """Another process holds the lock.

    This is not a `BertieError`, because callers handle it.
    """


@contextmanager
def lock_directory(path: Path) -> Iterator[None]:
    """Make this process the only writer of a directory, which is created if missing.

    The lock is the file `.lock` inside the directory. Partly written files that a killed writer
    left in the directory are removed.

    Raises:
        BertieError: another process is writing there.
    """
    path.mkdir(parents=True, exist_ok=True)
    with (path / ".lock").open("w") as file:
        if not _try_lock(file):
            raise BertieError(
                f"{path}: another bertie process is writing here; wait for it or choose another directory"
            )
        remove_temporary_files(path)
        yield


@contextmanager
def lock_file(path: Path, wait: bool = False) -> Iterator[None]:
    """Hold an exclusive lock on a path, which need not exist.

    The lock is the file `.NAME.lock` beside the path, so it is independent of
    `lock_directory(path)`.

    Args:
        path: the file or directory that only the holder of the lock may write.
        wait: wait for the lock, with a line on stderr, instead of raising.

    Raises:
        LockedError: another process holds the lock, and `wait` is False.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f".{path.name}.lock").open("w") as file:
        if not _try_lock(file):
            if not wait:
                raise LockedError(f"{path}: locked by another process")
            print(f"{path}: waiting for the process that is writing here", file=sys.stderr, flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _try_lock(file: TextIO) -> bool:
    """Lock an open file without waiting, and return whether it succeeded."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
