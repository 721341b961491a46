"""Atomic writes of files and directories, JSON, checksums, and files that change while they are read.

Everything is written under a temporary name that ends in `.bertie-tmp`, which no file of a user has.
A killed process leaves it; the next writer, which holds a lock (`locks.py`), removes it.
"""

import ctypes
import errno
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from bertie.base.errors import BertieError, DataError, ModelError, SettingsError

_PROTOCOL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+:")  # of a URL, as the first part of a path

AT_FDCWD, RENAME_EXCHANGE = -100, 2  # linux/fcntl.h, linux/fs.h
TEMPORARY_SUFFIX = ".bertie-tmp"
FULL_DISK = (errno.ENOSPC, errno.EDQUOT)  # the errors of a full disk, and of a quota that is used up


def given_url(path: Path) -> str | None:
    """Return the URL that was given in place of a local path, or None."""
    if path.parts and _PROTOCOL.fullmatch(path.parts[0]) and not Path(path.parts[0]).exists():
        return re.sub(":/+", "://", str(path), count=1)  # a path has no empty parts
    return None


def local_path(path: str | Path, name: str = "path") -> Path:
    """Return a path, with the home folder in place of a leading `~`.

    A shell replaces it only if it is not quoted. A `Path` is returned as it is, because `Path("./~")`, a
    folder with this name, equals `Path("~")`.

    Args:
        path: the path.
        name: name of the argument or option, for error messages.

    Raises:
        SettingsError: the path is an empty string.
    """
    if path == "":  # which is the current folder for `Path`
        raise SettingsError(f"{name}: expected a path, got an empty string")
    return Path(os.path.expanduser(path)) if isinstance(path, str) else path


def exists(path: Path) -> bool:
    """Return whether a path exists, and report an error if the system cannot tell.

    `Path.exists` hides such errors since Python 3.14.

    Raises:
        OSError: a folder may not be searched, or the path is too long.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a null character
        return False
    except OSError as error:
        if error.errno == errno.ELOOP:
            return False
        raise
    return True


def suggest_download(path: Path) -> str:
    """Return advice on downloading a model if the missing `path` looks like a name on the Hub."""
    if not re.fullmatch(r"[\w-][\w.-]*(/[\w.-]+)?", str(path)):
        return ""
    return f"; to download a model of the Hugging Face Hub, run: hf download {path} --local-dir {path}"


def temporary_name(path: Path) -> Path:
    """Return a hidden name beside `path`, from which a rename can replace `path`."""
    return path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY_SUFFIX}")


def check_creatable(path: Path, output: Path | None = None) -> None:
    """Check that a file or directory can be created at `path`, without creating it.

    Args:
        path: the file or directory.
        output: the path that errors name, if it is not `path`.

    Raises:
        SettingsError: a folder before it is a file, or is missing and followed by `..`, permissions
            forbid it, its name is too long, or it is a URL, begins with `~` or is a link to itself.
    """
    if path.parts[:1] == ("~",) and not Path("~").exists():  # as after --out=, where shells do not replace it
        raise SettingsError(f"{output or path}: ~ is not replaced by your home folder here; write its path")
    if url := given_url(output or path):
        raise SettingsError(f"{url}: this output cannot be a URL; write to a local path and copy it")
    try:
        is_missing = not _exists(path)
        _exists(temporary_name(path.absolute()))
        folder = path.absolute().parent
        while not _exists(folder):
            folder = folder.parent
        # Once the folders are made, this could be an existing file.
        if is_missing and ".." in path.absolute().parts[len(folder.parts) :]:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        if error.errno in FULL_DISK:
            raise OSError(error.errno, error.strerror, str(output or path)) from None
        reason = (error.strerror or str(error)).lower()
        advice = f"cannot be created ({reason}); choose another path"
        if os.path.isdir(output or path):  # such as a run to resume
            advice = f"cannot be written to ({reason}); make it writable, or choose another path"
        raise SettingsError(f"{output or path}: {advice}") from None


def _exists(path: Path) -> bool:
    """Return whether a path exists.

    Raise OSError if it cannot exist, such as below a file.
    """
    with suppress(FileNotFoundError):
        path.stat()
        return True
    return False


@contextmanager
def utf8_path(path: Path) -> Iterator[Path]:
    """Yield a path of an existing file for libraries that accept only paths in UTF-8."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        with path.open("rb") as file:
            yield Path(f"/proc/self/fd/{file.fileno()}")
    else:
        yield path


