"""Attention in packed rows on a CPU, and its gradient, without padding.

For shapes, see bert.py. A kernel works on one head of one sequence, and on up to WIDTH of its queries, at a
time. Queries, scores and results are transposed, so that neighbours in memory belong to different queries.
The loop over queries is then the inner one in softmax too, and the compiler makes vector instructions of it
(docs/decisions/processors.md has the measurements).

Most loops over numbers are separate functions, because only arguments of a function can be declared not to
overlap (`vectorize_loops`). The two kernels, `attend` and `attend_backward`, compute the heads first..last-1
of the sequences first_sequence..last_sequence-1, so that threads can share the work. Other arguments:

    rows         (T, 3H), queries, keys and values of the tokens side by side, without their bias
    bounds       (N + 1,), sequence n has the tokens bounds[n] … bounds[n + 1] - 1
    is_causal    whether a token attends only to itself and the tokens before it
    mask         of dropout
    attended     (T, H), the result
    log_sums     (A, T), for each query the logarithm to base 2 of the sum of its exponential scores
"""

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from bertie.base.arrays import Float32s, Int32s
from bertie.base.kernels import VECTOR, float_kernel, inlined_float_kernel, vectorize_loops
from bertie.base.threads import run_in_threads
from bertie.model.cpu_math import LOG2_E, ONE, ZERO, power_of_2
from bertie.model.cpu_vectors import WIDTH, add_product, multiply, multiply_transposed, prefetch, transpose
from bertie.model.dropout import draw_factors

Mask: TypeAlias = tuple[np.uint32, np.uint32, np.uint32, np.float32]  # `DropoutMask.arguments`

# The parts of a row. With Python's integers, numba would compile `_head` for each of them.
Q, K, V = np.int64(0), np.int64(1), np.int64(2)
LINE = 16  # float32 numbers in a line of the cache

HIDDEN = np.float32(-1e30)  # a score whose exponential is 0; minus infinity would make NaN


def can_attend(head_size: int) -> bool:
    """Return whether the kernels apply to heads of this size."""
    return head_size % VECTOR == 0


