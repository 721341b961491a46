"""Linear layers for training on a CPU, fused with what follows them. Shapes: see bert.py.

torch adds a bias, drops elements, adds the residual connection and normalizes in separate passes, each of
which writes to new memory, and so does its backward pass. Here a kernel computes all of them row by row, and
another one their gradients (docs/decisions/processors.md has the measurements).
"""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertie.base.kernels import float_kernel, vectorize_loops
from bertie.base.threads import run_in_threads
from bertie.model.cpu import count_threads
from bertie.model.cpu_math import normal_distribution
from bertie.model.dropout import DropoutMask, draw_factors

Float32s = NDArray[np.float32]

# Gradients of biases and norms are sums over rows: of so many at first, then of these sums. That is more
# exact than one long sum, and does not depend on the number of threads.
BLOCK = 64


def linear_and_norm_with_dropout(
    inputs: Tensor, linear: nn.Linear, residual: Tensor, norm: nn.LayerNorm, dropout_p: float
) -> Tensor:
    """Compute norm(residual + dropout(linear(inputs))), (rows, in) -> (rows, out)."""
    product = torch.mm(inputs, linear.weight.t())
    return _drop_add_normalize(product, linear.bias, residual, norm.weight, norm.bias, norm.eps, dropout_p)


def feed_forward_with_dropout(
    hidden: Tensor, intermediate: nn.Linear, output: nn.Linear, norm: nn.LayerNorm, dropout_p: float
) -> Tensor:
    """Compute norm(hidden + dropout(output(GELU(intermediate(hidden))))), (rows, H) -> (rows, H)."""
    product = _feed_forward(hidden, intermediate.weight, intermediate.bias, output.weight)
    return _drop_add_normalize(product, output.bias, hidden, norm.weight, norm.bias, norm.eps, dropout_p)


class _DropAddNormalize(torch.autograd.Function):
    """norm(residual + dropout(product + bias)); overwrites the product, for the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        product: Tensor,
        bias: Tensor,
        residual: Tensor,
        scale: Tensor,
        shift: Tensor,
        eps: float,
        dropout_p: float,
    ) -> Tensor:
        mask = DropoutMask.draw(dropout_p)
        bias, scale, shift = _copy_vectors(bias, scale, shift)
        normed, inverses = torch.empty_like(product), product.new_empty(len(product))
        arrays = _to_numpy(product, bias, residual, scale, shift, normed, inverses)
        _run(_normalize_rows, len(product), arrays, np.float32(eps), *mask.arguments)
        ctx.save_for_backward(product, inverses, scale)
        ctx.mask = mask
        return normed

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, None, None]:
        standardized, inverses, scale = ctx.saved_tensors
        grad = grad.contiguous()
        grad_sum, grad_product = torch.empty_like(grad), torch.empty_like(grad)  # (rows, out) each
        blocks = -(-len(grad) // BLOCK)
        sums = grad.new_empty(blocks, 3, grad.shape[1])
        arrays = _to_numpy(grad, standardized, inverses, scale, grad_sum, grad_product, sums)
        _run(_differentiate_rows, blocks, arrays, *ctx.mask.arguments)
        grad_scale, grad_shift, grad_bias = sums.sum(0)
        return grad_product, grad_bias, grad_sum, grad_scale, grad_shift, None, None


class _FeedForward(torch.autograd.Function):
    """GELU(hidden · wideᵀ + bias) · narrowᵀ; the backward pass computes the activation again."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, wide: Tensor, bias: Tensor, narrow: Tensor) -> Tensor:
        (bias,) = _copy_vectors(bias)
        widened = torch.mm(hidden, wide.t())  # (rows, 4H), without the bias
        activated = torch.empty_like(widened)
        _run(_activate_rows, len(widened), _to_numpy(widened, bias, activated))
        ctx.save_for_backward(hidden, wide, bias, narrow, widened)
        return torch.mm(activated, narrow.t())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        hidden, wide, bias, narrow, widened = ctx.saved_tensors
        grad_widened = torch.mm(grad, narrow)  # (rows, 4H), of the activation until the kernel has run
        activated = torch.empty_like(widened)
        blocks = -(-len(widened) // BLOCK)
        sums = grad.new_empty(blocks, len(bias))
        arrays = _to_numpy(widened, bias, grad_widened, activated, sums)
        _run(_differentiate_activation, blocks, arrays)
        grad_narrow = torch.mm(grad.t(), activated)
        del activated
        return (
            torch.mm(grad_widened, wide),
            torch.mm(grad_widened.t(), hidden),
            sums.sum(0),
            grad_narrow,
        )


_drop_add_normalize = cast(
    Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, float, float], Tensor], _DropAddNormalize.apply
)
_feed_forward = cast(Callable[[Tensor, Tensor, Tensor, Tensor], Tensor], _FeedForward.apply)


def _copy_vectors(*vectors: Tensor) -> list[Tensor]:
    """Copy weights before numpy sees them: FSDP could not free their memory afterwards."""
    return [vector.clone() for vector in vectors]


