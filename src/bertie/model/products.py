"""Products of float32 matrices on a CPU, in the faster library.

torch multiplies in MKL, which uses AVX-512 only on processors by Intel. numpy multiplies in OpenBLAS, which
uses it wherever it exists. On an AMD EPYC of 2024 (Zen 5), OpenBLAS takes less than half as long
(docs/decisions/processors.md, "Products in OpenBLAS").
"""

import ctypes
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import numpy as np
import torch
from numpy._core import _multiarray_umath  # type: ignore[attr-defined]
from torch import Tensor

from bertie.base.processors import processor_vendor
from bertie.base.threads import run_in_threads
from bertie.model.memory import new_empty

INTEL = "GenuineIntel"  # in /proc/cpuinfo
NAMES_OF_OPENBLAS = (("scipy_", "64_"), ("", ""), ("", "64_"))  # in numpy's wheels, and in distributions
OPENMP = 2  # OPENBLAS_OPENMP in OpenBLAS's cblas.h
MIN_PRODUCTS_PER_THREAD = 1 << 23  # some 70 microseconds of work; starting a thread takes 20


def multiply(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """Return the product of two matrices, (n, k) and (k, m) -> (n, m).

    It has no gradients.

    Args:
        a: the first matrix, on a CPU.
        b: the second matrix, of the same type.
        out: where to write the product; None for memory from `new_empty`.
    """
    out = new_empty(a, len(a), b.shape[1]) if out is None else out
    if multiplies_in_numpy(a):
        _multiply_in_numpy(a, b, out)
    else:
        torch.mm(a, b, out=out)
    return out


def multiply_pairs(a: Tensor, b: Tensor, scale: float, out: Tensor | None = None) -> Tensor:
    """Return `scale` times the product of each pair of matrices.

    (B, n, k) and (B, k, m) -> (B, n, m). Otherwise like `multiply`.
    """
    out = new_empty(a, *a.shape[:2], b.shape[2]) if out is None else out
    if not multiplies_in_numpy(a):
        return torch.baddbmm(out, a, b, beta=0, alpha=scale, out=out)
    is_widened = a.shape[2] < b.shape[2]  # scale the smaller one of `a` and the product
    _multiply_in_numpy(a * scale if is_widened else a, b, out)
    return out if is_widened else out.mul_(scale)


def multiplies_in_numpy(matrix: Tensor) -> bool:
    """Return whether numpy multiplies matrices of this type.

    It does for float32, on a processor where it is faster.
    """
    return matrix.dtype == torch.float32 and _is_numpy_faster()


def _multiply_in_numpy(a: Tensor, b: Tensor, out: Tensor) -> None:
    """Write the product of two matrices, or of two stacks of them, to `out`.

    bertie's threads, at most as many as torch uses, share the pairs, or the rows or columns, whichever are
    more. Each multiplies its part in OpenBLAS. OpenBLAS's own threads are not used, because they wait for
    each other in a loop: with another program on one of two cores, steps took up to 2.4 times as long as in
    one thread (docs/decisions/processors.md).
    """
    first, second, product = _to_array(a), _to_array(b), out.detach().numpy()
    is_tall = product.ndim == 3 or len(product) >= product.shape[1]

    def multiply_part(begin: int, end: int) -> None:
        part = slice(begin, end)
        with np.errstate(all="ignore"):  # as torch does; numpy would warn of NaN
            if product.ndim == 3:
                np.matmul(first[part], second[part], out=product[part])
            elif is_tall:
                np.matmul(first[part], second, out=product[part])
            else:
                np.matmul(first, second[:, part], out=product[:, part])

    threads = min(torch.get_num_threads(), product.size * first.shape[-1] // MIN_PRODUCTS_PER_THREAD)
    openblas = _openblas()
    assert openblas is not None
    with openblas.one_thread():
        run_in_threads(multiply_part, product.shape[0 if is_tall else 1], threads)


def _to_array(matrix: Tensor) -> Any:
    """Return an array that shares memory with a tensor, such as a weight.

    The array may be read-only. FSDP can still free this memory; after `Tensor.numpy` it could not.
    """
    return np.from_dlpack(matrix.detach())


class OpenBlas:
    """The number of threads of numpy's OpenBLAS.

    Args:
        library: the library, with the functions that get and set the number.
        prefix, suffix: of the names of these functions, around `openblas_get_num_threads`.
    """

    def __init__(self, library: ctypes.CDLL, prefix: str, suffix: str) -> None:
        self._get = getattr(library, f"{prefix}openblas_get_num_threads{suffix}")
        self._set = getattr(library, f"{prefix}openblas_set_num_threads{suffix}")
        self._lock = Lock()
        self._users = 0

    @contextmanager
    def one_thread(self) -> Iterator[None]:
        """Let OpenBLAS compute in the threads that call it.

        Several threads may be in this context.
        """
        with self._lock:
            if not self._users:
                self._threads = self._get()
                self._set(1)
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    self._set(self._threads)


@functools.cache
def _openblas() -> OpenBlas | None:
    """Return the OpenBLAS of numpy; None if numpy has another library.

    An OpenBLAS that computes in the threads of OpenMP is not used: setting their number would also set the
    number of torch's threads.
    """
    library = ctypes.CDLL(_multiarray_umath.__file__)  # it also finds the functions of the libraries it links
    for prefix, suffix in NAMES_OF_OPENBLAS:
        kind = getattr(library, f"{prefix}openblas_get_parallel{suffix}", None)
        if kind is not None and kind() != OPENMP:
            return OpenBlas(library, prefix, suffix)
    return None


@functools.cache
def _is_numpy_faster() -> bool:
    """Return whether OpenBLAS uses AVX-512 and MKL does not.

    Nothing is timed: on a busy machine, two runs of a command would choose differently, and their results
    would differ in the last digits.
    """
    return mkl_lacks_avx512() and _openblas() is not None


@functools.cache
def mkl_lacks_avx512() -> bool:
    """Return whether this processor has AVX-512, but MKL does not use it."""
    return torch.cpu._is_avx512_supported() and processor_vendor() != INTEL
