"""Memory for the large matrices of a training step on a CPU.

torch asks the C library for memory that begins at a multiple of 64 bytes, or of a page. glibc grants such a
request only from a gap that is larger than the tensor by this multiple, so a tensor often does not fit the
gap that another one of the same size has left. Where the sizes differ from step to step, the heap grew to
twice the memory in use (docs/decisions/processors.md, "Memory that fits a gap of its size"). numpy asks for
memory that may begin anywhere. Here numpy asks for 64 bytes more than the tensor needs, and the tensor
begins at the first multiple of 64.
"""

import ctypes
import math
import mmap

import numpy as np
import torch
from torch import Tensor

ALIGNMENT = 64  # bytes: a line of the cache; torch aligns its tensors to it
LARGE_PAGE = 2**21  # bytes, on x86-64


def new_empty(like: Tensor, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
    """Return an empty tensor on a CPU in memory from numpy.

    Otherwise it is like `like.new_empty(shape, dtype=dtype)`.
    """
    dtype = dtype or like.dtype
    size = math.prod(shape) * dtype.itemsize
    memory = torch.from_numpy(np.empty(size + ALIGNMENT, np.uint8))
    if LARGE_PAGE <= size < 2 * LARGE_PAGE:
        _ask_for_large_pages(memory)
    start = -memory.data_ptr() % ALIGNMENT
    return memory[start : start + size].view(dtype).view(shape)


def converted(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a tensor on a CPU in another type, in memory from `new_empty`.

    Return the tensor itself if it has this type.
    """
    if tensor.dtype == dtype:
        return tensor
    return new_empty(tensor, *tensor.shape, dtype=dtype).copy_(tensor)


def new_rows(like: Tensor, tokens: int, width: int) -> Tensor:
    """Return new rows, (len(like), width), for the caller to fill.

    Those after the tokens are zeros.
    """
    rows = new_empty(like, len(like), width)
    rows[tokens:] = 0
    return rows


def _ask_for_large_pages(memory: Tensor) -> None:
    """Ask Linux for large pages, as numpy does from 4 MiB on; `memory` is uint8 (n,).

    A training step of a 2 × 128 model takes a tenth more time without them (docs/decisions/processors.md).
    """
    first = -(-memory.data_ptr() // mmap.PAGESIZE)
    last = (memory.data_ptr() + len(memory)) // mmap.PAGESIZE
    start, length = first * mmap.PAGESIZE, (last - first) * mmap.PAGESIZE
    ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), mmap.MADV_HUGEPAGE)
