"""Self-attention over packed sequences: one function. A token attends to the tokens of its own sequence."""

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from bertie.model.batch import PackedBatch
from bertie.model.dropout import dropout as drop

# Where a CPU trains in bfloat16, a bucket of fewer multiplications (n·A·S²·D) is computed in float32: for
# each new shape a product of bfloat16 is compiled, which takes longer (docs/decisions/processors.md).
SMALL_PRODUCT = 2_000_000


def packed_attention(
    qkv: Tensor, batch: PackedBatch, num_heads: int, dropout: float, causal: bool = False
) -> Tensor:
    """Multi-head scaled dot-product attention (Vaswani et al., 2017, Section 3.2).

    Args:
        qkv: queries, keys and values side by side, (T, 3H). There may be further rows, of no sequence.
        batch: says which tokens form a sequence.
        num_heads: A.
        dropout: the probability with which an attention weight is zeroed.
        causal: a token attends to itself and those before it alone.

    Returns:
        The attended values, (T, H); zeros in further rows.
    """
    H = qkv.shape[1] // 3
    D = H // num_heads
    padded = to_buckets(qkv, batch.bucket_rows, batch.bucket_places)  # (P, 3H)
    on_cpu = qkv.device.type == "cpu"
    bfloat16_training = on_cpu and qkv.dtype == torch.bfloat16 and qkv.requires_grad
    outputs = []
    place = 0
    with torch.autocast("cpu", enabled=False):  # it would make bfloat16 of float32 again
        for sequences, S in batch.bucket_shapes:
            here = slice(place, place + sequences * S)
            bucket = padded[here]
            if bfloat16_training and sequences * num_heads * S * S * D < SMALL_PRODUCT:
                bucket = bucket.float()
            q, k, v = bucket.view(sequences, S, 3, num_heads, D).permute(2, 0, 3, 1, 4)  # (n, A, S, D)
            mask = None
            if batch.bucket_mask is not None and not causal:  # none looks behind, at padding
                mask = batch.bucket_mask[here].view(sequences, 1, 1, S)
            # On a CPU torch's fused kernel has no dropout, and in bfloat16 its backward pass takes several
            # times as long as that of plain products (docs/decisions/processors.md).
            if on_cpu and (dropout > 0 or (bfloat16_training and q.dtype == torch.bfloat16)):
                if causal:
                    mask = torch.ones(S, S, dtype=torch.bool).tril()
                attended = _attend(q, k, v, mask, dropout)
            else:
                attended = F.scaled_dot_product_attention(
                    q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=causal
                )
            outputs.append(attended.transpose(1, 2).reshape(sequences * S, H).to(qkv.dtype))
            place += sequences * S
    joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs)  # (P, H)
    return from_buckets(joined, len(qkv), batch.bucket_places)


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
    """What SDPA does without a fused kernel, but with faster dropout."""
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)  # (n, A, S, S)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return drop(scores.softmax(-1), dropout) @ v  # (n, A, S, D)


class _ToBuckets(torch.autograd.Function):
    """(T, …) -> (P, …). A token stands in one place, so the gradient is a gather too, no scatter-add."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, rows: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        ctx.rows = len(tokens)
        return tokens.index_select(0, rows)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (places,) = ctx.saved_tensors
        return _gather(grad, places, ctx.rows), None, None


class _FromBuckets(torch.autograd.Function):
    """(P, …) -> (T, …); padding gets the gradient zero."""

    @staticmethod
    def forward(ctx: Any, padded: Tensor, rows: int, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        ctx.padded_rows = len(padded)
        return _gather(padded, places, rows)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (places,) = ctx.saved_tensors
        padded = grad.new_zeros(ctx.padded_rows, *grad.shape[1:])
        return padded.index_copy_(0, places, grad[: len(places)]), None, None


def _gather(values: Tensor, places: Tensor, rows: int) -> Tensor:
    """`values[places]`, and after these zeros up to `rows` rows."""
    if rows == len(places):
        return values.index_select(0, places)
    gathered = values.new_empty(rows, *values.shape[1:])
    torch.index_select(values, 0, places, out=gathered[: len(places)])
    gathered[len(places) :] = 0
    return gathered


# (values, batch.bucket_rows, batch.bucket_places), and (values, how many rows to give, batch.bucket_places)
to_buckets = cast(Callable[[Tensor, Tensor, Tensor], Tensor], _ToBuckets.apply)
from_buckets = cast(Callable[[Tensor, int, Tensor], Tensor], _FromBuckets.apply)
