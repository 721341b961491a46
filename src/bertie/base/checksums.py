"""Write and verify the SHA-256 sums of the files of a directory.

`SHA256SUMS` is in the format of sha256sum, so that `sha256sum -c SHA256SUMS` checks a directory without
bertie. It lists all files but README.md, which people edit. A directory without it loads unverified.
"""

import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path, PurePath

from bertie.base.errors import BertieError, ModelError
from bertie.base.files import sha256, write_text

SUMS_FILE = "SHA256SUMS"
UNLISTED = (SUMS_FILE, "README.md")
LAST_LISTED = ("vocab.txt", "state.json")  # of a tokenizer, model or export, and of a checkpoint
# Files of weights, which are large. They are verified in a thread while they are loaded.
WEIGHTS = ("*.safetensors", "*.onnx", "*.index", "*.data-*")
NO_VERIFY = "BERTIE_NO_VERIFY"  # in the environment: 1 skips verification in a process and its children

_is_verifying = ContextVar("is_verifying", default=True)


def write_sums(directory: Path) -> None:
    """Write the sums of all files of a directory."""
    files = sorted(str(file.relative_to(directory)) for file in directory.rglob("*") if file.is_file())
    listed = [name for name in files if name not in UNLISTED]
    write_text(directory / SUMS_FILE, "".join(f"{sha256(directory / name)}  {name}\n" for name in listed))


def find_unlisted(directory: Path) -> Path | None:
    """Return a file that the sums of its directory do not list; None if all are.

    README.md need not be listed.

    Raises:
        ModelError: SHA256SUMS is damaged.
    """
    sums = directory / SUMS_FILE
    known = {*UNLISTED, *(_read_sums(sums) if sums.is_file() else ())}
    paths = (path for path in sorted(directory.rglob("*")) if path.is_symlink() or not path.is_dir())
    return next((path for path in paths if str(path.relative_to(directory)) not in known), None)


@contextmanager
def verification(is_enabled: bool) -> Iterator[None]:
    """Verify directories in this block, or not."""
    token = _is_verifying.set(is_enabled)
    try:
        yield
    finally:
        _is_verifying.reset(token)


def verify(directory: Path, *, weights: bool = False, remedy: str = "") -> None:
    """Compare the files of a directory with its sums.

    Args:
        directory: the directory; without SHA256SUMS, nothing is compared.
        weights: compare the files of weights, instead of all others.
        remedy: what to do about a file that differs.

    Raises:
        ModelError: a file has changed or is missing, or SHA256SUMS itself is damaged.
    """
    for name, expected in _listed(directory).items():
        if any(PurePath(name).match(pattern) for pattern in WEIGHTS) != weights:
            continue
        file = directory / name
        problem = "missing, but" if not file.is_file() else "does not match its checksum"
        if not file.is_file() or sha256(file) != expected:
            default = (
                f"copy the directory again, or accept the change: delete {directory / SUMS_FILE}, or pass "
                f"--no-verify (verify=False)"
            )
            raise ModelError(f"{file}: {problem} in {SUMS_FILE}; {remedy or default}")


@contextmanager
def weights_verified(directory: Path) -> Iterator[None]:
    """Verify the weights of a directory in a thread, while the block loads them.

    Raises:
        ModelError: as `verify`, at the end of the block, or in place of the block's own error, of which
            the damage is the cause.
    """
    listed = _listed(directory)
    if not listed:
        yield
        return
    with ThreadPoolExecutor(1) as pool:
        verified = pool.submit(verify, directory, weights=True)
        try:
            yield
        except BertieError:
            verified.result()
            raise
        verified.result()


def _listed(directory: Path) -> dict[str, str]:
    """Return the sum of each file in SHA256SUMS.

    There are none without this file or without verification.

    Raises:
        ModelError: SHA256SUMS is damaged, or was cut after a line.
    """
    file = directory / SUMS_FILE
    if not _is_verifying.get() or os.environ.get(NO_VERIFY) == "1" or not file.exists():
        return {}
    sums = _read_sums(file)
    for name in LAST_LISTED:
        if name not in sums and (directory / name).exists():
            raise ModelError(
                f"{file}: does not list {name}, so its last lines are missing; copy the directory again, or "
                f"delete this file"
            )
    return sums


def _read_sums(file: Path) -> dict[str, str]:
    sums = {}
    try:
        lines = file.read_text(encoding="utf-8").splitlines() or [""]  # bertie writes no empty ones
    except (UnicodeDecodeError, IsADirectoryError):
        lines = [""]
    for number, line in enumerate(lines, start=1):
        match = re.fullmatch(r"([0-9a-f]{64})  (.+)", line)
        if match is None or PurePath(match[2]).is_absolute() or ".." in PurePath(match[2]).parts:
            raise ModelError(f"{file}, line {number}: damaged; copy the directory again, or delete this file")
        sums[match[2]] = match[1]
    return sums
