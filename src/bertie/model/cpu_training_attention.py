"""Attention for training on a CPU in float32. Shapes: see bert.py.

No matrix of attention weights is kept for the backward pass, which computes the weights again
(docs/decisions/processors.md has the measurements).
"""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from bertie.model.cpu import count_threads
from bertie.model.cpu_attention_kernels import attend, attend_backward, divide_attention
from bertie.model.dropout import DropoutMask
from bertie.model.memory import new_empty, new_rows


def training_attention(
    qkv: Tensor, cu_seqlens: Tensor, num_heads: int, dropout_p: float, is_causal: bool = False
) -> Tensor:
    """Compute `packed_attention` with kernels, for heads as `can_attend` allows.

    Args:
        qkv: queries, keys and values side by side, float32 (T, 3H).
        cu_seqlens: bounds of the sequences, int32 (N + 1,).
        num_heads: attention heads, A.
        dropout_p: probability of zeroing an attention weight.
        is_causal: whether a token attends only to itself and the tokens before it.

    Returns:
        The attended values, (T, H); zeros in the rows after the tokens.
    """
    return _training_attention(qkv.contiguous(), cu_seqlens, num_heads, dropout_p, is_causal)


class _TrainingAttention(torch.autograd.Function):
    """`training_attention`."""

    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, cu_seqlens: Tensor, num_heads: int, dropout_p: float, is_causal: bool
    ) -> Tensor:
        attended = new_rows(qkv, int(cu_seqlens[-1]), qkv.shape[1] // 3)
        log_sums = new_empty(qkv, num_heads, len(qkv))
        mask = DropoutMask.draw(dropout_p).arguments
        no_bias = np.zeros(qkv.shape[1], np.float32)
        rows, bounds = qkv.detach().numpy(), cu_seqlens.numpy()
        arguments = (rows, no_bias, bounds, is_causal, mask, attended.numpy(), log_sums.numpy(), num_heads)
        threads = count_threads(attended.numel())
        divide_attention(lambda *part: attend(*arguments, *part), bounds, num_heads, threads)
        ctx.save_for_backward(qkv, attended, log_sums)
        ctx.cu_seqlens, ctx.is_causal, ctx.mask = cu_seqlens, is_causal, mask
        return attended

    @staticmethod
    def backward(ctx: Any, grad_attended: Tensor) -> tuple[Tensor, None, None, None, None]:
        qkv, *results = ctx.saved_tensors
        grad_qkv = new_rows(qkv, int(ctx.cu_seqlens[-1]), qkv.shape[1])
        rows, attended, log_sums = (tensor.detach().numpy() for tensor in (qkv, *results))
        grad = grad_attended.contiguous().numpy()
        bounds, num_heads = ctx.cu_seqlens.numpy(), len(log_sums)
        arguments = (rows, bounds, ctx.is_causal, ctx.mask, attended, log_sums, grad, grad_qkv.numpy())
        threads = count_threads(attended.size)
        divide_attention(lambda *part: attend_backward(*arguments, *part), bounds, num_heads, threads)
        return grad_qkv, None, None, None, None


_training_attention = cast(Callable[[Tensor, Tensor, int, float, bool], Tensor], _TrainingAttention.apply)
