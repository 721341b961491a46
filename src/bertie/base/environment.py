"""Variables that torch reads when it is loaded, and packages to install."""

import ctypes
import gc
import mmap
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from bertie.base.processors import cpu_quota

VARIABLES = {
    # torch's threads spin while they wait for each other. While other programs used the processors, steps of
    # a small model took ten times as long (docs/decisions/threads.md).
    "GOMP_SPINCOUNT": "1000",
    # Large memory pages for large tensors: a step of fine-tuning took 5 % less time
    # (docs/decisions/processors.md).
    "THP_MEM_ALLOC_ENABLE": "1",
}

# Parameters of glibc's `mallopt`, from its malloc.h. Thresholds are in bytes.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -3, -4, -8

REPORT_TIMEOUT = 30  # seconds; processes of torchrun may be some seconds apart when they start


def install_command(extra: str) -> str:
    """Return the command that installs the packages of an extra, such as `train`.

    The extras are in pyproject.toml. The command names the packages, since bertie itself is not on PyPI, so
    it works wherever bertie was installed from.
    """
    from importlib.metadata import requires

    marker = f'extra == "{extra}"'
    lines = [line.replace("'", '"') for line in requires("bertie") or ()]
    packages = [line.partition(";")[0].strip() for line in lines if line.endswith(marker)]
    return " ".join(["pip install", *(f"'{package}'" for package in packages)])


def cache_root() -> Path:
    """Return the directory for compiled kernels and for copies of remote files.

    It is `$BERTIE_CACHE`, else `bertie` in `$XDG_CACHE_HOME` or `~/.cache`.
    """
    if directory := os.environ.get("BERTIE_CACHE"):
        return Path(os.path.expanduser(directory))
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bertie"


def set_torch_environment() -> None:
    """Set the variables that make torch faster.

    Variables that are set already keep their values, and nothing is set if torch is imported already. torch
    starts a thread for each core, even where a container may use fewer at a time. In such a container,
    `OMP_NUM_THREADS` becomes the number that it may use.
    """
    if "torch" not in sys.modules:
        for name, value in VARIABLES.items():
            os.environ.setdefault(name, value)
        if (quota := cpu_quota()) < len(os.sched_getaffinity(0)):
            os.environ.setdefault("OMP_NUM_THREADS", str(quota))


def let_main_process_report() -> None:
    """Exit with 2 as soon as torchrun stops this process.

    In the main process, return at once. All processes of torchrun find the same errors in their arguments,
    and the main process prints them. When the main process exits, torchrun stops the others. If it does not
    exit, the error is only in this process: then this function returns after REPORT_TIMEOUT, so that the
    caller prints the error.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ or os.environ.get("RANK", "0") == "0":
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))
    time.sleep(REPORT_TIMEOUT)


def require_torch_memory() -> None:
    """Raise OSError if the memory does not suffice to import torch, which would abort."""
    if "torch" not in sys.modules and find_spec("torch"):
        # torch 2.13 for CPUs maps 480 MiB; numba, which is imported with it, some 300 with numpy.
        require_memory(560 if "numba" in sys.modules else 860)


def require_memory(mebibytes: int) -> None:
    """Raise OSError if less than this number of MiB can be allocated.

    Compiled libraries abort, or try again for ever, when an allocation fails.
    """
    mmap.mmap(-1, mebibytes << 20).close()


def reserve_blas_memory() -> None:
    """Make numpy's OpenBLAS allocate its buffers, as its first call would.

    Raises:
        OSError: the memory does not suffice.
    """
    import numpy as np

    require_memory(192)
    np.linalg.inv(np.eye(2))


@contextmanager
def collection_paused() -> Iterator[None]:
    """Pause the garbage collector while large packages are imported.

    They make many objects, but no garbage.
    """
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            gc.enable()


@contextmanager
def only_new_collected() -> Iterator[None]:
    """Let the garbage collector search only objects made from now on, and less often.

    A full collection also searches the objects that importing PyTorch made, and stops all threads for 0.4
    seconds. A server needed one every 1,400 requests (docs/decisions/serving.md).
    """
    threshold = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000)  # 32 running requests have 6,000 objects, none of them garbage
    try:
        yield
    finally:
        gc.set_threshold(*threshold)
        gc.unfreeze()


@contextmanager
def threads_switched_quickly() -> Iterator[None]:
    """Give the interpreter lock to a waiting thread after 0.02 milliseconds, not 5.

    The event loop of a server works for several milliseconds without a pause when it answers the requests of
    a batch. The thread that computes the next batch waited for the lock for a tenth of the time
    (docs/decisions/serving.md). To save energy, Linux may end each wait late by its timer slack, 0.05
    milliseconds; here the slack is 0.001, for this thread and the threads that it starts.
    """
    interval = sys.getswitchinterval()
    sys.setswitchinterval(0.00002)
    _set_timer_slack(1000)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        _set_timer_slack(0)  # the thread's default


def _set_timer_slack(nanoseconds: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(29, ctypes.c_ulong(nanoseconds))  # PR_SET_TIMERSLACK


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Keep memory that is freed in the block for later tensors.

    It is returned to the system at the end of the block. glibc returns tensors of more than 32 MiB to the
    system as soon as they are freed, and smaller ones at the end of its heap. The system then clears the
    pages for the next step, which took 15 % of the processor time of steps of BERT-Base
    (docs/decisions/processors.md, "Tokens in memory").
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt"):
        yield
        return
    libc.mallopt(M_MMAP_MAX, 0)
    libc.mallopt(M_TRIM_THRESHOLD, -1)
    try:
        yield
    finally:
        # glibc cannot go back to its own settings, which adapt to freed sizes; these are their upper limits.
        libc.mallopt(M_MMAP_MAX, 2**16)
        libc.mallopt(M_MMAP_THRESHOLD, 2**25)
        libc.mallopt(M_TRIM_THRESHOLD, 2**26)
        libc.malloc_trim(0)


def limit_free_memory() -> None:
    """Limit the memory that compiled libraries keep; call it before torch computes.

    oneDNN keeps its last 1,024 primitives, one for each shape. Nearly every batch of ragged texts has new
    shapes, so primitives are rarely used again. They take memory, and they divide the free memory between
    tensors into parts that are too small for the next tensor. A batch has few shapes: the products of the
    last layer and of the other layers, if oneDNN multiplies, and GELU.

    glibc then keeps one heap for all threads, with up to 64 MiB free at its end: a thread finds the memory
    of its last batch again. By default glibc keeps a heap for each thread, and returns the end of a heap to
    the system after nearly every batch (docs/decisions/serving.md).
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "32")
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(M_ARENA_MAX, 1)
        libc.mallopt(M_MMAP_THRESHOLD, 2**25)  # the largest that glibc allows
        libc.mallopt(M_TRIM_THRESHOLD, 2**26)
