"""Length buckets: the padded layout for some kinds of attention.

For shapes, see bert.py. Linear layers and bertie's attention kernels take packed tokens. Attention in plain
matrix products, `pooling_attention` and torch's `scaled_dot_product_attention` take sequences of equal
length. For these, sequences of similar length share a bucket, padded to the longest of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from bertie.base.arrays import Bools, Int64s
from bertie.base.kernels import kernel

# The shortest sequence of a bucket has at least this fraction of the longest one's length. That
# bounds the padding, and ten buckets cover lengths from 512 down to 30 tokens.
MIN_LENGTH_RATIO = 0.75


@dataclass(frozen=True)
class Buckets:
    """The mapping between the tokens of a packed batch and the buckets.

    A slot is one row of a bucket: it holds a token or padding.

    Attributes:
        shapes: (n, S) of each bucket: n sequences, padded to S tokens
        slot_tokens: int64 (P,), token in each slot; padding repeats the first token of its sequence
        token_slots: int64 (T,), slot of each token
        mask: bool (P,), whether a slot holds a token; None if all do
    """

    shapes: tuple[tuple[int, int], ...]
    slot_tokens: Tensor
    token_slots: Tensor
    mask: Tensor | None

    def to(self, device: torch.device) -> "Buckets":
        """Return these buckets with every tensor on `device`."""
        mask = None if self.mask is None else copy_to(self.mask, device)
        return Buckets(
            self.shapes, copy_to(self.slot_tokens, device), copy_to(self.token_slots, device), mask
        )

    def pad(self, tokens: Tensor) -> list[Tensor]:
        """Copy packed vectors (T, C) into the buckets, each (n, S, C)."""
        return self._split(_pad(tokens, self.slot_tokens, self.token_slots))

    def tokens(self) -> list[Tensor]:
        """Return the token in each slot of each bucket, int64 (n, S); see `slot_tokens`."""
        return self._split(self.slot_tokens)

    def masks(self) -> Sequence[Tensor | None]:
        """Return the mask of each bucket, (n, S); None if all slots hold tokens."""
        return [None] * len(self.shapes) if self.mask is None else self._split(self.mask)

    def unpad(self, buckets: list[Tensor], rows: int) -> Tensor:
        """Copy buckets (n·S, C) into packed vectors (rows, C).

        Rows after the T tokens are zero.
        """
        slots = buckets[0] if len(buckets) == 1 else torch.cat(buckets)
        return _unpad(slots, rows, self.token_slots)

    def _split(self, slots: Tensor) -> list[Tensor]:
        """Cut values of the slots, (P, …), into one tensor per bucket, (n, S, …)."""
        parts = torch.split(slots, [n * S for n, S in self.shapes])
        return [part.view(*shape, *part.shape[1:]) for part, shape in zip(parts, self.shapes, strict=True)]


def copy_to(values: Tensor, device: torch.device) -> Tensor:
    """Copy values to a device.

    From a CPU to a GPU, do not wait for the GPU's earlier work.
    """
    if values.device.type == "cpu" and device.type == "cuda":
        return values.pin_memory().to(device, non_blocking=True)
    return values.to(device)


def make_buckets(lengths: Int64s, vector_length: int = 1) -> Buckets:
    """Put sequences of similar length into buckets, the longest first.

    The padded length becomes a multiple of `vector_length` where this adds at most half of a vector.
    """
    order = np.argsort(-lengths, kind="stable")
    shapes = _bucket_shapes(lengths[order], vector_length)
    padded_lengths = np.repeat([S for _, S in shapes], [n for n, _ in shapes])
    slot_tokens, token_slots, mask = _assign_slots(lengths, order, padded_lengths)
    return Buckets(
        shapes,
        torch.from_numpy(slot_tokens),
        torch.from_numpy(token_slots),
        None if len(slot_tokens) == len(token_slots) else torch.from_numpy(mask),
    )


def _bucket_shapes(lengths: Int64s, vector_length: int) -> tuple[tuple[int, int], ...]:
    """Return the shape (n, S) of each bucket, for lengths in descending order."""
    shapes = []
    first = 0
    while first < len(lengths):
        longest = int(lengths[first])
        last = int(np.searchsorted(-lengths, -MIN_LENGTH_RATIO * longest, side="right"))
        missing = -longest % vector_length
        is_near = longest > vector_length >= 2 * missing
        shapes.append((last - first, longest + missing if is_near else longest))
        first = last
    return tuple(shapes)


@kernel  # numpy needs a dozen passes over the tokens, nearly as long as making the examples
def _assign_slots(lengths: Int64s, order: Int64s, padded_lengths: Int64s) -> tuple[Int64s, Int64s, Bools]:
    """Return `slot_tokens`, `token_slots` and `mask`.

    Sequence order[0] has the first padded_lengths[0] slots, order[1] the next padded_lengths[1],
    and so on.
    """
    starts = np.cumsum(lengths) - lengths
    token_slots = np.empty(lengths.sum(), dtype=np.int64)
    slot_tokens = np.empty(padded_lengths.sum(), dtype=np.int64)
    mask = np.empty(len(slot_tokens), dtype=np.bool_)
    slot = 0
    for sequence, padded_length in zip(order, padded_lengths):  # noqa: B905 (numba knows no strict)
        start, length = starts[sequence], lengths[sequence]
        for offset in range(length):
            token_slots[start + offset] = slot + offset
            slot_tokens[slot + offset] = start + offset
        slot_tokens[slot + length : slot + padded_length] = start
        mask[slot : slot + length] = True
        mask[slot + length : slot + padded_length] = False
        slot += padded_length
    return slot_tokens, token_slots, mask


class _Pad(torch.autograd.Function):
    """Copy tokens (T, …) into slots (P, …).

    A slot of padding has no gradient, so each token gets its gradient from one slot. The backward
    pass is therefore a gather too, which is faster than a scatter.
    """

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, slot_tokens: Tensor, token_slots: Tensor) -> Tensor:
        ctx.save_for_backward(token_slots)
        ctx.rows = len(tokens)
        return tokens.index_select(0, slot_tokens)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (token_slots,) = ctx.saved_tensors
        return _gather(grad, token_slots, ctx.rows), None, None


class _Unpad(torch.autograd.Function):
    """Copy slots (P, …) into rows (rows, …); the gradient of padding is zero."""

    @staticmethod
    def forward(ctx: Any, slots: Tensor, rows: int, token_slots: Tensor) -> Tensor:
        ctx.save_for_backward(token_slots)
        ctx.num_slots = len(slots)
        return _gather(slots, token_slots, rows)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (token_slots,) = ctx.saved_tensors
        slots = grad.new_zeros(ctx.num_slots, *grad.shape[1:])
        return slots.index_copy_(0, token_slots, grad[: len(token_slots)]), None, None


def _gather(values: Tensor, indices: Tensor, rows: int) -> Tensor:
    """Return `values[indices]`, with zeros appended up to `rows` rows."""
    if rows == len(indices):
        return values.index_select(0, indices)
    gathered = values.new_empty(rows, *values.shape[1:])
    torch.index_select(values, 0, indices, out=gathered[: len(indices)])
    gathered[len(indices) :] = 0
    return gathered


_pad = cast(Callable[[Tensor, Tensor, Tensor], Tensor], _Pad.apply)
_unpad = cast(Callable[[Tensor, int, Tensor], Tensor], _Unpad.apply)
