"""Products of float32 matrices on a CPU, in the library that multiplies them faster.

torch multiplies in MKL, which uses AVX-512 only on processors by Intel. numpy multiplies in OpenBLAS, which
uses it wherever it exists. On an AMD EPYC of 2024 (Zen 5), OpenBLAS takes less than half as long
(docs/decisions/processors.md, "Products in OpenBLAS").
"""

import functools
import os
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bertie.base.processors import processor_vendor
from bertie.model.cpu import MAX_THREADS_OF_FUSED_LAYERS
from bertie.model.memory import new_empty

INTEL = "GenuineIntel"  # in /proc/cpuinfo


def multiply(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """Return the product of two matrices, (n, k) and (k, m) -> (n, m), without gradients.

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
    """Return `scale` times the product of each pair of matrices, (B, n, k) and (B, k, m) -> (B, n, m).

    Otherwise like `multiply`.
    """
    out = new_empty(a, *a.shape[:2], b.shape[2]) if out is None else out
    if not multiplies_in_numpy(a):
        return torch.baddbmm(out, a, b, beta=0, alpha=scale, out=out)
    is_widened = a.shape[2] < b.shape[2]  # the smaller one of factor and product is scaled
    _multiply_in_numpy(a * scale if is_widened else a, b, out)
    return out if is_widened else out.mul_(scale)


def multiplies_in_numpy(matrix: Tensor) -> bool:
    """Return whether products of matrices of this type are in numpy.

    That is so for float32 where numpy is faster, on few threads, and if numpy has as many as torch.
    """
    return (
        matrix.dtype == torch.float32
        and torch.get_num_threads() == _count_numpy_threads() <= MAX_THREADS_OF_FUSED_LAYERS
        and _is_numpy_faster()
    )


def _multiply_in_numpy(a: Tensor, b: Tensor, out: Tensor) -> None:
    """Write the product of two matrices, or of each pair of them in two stacks, to `out`."""
    with np.errstate(all="ignore"):  # as torch does; numpy would warn of NaN
        np.matmul(_to_array(a), _to_array(b), out=out.detach().numpy())


def _to_array(matrix: Tensor) -> Any:
    """Return an array that shares memory with a tensor, such as a weight; it may be read-only.

    FSDP can still free this memory; after `Tensor.numpy` it could not.
    """
    return np.from_dlpack(matrix.detach())


@functools.cache
def _count_numpy_threads() -> int:
    """Return the number of threads of OpenBLAS, which is set when numpy is loaded."""
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        if os.environ.get(name, "").isdecimal():
            return int(os.environ[name])
    return len(os.sched_getaffinity(0))


@functools.cache
def _is_numpy_faster() -> bool:
    """Return whether OpenBLAS uses AVX-512 and MKL does not.

    Nothing is timed: on a busy machine, two runs of a command would choose differently, and their results
    would differ in the last digits.
    """
    has_openblas = "openblas" in np.show_config(mode="dicts")["Build Dependencies"]["blas"]["name"]
    return has_openblas and mkl_lacks_avx512()


@functools.cache
def mkl_lacks_avx512() -> bool:
    """Return whether this processor has AVX-512, but MKL does not use it."""
    return torch.cpu._is_avx512_supported() and processor_vendor() != INTEL