def divide_attention(
    attend_part: Callable[[int, int, int, int], object],
    bounds: Int32s,
    num_heads: int,
    threads: int,
) -> None:
    """Divide the attention of N sequences between threads, and wait for all.

    Threads share the heads, since sequences differ in length. If the heads cannot be shared equally, the
    sequences are also divided, into parts with about as many tokens each.

    Args:
        attend_part: called as attend_part(first_sequence, last_sequence, first_head, last_head), where the
            last ones are excluded; it releases the interpreter lock.
        bounds: bounds of the sequences, (N + 1,).
        num_heads: attention heads, A.
        threads: the number of threads.
    """
    if threads == 1:
        attend_part(0, len(bounds) - 1, 0, num_heads)
        return
    parts = min(threads // math.gcd(threads, num_heads), len(bounds) - 1)
    cuts = np.searchsorted(bounds, bounds[-1] * np.arange(parts + 1) // parts).tolist()

    def attend_heads(first: int, last: int) -> None:  # numbered through: the heads of part 0, of part 1, …
        for part in range(first // num_heads, -(-last // num_heads)):
            begin = part * num_heads
            heads = max(first - begin, 0), min(last - begin, num_heads)
            attend_part(cuts[part], cuts[part + 1], *heads)

    run_in_threads(attend_heads, parts * num_heads, threads)


@float_kernel
def attend(
    rows: Float32s,
    bias: Float32s,
    bounds: Int32s,
    is_causal: bool,
    mask: Mask,
    attended: Float32s,
    log_sums: Float32s,
    num_heads: int,
    first_sequence: int,
    last_sequence: int,
    first: int,
    last: int,
) -> None:
    """Compute attention from rows and their bias, (3H,).

    The bias of the keys would change all scores of a query by the same number, which softmax ignores. The
    bias of the values is added to their weighted sum, because the weights sum to 1. After dropout the weights
    do not, so the bias must be 0.

    `attended` and `log_sums` are written; `log_sums` is (0, 0) if no gradient is needed.
    """
    vectorize_loops()
    H, longest = attended.shape[1], _find_longest(bounds)
    D = H // num_heads
    scale = LOG2_E / np.sqrt(np.float32(D))  # for powers of 2 instead of e
    q, scores, sums = _new_scratch(D), _new_scratch(longest), _new_scratch(D)  # transposed
    vectors = _new_scratch(np.int64(3))
    highest, inverses, factors = vectors[0], vectors[1], vectors[2]
    for n in range(first_sequence, last_sequence):
        begin, end = bounds[n], bounds[n + 1]
        for head in range(first, last):
            _prefetch_next(rows, bounds, n, head, D, first, last)
            for token in range(begin, end, WIDTH):
                next_token = min(token + WIDTH, end)
                width = (next_token - token + VECTOR - 1) // VECTOR * VECTOR
                last_key = next_token if is_causal else end
                S = last_key - begin
                transpose(_head(rows, token, next_token, Q, head, D), q)
                for d in range(D):
                    for i in range(width):
                        q[d, i] = (q[d, i] + bias[head * D + d]) * scale
                multiply(_head(rows, begin, last_key, K, head, D), q, scores, width)
                if is_causal:
                    _hide_later_keys(scores, S, token - begin)
                _softmax(scores, S, width, highest, inverses)
                if len(log_sums):
                    for i in range(next_token - token):
                        log_sums[head, token + i] = highest[i] - np.log2(inverses[i])
                _drop(scores, S, width, mask, _mask_position(token, head, num_heads, longest), factors)
                multiply_transposed(_head(rows, begin, last_key, V, head, D), scores, sums, width)
                for d in range(D):
                    for i in range(width):
                        sums[d, i] = sums[d, i] * inverses[i] + bias[2 * H + head * D + d]
                transpose(sums, attended[token:next_token, head * D : (head + 1) * D])


@float_kernel
def attend_backward(
    rows: Float32s,
    bounds: Int32s,
    is_causal: bool,
    mask: Mask,
    attended: Float32s,
    log_sums: Float32s,
    grad_attended: Float32s,
    grad_rows: Float32s,
    first_sequence: int,
    last_sequence: int,
    first: int,
    last: int,
) -> None:
    """Compute the gradient of `rows`, (T, 3H), from the gradient of `attended`.

    There was no bias. The weights are computed again from the scores. With a query's weight p of a key, the
    factor f of dropout, and the gradient g of the query's result a, the gradient of the score is p · (f · g·v
    - g·a) (Dao et al., 2022, FlashAttention, appendix B.2).
    """
    vectorize_loops()
    H, A, longest = attended.shape[1], len(log_sums), _find_longest(bounds)
    D = H // A
    scale = ONE / np.sqrt(np.float32(D))
    q, grad, sums = _new_scratch(D), _new_scratch(D), _new_scratch(D)  # transposed
    weights, dropped, grad_scores = _new_scratch(longest), _new_scratch(longest), _new_scratch(longest)
    vectors = _new_scratch(np.int64(2))
    log_sum, grad_sum = vectors[0], vectors[1]
    for n in range(first_sequence, last_sequence):
        begin, end = bounds[n], bounds[n + 1]
        for head in range(first, last):
            for part in (K, V):
                _set_zero(grad_rows, begin, end, part * H + head * D, D)
            for token in range(begin, end, WIDTH):
                next_token = min(token + WIDTH, end)
                size = next_token - token
                width = (size + VECTOR - 1) // VECTOR * VECTOR
                last_key = next_token if is_causal else end
                S = last_key - begin
                queries = _head(rows, token, next_token, Q, head, D)
                keys = _head(rows, begin, last_key, K, head, D)
                grads = grad_attended[token:next_token, head * D : (head + 1) * D]
                for i in range(size):
                    log_sum[i] = log_sums[head, token + i]
                    grad_sum[i] = _multiply_rows(grad_attended, attended, token + i, head * D, D)
                transpose(queries, q)
                for d in range(D):
                    for i in range(width):
                        q[d, i] *= scale * LOG2_E
                transpose(grads, grad)
                multiply(keys, q, weights, width)
                multiply(_head(rows, begin, last_key, V, head, D), grad, grad_scores, width)
                if is_causal:
                    _hide_later_keys(weights, S, token - begin)
                _draw_all(dropped, S, mask, _mask_position(token, head, A, longest))
                _differentiate_scores(weights, dropped, grad_scores, S, width, log_sum, grad_sum, scale)
                multiply_transposed(keys, grad_scores, sums, width)
                transpose(sums, _head(grad_rows, token, next_token, Q, head, D))
                add_product(grad_scores[:S, :size], queries, _head(grad_rows, begin, last_key, K, head, D))
                add_product(dropped[:S, :size], grads, _head(grad_rows, begin, last_key, V, head, D))


@inlined_float_kernel
def _head(rows: Float32s, token: int, last: int, part: np.int64, head: int, D: int) -> Float32s:
    """Return the queries, keys or values of a head, (last - token, D).

    They are of the tokens token..last-1.
    """
    column = part * (rows.shape[1] // 3) + head * D
    return rows[token:last, column : column + D]


@inlined_float_kernel
def _hide_later_keys(scores: Float32s, S: int, before: int) -> None:
    """Hide each key from the queries before it.

    `before` tokens precede the first query of the scores.
    """
    for j in range(before + 1, S):
        for i in range(j - before):
            scores[j, i] = HIDDEN


@inlined_float_kernel
def _mask_position(token: int, head: int, num_heads: int, longest: int) -> int:
    """Return the position of a head's queries in the mask of dropout.

    The queries begin at a token, and the position is of the first key.
    """
    return (token * num_heads + head) * longest


@inlined_float_kernel
def _prefetch_next(rows: Float32s, bounds: Int32s, n: int, head: int, D: int, first: int, last: int) -> None:
    """Begin to load queries, keys and values of the next head.

    After the last head, it is the first head in the next sequence.
    """
    H = rows.shape[1] // 3
    head += 1
    if head == last:
        head = first
        n += 1
    if n < len(bounds) - 1:
        for token in range(bounds[n], bounds[n + 1]):
            for part in range(3):
                for d in range(0, D, LINE):
                    prefetch(rows, token, part * H + head * D + d)


@inlined_float_kernel
def _find_longest(bounds: Int32s) -> int:
    """Return the length of the longest sequence."""
    longest = 0
    for n in range(len(bounds) - 1):
        longest = max(longest, bounds[n + 1] - bounds[n])
    return longest


@inlined_float_kernel
def _new_scratch(rows: int | np.int64) -> Float32s:
    """Return an array (rows, WIDTH) that begins at a line of the cache.

    So no vector is in two lines.
    """
    scratch = np.empty(rows * WIDTH + LINE, np.float32)
    start = -(scratch.ctypes.data // 4) % LINE
    return scratch[start : start + rows * WIDTH].reshape(rows, WIDTH)


@float_kernel
def _softmax(scores: Float32s, S: int, width: int, highest: Float32s, inverses: Float32s) -> None:
    """Overwrite scores (S, WIDTH) with powers of 2.

    The exponents are their distances from the highest score. Also write the inverses of the sums of these
    powers to `inverses`.
    """
    vectorize_loops()
    for i in range(width):
        highest[i] = scores[0, i]
        inverses[i] = ZERO
    for j in range(1, S):
        row = scores[j]
        for i in range(width):
            highest[i] = row[i] if row[i] > highest[i] else highest[i]
    for j in range(S):
        row = scores[j]
        for i in range(width):
            row[i] = power_of_2(row[i] - highest[i])
            inverses[i] += row[i]
    for i in range(width):
        inverses[i] = ONE / inverses[i]


@float_kernel
def _drop(weights: Float32s, S: int, width: int, mask: Mask, position: int, factors: Float32s) -> None:
    """Multiply weights (S, WIDTH) by their factors of dropout."""
    vectorize_loops()
    key, second_key, dropped_levels, kept = mask
    if dropped_levels:
        for j in range(S):
            draw_factors(position + j, WIDTH, key, second_key, dropped_levels, kept, factors)
            row = weights[j]
            for i in range(width):
                row[i] *= factors[i]


@float_kernel
def _draw_all(factors: Float32s, S: int, mask: Mask, position: int) -> None:
    """Write factors of dropout, (S, WIDTH); 1 without dropout."""
    vectorize_loops()
    key, second_key, dropped_levels, kept = mask
    for j in range(S):
        draw_factors(position + j, WIDTH, key, second_key, dropped_levels, kept, factors[j])


@float_kernel
def _differentiate_scores(
    weights: Float32s,
    dropped: Float32s,
    grad_scores: Float32s,
    S: int,
    width: int,
    log_sum: Float32s,
    grad_sum: Float32s,
    scale: np.float32,
) -> None:
    """Compute weights, and gradients of the scores, (S, WIDTH).

    Scores are the products of queries and keys. The weights after dropout are computed, too. They take the
    place of scores, factors of dropout, and gradients of the weights after dropout.
    """
    vectorize_loops()
    for j in range(S):
        score, factor, grad = weights[j], dropped[j], grad_scores[j]
        for i in range(width):
            weight = power_of_2(score[i] - log_sum[i])
            grad[i] = weight * (factor[i] * grad[i] - grad_sum[i]) * scale
            factor[i] *= weight


@float_kernel
def _multiply_rows(a: Float32s, b: Float32s, row: int, column: int, columns: int) -> np.float32:
    """Return the scalar product of a part of a row in two matrices."""
    vectorize_loops()
    total = ZERO
    a_row, b_row = a[row, column : column + columns], b[row, column : column + columns]
    for d in range(columns):
        total += a_row[d] * b_row[d]
    return total


@float_kernel
def _set_zero(rows: Float32s, first: int, last: int, column: int, columns: int) -> None:
    """Overwrite a part of the rows first..last-1 with zeros."""
    vectorize_loops()
    for row in range(first, last):
        part = rows[row, column : column + columns]
        for d in range(columns):
            part[d] = ZERO
