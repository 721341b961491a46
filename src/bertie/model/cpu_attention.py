"""Attention for training on a CPU in plain matrix products. Shapes: see bert.py.

It computes bfloat16, and dropout in float32 for head sizes that `cpu_training_attention` does not take.
torch's fused kernel for CPUs has no dropout, and in bfloat16 its backward pass takes several times as long
as plain matrix products (docs/decisions/processors.md).
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from numpy.typing import NDArray
from torch import Tensor

from bertie.base.arrays import Int64s
from bertie.base.kernels import kernel
from bertie.base.threads import run_in_threads
from bertie.model.buckets import Buckets
from bertie.model.cpu import count_threads
from bertie.model.dropout import INTEGERS, DropoutMask
from bertie.model.memory import new_empty, new_rows
from bertie.model.products import multiply_pairs

# In bfloat16, attention with fewer multiplications than this, n·A·S²·D, is computed in float32: compiling the
# bfloat16 product would take longer.
SMALL_PRODUCT = 2_000_000


def cpu_attention(
    qkv: Tensor, buckets: Buckets, num_heads: int, dropout_p: float, is_causal: bool = False
) -> Tensor:
    """Compute `packed_attention` on a CPU in plain matrix products.

    Dropout is optional. For the backward pass, autograd keeps `qkv` and the attention weights before
    dropout. The backward pass overwrites both, so it can run only once. In bfloat16, buckets with small
    products use float32.

    Args:
        qkv: queries, keys and values side by side, (T, 3H), in float32 or bfloat16.
        buckets: of the T tokens.
        num_heads: attention heads, A.
        dropout_p: probability of zeroing an attention weight.
        is_causal: whether a token attends only to itself and the tokens before it.

    Returns:
        The attended values, (T, H); zeros in the rows after the tokens.
    """
    with torch.autocast("cpu", enabled=False):  # autocast would turn float32 into bfloat16
        return _packed_attention(qkv, buckets, num_heads, dropout_p, is_causal)


class _PackedAttention(torch.autograd.Function):
    """The autograd function of `cpu_attention`.

    Each product multiplies n·A pairs of matrices, one for each sequence and head.
    """

    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, buckets: Buckets, num_heads: int, dropout_p: float, is_causal: bool
    ) -> Tensor:
        attended = new_rows(qkv, len(buckets.token_slots), qkv.shape[1] // 3)  # (T, H)
        kept, masks = [], []
        for tokens, is_token in zip(buckets.tokens(), buckets.masks(), strict=True):
            q, k, v = _gather(qkv, tokens, 3, num_heads)  # (n·A, S, D) each
            scores = multiply_pairs(q, k.mT, q.shape[-1] ** -0.5)  # (n·A, S, S)
            _hide_keys(scores.view(len(tokens), num_heads, *scores.shape[1:]), is_token, is_causal)
            weights = torch.softmax(scores, -1, out=scores)  # (n·A, S, S)
            dropped = DropoutMask.draw(dropout_p)
            _scatter(multiply_pairs(dropped.zero(weights), v, dropped.scale)[None], tokens, attended)
            kept.append(weights)
            masks.append(dropped)
        ctx.save_for_backward(qkv, *kept)
        ctx.buckets, ctx.num_heads, ctx.dropped = buckets, num_heads, masks
        return attended

    @staticmethod
    def backward(ctx: Any, grad_attended: Tensor) -> tuple[Tensor, None, None, None, None]:
        qkv, *kept = ctx.saved_tensors
        torch.autograd.graph.increment_version([qkv, *kept])  # so that a second backward pass is an error
        grad_attended = grad_attended.contiguous()
        for tokens, weights, dropped in zip(ctx.buckets.tokens(), kept, ctx.dropped, strict=True):
            heads = _gather(qkv, tokens, 3, ctx.num_heads)
            q, k, v = heads  # (n·A, S, D) each
            (grad,) = _gather(grad_attended, tokens, 1, ctx.num_heads)  # (n·A, S, D)
            # The gradient of the weights after dropout, then before it, and then of the scores.
            grad_scores = dropped.zero(multiply_pairs(grad, v.mT, dropped.scale))  # (n·A, S, S)
            torch._softmax_backward_data(grad_scores, weights, -1, weights.dtype, grad_input=grad_scores)
            scale = q.shape[-1] ** -0.5
            grads = new_empty(heads, *heads.shape)
            multiply_pairs(grad_scores, k, scale, out=grads[0])
            multiply_pairs(grad_scores.mT, q, scale, out=grads[1])
            multiply_pairs(dropped.zero(weights).mT, grad, dropped.scale, out=grads[2])
            _scatter(grads, tokens, qkv)  # the gradients take the place of queries, keys and values
        qkv[len(ctx.buckets.token_slots) :] = 0
        return qkv, None, None, None, None


_packed_attention = cast(Callable[[Tensor, Buckets, int, float, bool], Tensor], _PackedAttention.apply)


def _hide_keys(scores: Tensor, is_token: Tensor | None, is_causal: bool) -> None:
    """Set the scores of hidden keys, (n, A, S, S), to minus infinity.

    A query may not attend to them. `is_token`, bool (n, S), tells tokens from padding; None if all are
    tokens.
    """
    S = scores.shape[-1]
    if is_causal:  # padding comes after the tokens
        may_attend = torch.ones(S, S, dtype=torch.bool).tril()
    elif is_token is not None:
        may_attend = is_token[:, None, None]  # (n, 1, 1, S)
    else:
        return
    # A sum, because masked_fill works on one element at a time.
    scores += torch.zeros(may_attend.shape, dtype=scores.dtype).masked_fill_(~may_attend, float("-inf"))


def _gather(rows: Tensor, tokens: Tensor, parts: int, num_heads: int) -> Tensor:
    """Copy rows (T, parts · A · D) into a bucket, (parts, n · A, S, D).

    Padding has zeros.
    """
    n, S = tokens.shape
    D = rows.shape[1] // (parts * num_heads)
    heads = new_empty(rows, parts, n * num_heads, S, D)
    _copy(_gather_heads, rows, tokens, heads)
    is_small = n * num_heads * S * S * D < SMALL_PRODUCT
    return heads.float() if is_small else heads


def _scatter(heads: Tensor, tokens: Tensor, rows: Tensor) -> None:
    """Copy a bucket (parts, n · A, S, D) into rows, (T, parts · A · D).

    They are the rows of its tokens.
    """
    _copy(_scatter_heads, rows, tokens, heads.to(rows.dtype))


def _copy(copy: Callable[..., None], rows: Tensor, tokens: Tensor, heads: Tensor) -> None:
    """Run a kernel that copies between rows and a bucket.

    It runs in several threads if the bucket is large.
    """
    n, S = tokens.shape
    in_bucket = heads.view(len(heads), n, -1, S, heads.shape[-1])
    as_integers = (x.detach().view(INTEGERS[x.element_size()]).numpy() for x in (rows, in_bucket))
    arguments = (*as_integers, tokens.numpy())
    run_in_threads(lambda first, last: copy(*arguments, first, last), n, count_threads(heads.numel()))


@kernel
def _gather_heads(rows: NDArray[Any], heads: NDArray[Any], tokens: Int64s, first: int, last: int) -> None:
    """Copy rows (T, parts · A · D) into sequences of a bucket.

    These are first..last-1 of the bucket, (parts, n, A, S, D). `tokens`, (n, S), has the token in each slot.
    Padding, which repeats the first token of its sequence, becomes zeros.
    """
    parts, _, A, S, D = heads.shape
    for part in range(parts):
        for i in range(first, last):
            for a in range(A):
                column = (part * A + a) * D
                for s in range(S):
                    token = tokens[i, s]
                    if token == tokens[i, 0] + s:
                        for d in range(D):
                            heads[part, i, a, s, d] = rows[token, column + d]
                    else:
                        for d in range(D):
                            heads[part, i, a, s, d] = 0


@kernel
def _scatter_heads(rows: NDArray[Any], heads: NDArray[Any], tokens: Int64s, first: int, last: int) -> None:
    """Copy sequences first..last-1 of a bucket into the rows of their tokens.

    See `_gather_heads`.
    """
    parts, _, A, S, D = heads.shape
    for part in range(parts):
        for i in range(first, last):
            for a in range(A):
                column = (part * A + a) * D
                for s in range(S):
                    token = tokens[i, s]
                    if token == tokens[i, 0] + s:
                        for d in range(D):
                            rows[token, column + d] = heads[part, i, a, s, d]
