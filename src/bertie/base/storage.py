"""Read and write files on object stores and web servers, by URL.

The URLs begin with s3://, gs://, hf://, https://, memory:// and others. `RemotePath` has the methods of
`Path` that the readers use, so they read local and remote files with the same code. The package fsspec, which
knows the protocols, is imported only for a URL; local paths stay plain `Path`s.
"""

import hashlib
import io
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path, PosixPath
from typing import IO, Any, BinaryIO, cast
from urllib.parse import unquote

from bertie.base.environment import cache_root, install_command
from bertie.base.errors import BertieError, DataError, SettingsError
from bertie.base.files import TEMPORARY_SUFFIX, atomic_directory, local_path, sha256
from bertie.base.locks import lock_file

_URL = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
# The packages that implement a protocol, where fsspec does not.
_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "hf": "huggingface_hub"}
_PACKAGES |= {"http": "aiohttp", "https": "aiohttp"}
# The first of these that a file system reports changes with the file.
_VERSION_KEYS = (
    "ETag", "etag", "generation", "blob_id", "oid", "LastModified", "last_modified", "updated", "mtime",
    "created",
)  # fmt: skip
_BLOCK_BYTES = 1 << 22


class RemotePath(PosixPath):
    """A URL with the methods of `Path` for reading.

    Paths below it and its parents are URLs too. The result of `stat` is kept, also in copies in worker
    processes, so `open` notices that the file has changed since.
    """

    _status: os.stat_result | None

    def __str__(self) -> str:
        return super().__str__().replace(":/", "://", 1)

    def __reduce__(self) -> Any:
        return _restore, (str(self), self.__dict__.get("_status"))

    @property
    def protocol(self) -> str:
        """The protocol, such as "s3"."""
        return self.parts[0].removesuffix(":")

    def absolute(self) -> "RemotePath":
        """Return this path: a URL is absolute."""
        return self

    def resolve(self, strict: bool = False) -> "RemotePath":
        """Return this path: there are no links."""
        return self

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Return the size, and as the time a number that changes with the file."""
        if self.__dict__.get("_status") is None:
            with remote_errors(self):
                self._status = _make_status(_file_system(self).info(str(self)))
        return cast(os.stat_result, self._status)

    def exists(self, **options: Any) -> bool:
        """Return whether there is a file or a folder."""
        with remote_errors(self):
            return bool(_file_system(self).exists(str(self)))

    def is_file(self, **options: Any) -> bool:
        """Return whether there is a file."""
        with remote_errors(self):
            return bool(_file_system(self).isfile(str(self)))

    def is_dir(self, **options: Any) -> bool:
        """Return whether there are files below this path."""
        with remote_errors(self):
            return bool(_file_system(self).isdir(str(self)))

    def open(self, mode: str = "rb", *arguments: Any, **options: Any) -> IO[Any]:  # type: ignore[override]
        """Open the file for reading bytes.

        Args:
            mode: "rb".
            arguments: not used; `Path.open` has them.
            options: of fsspec's `AbstractFileSystem.open`.

        Raises:
            FileNotFoundError: there is no such file.
            BertieError: it has changed since `stat`, or the store cannot be reached.
        """
        assert mode == "rb", mode
        with remote_errors(self):
            fs = _file_system(self)
            expected = self.__dict__.get("_status")
            if expected is not None:
                status = _make_status(fs.info(str(self)))
                if (status.st_size, status.st_mtime_ns) != (expected.st_size, expected.st_mtime_ns):
                    raise BertieError(
                        f"{self}: changed after this command had listed it; run the command again, with "
                        f"--force (force=True) if it has written a part of its output"
                    )
            return io.BufferedReader(_RemoteFile(self, fs.open(str(self), "rb", **options)), _BLOCK_BYTES)

    def open_ranges(self, ranges: Iterable[tuple[int, int]]) -> BinaryIO:
        """Open the file with some ranges of bytes in memory: only these may be read.

        Each range, from its start to before its stop, is fetched once.

        Raises:
            FileNotFoundError, BertieError: as `open` does.
        """
        with remote_errors(self):
            fs = _file_system(self)
            # By name: the third argument of s3fs is another one.
            parts = {(start, stop): fs.cat_file(str(self), start=start, end=stop) for start, stop in ranges}
        return cast(BinaryIO, self.open(cache_type="parts", cache_options={"data": parts}))

    def list_files(self) -> list["RemotePath"]:
        """Return the files of a path, a folder or a pattern, sorted.

        Raises:
            DataError: there are none.
        """
        found = {}
        with suppress(FileNotFoundError), remote_errors(self):
            fs, url = _file_system(self), str(self)
            if "*" in url:
                found = fs.glob(url, detail=True)
            elif fs.isfile(url):
                found = {url: fs.info(url)}
            else:
                found = fs.find(url, detail=True)
        files = []
        for name, info in found.items():
            if info["type"] == "file":
                file = RemotePath(fs.unstrip_protocol(name))
                file._status = _make_status(info)
                files.append(file)
        if not files:
            raise DataError(f"{self}: no such file or folder; check the URL")
        return sorted(files, key=lambda file: file.parts)


def _restore(url: str, status: os.stat_result | None) -> RemotePath:
    path = RemotePath(url)
    path._status = status
    return path


class _RemoteFile(io.RawIOBase):
    """A file of fsspec whose errors become one line that names the URL."""

    def __init__(self, path: RemotePath, file: Any) -> None:
        self._path, self._file = path, file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def readinto(self, buffer: Any) -> int:
        with remote_errors(self._path):
            data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()


def as_path(path: str | Path, name: str = "path") -> Path:
    """Return a `RemotePath` for a URL, and a `Path` for anything else.

    See `local_path`.

    Args:
        path: the path or URL.
        name: name of the argument or option, for error messages.

    Raises:
        SettingsError: the path is an empty string.

    Example:
        >>> as_path("text/a.txt"), str(as_path("s3://bucket/a.txt"))
        (PosixPath('text/a.txt'), 's3://bucket/a.txt')
    """
    if not isinstance(path, str) or not (match := _URL.match(path)):
        return local_path(path, name)
    if match[1].lower() == "file":  # with characters encoded, as `Path.as_uri` writes them
        local = unquote(path[match.end() :])
        return Path(local.removeprefix("localhost") if local.startswith("localhost/") else local)  # RFC 8089
    return RemotePath(path)


def is_remote(path: Path | None) -> bool:
    """Return whether a path is a URL."""
    return isinstance(path, RemotePath)


def check_readable(paths: Iterable[Path], here: bool) -> None:
    """Check that the paths can be read, in this process (`here`) or in others.

    Raises:
        SettingsError: a path is in the memory of this process.
    """
    for path in paths:
        if isinstance(path, RemotePath) and path.protocol == "memory" and not here:
            raise SettingsError(f"{path}: only this process can read its memory; pass workers=1")


@contextmanager
def remote_errors(path: Path) -> Iterator[None]:
    """Turn errors of fsspec and its packages into a BertieError of one line.

    FileNotFoundError passes, because readers of local files handle it too.
    """
    try:
        yield
    except (BertieError, FileNotFoundError):
        raise
    except PermissionError as error:
        raise BertieError(
            f"{path}: access denied ({_first_line(error)}); check the credentials and the permissions"
        ) from None
    except Exception as error:  # botocore, aiohttp and others have no common class
        name = type(error).__name__
        if "Credential" in name:
            raise BertieError(f"{path}: no valid credentials ({_first_line(error)}); set them up") from None
        raise BertieError(
            f"{path}: cannot be read or written ({name}: {_first_line(error)}); check the URL and the "
            f"connection, then run the command again"
        ) from None


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def _file_system(path: RemotePath) -> Any:
    """Return fsspec's file system of a URL.

    Raises:
        BertieError: the package of the protocol is missing.
        SettingsError: there is no such protocol.
    """
    try:
        import fsspec

        # Without a cache of listings, a file that another process changes is seen.
        return fsspec.filesystem(path.protocol, use_listings_cache=False)
    except ImportError:
        package = _PACKAGES.get(path.protocol)
        command = f"pip install {package}" if package not in (None, "s3fs") else install_command("cloud")
        raise BertieError(f"{path}: {path.protocol}:// needs another package; {command}") from None
    except ValueError as error:
        raise SettingsError(
            f"{path}: unknown protocol ({_first_line(error)}); use s3://, gs://, hf:// or https://"
        ) from None


def _make_status(info: dict[str, Any]) -> os.stat_result:
    """Make the status of a file from fsspec's description of it."""
    version = next((info[key] for key in _VERSION_KEYS if info.get(key)), None)
    version = version.timestamp() if isinstance(version, datetime) else version  # listings may have either
    digest = hashlib.sha256(str(version).encode()).digest()
    number = int.from_bytes(digest[:7], "big")
    mode = 0o040644 if info.get("type") == "directory" else 0o100644
    numbers = (mode, 0, 0, 1, 0, 0, int(info.get("size") or 0), 0, 0, 0)
    return os.stat_result(numbers, {"st_mtime_ns": number})


