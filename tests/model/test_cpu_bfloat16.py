"""bfloat16 numbers in kernels: read and rounded as torch does."""

from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from bertie.base.kernels import float_kernel
from bertie.model.cpu_bfloat16 import rounded, to_numpy, widened

SPECIAL = [0.0, -0.0, 1.0, 1 + 2**-8, 1 + 3 * 2**-8, 1e-40, 3.4e38, float("inf"), float("-inf"), float("nan")]


@float_kernel
def _copy(source: NDArray[Any], target: NDArray[Any]) -> None:
    for i in range(len(source)):
        target[i] = rounded(widened(source[i]), target[i])


def copy(source: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    target = torch.empty(len(source), dtype=dtype)
    _copy(*to_numpy(source, target))
    return target


@given(st.lists(st.floats(width=32), max_size=70))
def test_numbers_are_read_and_rounded_as_in_torch(numbers):
    values = torch.tensor(SPECIAL + numbers)
    assert torch.equal(copy(values, torch.float32).nan_to_num(7), values.nan_to_num(7))
    as_bfloat16 = copy(values, torch.bfloat16)
    expected = values.bfloat16()
    assert torch.equal(as_bfloat16.isnan(), expected.isnan())
    assert torch.equal(as_bfloat16.nan_to_num(7), expected.nan_to_num(7))
    assert torch.equal(copy(expected, torch.float32).nan_to_num(7), expected.float().nan_to_num(7))


def test_arrays_share_the_memory_of_tensors():
    tensors = torch.zeros(3), torch.zeros(3, dtype=torch.bfloat16)
    for tensor, array in zip(tensors, to_numpy(*tensors), strict=True):
        array[1] = 1
        assert tensor.count_nonzero() == 1
    assert to_numpy(tensors[1])[0].dtype == np.uint16
