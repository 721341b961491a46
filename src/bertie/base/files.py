"""Files that are whole or not there: atomic writes, hashes, JSON, a lock on a directory."""

import ctypes
import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from bertie.base.errors import BertieError, DataError, ModelError

AT_FDCWD, RENAME_EXCHANGE = -100, 2  # linux/fcntl.h, linux/fs.h


def temporary_name(path: Path) -> Path:
    """The name under which `path` is written before it is renamed: beside it, so that a rename suffices."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def sync(path: Path) -> None:
    """Wait until a file or a directory has reached the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        with write_errors(path):
            os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def write_errors(path: Path, temporary: Path | None = None) -> Iterator[None]:
    """Make what the system refuses while `path` is written an OSError that names a file.

    A full disk is noticed by calls that know no name, and by safetensors, which has an error of its own.
    Where `path` is written under a temporary name, which will be gone, the error has the lasting one.
    """
    try:
        yield
    except OSError as error:
        error.filename = str(error.filename or path).replace(str(temporary or path), str(path))
        raise
    except SafetensorError as error:
        number = re.search(r"\(os error (\d+)\)", str(error))  # as Rust's std::io::Error shows itself
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from None


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Give a temporary name, which becomes `path` when the block ends well and is removed otherwise.

    Raises:
        OSError: the system refuses to write; it names a file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_name(path)
    try:
        with write_errors(path, temporary):
            yield temporary
            sync(temporary)
            temporary.replace(path)
            sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """Give a temporary directory, which takes the place of `path` when the block ends well.

    Its name is always the same, so what a killed process left is cleared by the next one: a directory has
    one writer at a time.

    Raises:
        OSError: the system refuses to write; it names a file.
    """
    if path.is_symlink():  # what it points to is replaced, not the link
        path = path.resolve()
    temporary = path.with_name(f".{path.name}.tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        with write_errors(path, temporary):
            temporary.mkdir()
            yield temporary
            for file in temporary.rglob("*"):
                sync(file)
            sync(temporary)
            _replace_directory(temporary, path)
            sync(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _replace_directory(new: Path, path: Path) -> None:
    """Give `new` the name `path`; what stood there has the name `new` afterwards."""
    if not path.exists():
        new.rename(path)
    elif not _exchange(new, path):
        # A kill between these two leaves what stood there under the name `.NAME.old`.
        replaced = path.with_name(f".{path.name}.old")
        shutil.rmtree(replaced, ignore_errors=True)
        path.rename(replaced)
        new.rename(path)
        replaced.rename(new)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two names in one step, so that both are there at any time; say whether the system can.

    Linux can, but for some network file systems; Python has no function for it.
    """
    libc = ctypes.CDLL(None)
    names = os.fsencode(one), os.fsencode(other)
    return (
        hasattr(libc, "renameat2")
        and libc.renameat2(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE) == 0
    )


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8, atomically; half of a surrogate pair, which JSON can name, as its escape."""
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        DataError: the file is missing, a folder or not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise DataError(f"{path}: a folder, where a file is wanted") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not valid JSON ({error})") from None


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in one of a model's files, empty where there is no file.

    Raises:
        DataError: the file is not JSON.
        ModelError: it holds no object.
    """
    value = read_json(path) if path.exists() else {}
    if not isinstance(value, dict):
        raise ModelError(f"{path}: not a JSON object; write the directory anew")
    return value


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def lock_directory(path: Path) -> Iterator[None]:
    """Hold `path` for this process alone; the lock goes when the process does, however it ends.

    What killed processes left half-written in it is cleared.

    Raises:
        BertieError: another process holds it.
    """
    path.mkdir(parents=True, exist_ok=True)
    with (path / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            message = f"{path}: another bertie process is writing here; wait for it or name another place"
            raise BertieError(message) from None
        clear_leftovers(path)
        yield


def clear_leftovers(directory: Path) -> None:
    """Remove what killed processes left half-written in `directory`, whose only writer this process is."""
    for leftover in directory.glob(".*.tmp"):
        if leftover.is_dir() and not leftover.is_symlink():
            shutil.rmtree(leftover)
        else:
            leftover.unlink()
