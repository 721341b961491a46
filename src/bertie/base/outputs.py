"""Check the place of an output before a command computes what it writes there."""

import errno
import tempfile
from collections.abc import Iterable
from pathlib import Path

from bertie.base.errors import SettingsError
from bertie.base.files import temporary_name


def check_output(
    path: Path, *, force: bool, inputs: Iterable[Path] = (), replaces: str | None = None
) -> None:
    """Check that a file or directory can be written without destroying anything.

    An empty directory counts as missing, so a directory made with `mkdir` can be filled.

        check_output(Path("answers.csv"), force=False, inputs=[Path("questions.csv")])

    Args:
        path: the file or directory to write.
        force: whether the user asked to replace what is there.
        inputs: the files and directories that the command reads. Those that do not exist are ignored.
        replaces: for an output directory, a file by which `force` recognizes an earlier output of the
            command. Other directories are never replaced.

    Raises:
        SettingsError: `path` exists and `force` is false; `path` would replace an input or the
            current directory, also with `force`; or `path` cannot be created.
    """
    if not _exists(path):
        _check_creatable(path)
        return
    if not path.is_file() and not path.is_dir():
        raise SettingsError(f"{path}: neither a file nor a folder; choose another name")
    resolved = path.resolve()
    for input in inputs:
        if input.exists() and (
            input.samefile(path)
            or input.resolve().is_relative_to(resolved)
            or resolved.is_relative_to(input.resolve())
        ):
            raise SettingsError(f"{path}: would replace the input {input}; choose another name")
    if path.is_dir() and not any(path.iterdir()):
        _check_creatable(path)
        return
    if path.is_dir() and Path.cwd().is_relative_to(resolved):
        raise SettingsError(f"{path}: contains the current folder; choose another name")
    if not force:
        raise SettingsError(f"{path}: exists already; choose another name, or replace it with --force")
    if replaces is not None and not (path / replaces).exists():
        raise SettingsError(f"{path}: has no {replaces}, so --force does not replace it; choose another name")
    _check_creatable(path)


def _exists(path: Path) -> bool:
    """Return whether a path exists; False if it cannot exist, as below a file."""
    try:
        return path.exists()
    except OSError:  # permission denied, or a name that is too long
        return False


def _check_creatable(path: Path) -> None:
    """Raise SettingsError if no file can be created at `path`, without creating one there."""
    try:
        _exists_or_raise(temporary_name(path.absolute()))
        folder = path.absolute().parent
        while not _exists_or_raise(folder):
            folder = folder.parent
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OSError(error.errno, error.strerror, str(path)) from None
        reason = (error.strerror or str(error)).lower()
        raise SettingsError(f"{path}: cannot be created ({reason}); choose another path") from None


def _exists_or_raise(path: Path) -> bool:
    try:
        path.stat()
    except FileNotFoundError:
        return False
    return True
