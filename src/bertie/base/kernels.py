"""`@kernel`: numba's compiler, with a cache that notices every source change.

numba's own cache depends on the file of the function only, so it misses a change of a callee in
another file. bertie names the cache directory by a hash of the function's file and of all modules
that the file imports from bertie. When a directory is made, directories that no process has used
for 90 days are removed, such as the ones of an earlier version. If the cache is not writable (a
read-only home directory, a full disk), every process compiles its kernels. Every file of the cache
has a checksum.

With BERTIE_BOUNDS_CHECK=1 in the environment, kernels are compiled with checks of every index, so that an
index outside its array raises IndexError. Their machine code is kept in another directory. (numba's own
NUMBA_BOUNDSCHECK is not part of its cache's key.)
"""

import hashlib
import inspect
import multiprocessing
import os
import pickle
import re
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from bertie.base.environment import cache_root, collection_paused, reserve_blas_memory

with collection_paused():
    import numba
    from llvmlite import ir
    from numba.core import event, types
    from numba.core.caching import (
        CompileResultCacheImpl,
        FunctionCache,
        IndexDataCacheFile,
        UserProvidedCacheLocator,
    )
    from numba.core.registry import cpu_target
    from numba.core.serialize import dumps
    from numba.extending import intrinsic
    from numba.np import linalg

F = TypeVar("F", bound=Callable[..., Any])

ONE = np.uint64(1)  # numba adds unsigned and signed numbers as floats
PACKAGE = Path(__file__).parent.parent
FLOAT_OPTIONS = {"fastmath": {"reassoc", "contract"}, "error_model": "numpy"}
DIGEST_BYTES = hashlib.sha256().digest_size
UNUSED_SECONDS = 90 * 86400
BOUNDS_CHECK = os.environ.get("BERTIE_BOUNDS_CHECK") == "1"

reserve_blas_memory()  # here, because every command that computes imports this module


def load_numba() -> None:
    """Load numba's implementations of types and functions.

    Otherwise its first kernel would load them. numba then imports scipy.linalg, which takes 0.2 s, only to
    learn whether products of matrices have a BLAS. They have one if scipy is installed, and a kernel with
    such products imports it when needed.
    """
    ensure_blas = linalg.ensure_blas
    if find_spec("scipy"):
        linalg.ensure_blas = lambda: None
    try:
        cpu_target.target_context.refresh()
    finally:
        linalg.ensure_blas = ensure_blas


with collection_paused():
    load_numba()


# numba's cache is keyed by the same processor features.
FEATURES = cpu_target.target_context.codegen().magic_tuple()[-1].split(",")
VECTOR = 16 if "+avx512f" in FEATURES else 8  # float32 numbers in a vector register


@cache
def cache_directory(source: Path) -> Path:
    """Return the cache directory for the kernels of a source file."""
    digest = hashlib.sha256()
    for path in source_and_imports(source):
        digest.update(path.read_bytes())
    checked = "-checked" if BOUNDS_CHECK else ""
    return cache_root() / f"{source.stem}-{digest.hexdigest()[:16]}{checked}"


@cache
def prepare_directory(directory: Path) -> None:
    """Make a cache directory, and record that it is used.

    If it is new, remove the cache directories that have not been used for UNUSED_SECONDS.
    """
    is_new = not directory.exists()
    directory.mkdir(parents=True, exist_ok=True)
    os.utime(directory)
    if is_new:
        for path in directory.parent.glob("*-" + "[0-9a-f]" * 16 + "*"):
            with suppress(OSError):
                if path.stat().st_mtime < time.time() - UNUSED_SECONDS:
                    _remove_kernels(path)


def _remove_kernels(directory: Path) -> None:
    """Remove a directory of kernels; if it has other files, remove only the kernels.

    A process that still uses the directory compiles the kernels that it has not loaded.
    """
    for file in directory.glob("*.nbc*"):  # also of a process that was killed while it wrote one
        file.unlink()
    directory.rmdir()


def source_and_imports(source: Path) -> list[Path]:
    """Return a source file and all files of bertie that it imports, transitively."""
    pending, paths = [source], set()
    while pending:
        path = pending.pop()
        paths.add(path)
        text = path.read_text(encoding="utf-8")
        for module in re.findall(r"^from bertie\.(\S+) import", text, re.MULTILINE):
            imported = PACKAGE / f"{module.replace('.', '/')}.py"
            if imported not in paths:
                pending.append(imported)
    return sorted(paths)


class _CompilationNotice(event.Listener):
    """Report on stderr that kernels are being compiled.

    The report comes at most once, and only in the main process.
    """

    def __init__(self) -> None:
        self.kernels: set[Any] = set()
        self.is_cached = True
        self.is_announced = False

    def on_start(self, event: Any) -> None:
        if self.is_announced or event.data["dispatcher"].py_func not in self.kernels:
            return
        self.is_announced = True
        if multiprocessing.parent_process() is None:
            place = "not kept: the folder of the cache cannot be written to; set BERTIE_CACHE to another one"
            if self.is_cached:
                place = f"kept in {cache_root()}"
            print(f"compiling kernels for their first use, for up to a minute ({place}) …", file=sys.stderr)

    def on_end(self, event: Any) -> None:
        pass


notice = _CompilationNotice()
event.register("numba:compile", notice)  # type: ignore[no-untyped-call]