def fsync(path: Path) -> None:
    """Wait until a file or a directory has reached the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        with add_path_to_errors(path):
            os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def add_path_to_errors(path: Path, temporary: Path | None = None) -> Iterator[None]:
    """Make every OSError in the block name a file, and never a temporary one.

    When the disk is full, calls on file descriptors raise errors without a file name, and
    safetensors wraps the system's errors in its own class. These errors get the name `path`.

    Args:
        path: the file or directory that the block writes.
        temporary: the name under which the block writes it. Errors that contain this name get
            `path` instead, because the temporary file is gone when the user reads the message.
    """
    try:
        yield
    except OSError as error:
        error.filename = str(error.filename or path).replace(str(temporary or path), str(path))
        raise
    except BertieError as error:
        error.args = (str(error).replace(str(temporary or path), str(path)),)
        raise
    except SafetensorError as error:
        code = re.search(r"\(os error (\d+)\)", str(error))  # the display format of Rust's std::io::Error
        if code is None:
            raise
        raise OSError(int(code[1]), os.strerror(int(code[1])), str(path)) from None


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Write a file atomically.

    Yields a temporary name, which is renamed to `path` if the block succeeds:

        with atomic_file(path) as temporary:
            temporary.write_bytes(data)

    If the block raises, `path` is left as it was and the temporary file is removed.

    Raises:
        OSError: writing failed; the error names a file.
    """
    if path.name in ("", ".."):
        path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_name(path)
    try:
        with add_path_to_errors(path, temporary):
            yield temporary
            fsync(temporary)
            temporary.replace(path)
            fsync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_directory(path: Path, has_twins: bool = False) -> Iterator[Path]:
    """Write a directory atomically.

    Yields a temporary directory, which replaces `path` if the block succeeds. If `path` is a
    symlink, its target is replaced. The temporary name depends on `path` only, so that the next
    writer removes the leftovers of a killed one. A directory must therefore have one writer at a
    time.

    Args:
        path: the directory.
        has_twins: several processes may write the same contents at the same time, such as repeated
            tasks of a cluster. Each uses another temporary name, and the first to finish wins.

    Raises:
        OSError: writing failed; the error names a file.
    """
    if path.is_symlink() or path.name in ("", ".."):
        path = path.resolve()
    temporary = _temporary_directory(path)
    if has_twins:
        temporary = temporary.with_name(f".{path.name}.{uuid.uuid4().hex}{TEMPORARY_SUFFIX}")
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        with add_path_to_errors(path, temporary):
            temporary.mkdir()
            yield temporary
            for file in temporary.rglob("*"):
                fsync(file)
            fsync(temporary)
            if has_twins:
                _rename_if_missing(temporary, path)
            else:
                _replace_directory(temporary, path)
            fsync(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def copy_directory(source: Path, target: Path) -> None:
    """Copy the files and folders of a directory into an existing one.

    `shutil.copytree` would hide the kind of an error, such as a full disk.
    """
    for path in sorted(source.rglob("*")):
        copy = target / path.relative_to(source)
        if path.is_dir():
            copy.mkdir()
        else:
            shutil.copy2(path, copy)


def remove_directory(path: Path) -> None:
    """Remove a directory, if it exists; a kill leaves all or nothing of it.

    A part of it never remains under its name.
    """
    if path.exists():
        temporary = _temporary_directory(path)
        shutil.rmtree(temporary, ignore_errors=True)
        path.rename(temporary)
        shutil.rmtree(temporary)


def _temporary_directory(path: Path) -> Path:
    return path.with_name(f".{path.name}{TEMPORARY_SUFFIX}")


def _replaced_directory(path: Path) -> Path:
    return path.with_name(f".{path.name}.old{TEMPORARY_SUFFIX}")


def _rename_if_missing(new: Path, path: Path) -> None:
    """Rename `new` to `path`, unless there is a directory already, which is not empty."""
    try:
        new.rename(path)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise


def _replace_directory(new: Path, path: Path) -> None:
    """Rename `new` to `path`, or swap the two if `path` exists."""
    if not path.exists():
        new.rename(path)
    elif not _exchange(new, path):
        # A kill between these two renames leaves only the old directory; the next writer restores it.
        replaced = _replaced_directory(path)
        shutil.rmtree(replaced, ignore_errors=True)
        path.rename(replaced)
        new.rename(path)
        replaced.rename(new)


def _exchange(first: Path, second: Path) -> bool:
    """Swap two names in one system call, and return whether it succeeded.

    Both names exist at all times. Linux can do this, except on some network file systems. Python
    has no function for this call.
    """
    libc = ctypes.CDLL(None)
    names = os.fsencode(first), os.fsencode(second)
    return (
        hasattr(libc, "renameat2")
        and libc.renameat2(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE) == 0
    )


def remove_temporary_files(path: Path) -> None:
    """Remove the temporary files of killed writers inside a directory.

    They may be at any depth. The caller must be the only writer of the directory.
    """
    _remove(path.rglob(f".*{TEMPORARY_SUFFIX}"))


def remove_temporary_names(path: Path) -> None:
    """Remove the temporary files that killed writers left beside a path.

    The caller must be the only writer of `path`.
    """
    replaced = _replaced_directory(path)
    if replaced.exists() and not path.exists():
        replaced.rename(path)
    name = rf"\.{re.escape(path.name)}(\.\d+|\.old)?{re.escape(TEMPORARY_SUFFIX)}"
    _remove(file for file in path.parent.glob(f".*{TEMPORARY_SUFFIX}") if re.fullmatch(name, file.name))


def _remove(leftovers: Iterable[Path]) -> None:
    for leftover in list(leftovers):
        if leftover.is_dir() and not leftover.is_symlink():
            shutil.rmtree(leftover)
        else:
            leftover.unlink(missing_ok=True)  # it may be gone with the directory around it


def write_text(path: Path, text: str) -> None:
    """Write a text as UTF-8, atomically.

    A lone surrogate, which JSON can contain but UTF-8 cannot, is written as its escape sequence.
    """
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON, atomically."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file, which may begin with a byte order mark.

    Raises:
        DataError: the file is missing, is a directory or is not JSON.
    """
    try:
        return json.loads(path.read_bytes().decode("utf-8-sig"))  # a URL has no `read_text`
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise DataError(f"{path}: is a directory; expected a file") from None
    except NotADirectoryError:
        raise DataError(f"{path}: cannot be read (its folder is a file)") from None
    except RecursionError:
        raise DataError(f"{path}: not usable JSON (nested too deeply)") from None
    except ValueError as error:  # not JSON, not UTF-8, or a number of thousands of digits
        raise DataError(f"{path}: not valid JSON ({error})") from None


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file of a model directory.

    Returns:
        The object; an empty one if the file does not exist.

    Raises:
        DataError: the file is a directory or not JSON.
        ModelError: the file is JSON, but not an object.
    """
    value = read_json(path) if path.exists() else {}
    if not isinstance(value, dict):
        raise ModelError(f"{path}: not a JSON object; write the model directory again")
    return value


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def reject_changes(*paths: Path) -> Iterator[None]:
    """Check that files stay the same while they are read in the block.

    Raises:
        DataError: the size of a file or the time of its last change is another one at the end.
    """
    stamps = {path: file_stamp(path) for path in paths}
    yield
    for path, before in stamps.items():
        if file_stamp(path) not in (None, before):
            raise DataError(
                f"{path}: changed while it was read; wait until it is complete, then run the command again"
            )


def file_stamp(path: Path) -> tuple[int, int] | None:
    """Return the size and the time of the last change of a file; None if it is gone, or a pipe."""
    with suppress(FileNotFoundError):
        status = path.stat()
        if stat.S_ISREG(status.st_mode):
            return status.st_size, status.st_mtime_ns
    return None
