"""Attention in inference on a CPU. Shapes: see bert.py.

torch's fused kernel needs padded sequences, and is slower than the kernel here, which reads packed rows
without padding (docs/decisions/processors.md has the measurements).

The kernel works on one head of one sequence, and on up to TILE of its queries, at a time. Queries, scores and
results are transposed, so that neighbours in memory belong to different queries. Therefore the loop over
queries is the inner one everywhere, in softmax too, and the compiler makes vector instructions of it. The
kernel transposes queries and results itself: the product before it would write transposed queries more
slowly, and oneDNN would copy transposed results before the product after it.
"""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from bertie.base.kernels import VECTOR, float_kernel, inlined_float_kernel, vectorize_loops
from bertie.base.threads import run_in_threads
from bertie.model.batch import PackedBatch
from bertie.model.cpu import count_threads
from bertie.model.cpu_inference import multiply_by_weights
from bertie.model.cpu_math import LOG2_E, power_of_2
from bertie.model.packed_weights import PackedLinear

Float32s = NDArray[np.float32]

MAX_LENGTH = 512  # tokens, the longest sequence of BERT; for longer ones torch's kernel is faster
TILE = 64  # queries; a constant, so that the compiler knows how far apart rows are
BLOCK = 8  # terms added at a time
LINE = 16  # float32 numbers in a line of the cache

ONE = np.float32(1)


def can_attend(batch: PackedBatch, head_size: int) -> bool:
    """Return whether `inference_attention` applies, and is faster than torch's kernel."""
    return head_size % BLOCK == 0 and batch.max_seqlen <= MAX_LENGTH


def inference_attention(
    hidden: Tensor, qkv: nn.Linear | PackedLinear, batch: PackedBatch, num_heads: int
) -> Tensor:
    """Project to queries, keys and values, and attend as `packed_attention` does without dropout.

    Args:
        hidden: input of the layer, float32 (T, H).
        qkv: the projections to queries, keys and values, H → 3H.
        batch: the sequences that the tokens form.
        num_heads: attention heads, A.

    Returns:
        The attended values, (T, H).
    """
    T, H = hidden.shape
    rows = multiply_by_weights(hidden, qkv)  # (T, 3H), without the bias
    attended = hidden.new_empty(T, H)
    attended[batch.num_tokens :] = 0  # rows of padding
    bias, bounds = qkv.bias.detach().numpy(), batch.cu_seqlens.numpy()
    arguments = (rows.numpy(), bias, bounds, batch.max_seqlen, attended.numpy())
    # Threads share the heads, since sequences differ in length.
    threads = min(num_heads, count_threads(attended.numel()))
    run_in_threads(lambda first, last: _attend(*arguments, num_heads, first, last), num_heads, threads)
    return attended


@float_kernel
def _attend(
    rows: Float32s,
    bias: Float32s,
    bounds: NDArray[np.int32],
    longest: int,
    attended: Float32s,
    num_heads: int,
    first: int,
    last: int,
) -> None:
    """Compute attention in the heads first..last-1, (T, H), from products without bias, (T, 3H).

    The bias of the keys would change all scores of a query by the same number, which softmax ignores. The
    bias of the values is added to their weighted sum, because the weights sum to 1.
    """
    vectorize_loops()
    H = attended.shape[1]
    D = H // num_heads
    scale = LOG2_E / np.sqrt(np.float32(D))  # for powers of 2 instead of e
    q = _new_scratch(D * TILE)  # (D, TILE)
    scores = _new_scratch((longest + BLOCK) * TILE)  # (S + BLOCK, TILE)
    values = np.empty((longest + BLOCK, D), np.float32)
    results = _new_scratch(D * TILE)  # (D, TILE)
    highest = _new_scratch(TILE)
    sums = _new_scratch(TILE)
    for n in range(len(bounds) - 1):
        S = bounds[n + 1] - bounds[n]
        sequence = rows[bounds[n] : bounds[n + 1]]  # (S, 3H)
        for column in range(first * D, last * D, D):
            keys = sequence[:, H + column : H + column + D]
            for j in range(S):
                for d in range(D):
                    values[j, d] = sequence[j, 2 * H + column + d]
            for j in range(S, S + BLOCK):
                for d in range(D):
                    values[j, d] = 0
            for start in range(0, S, TILE):
                size = min(TILE, S - start)
                vectors = (size + VECTOR - 1) // VECTOR
                for d in range(D):
                    for i in range(size):
                        q[d * TILE + i] = (sequence[start + i, column + d] + bias[column + d]) * scale
                    for i in range(size, vectors * VECTOR):
                        q[d * TILE + i] = 0
                _multiply_keys(q, keys, S, vectors, scores)
                _softmax(scores, S, vectors, highest, sums)
                _sum_values(scores, values, S, vectors, results)
                for i in range(size):
                    target = attended[bounds[n] + start + i, column : column + D]
                    inverse = ONE / sums[i]
                    for d in range(D):
                        target[d] = results[d * TILE + i] * inverse + bias[2 * H + column + d]


