"""Locks between processes.

A lock is `flock` on an open file. The kernel releases it when the process ends, even if the process
is killed, so a lock file that a killed process left blocks nobody. Otherwise the lock file is
removed when the lock is released, and so are directories that were made for it and stayed empty.
"""

import fcntl
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import TextIO

from bertie.base.errors import BertieError, SettingsError
from bertie.base.files import check_creatable, remove_temporary_files, remove_temporary_names

# The directories that the callers of the current function hold. Other threads do not see them.
_held: ContextVar[frozenset[Path]] = ContextVar("_held", default=frozenset())


class LockedError(Exception):
    """Another process holds the lock.

    This is not a `BertieError`, because callers handle it.
    """


@contextmanager
def lock_directory(path: Path, shared: bool = False) -> Iterator[None]:
    """Make this process the only writer of a directory, which is created if missing.

    With `shared`, other processes may write there that also share the lock; these must write different
    files.

    The lock is the file `.lock` inside the directory. Partly written files that a killed writer
    left in the directory are removed. Inside the block, locking the same directory again has no
    effect.

    Raises:
        BertieError: another process is writing there.
        SettingsError: the directory cannot be created or written to.
    """
    before, key = _held.get(), path.absolute()
    if key in before:
        yield
        return
    check_creatable(path / ".lock", path)
    with ExitStack() as stack:
        try:
            stack.enter_context(_hold(path / ".lock", shared=shared))
        except LockedError:
            raise BertieError(
                f"{path}: another bertie process is writing here; wait for it or choose another path"
            ) from None
        if not shared:
            remove_temporary_files(path)
        _held.set(before | {key})
        try:
            yield
        finally:
            _held.set(before)


@contextmanager
def lock_file(path: Path, wait: bool = False) -> Iterator[None]:
    """Hold an exclusive lock on a path, which need not exist.

    The lock is the file `.NAME.lock` beside the path, so it is independent of
    `lock_directory(path)`. Temporary files that a killed writer left beside the path are removed.

    Args:
        path: the file or directory that only the holder of the lock may write.
        wait: wait for the lock, with a line on stderr, instead of raising.

    Raises:
        LockedError: another process holds the lock, and `wait` is False.
        SettingsError: something else has the name of the lock, such as a link.
    """
    with _hold(path.with_name(f".{path.name}.lock"), path if wait else None):
        remove_temporary_names(path)
        yield


def remove_stale_locks(path: Path) -> None:
    """Remove the locks that a killed process left for a complete file or directory."""
    for lock in (path.with_name(f".{path.name}.lock"), path / ".lock"):
        if lock.exists():
            with suppress(LockedError), _hold(lock):  # another process may hold it
                pass


@contextmanager
def _hold(file: Path, waits_for: Path | None = None, shared: bool = False) -> Iterator[None]:
    """Hold the lock `file`; wait for it if `waits_for` is given.

    `waits_for` is the path that the lock protects.
    """
    missing = [folder for folder in file.parents if not folder.exists()]
    try:
        with _open_locked(file, waits_for, shared) as opened:
            try:
                yield
            finally:
                # The last holder of a shared lock removes its file.
                with suppress(OSError):  # the folder may be read-only by now
                    if not shared or _try_lock(opened):
                        file.unlink()
    finally:
        for folder in missing:
            with suppress(OSError):  # it is not empty
                folder.rmdir()


def _open_locked(file: Path, waits_for: Path | None, shared: bool) -> TextIO:
    """Open and lock a file.

    Open it again if its former holder removed it in the meantime.
    """
    while True:
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            opened = _open_lock_file(file)
        except FileNotFoundError:  # the former holder removed the empty folder
            continue
        try:
            if not _try_lock(opened, shared):
                if waits_for is None:
                    raise LockedError(f"{file}: locked by another process")
                print(
                    f"{waits_for}: waiting for the process that is writing here", file=sys.stderr, flush=True
                )
                fcntl.flock(opened, fcntl.LOCK_EX)
            if os.fstat(opened.fileno()).st_nlink:
                return opened
        except BaseException:
            opened.close()
            raise
        opened.close()


def _open_lock_file(file: Path) -> TextIO:
    """Open a lock file, which is empty, or create it.

    Raises:
        SettingsError: a link, a folder or a file with a content has this name.
        FileNotFoundError: the folder does not exist.
    """
    with suppress(FileNotFoundError):
        status = file.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_size:
            raise SettingsError(
                f"{file}: not a lock of bertie, which is an empty file; remove it, or choose another output"
            )
    return os.fdopen(os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666), "r+")


def _try_lock(file: TextIO, shared: bool = False) -> bool:
    """Lock an open file without waiting, and return whether it succeeded."""
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
