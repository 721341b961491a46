"""`@kernel`: numba's compiler with a cache that notices every change.

numba's own cache looks only at the file a function stands in, so a changed callee in another file would
go unnoticed. Here the cache folder is named by a hash of that file and of all it imports from bertie. Where
no place is writable (a read-only home), kernels are compiled anew in each process.
"""

import hashlib
import inspect
import os
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])

PACKAGE = Path(__file__).parent.parent


def cache_root() -> Path:
    """Where compiled kernels are kept: `$BERTIE_CACHE`, else under `$XDG_CACHE_HOME` or `~/.cache`."""
    if own := os.environ.get("BERTIE_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bertie"


@cache
def cache_directory(source: Path) -> Path:
    """Where those of a file are kept."""
    digest = hashlib.sha256()
    for path in with_imports(source):
        digest.update(path.read_bytes())
    return cache_root() / f"{source.stem}-{digest.hexdigest()[:16]}"


def with_imports(source: Path) -> list[Path]:
    """A file, and the files of the package that it imports, directly or through others."""
    waiting, found = [source], set()
    while waiting:
        path = waiting.pop()
        found.add(path)
        for module in re.findall(
            r"^from bertie\.(\S+) import", path.read_text(encoding="utf-8"), re.MULTILINE
        ):
            imported = PACKAGE / f"{module.replace('.', '/')}.py"
            if imported not in found:
                waiting.append(imported)
    return sorted(found)


def kernel(function: F) -> F:
    """Compile `function` to machine code at its first call; it runs without the interpreter lock."""
    config: Any = numba.config
    previous = config.CACHE_DIR
    compiled: Any
    try:
        # The cache's place is chosen while the decorator runs, so other users of numba keep theirs.
        directory = cache_directory(Path(inspect.getfile(function)))
        directory.mkdir(parents=True, exist_ok=True)
        config.CACHE_DIR = str(directory)
        compiled = numba.njit(cache=True, nogil=True)(function)
    except (OSError, RuntimeError):  # nowhere to write: numba says so with RuntimeError
        compiled = numba.njit(nogil=True)(function)
    finally:
        config.CACHE_DIR = previous
    return cast(F, compiled)
