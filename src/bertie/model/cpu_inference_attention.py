"""Attention in inference on a CPU. Shapes: see bert.py.

torch's fused kernel needs padded sequences, and is slower than the kernel here, which reads packed rows
without padding (docs/decisions/processors.md has the measurements).

The kernel works on one head of one sequence, and on up to WIDTH of its queries, at a time. Queries, scores
and results are transposed, so that neighbours in memory belong to different queries. The loop over queries
is then the inner one in softmax too, and the compiler makes vector instructions of it.
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
from bertie.model.cpu_vectors import ROWS, WIDTH, multiply, prefetch, transpose
from bertie.model.packed_weights import PackedLinear

Float32s = NDArray[np.float32]

LINE = 16  # float32 numbers in a line of the cache

ONE = np.float32(1)


def can_attend(head_size: int) -> bool:
    """Return whether `inference_attention` applies to heads of this size."""
    return head_size % VECTOR == 0


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
    qkv, result = rows.reshape(rows.size), attended.reshape(attended.size)
    q = _new_scratch(D * WIDTH)  # (D, WIDTH)
    scores = _new_scratch((longest + ROWS) * WIDTH)  # (S + ROWS, WIDTH)
    sums = _new_scratch((D + ROWS) * WIDTH)  # (D + ROWS, WIDTH)
    highest = _new_scratch(WIDTH)
    inverses = _new_scratch(WIDTH)
    for n in range(len(bounds) - 1):
        S = bounds[n + 1] - bounds[n]
        for head in range(first, last):
            _prefetch_next(qkv, bounds, n, head, D, H, first, last)
            column = head * D
            keys = bounds[n] * 3 * H + H + column
            for start in range(bounds[n], bounds[n + 1], WIDTH):
                size = min(WIDTH, bounds[n + 1] - start)
                vectors = (size + VECTOR - 1) // VECTOR
                for i in range(0, size, VECTOR):
                    for d in range(0, D, VECTOR):
                        place = (start + i) * 3 * H + column + d
                        transpose(qkv, place, 3 * H, size - i, q, d * WIDTH + i, WIDTH, VECTOR)
                for d in range(D):
                    for i in range(vectors * VECTOR):
                        q[d * WIDTH + i] = (q[d * WIDTH + i] + bias[column + d]) * scale
                multiply(qkv, keys, S, 3 * H, 1, q, D, vectors, scores)
                _softmax(scores, S, vectors, highest, inverses)
                multiply(qkv, keys + H, D, 1, 3 * H, scores, S, vectors, sums)
                for d in range(D):
                    for i in range(vectors * VECTOR):
                        sums[d * WIDTH + i] = sums[d * WIDTH + i] * inverses[i] + bias[2 * H + column + d]
                for i in range(0, size, VECTOR):
                    for d in range(0, D, VECTOR):
                        place = (start + i) * H + column + d
                        transpose(sums, d * WIDTH + i, WIDTH, VECTOR, result, place, H, size - i)


@inlined_float_kernel
def _prefetch_next(
    qkv: Float32s, bounds: NDArray[np.int32], n: int, head: int, D: int, H: int, first: int, last: int
) -> None:
    """Begin to load queries, keys and values of the next head, or of the first head in the next sequence."""
    head += 1
    if head == last:
        head = first
        n += 1
    if n < len(bounds) - 1:
        for token in range(bounds[n], bounds[n + 1]):
            for part in range(3):
                for d in range(0, D, LINE):
                    prefetch(qkv, (token * 3 + part) * H + head * D + d)


@inlined_float_kernel
def _new_scratch(size: int) -> Float32s:
    """Return an array that begins where a line of the cache begins, so that no vector is in two lines."""
    scratch = np.empty(size + LINE, np.float32)
    start = -(scratch.ctypes.data // 4) % LINE
    return scratch[start : start + size]


@float_kernel
def _softmax(scores: Float32s, S: int, vectors: int, highest: Float32s, inverses: Float32s) -> None:
    """Overwrite scores (S, WIDTH) with the exponentials of their distances from the highest.

    The inverses of the sums of these are written to `inverses`.
    """
    vectorize_loops()
    for i in range(vectors * VECTOR):
        highest[i] = scores[i]
        inverses[i] = 0
    for j in range(1, S):
        row = scores[j * WIDTH : (j + 1) * WIDTH]
        for i in range(vectors * VECTOR):
            highest[i] = row[i] if row[i] > highest[i] else highest[i]
    for j in range(S):
        row = scores[j * WIDTH : (j + 1) * WIDTH]
        for i in range(vectors * VECTOR):
            row[i] = power_of_2(row[i] - highest[i])
            inverses[i] += row[i]
    for i in range(vectors * VECTOR):
        inverses[i] = ONE / inverses[i]
