"""`@kernel`: numba's compiler with a cache that notices every change.

numba's own cache looks only at the file a function stands in, so a changed callee in another file would
go unnoticed. Here the cache folder is named by a hash of every source that holds kernels. Where no place
is writable (a read-only home), kernels are compiled anew in each process.
"""

import hashlib
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])

KERNEL_ROOMS = ("base", "text", "corpus", "model")


@cache
def cache_directory() -> Path:
    """Where compiled kernels are kept: under `$BERTIE_CACHE`, else `$XDG_CACHE_HOME` or `~/.cache`."""
    fallback = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bertie"
    root = Path(os.environ.get("BERTIE_CACHE") or fallback)
    package = Path(__file__).parent.parent
    digest = hashlib.sha256()
    for room in KERNEL_ROOMS:
        for source in sorted((package / room).glob("*.py")):
            digest.update(source.read_bytes())
    return root / f"kernels-{digest.hexdigest()[:16]}"


def kernel(function: F) -> F:
    """Compile `function` to machine code at its first call; it runs without the interpreter lock."""
    config: Any = numba.config
    previous = config.CACHE_DIR
    compiled: Any
    try:
        # The cache's place is chosen while the decorator runs, so other users of numba keep theirs.
        cache_directory().mkdir(parents=True, exist_ok=True)
        config.CACHE_DIR = str(cache_directory())
        compiled = numba.njit(cache=True, nogil=True)(function)
    except (OSError, RuntimeError):  # nowhere to write: numba says so with RuntimeError
        compiled = numba.njit(nogil=True)(function)
    finally:
        config.CACHE_DIR = previous
    return cast(F, compiled)
