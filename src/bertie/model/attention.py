"""Self-attention over packed sequences: one function. A token attends to the tokens of its own sequence."""

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from bertie.model.batch import PackedBatch
from bertie.model.dropout import dropout as drop


def packed_attention(
    qkv: Tensor, batch: PackedBatch, num_heads: int, dropout: float, causal: bool = False
) -> Tensor:
    """Multi-head scaled dot-product attention (Vaswani et al., 2017, Section 3.2).

    Args:
        qkv: queries, keys and values side by side, (T, 3H).
        batch: says which tokens form a sequence.
        num_heads: A.
        dropout: the probability with which an attention weight is zeroed.
        causal: a token attends to itself and those before it alone.

    Returns:
        The attended values, (T, H).
    """
    H = qkv.shape[1] // 3
    D = H // num_heads
    padded = to_buckets(qkv, batch.bucket_rows, batch.bucket_places)  # (P, 3H)
    # On a CPU torch's fused kernel has no dropout, and in bfloat16 its backward pass takes several times as
    # long as that of plain products (docs/decisions/processors.md).
    on_cpu = qkv.device.type == "cpu"
    plain = on_cpu and (dropout > 0 or (qkv.dtype == torch.bfloat16 and qkv.requires_grad))
    outputs = []
    place = 0
    for sequences, S in batch.bucket_shapes:
        here = slice(place, place + sequences * S)
        q, k, v = padded[here].view(sequences, S, 3, num_heads, D).permute(2, 0, 3, 1, 4)  # (n, A, S, D)
        mask = None
        if batch.bucket_mask is not None and not causal:  # padding stands behind all tokens: none looks there
            mask = batch.bucket_mask[here].view(sequences, 1, 1, S)
        if plain:
            if causal:
                mask = torch.ones(S, S, dtype=torch.bool).tril()
            attended = _attend(q, k, v, mask, dropout)
        else:
            attended = F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=causal
            )
        outputs.append(attended.transpose(1, 2).reshape(sequences * S, H))
        place += sequences * S
    joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs)  # (P, H)
    return from_buckets(joined, batch.bucket_rows, batch.bucket_places)


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
        return tokens.index_select(0, rows)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (places,) = ctx.saved_tensors
        return grad.index_select(0, places), None, None


class _FromBuckets(torch.autograd.Function):
    """(P, …) -> (T, …); padding gets the gradient zero."""

    @staticmethod
    def forward(ctx: Any, padded: Tensor, rows: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        ctx.padded_rows = len(rows)
        return padded.index_select(0, places)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (places,) = ctx.saved_tensors
        return grad.new_zeros(ctx.padded_rows, *grad.shape[1:]).index_copy_(0, places, grad), None, None


# The arguments of both: (values, batch.bucket_rows, batch.bucket_places).
to_buckets = cast(Callable[[Tensor, Tensor, Tensor], Tensor], _ToBuckets.apply)
from_buckets = cast(Callable[[Tensor, Tensor, Tensor], Tensor], _FromBuckets.apply)