def kernel(function: F) -> F:
    """Compile a function with numba at its first call, and cache the machine code.

    The compiled function releases the interpreter lock while it runs.
    """
    return _compile(function)


def uncounted_kernel(function: F) -> F:
    """Compile a function as `kernel` does, without counting references to arrays.

    At each call, numba counts a reference to every array, with two instructions that lock memory. In a
    function that is called for each word, this can take longer than the work (docs/decisions/tokenizer.md).
    The function must neither make arrays nor return any.
    """
    return _compile(function, _nrt=False)


def inlined_kernel(function: F) -> F:
    """Compile a function as `kernel` does, and inline it into kernels that call it.

    For functions that are called for each word or each character: in a call numba counts references to
    every array, with instructions that lock memory.
    """
    return _compile(function, forceinline=True)


def float_kernel(function: F) -> F:
    """Compile a function as `kernel` does, for arithmetic with vectors.

    Terms of a sum may be added in another order, a product and a sum may be rounded together, and a division
    by zero gives infinity instead of ZeroDivisionError. The kernel, and each kernel that it calls, should
    call `vectorize_loops`.
    """
    return _compile(function, **FLOAT_OPTIONS)


def inlined_float_kernel(function: F) -> F:
    """Compile a function as `float_kernel` does, and inline it.

    See `inlined_kernel`.
    """
    return _compile(function, **FLOAT_OPTIONS, forceinline=True)


def _vectorize_loops(typing_context: Any) -> Any:
    def set_attributes(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        # `add` of the set's own class accepts only attributes without a value.
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        for argument in builder.function.args:
            if isinstance(argument.type, ir.PointerType):
                argument.add_attribute("noalias")
        return context.get_dummy_value()

    return types.none(), set_attributes


# Call it in kernels whose arrays do not overlap; arrays that are only read may. The compiler then adds no
# loops for overlapping arrays, and uses vectors of 512 bits where the processor has them. By default LLVM
# prefers 256 bits on most of these processors (its feature prefer-256-bit), since their first generation
# slowed down with 512. The products of matrices between float kernels use 512 bits too.
vectorize_loops = cast(Callable[[], None], intrinsic(_vectorize_loops))


class _CacheFiles(IndexDataCacheFile):
    """The files of a kernel's cache, one for each signature: a SHA-256, then a pickle.

    The SHA-256 is the checksum of the pickle, which has the machine code. A damaged file, such as after a
    power loss, counts as missing, because its machine code could do anything. numba's files have no checksum.
    """

    def load(self, key: Any) -> Any:
        """Return the machine code of a signature; None if its file is missing or damaged."""
        try:
            content = memoryview(self._path(key).read_bytes())
        except OSError:
            return None
        if hashlib.sha256(content[DIGEST_BYTES:]).digest() != content[:DIGEST_BYTES]:
            return None
        stored_key, data = pickle.loads(content[DIGEST_BYTES:])
        return data if stored_key == key else None

    def save(self, key: Any, data: Any) -> None:
        """Write the file of a signature."""
        content = dumps((key, data))  # type: ignore[no-untyped-call]
        with self._open_for_write(self._path(key)) as file:
            file.write(hashlib.sha256(content).digest() + content)

    def _path(self, key: Any) -> Path:
        digest = hashlib.sha256(f"{self._version} {key}".encode()).digest()
        name = self._data_name(int.from_bytes(digest[:8]))  # type: ignore[no-untyped-call]
        return Path(self._cache_path, name)


class _Location(UserProvidedCacheLocator):
    """The folder of a kernel's cache: CACHE_DIR itself.

    numba would add a folder for the path of the source, so that every clone compiled all kernels again.
    """

    @classmethod
    def get_suitable_cache_subpath(cls, file: str) -> str:
        """Return the path below CACHE_DIR."""
        return ""


class _LocatedCache(CompileResultCacheImpl):
    _locator_classes = [_Location]  # noqa: RUF012


class _KernelCache(FunctionCache):
    """numba's cache of a function, in `_CacheFiles`.

    A kernel that cannot be written is not kept.
    """

    _impl_class = _LocatedCache

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)  # type: ignore[no-untyped-call]
        self._cache_file = _CacheFiles(  # type: ignore[no-untyped-call]
            self._cache_path, self._impl.filename_base, self._impl.locator.get_source_stamp()
        )

    def save_overload(self, sig: Any, data: Any) -> None:
        """Save the machine code of a signature, unless the disk is full or read-only."""
        with suppress(OSError):
            super().save_overload(sig, data)  # type: ignore[no-untyped-call]


def _compile(function: F, **options: Any) -> F:
    notice.kernels.add(function)
    compiled: Any = numba.njit(**options, nogil=True, boundscheck=BOUNDS_CHECK)(function)
    config: Any = numba.config
    previous = config.CACHE_DIR
    try:
        # The cache reads CACHE_DIR. Restore it, because other packages may use numba too.
        directory = cache_directory(Path(inspect.getfile(function)))
        prepare_directory(directory)
        config.CACHE_DIR = str(directory)
        compiled._cache = _KernelCache(function)
    except (OSError, RuntimeError):  # not writable; numba raises RuntimeError for that
        notice.is_cached = False
    finally:
        config.CACHE_DIR = previous
    return cast(F, compiled)