def download(source: RemotePath, target: Path) -> None:
    """Copy a remote file to a local one."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with source.open() as file, target.open("wb") as copy:
        shutil.copyfileobj(file, copy, _BLOCK_BYTES)


def fetch_directory(path: Path) -> Path:
    """Return a local folder for a path or a URL.

    For a URL, it is a copy of the folder's files in the cache.

    Each content of the folder has its own copy, so that no copy changes while another caller reads it.

    Raises:
        DataError: there is no such folder.
        BertieError: the store cannot be reached.
    """
    if not isinstance(path, RemotePath):
        return path
    copy = cache_directory(path) / "copy"
    with lock_file(copy, wait=True):
        with atomic_directory(copy) as temporary:
            for file in path.list_files():
                if file.parent == path:
                    download(file, temporary / file.name)
        sums = "".join(f"{sha256(file)} {file.name}\n" for file in sorted(copy.iterdir()))
        kept = copy.with_name(f"copy-{hashlib.sha256(sums.encode()).hexdigest()[:16]}")
        if kept.exists():
            shutil.rmtree(copy)
        else:
            copy.rename(kept)
    return kept


@contextmanager
def _upload_errors(target: RemotePath) -> Iterator[None]:
    try:
        with remote_errors(target):
            yield
    except FileNotFoundError as error:
        raise BertieError(
            f"{target}: cannot be written ({_first_line(error)}); create the bucket, then repeat the command"
        ) from None


def check_writable(target: RemotePath, *, is_directory: bool) -> None:
    """Check that a folder, or a file in its folder, can be written.

    Write an empty file in the folder `target`, or beside the file `target`, and remove it. A command calls it
    before it computes the output.

    Raises:
        BertieError: the bucket is missing, or the store refuses the file or cannot be reached.
    """
    probe = f"{target}{'/' if is_directory else ''}{TEMPORARY_SUFFIX}"
    with _upload_errors(target):
        fs = _file_system(target)
        fs.pipe_file(probe, b"")
        with suppress(PermissionError):  # a store may allow to write and not to remove
            fs.rm_file(probe)


def upload_file(source: Path, target: RemotePath) -> None:
    """Copy a local file to a URL, where it appears whole or not at all."""
    with _upload_errors(target):
        _file_system(target).put_file(str(source), str(target))


def upload_directory(source: Path, target: RemotePath, last: str) -> None:
    """Copy the files below a local folder to a URL.

    The file `last` marks the copy as complete. A complete copy that is there already is first marked as
    incomplete. Files with other names stay.
    """
    names = sorted(str(file.relative_to(source)) for file in source.rglob("*") if file.is_file())
    with _upload_errors(target):
        fs = _file_system(target)
        if fs.exists(f"{target}/{last}"):
            fs.rm_file(f"{target}/{last}")
        for name in [*(name for name in names if name != last), last]:
            fs.put_file(str(source / name), f"{target}/{name}")


def cache_directory(url: Path) -> Path:
    """Return the local folder for copies of a URL."""
    return cache_root() / "remote" / hashlib.sha256(str(url).encode()).hexdigest()[:16]


def is_copy(path: Path, size: int, digest: str) -> bool:
    """Return whether a local file has a size and a SHA-256."""
    return path.is_file() and path.stat().st_size == size and sha256(path) == digest