@inlined_float_kernel
def _new_scratch(size: int) -> Float32s:
    """Return an array that begins where a line of the cache begins, so that no vector is in two lines."""
    scratch = np.empty(size + LINE, np.float32)
    start = -(scratch.ctypes.data // 4) % LINE
    return scratch[start : start + size]


@float_kernel
def _multiply_keys(q: Float32s, keys: Float32s, S: int, vectors: int, scores: Float32s) -> None:
    """Compute the scores of S keys, (S, TILE), in the first `vectors` · VECTOR columns.

    The count is in whole vectors so that the compiler sees that no columns remain after them.
    """
    vectorize_loops()
    for j in range(0, S, 2):
        two_rows = scores[j * TILE : (j + 2) * TILE]
        _zero_rows(two_rows, 2, vectors)
        a, b = keys[j], keys[min(j + 1, S - 1)]
        for d in range(0, keys.shape[1], BLOCK):
            _add_products(a[d:], b[d:], q[d * TILE :], vectors, two_rows)


@float_kernel
def _softmax(scores: Float32s, S: int, vectors: int, highest: Float32s, sums: Float32s) -> None:
    """Overwrite scores (S, TILE) with the exponentials of their distances from the highest, and sum these."""
    vectorize_loops()
    for i in range(vectors * VECTOR):
        highest[i] = scores[i]
        sums[i] = 0
    for j in range(1, S):
        row = scores[j * TILE : (j + 1) * TILE]
        for i in range(vectors * VECTOR):
            highest[i] = row[i] if row[i] > highest[i] else highest[i]
    for j in range(S):
        row = scores[j * TILE : (j + 1) * TILE]
        for i in range(vectors * VECTOR):
            row[i] = power_of_2(row[i] - highest[i])
            sums[i] += row[i]


@float_kernel
def _sum_values(weights: Float32s, values: Float32s, S: int, vectors: int, results: Float32s) -> None:
    """Compute the sums of S values, weighted with the columns of `weights`: results (D, TILE).

    Values and weights have BLOCK rows more than S; those of the values are zeros.
    """
    vectorize_loops()
    D = values.shape[1]
    _zero_rows(results, D, vectors)
    _zero_rows(weights[S * TILE :], -S % BLOCK, vectors)
    for j in range(0, S, BLOCK):
        for d in range(0, D, 2):
            _add_products(
                values[j:, d],
                values[j:, d + 1],
                weights[j * TILE :],
                vectors,
                results[d * TILE : (d + 2) * TILE],
            )


@inlined_float_kernel
def _add_products(a: Float32s, b: Float32s, source: Float32s, vectors: int, two_rows: Float32s) -> None:
    """Add a · source to the first of two rows, (2, TILE), and b · source to the second.

    `a` and `b` have BLOCK numbers or more, and `source` as many rows, (BLOCK, TILE). Two rows at a time,
    because each number of `source` is then loaded only once for both.
    """
    vectorize_loops()
    a0, a1, a2, a3, a4, a5, a6, a7 = a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]
    b0, b1, b2, b3, b4, b5, b6, b7 = b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]
    for i in range(vectors * VECTOR):
        s0, s1, s2, s3 = source[i], source[TILE + i], source[2 * TILE + i], source[3 * TILE + i]
        s4, s5, s6, s7 = (
            source[4 * TILE + i],
            source[5 * TILE + i],
            source[6 * TILE + i],
            source[7 * TILE + i],
        )
        two_rows[i] += a0 * s0 + a1 * s1 + a2 * s2 + a3 * s3 + a4 * s4 + a5 * s5 + a6 * s6 + a7 * s7
        two_rows[TILE + i] += b0 * s0 + b1 * s1 + b2 * s2 + b3 * s3 + b4 * s4 + b5 * s5 + b6 * s6 + b7 * s7


@inlined_float_kernel
def _zero_rows(rows: Float32s, count: int, vectors: int) -> None:
    """Set the first columns of rows (count, TILE) to 0."""
    vectorize_loops()
    for row in range(count):
        for i in range(vectors * VECTOR):
            rows[row * TILE + i] = 0
