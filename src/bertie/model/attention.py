"""Self-attention within the sequences of a packed batch.

`Layer` in bert.py calls it. Shapes: see bert.py.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertie.model.batch import PackedBatch
from bertie.model.cpu import can_fuse
from bertie.model.cpu_attention import cpu_attention
from bertie.model.cpu_attention_kernels import can_attend
from bertie.model.cpu_training_attention import training_attention
from bertie.model.dropout import dropout
from bertie.model.gpu import can_attend_on_gpu, gpu_attention


def packed_attention(
    qkv: Tensor, batch: PackedBatch, num_heads: int, dropout_p: float, causal: bool = False
) -> Tensor:
    """Compute multi-head attention (Vaswani et al., 2017, Section 3.2).

    Args:
        qkv: queries, keys and values side by side, (T, 3H); rows after the T tokens are ignored.
        batch: the sequences that the tokens form.
        num_heads: attention heads, A.
        dropout_p: probability of zeroing an attention weight.
        causal: whether a token attends only to itself and the tokens before it.

    Returns:
        The attended values, (T, H); the rows after the T tokens are finite, but mean nothing.
    """
    if can_attend_on_gpu(qkv, num_heads, dropout_p):
        return gpu_attention(qkv, batch, num_heads, dropout_p, causal)
    if qkv.requires_grad and can_fuse(qkv) and can_attend(qkv.shape[1] // (3 * num_heads)):
        return training_attention(qkv, batch.cu_seqlens, num_heads, dropout_p, causal)
    if qkv.device.type == "cpu" and (dropout_p or (qkv.dtype == torch.bfloat16 and qkv.requires_grad)):
        return cpu_attention(qkv, batch.buckets, num_heads, dropout_p, causal)
    attended_buckets = []
    for bucket, mask in zip(batch.buckets.pad(qkv), batch.buckets.masks(), strict=True):
        n, S, _ = bucket.shape  # n sequences, padded to S tokens
        q, k, v = bucket.view(n, S, 3, num_heads, -1).permute(2, 0, 3, 1, 4)  # (n, A, S, D) each
        # Causal attention needs no mask: padding comes after the tokens.
        key_mask = None if mask is None or causal else mask.view(n, 1, 1, S)
        attended = F.scaled_dot_product_attention(q, k, v, key_mask, dropout_p, causal)  # (n, A, S, D)
        attended_buckets.append(attended.transpose(1, 2).reshape(n * S, -1))  # (n·S, H)
    return batch.buckets.unpad(attended_buckets, rows=len(qkv))  # (T, H)


def pooling_attention(
    hidden: Tensor, positions: Tensor, qkv: nn.Linear, batch: PackedBatch, num_heads: int, dropout_p: float
) -> Tensor:
    """Compute multi-head attention from one token of each sequence.

    It attends to all tokens of the sequence. For a single query, keys and values need not be computed. With x
    the input of a token, its score q·(W_k x + b_k) is (W_kᵀ q)·x plus a number that is equal for all tokens,
    which softmax ignores. The weighted sum of the values W_v x + b_v is W_v times the weighted sum of the
    inputs, plus b_v times the sum of the weights, which is 1 without dropout. On a CPU, all products are in
    float32, because bfloat16 products of these small shapes would take longer to compile than to compute.

    Args:
        hidden: input of the layer, (T, H); rows after the T tokens are ignored.
        positions: index of the token of each sequence that attends, (N,); elements after them are ignored.
        qkv: the projections to queries, keys and values, H → 3H.
        batch: the sequences that the tokens form.
        num_heads: attention heads, A.
        dropout_p: probability of zeroing an attention weight.

    Returns:
        The attended values, (N, H).
    """
    H, A = hidden.shape[1], num_heads
    W_q, W_k, W_v = qkv.weight.view(3, H, H).unbind()
    b_q, _, b_v = qkv.bias.view(3, H).unbind()
    starts = torch.cat([tokens[:, 0] for tokens in batch.buckets.tokens()])  # (N,)
    sequences = batch.sequence_ids.index_select(0, starts)  # (N,), in the order of the buckets
    queries = hidden.index_select(0, positions.index_select(0, sequences))  # (N, H)
    with torch.autocast("cpu", enabled=False):
        q = F.linear(queries.float(), W_q, b_q).view(len(batch), A, -1).transpose(0, 1)  # (A, N, D)
        u = (q @ W_k.view(A, -1, H)).transpose(0, 1) * q.shape[-1] ** -0.5  # (N, A, H), scaled W_kᵀ q
        sums, inputs = [], []
        for bucket, mask in zip(batch.buckets.pad(hidden.float()), batch.buckets.masks(), strict=True):
            n = len(bucket)
            scores = u[:n] @ bucket.mT  # (n, A, S)
            u = u[n:]
            if mask is not None:
                scores = scores.masked_fill(~mask[:, None], float("-inf"))
            weights = dropout(scores.softmax(-1), dropout_p)  # (n, A, S)
            sums.append(weights.sum(-1))  # (n, A)
            inputs.append(weights @ bucket)  # (n, A, H)
        values = torch.cat(inputs).transpose(0, 1) @ W_v.view(A, -1, H).mT  # (A, N, D)
        attended = values.transpose(0, 1) + torch.cat(sums)[:, :, None] * b_v.view(A, -1)  # (N, A, D)
    return attended.reshape(-1, H).index_select(0, sequences.argsort())


def attention_probabilities(qkv: Tensor, num_heads: int, causal: bool = False) -> Tensor:
    """Compute the attention probabilities of one sequence, (A, T, T).

    They are for people to look at. The network itself does not call this function.

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
