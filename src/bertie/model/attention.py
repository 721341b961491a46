"""Self-attention within the sequences of a packed batch.

The projections before and after it are in `Layer` in bert.py, which also explains the shapes.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from bertie.model.batch import PackedBatch
from bertie.model.cpu_attention import cpu_attention


def packed_attention(
    qkv: Tensor, batch: PackedBatch, num_heads: int, dropout: float, causal: bool = False
) -> Tensor:
    """Compute multi-head attention (Vaswani et al., 2017, Section 3.2).

    Args:
        qkv: queries, keys and values side by side, (T, 3H); rows after the T tokens are ignored.
        batch: the sequences that the tokens form.
        num_heads: attention heads, A.
        dropout: probability of zeroing an attention weight.
        causal: whether a token attends only to itself and the tokens before it.

    Returns:
        The attended values, (T, H); zeros in the rows after the T tokens.
    """
    if qkv.device.type == "cpu" and (dropout or (qkv.dtype == torch.bfloat16 and qkv.requires_grad)):
        return cpu_attention(qkv, batch.buckets, num_heads, dropout, causal)
    attended_buckets = []
    for bucket, mask in zip(batch.buckets.pad(qkv), batch.buckets.masks(), strict=True):
        n, S, _ = bucket.shape  # n sequences, padded to S tokens
        q, k, v = bucket.view(n, S, 3, num_heads, -1).permute(2, 0, 3, 1, 4)  # (n, A, S, D) each
        # Causal attention needs no mask: padding comes after the tokens.
        key_mask = None if mask is None or causal else mask.view(n, 1, 1, S)
        attended = F.scaled_dot_product_attention(q, k, v, key_mask, dropout, causal)  # (n, A, S, D)
        attended_buckets.append(attended.transpose(1, 2).reshape(n * S, -1))  # (n·S, H)
    return batch.buckets.unpad(attended_buckets, rows=len(qkv))  # (T, H)


def attention_probabilities(qkv: Tensor, num_heads: int, causal: bool = False) -> Tensor:
    """Compute the attention probabilities of one sequence, (A, T, T).

    They are for people to look at: `packed_attention` never computes them as a whole.

    Args:
        qkv: as in `packed_attention`, for the T tokens of one sequence.
        num_heads: attention heads, A.
        causal: whether a token attends only to itself and the tokens before it.
    """
    q, k, _ = qkv.view(len(qkv), 3, num_heads, -1).permute(1, 2, 0, 3)  # (A, T, D) each
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
    probabilities: Tensor = scores.softmax(-1)
    return probabilities
