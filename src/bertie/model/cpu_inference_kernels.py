"""What embeds tokens, and what follows linear layers, in inference on a CPU, row by row."""

import numpy as np

from bertie.base.arrays import Float32s, Int32s
from bertie.base.kernels import float_kernel, inlined_float_kernel, vectorize_loops
from bertie.model.cpu_math import ONE, normal_distribution


@float_kernel
def add_bias_and_gelu(rows: Float32s, bias: Float32s, first: int, last: int) -> None:
    """Overwrite the rows first..last-1 with GELU(row + bias)."""
    vectorize_loops()
    for i in range(first, last):
        row = rows[i]
        for j in range(len(bias)):
            x = row[j] + bias[j]
            probability, _ = normal_distribution(x)
            row[j] = x * probability


@float_kernel
def add_and_normalize(
    rows: Float32s,
    bias: Float32s,
    residual: Float32s,
    scale: Float32s,
    shift: Float32s,
    eps: np.float32,
    first: int,
    last: int,
) -> None:
    """Overwrite the rows first..last-1 with the norm of row + bias + residual."""
    vectorize_loops()
    H = np.float32(len(bias))
    for i in range(first, last):
        row = rows[i]
        total = np.float32(0)
        for j in range(len(bias)):
            row[j] += bias[j] + residual[i, j]
            total += row[j]
        _normalize(row, total / H, scale, shift, eps)


@float_kernel
def embed_tokens(
    ids: Int32s,
    segments: Int32s,
    positions: Int32s,
    word_embeddings: Float32s,
    segment_embeddings: Float32s,
    position_embeddings: Float32s,
    scale: Float32s,
    shift: Float32s,
    eps: np.float32,
    rows: Float32s,
    first: int,
    last: int,
) -> None:
    """Write the norm of the sum of a token's three embeddings to the rows first..last-1."""
    vectorize_loops()
    H = np.float32(len(scale))
    for i in range(first, last):
        row = rows[i]
        word, segment = word_embeddings[ids[i]], segment_embeddings[segments[i]]
        position = position_embeddings[positions[i]]
        total = np.float32(0)
        for j in range(len(scale)):
            row[j] = word[j] + position[j] + segment[j]
            total += row[j]
        _normalize(row, total / H, scale, shift, eps)


@inlined_float_kernel
def _normalize(row: Float32s, mean: np.float32, scale: Float32s, shift: Float32s, eps: np.float32) -> None:
    """Overwrite a row with its norm."""
    squares = np.float32(0)
    for j in range(len(scale)):
        squares += (row[j] - mean) ** 2
    inverse = ONE / np.sqrt(squares / np.float32(len(scale)) + eps)
    for j in range(len(scale)):
        row[j] = (row[j] - mean) * inverse * scale[j] + shift[j]
