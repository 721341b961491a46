"""Faster ways to compute parts of the encoder on a CPU. Shapes: see bert.py.

docs/decisions/processors.md has the measurements. The reasons are:

- torch's fused attention kernel for CPUs has no dropout, and in bfloat16 its backward pass takes
  several times as long as plain matrix products.
- oneDNN, which multiplies bfloat16, compiles a kernel for every new shape, in about a millisecond,
  and keeps only the last 1,024. In packed training most shapes are new: the number of tokens
  differs in every step, and the size of every attention bucket too. MKL, which multiplies float32,
  compiles nothing.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from bertie.model.dropout import DropoutMask

# In bfloat16 training, attention with fewer multiplications than this, n·A·S²·D, is computed in
# float32: compiling the bfloat16 product would take longer.
SMALL_PRODUCT = 2_000_000

# Rows are padded to a multiple that is small enough to cost nothing and large enough for shapes to
# recur. Models with a hidden size above MAX_PADDED_WIDTH were slower with padding.
ROW_MULTIPLE = 32
MAX_PADDED_WIDTH = 512


def cpu_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout_p: float, is_causal: bool
) -> Tensor:
    """Compute F.scaled_dot_product_attention, faster in training.

    With dropout, or in bfloat16 training, plain matrix products replace the fused kernel. In
    bfloat16 training, small products are computed and returned in float32.

    Args:
        q: queries, (n, A, S, D).
        k: keys, (n, A, S, D).
        v: values, (n, A, S, D).
        mask: whether a query may attend to a key, bool (n, 1, 1, S); None for all keys.
        dropout_p: probability of zeroing an attention weight.
        is_causal: whether a token attends only to itself and the tokens before it; `mask` must be
            None then.

    Returns:
        The attended values, (n, A, S, D).
    """
    n, A, S, D = q.shape
    in_bfloat16 = q.dtype == torch.bfloat16 and q.requires_grad
    if in_bfloat16 and n * A * S * S * D < SMALL_PRODUCT:
        q, k, v = q.float(), k.float(), v.float()
        in_bfloat16 = False
    with torch.autocast("cpu", enabled=False):  # autocast would turn float32 back into bfloat16
        if not dropout_p and not in_bfloat16:
            return F.scaled_dot_product_attention(q, k, v, mask, is_causal=is_causal)
        if is_causal:
            mask = torch.ones(S, S, dtype=torch.bool).tril()
        return _attention(q, k, v, mask, dropout_p)


class _Attention(torch.autograd.Function):
    """Attention in plain matrix products, as `cpu_attention`; the mask may be (S, S) too.

    Autograd would also keep the scaled queries, copies of keys and values, and the weights after dropout.
    The backward pass computes them again. With dropout the values are scaled, because the weights are more.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout_p: float) -> Tensor:
        scores = (q * q.shape[-1] ** -0.5) @ k.mT  # (n, A, S, S)
        if mask is not None:  # a sum, because masked_fill works on one element at a time
            scores += torch.zeros(mask.shape, dtype=q.dtype).masked_fill_(~mask, float("-inf"))
        weights = scores.softmax(-1)
        dropped = DropoutMask.draw(dropout_p) if dropout_p else None
        ctx.save_for_backward(q, k, v, weights)
        ctx.dropped = dropped
        if dropped is None:
            return torch.matmul(weights, v)
        return torch.matmul(dropped.zero(weights), v * dropped.scale)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        q, k, v, weights = ctx.saved_tensors
        if ctx.dropped is None:
            grad_v = weights.mT @ grad
            grad_weights = grad @ v.mT
        else:
            grad = grad * ctx.dropped.scale
            grad_v = ctx.dropped.zero(weights).mT @ grad
            grad_weights = ctx.dropped.zero(grad @ v.mT)
        grad_scores = torch._softmax_backward_data(grad_weights, weights, -1, weights.dtype)
        scale = q.shape[-1] ** -0.5
        return (grad_scores @ k).mul_(scale), grad_scores.mT @ (q * scale), grad_v, None, None


def embed_and_tie(weight: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Look up word embeddings that the decoder uses too.

    On a CPU, autograd would write the gradient of the embeddings to new memory as large as the weights,
    and its sum with the decoder's gradient to more. Here it is added to the decoder's.

    Args:
        weight: the word embeddings, (V, H).
        ids: indices of tokens, (T,).

    Returns:
        The vectors of the tokens, (T, H), and the weights for the decoder, (V, H), to be used once.
    """
    if weight.device.type != "cpu":  # where the sum would have another order in every run
        return F.embedding(ids, weight), weight
    return _embed_and_tie(weight, ids)


class _EmbedAndTie(torch.autograd.Function):
    """`embed_and_tie` on a CPU."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(ids)
        return F.embedding(ids, weight), weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, grad_vectors: Tensor, grad_decoder: Tensor) -> tuple[Tensor, None]:
        (ids,) = ctx.saved_tensors
        return grad_decoder.index_add_(0, ids, grad_vectors), None


_attention = cast(Callable[[Tensor, Tensor, Tensor, Tensor | None, float], Tensor], _Attention.apply)
_embed_and_tie = cast(Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], _EmbedAndTie.apply)


def pad_rows(rows: Tensor, hidden_size: int) -> Tensor:
    """Append rows of zeros up to a multiple of ROW_MULTIPLE, for bfloat16 on a CPU.

    Return `rows` unchanged on other devices, without autocast, and in models with a hidden size
    above MAX_PADDED_WIDTH. No token attends to the added rows; the caller drops them at the end.
    """
    if hidden_size > MAX_PADDED_WIDTH or rows.device.type != "cpu" or not torch.is_autocast_enabled("cpu"):
        return rows
    return F.pad(rows, [0, 0] * (rows.dim() - 1) + [0, -len(rows) % ROW_MULTIPLE])
