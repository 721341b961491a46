"""Attention in inference on a CPU. Shapes: see bert.py.

torch's fused kernel needs padded sequences, and is slower than the kernel here
(docs/decisions/processors.md has the measurements).
"""

import numpy as np
from torch import Tensor, nn

from bertie.model.batch import PackedBatch
from bertie.model.cpu import count_threads
from bertie.model.cpu_attention_kernels import attend, divide_attention
from bertie.model.cpu_inference import multiply_by_weights
from bertie.model.dropout import NOTHING_DROPPED
from bertie.model.packed_weights import PackedLinear

NO_SUMS = np.empty((0, 0), np.float32)


def inference_attention(
    hidden: Tensor, qkv: nn.Linear | PackedLinear, batch: PackedBatch, num_heads: int, is_causal: bool = False
) -> Tensor:
    """Project to queries, keys and values, and attend.

    This is `packed_attention` without dropout.

    Args:
        hidden: input of the layer, float32 (T, H).
        qkv: the projections to queries, keys and values, H → 3H; heads as `can_attend` allows.
        batch: the sequences that the tokens form.
        num_heads: attention heads, A.
        is_causal: whether a token attends only to itself and the tokens before it.

    Returns:
        The attended values, (T, H).
    """
    T, H = hidden.shape
    rows = multiply_by_weights(hidden, qkv)  # (T, 3H), without the bias
    attended = hidden.new_empty(T, H)
    if batch.num_tokens < T:
        attended[batch.num_tokens :] = 0  # rows of padding
    bias, bounds = qkv.bias.detach().numpy(), batch.cu_seqlens.numpy()
    arguments = (rows.numpy(), bias, bounds, is_causal, NOTHING_DROPPED, attended.numpy(), NO_SUMS, num_heads)
    threads = count_threads(attended.numel())
    divide_attention(lambda *part: attend(*arguments, *part), bounds, num_heads, threads)
    return attended
