"""Check and lock the path of an output before a command computes it."""

import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bertie.base.errors import BertieError, SettingsError
from bertie.base.files import check_creatable, remove_directory
from bertie.base.locks import LockedError, lock_file
from bertie.base.storage import RemotePath, cache_directory, check_writable, upload_directory, upload_file


def check_suffix(output: Path, allowed: Collection[str]) -> str:
    """Check the suffix of an output file, and return it in lower case.

    The suffix selects the format.

    Raises:
        SettingsError: it is none of the allowed ones.
    """
    suffix = output.suffix.lower()
    if suffix not in allowed:
        *others, last = allowed
        raise SettingsError(f"--out {output}: unknown format; name it {', '.join(others)} or {last}")
    return suffix


@contextmanager
def lock_output(
    path: Path, *, force: bool, inputs: Iterable[Path] = (), replaces: Collection[str] = ()
) -> Iterator[Path]:
    """Make this process the only writer of a file or directory that it writes at once.

    Temporary files that a killed writer left beside `path` are removed. The lock is the file
    `.NAME.lock` beside `path`, which is removed with the lock. For directories that a command fills
    step by step, see `lock_directory`.

    Args:
        path, force, inputs, replaces: as in `check_output`. Without `replaces`, `path` is a file.

    Yields:
        The path to write: `path`, or for a URL a local path, which is copied there after the block.

    Raises:
        SettingsError: as in `check_output`.
        BertieError: another process is writing there, or the store of a URL cannot be reached or written.
    """
    if isinstance(path, RemotePath):
        with _stage_output(path, force, inputs, replaces) as local:
            yield local
        return
    check_creatable(path)
    with ExitStack() as stack:
        try:
            stack.enter_context(lock_file(path.resolve()))
        except LockedError:
            raise BertieError(
                f"{path}: another bertie process is writing here; wait for it or choose another path"
            ) from None
        check_output(path, force=force, inputs=inputs, replaces=replaces)
        if not replaces and path.is_dir():
            raise SettingsError(f"{path}: is a folder; choose the name of a file")
        if not replaces and path.is_symlink() and not path.exists():
            raise SettingsError(f"{path}: is a broken link; remove it, or choose another name")
        yield path


@contextmanager
def _stage_output(
    url: RemotePath, force: bool, inputs: Iterable[Path], replaces: Collection[str]
) -> Iterator[Path]:
    """Yield a local path in the cache, and copy it to the URL after the block."""
    last = next(iter(replaces), None)
    if url in inputs:
        raise SettingsError(f"{url}: would replace the input; choose another name")
    if not force and RemotePath(f"{url}/{last}" if last else str(url)).exists():
        raise SettingsError(
            f"{url}: exists already; choose another URL, or replace it with --force (force=True)"
        )
    check_writable(url, is_directory=bool(last))
    with lock_output(cache_directory(url) / url.name, force=True, replaces=replaces) as local:
        yield local
        if last:
            upload_directory(local, url, last)
            remove_directory(local)
        else:
            upload_file(local, url)
            local.unlink()


def check_not_input(path: Path, inputs: Iterable[Path | None]) -> None:
    """Check that a directory to fill step by step is not an input.

    Raises:
        SettingsError: it is an input.
    """
    for input in inputs:
        if input is not None and path.exists() and input.exists() and path.samefile(input):
            raise SettingsError(f"{path}: is the input {input}; choose another directory")


def check_output(
    path: Path, *, force: bool, inputs: Iterable[Path] = (), replaces: Collection[str] = ()
) -> None:
    """Check that a file or directory can be written without destroying anything.

    An empty directory counts as missing, so a directory made with `mkdir` can be filled.

        check_output(Path("answers.csv"), force=False, inputs=[Path("questions.csv")])

    Args:
        path: the file or directory to write.
        force: whether the user asked to replace an existing output.
        inputs: the files and directories that the command reads. Missing ones are ignored.
        replaces: for an output directory, files by which `force` recognizes an earlier output of the
            command. Directories with none of them are never replaced.

    Raises:
        SettingsError: `path` exists and `force` is false; `path` would replace an input, the current
            directory or a mount point, also with `force`; or `path` cannot be created.
    """
    check_creatable(path)
    if not path.exists():
        return
    if not path.is_file() and not path.is_dir():
        raise SettingsError(f"{path}: neither a file nor a folder; choose another name")
    resolved = path.resolve()
    if os.path.ismount(resolved):
        raise SettingsError(f"{path}: is a mount point, which cannot be replaced; choose a path inside it")
    for input in inputs:
        if input.exists() and (input.samefile(path) or input.resolve().is_relative_to(resolved)):
            raise SettingsError(f"{path}: would replace the input {input}; choose another name")
    if path.is_dir() and Path.cwd().is_relative_to(resolved):
        raise SettingsError(f"{path}: contains the current folder; choose another name")
    if path.is_dir() and not any(path.iterdir()):
        return
    if not force:
        raise SettingsError(
            f"{path}: exists already; choose another name, or replace it with --force (force=True)"
        )
    if replaces and not any((path / name).exists() for name in replaces):
        raise SettingsError(
            f"{path}: has no {' or '.join(replaces)}, so --force does not replace it; choose another name"
        )
