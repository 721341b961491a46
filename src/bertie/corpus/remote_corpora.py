"""Read and write corpora on object stores.

A corpus is made locally and copied there, or copied from there to be read. The shards of a corpus are mapped
into memory, so they must be local files.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bertie.base.errors import DataError, SettingsError
from bertie.base.files import read_json, remove_directory
from bertie.base.locks import lock_file
from bertie.base.storage import (
    RemotePath,
    cache_directory,
    check_writable,
    download,
    is_copy,
    upload_directory,
)
from bertie.corpus.manifest import MANIFEST_FILE, read_manifest


def fetch_corpus(path: Path) -> Path:
    """Return the local folder of a corpus.

    The corpus of a URL is copied to the cache, unless it is there. Files of the cache with the size and the
    SHA-256 of the manifest are not copied again.

    Raises:
        DataError: there is no corpus at the URL, or a file arrives with another SHA-256.
        BertieError: the store cannot be reached.
    """
    if not isinstance(path, RemotePath):
        return path
    copy = cache_directory(path) / "copy"
    copy.mkdir(parents=True, exist_ok=True)
    with lock_file(copy, wait=True):
        incoming = copy / ".manifest.json.bertie-tmp"
        try:
            download(RemotePath(f"{path}/{MANIFEST_FILE}"), incoming)
        except FileNotFoundError:
            raise DataError(f"{path}: not a prepared corpus; run `bertie prepare --out {path}`") from None
        manifest = read_manifest(path, read_json(incoming))
        missing = {
            name: record
            for name, record in manifest.files.items()
            if not is_copy(copy / name, record.size, record.sha256)
        }
        if missing:
            size = sum(record.size for record in missing.values()) / 1e6
            print(f"copying {path} ({size:,.1f} MB) to {copy}, verified by SHA-256", file=sys.stderr)
        for name, record in missing.items():
            try:
                download(RemotePath(f"{path}/{name}"), copy / name)
            except FileNotFoundError:
                raise DataError(f"{path}/{name}: missing; prepare the corpus again") from None
            if not is_copy(copy / name, record.size, record.sha256):
                raise DataError(
                    f"{path}/{name}: damaged (its SHA-256 differs from the manifest); prepare the corpus "
                    f"again"
                )
        incoming.replace(copy / MANIFEST_FILE)
    return copy


@contextmanager
def staged_output(target: Path, force: bool, last: str) -> Iterator[Path]:
    """Yield a local folder for the output of a command, and copy it to its URL.

    A folder for a local path is the path itself. The folder for a URL is in the cache; it stays if the
    block or the copy fails, so the command can resume, and is the copy for `fetch_corpus` afterwards.

    Args:
        target: the output.
        force: replace an output that is at the URL.
        last: the file that is copied last and marks the output as complete.

    Raises:
        SettingsError: the output exists and `force` is false.
        BertieError: the store cannot be reached or written.
    """
    if not isinstance(target, RemotePath):
        yield target
        return
    if not force and RemotePath(f"{target}/{last}").exists():
        raise SettingsError(
            f"{target}: exists already; choose another URL, or replace it with --force (force=True)"
        )
    check_writable(target, is_directory=True)
    folder = cache_directory(target) / "output"
    yield folder
    upload_directory(folder, target, last)
    remove_directory(folder.with_name("copy"))
    folder.rename(folder.with_name("copy"))
