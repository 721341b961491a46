"""Linear layers for inference on a CPU, fused with what follows.

These are the operations after them. For shapes, see bert.py. torch copies the bias into the result before it
multiplies, and writes the activation, the sum with the residual connection, and its norm to new memory. Here
a kernel computes them in place, row by row (docs/decisions/processors.md has the measurements).
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bertie.base.arrays import Float32s
from bertie.base.kernels import float_kernel, vectorize_loops
from bertie.base.threads import run_in_threads
from bertie.model.cpu import count_threads, is_exact_gelu
from bertie.model.cpu_math import ONE, normal_distribution
from bertie.model.packed_weights import PackedLinear
from bertie.model.products import multiply


def multiply_by_weights(inputs: Tensor, linear: nn.Linear | PackedLinear) -> Tensor:
    """Compute a linear layer without its bias, (rows, in) -> float32 (rows, out).

    Under autocast the product is rounded to bfloat16 and then converted. A kernel that reads bfloat16 is not
    faster (docs/decisions/inference.md, "Fused layers in bfloat16").
    """
    if isinstance(linear, PackedLinear):
        return linear.without_bias(inputs).float()
    if torch.is_autocast_enabled("cpu"):
        return torch.mm(inputs, linear.weight.t()).float()
    return multiply(inputs, linear.weight.t(), out=inputs.new_empty(len(inputs), linear.out_features))


def linear_and_activation(inputs: Tensor, linear: nn.Linear | PackedLinear, activation: nn.Module) -> Tensor:
    """Compute activation(linear(inputs)), (rows, in) -> (rows, out)."""
    if not is_exact_gelu(activation):
        activated: Tensor = activation(linear(inputs))
        return activated
    if isinstance(linear, PackedLinear):
        return linear.with_gelu(inputs)
    return _finish(multiply_by_weights(inputs, linear), _add_bias_and_gelu, linear.bias)


def linear_and_norm(
    inputs: Tensor, linear: nn.Linear | PackedLinear, residual: Tensor, norm: nn.LayerNorm
) -> Tensor:
    """Compute norm(residual + linear(inputs)), (rows, in) -> (rows, out)."""
    product = multiply_by_weights(inputs, linear)
    return _finish(product, _add_and_normalize, linear.bias, residual, norm.weight, norm.bias, eps=norm.eps)


def _finish(product: Tensor, kernel: Callable[..., None], *arrays: Tensor, **constants: float) -> Tensor:
    """Run a kernel on the rows of a product, in place."""
    rows = product.numpy()
    arguments: list[Any] = [array.detach().numpy() for array in arrays]
    arguments += map(np.float32, constants.values())
    run_in_threads(
        lambda first, last: kernel(rows, *arguments, first, last), len(rows), count_threads(rows.size)
    )
    return product


@float_kernel
def _add_bias_and_gelu(rows: Float32s, bias: Float32s, first: int, last: int) -> None:
    """Overwrite the rows first..last-1 with GELU(row + bias)."""
    vectorize_loops()
    for i in range(first, last):
        row = rows[i]
        for j in range(len(bias)):
            x = row[j] + bias[j]
            probability, _ = normal_distribution(x)
            row[j] = x * probability


@float_kernel
def _add_and_normalize(
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
        mean = total / H
        squares = np.float32(0)
        for j in range(len(bias)):
            squares += (row[j] - mean) ** 2
        inverse = ONE / np.sqrt(squares / H + eps)
        for j in range(len(bias)):
            row[j] = (row[j] - mean) * inverse * scale[j] + shift[j]
