"""Memory of large matrices: what it begins at, and that a tensor fits the gap of one of its size."""

import ctypes
import re
from pathlib import Path

import pytest
import torch

from bertie.base.environment import freed_memory_kept
from bertie.model.memory import ALIGNMENT, new_empty


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("shape", [(3, 5), (0, 7), (2, 3, 4, 5), (1000, 768)])
def test_new_memory_is_like_that_of_torch(shape, dtype):
    for _ in range(5):
        matrix = new_empty(torch.empty(1, dtype=dtype), *shape)
        assert (matrix.shape, matrix.dtype, matrix.is_contiguous()) == (shape, dtype, True)
        assert matrix.data_ptr() % ALIGNMENT == 0 or not matrix.numel()
        assert not matrix.requires_grad
        matrix.fill_(3)
        assert (matrix == 3).all()


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="needs large pages")
@pytest.mark.parametrize("mebibytes", [2, 3, 4, 40])
def test_large_tensors_use_large_pages(mebibytes):
    tensor = new_empty(torch.empty(1), mebibytes, 2**18)
    middle = tensor.data_ptr() + tensor.nbytes // 2
    is_inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if bounds := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            start, end = (int(bound, 16) for bound in bounds.groups())
            is_inside = start <= middle < end
        elif is_inside and line.startswith("VmFlags:"):
            assert "hg" in line.split()
            return
    raise AssertionError("the memory is not listed")


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="needs glibc")
def test_a_tensor_fits_the_gap_of_one_of_its_size():
    malloc, free = ctypes.CDLL(None).malloc, ctypes.CDLL(None).free
    malloc.restype, free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    like, rows = torch.empty(1), 12_347
    small = []
    with freed_memory_kept():
        matrices = []
        for _ in range(8):
            matrices.append(new_empty(like, rows, 64))
            # They take the memory left beside the matrices, as the objects of a training step do.
            small += [malloc(size) for size in (24, 40, 56, 72, 88) for _ in range(50)]
        gaps = {matrix.data_ptr() for matrix in matrices[1::2]}
        del matrices[1::2]
        again = [new_empty(like, rows, 64) for _ in gaps]
        assert {matrix.data_ptr() for matrix in again} == gaps
    for pointer in small:
        free(pointer)
