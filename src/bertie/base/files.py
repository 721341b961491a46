"""Files that are whole or not there: atomic writes, hashes, JSON, a lock on a directory."""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bertie.base.errors import BertieError, DataError


def temporary_name(path: Path) -> Path:
    """The name under which `path` is written before it is renamed: beside it, so that a rename suffices."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def sync(path: Path) -> None:
    """Wait until a file or a directory has reached the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Give a temporary name, which becomes `path` when the block ends well and is removed otherwise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_name(path)
    try:
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
    one writer at a time. A kill between the two renames leaves the old content under the name `.NAME.old`.
    """
    temporary, replaced = path.with_name(f".{path.name}.tmp"), path.with_name(f".{path.name}.old")
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir()
        yield temporary
        for file in temporary.rglob("*"):
            sync(file)
        sync(temporary)
        if path.exists():
            shutil.rmtree(replaced, ignore_errors=True)
            path.rename(replaced)
        temporary.rename(path)
        sync(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    shutil.rmtree(replaced, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8, atomically."""
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        DataError: the file is missing or is not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not valid JSON ({error})") from None


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def locked_directory(path: Path) -> Iterator[None]:
    """Hold `path` for this process alone; the lock goes when the process does, however it ends.

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
        yield
