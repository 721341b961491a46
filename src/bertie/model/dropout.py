"""Dropout that is cheap on a CPU.

On a CPU, torch draws one random value for each element, in one thread, and keeps the mask for the
backward pass. Here a kernel zeroes elements in one pass over them, by hashes of their positions and
of a key, so that the backward pass needs only the key.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Self, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from bertie.base.arrays import Float32s, UInt32s
from bertie.base.kernels import inlined_kernel, kernel
from bertie.base.threads import run_in_threads
from bertie.model.cpu import count_threads
from bertie.model.memory import new_empty

LEVELS = 1 << 16  # an element is dropped or kept by 16 random bits
INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # by the bytes of an element


class Dropout(nn.Module):
    """A module like nn.Dropout that calls `dropout`; it uses torch's global generator."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, values: Tensor) -> Tensor:
        """Drop elements in training; return `values` itself in evaluation."""
        return dropout(values, self.probability) if self.training else values


def dropout(values: Tensor, probability: float) -> Tensor:
    """Zero each element with `probability`, and scale the others to keep the mean.

    On a CPU `probability` is rounded to a multiple of 1/65,536.
    """
    if not probability:
        return values
    if values.device.type != "cpu":
        return F.dropout(values, probability)
    return _cpu_dropout(values, probability)


class DropoutMask(NamedTuple):
    """The mask of bertie's kernels.

    They drop elements whose hash by the key is below `dropped_levels`.
    """

    key: UInt32s  # (2,)
    dropped_levels: int

    @classmethod
    def draw(cls, probability: float) -> Self:
        """Draw a mask from torch's generator."""
        key = torch.randint(-(2**31), 2**31, (2,)).numpy().astype(np.uint32)
        return cls(key, min(round(probability * LEVELS), LEVELS - 1))

    @property
    def scale(self) -> float:
        """The factor of the elements that are kept."""
        return LEVELS / (LEVELS - self.dropped_levels)

    @property
    def arguments(self) -> tuple[np.uint32, np.uint32, np.uint32, np.float32]:
        """The arguments of `draw_factors` that describe the mask."""
        return (*self.key, np.uint32(self.dropped_levels), np.float32(self.scale))

    def zero(self, values: Tensor) -> Tensor:
        """Return a copy of `values` in which the dropped elements are 0.

        Return `values` if none is dropped.
        """
        if not self.dropped_levels:
            return values
        values = values.detach().contiguous()
        zeroed = new_empty(values, *values.shape)
        source, target = (x.view(INTEGERS[x.element_size()]).view(-1).numpy() for x in (values, zeroed))
        pairs = -(-len(source) // 2)
        key_and_levels = self.arguments[:3]
        run_in_threads(
            lambda first, last: _copy_or_zero(source, target, first, last, *key_and_levels),
            pairs,
            count_threads(len(source)),
        )
        return zeroed


NOTHING_DROPPED = DropoutMask(np.zeros(2, np.uint32), 0).arguments


class _CPUDropout(torch.autograd.Function):
    """`dropout` on a CPU; the backward pass computes the same mask again."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, probability: float) -> Tensor:
        mask = DropoutMask.draw(probability)
        ctx.mask = mask
        return mask.zero(values).mul_(mask.scale)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        mask: DropoutMask = ctx.mask
        return mask.zero(grad).mul_(mask.scale), None


_cpu_dropout = cast(Callable[[Tensor, float], Tensor], _CPUDropout.apply)


@kernel
def _copy_or_zero(
    source: NDArray[Any],
    target: NDArray[Any],
    first: int,
    last: int,
    key: np.uint32,
    second_key: np.uint32,
    dropped_levels: np.uint32,
) -> None:
    """Copy or zero elements first..last-1 of both halves of an array.

    Elements i of the two halves share a hash of 32 bits, so that the loop reads and writes
    consecutive elements only, and the compiler makes vector instructions of it.
    """
    half = -(-len(source) // 2)
    # Slices, because a loop from 0 has no negative indices, which would keep it from being vectorized.
    source_1, target_1 = source[first:last], target[first:last]
    source_2, target_2 = source[half + first : half + last], target[half + first : half + last]
    for i in range(len(source_2)):
        bits = _hash(np.uint32(first + i), key, second_key)
        target_1[i] = source_1[i] if (bits & np.uint32(0xFFFF)) >= dropped_levels else 0
        target_2[i] = source_2[i] if (bits >> np.uint32(16)) >= dropped_levels else 0
    for i in range(len(source_2), len(source_1)):  # an odd number of elements has one without a pair
        bits = _hash(np.uint32(first + i), key, second_key)
        target_1[i] = source_1[i] if (bits & np.uint32(0xFFFF)) >= dropped_levels else 0


@inlined_kernel
def draw_factors(
    row: int,
    width: int,
    key: np.uint32,
    second_key: np.uint32,
    dropped_levels: np.uint32,
    kept: np.float32,
    factors: Float32s,
) -> None:
    """Draw the factors of a row's elements.

    They are 0 for dropped elements, and `kept` for the others. Elements j of the two halves of a row share a
    hash. `factors` has width + 1 elements.
    """
    half = (width + 1) // 2
    factors_1, factors_2 = factors[:half], factors[half:]
    for j in range(half):
        bits = _hash(np.uint32(row * half + j), key, second_key)
        factors_1[j] = kept if (bits & np.uint32(0xFFFF)) >= dropped_levels else np.float32(0)
        factors_2[j] = kept if (bits >> np.uint32(16)) >= dropped_levels else np.float32(0)


@inlined_kernel
def _hash(position: np.uint32, key: np.uint32, second_key: np.uint32) -> np.uint32:
    """Return 32 random bits, by Wellons' lowbias32 with a key in its middle.

    See nullprogram.com/blog/2018/07/31. With only the first key, two masks would be pieces of one sequence.
    Each step ends with np.uint32, because numba computes in 64 bits.
    """
    bits = np.uint32(position * np.uint32(0x9E3779B9) + key)
    bits = np.uint32((bits ^ (bits >> np.uint32(16))) * np.uint32(0x7FEB352D)) ^ second_key
    bits = np.uint32((bits ^ (bits >> np.uint32(15))) * np.uint32(0x846CA68B))
    return np.uint32(bits ^ (bits >> np.uint32(16)))
