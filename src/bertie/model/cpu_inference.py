"""Linear layers for inference on a CPU, fused with what follows them. Shapes: see bert.py.

torch copies the bias into the result before it multiplies, and writes the activation, the sum of a residual
connection and its norm to new memory each. Here a kernel computes them in place, row by row
(docs/decisions/processors.md has the measurements).
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertie.base.kernels import float_kernel, vectorize_loops
from bertie.base.threads import run_in_threads
from bertie.model.cpu import count_threads

Float32s = NDArray[np.float32]

# Starting threads for a kernel takes longer than torch's operations do on many threads. Two were measured.
MAX_THREADS = 2

# The error function is x·P(x²) / Q(x²) for |x| below 4, and ±1 beyond, with Eigen's coefficients for float32
# (SpecialFunctionsImpl.h). The result is as accurate as that of torch.
P0, P1, P2, P3, P4, P5, P6 = (
    np.float32(value)
    for value in (
        -2.72614225801306e-10,
        2.77068142495902e-08,
        -2.10102402082508e-06,
        -5.69250639462346e-05,
        -7.34990630326855e-04,
        -2.95459980854025e-03,
        -1.60960333262415e-02,
    )
)
Q0, Q1, Q2, Q3, Q4 = (
    np.float32(value)
    for value in (
        -1.45660718464996e-05,
        -2.13374055278905e-04,
        -1.68282697438203e-03,
        -7.37332916720468e-03,
        -1.42647390514189e-02,
    )
)
ONE, HALF, FOUR, SQRT_HALF = np.float32(1), np.float32(0.5), np.float32(4), np.float32(0.5**0.5)


def can_fuse(values: Tensor) -> bool:
    """Whether the functions below apply: float32 on a CPU, in inference mode, with one or two threads.

    FSDP does not run in inference mode. It could not free the memory of weights that numpy has seen.
    """
    return (
        values.device.type == "cpu"
        and values.dtype == torch.float32
        and torch.get_num_threads() <= MAX_THREADS
        and torch.is_inference_mode_enabled()
        and not torch.is_autocast_enabled("cpu")
    )


def linear_and_activation(inputs: Tensor, linear: nn.Linear, activation: nn.Module) -> Tensor:
    """Compute activation(linear(inputs)), (rows, in) -> (rows, out)."""
    if not isinstance(activation, nn.GELU) or activation.approximate != "none":
        activated: Tensor = activation(linear(inputs))
        return activated
    return _finish(torch.mm(inputs, linear.weight.t()), _add_bias_and_gelu, linear.bias)


def linear_and_norm(inputs: Tensor, linear: nn.Linear, residual: Tensor, norm: nn.LayerNorm) -> Tensor:
    """Compute norm(residual + linear(inputs)), (rows, in) -> (rows, out)."""
    product = torch.mm(inputs, linear.weight.t())
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
            z = x * SQRT_HALF
            z = FOUR if z > FOUR else z
            z = -FOUR if z < -FOUR else z
            s = z * z
            p = (((((P0 * s + P1) * s + P2) * s + P3) * s + P4) * s + P5) * s + P6
            q = (((Q0 * s + Q1) * s + Q2) * s + Q3) * s + Q4
            row[j] = HALF * x * (ONE + z * p / q)


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