def _to_numpy(*tensors: Tensor) -> list[Any]:
    """Return tensors as arrays that share their memory."""
    return [tensor.detach().numpy() for tensor in tensors]


def _run(kernel: Callable[..., None], items: int, arrays: list[Any], *numbers: np.number[Any]) -> None:
    """Run a kernel on rows, or on blocks of them, with as many threads as the first array is worth."""
    run_in_threads(
        lambda first, last: kernel(*arrays, *numbers, first, last),
        items,
        min(items, count_threads(arrays[0].size)),
    )


@float_kernel
def _normalize_rows(
    rows: Float32s,
    bias: Float32s,
    residual: Float32s,
    scale: Float32s,
    shift: Float32s,
    normed: Float32s,
    inverses: Float32s,
    eps: np.float32,
    key: np.uint32,
    second_key: np.uint32,
    dropped_levels: np.uint32,
    kept: np.float32,
    first: int,
    last: int,
) -> None:
    """Normalize residual + dropout(row + bias) in the rows first..last-1.

    A row is overwritten with the sum minus its mean, divided by its standard deviation, and `inverses` with
    1 / this deviation; `normed` has the scaled and shifted rows.
    """
    vectorize_loops()
    width = len(bias)
    H = np.float32(width)
    factors = np.empty(width + 1, np.float32)
    for i in range(first, last):
        draw_factors(i, width, key, second_key, dropped_levels, kept, factors)
        row, other, target = rows[i], residual[i], normed[i]
        total = np.float32(0)
        for j in range(width):
            row[j] = (row[j] + bias[j]) * factors[j] + other[j]
            total += row[j]
        mean = total / H
        squares = np.float32(0)
        for j in range(width):
            squares += (row[j] - mean) ** 2
        inverses[i] = inverse = np.float32(1) / np.sqrt(squares / H + eps)
        for j in range(width):
            row[j] = (row[j] - mean) * inverse
            target[j] = row[j] * scale[j] + shift[j]


@float_kernel
def _differentiate_rows(
    grad: Float32s,
    standardized: Float32s,
    inverses: Float32s,
    scale: Float32s,
    grad_sum: Float32s,
    grad_product: Float32s,
    sums: Float32s,
    key: np.uint32,
    second_key: np.uint32,
    dropped_levels: np.uint32,
    kept: np.float32,
    first: int,
    last: int,
) -> None:
    """Compute the gradients of `_normalize_rows` in the blocks first..last-1 of rows.

    `grad_sum` is that of the sum, and of the residual connection: the gradient of the standardized row x,
    less its mean and less x times its mean product with x, divided by the standard deviation. `sums`,
    (blocks, 3, H), has the gradients of scale, shift and bias.
    """
    vectorize_loops()
    width = len(scale)
    H = np.float32(width)
    factors = np.empty(width + 1, np.float32)
    for block in range(first, last):
        grad_scale, grad_shift, grad_bias = sums[block, 0], sums[block, 1], sums[block, 2]
        for j in range(width):
            grad_scale[j] = grad_shift[j] = grad_bias[j] = 0
        for i in range(block * BLOCK, min((block + 1) * BLOCK, len(grad))):
            draw_factors(i, width, key, second_key, dropped_levels, kept, factors)
            g, x, of_sum, of_product = grad[i], standardized[i], grad_sum[i], grad_product[i]
            mean = projection = np.float32(0)
            for j in range(width):
                scaled = g[j] * scale[j]
                mean += scaled
                projection += scaled * x[j]
                grad_scale[j] += g[j] * x[j]
                grad_shift[j] += g[j]
            mean /= H
            projection /= H
            for j in range(width):
                of_sum[j] = inverses[i] * (g[j] * scale[j] - mean - x[j] * projection)
                of_product[j] = of_sum[j] * factors[j]
                grad_bias[j] += of_product[j]


@float_kernel
def _activate_rows(rows: Float32s, bias: Float32s, activated: Float32s, first: int, last: int) -> None:
    """Compute GELU(row + bias) of the rows first..last-1."""
    vectorize_loops()
    for i in range(first, last):
        row, target = rows[i], activated[i]
        for j in range(len(bias)):
            x = row[j] + bias[j]
            probability, _ = normal_distribution(x)
            target[j] = x * probability


@float_kernel
def _differentiate_activation(
    rows: Float32s,
    bias: Float32s,
    grad: Float32s,
    activated: Float32s,
    sums: Float32s,
    first: int,
    last: int,
) -> None:
    """Compute `_activate_rows` again, and its gradients, in the blocks first..last-1 of rows.

    `grad` of the activation is overwritten with that of the row; `sums`, (blocks, 4H), has that of the bias.
    """
    vectorize_loops()
    for block in range(first, last):
        grad_bias = sums[block]
        for j in range(len(bias)):
            grad_bias[j] = 0
        for i in range(block * BLOCK, min((block + 1) * BLOCK, len(rows))):
            row, g, target = rows[i], grad[i], activated[i]
            for j in range(len(bias)):
                x = row[j] + bias[j]
                probability, density = normal_distribution(x)
                target[j] = x * probability
                g[j] *= probability + x * density
                grad_bias[j] += g[j]
