"""Linear layers for training on a CPU, fused with what follows.

These are the operations after them. For shapes, see bert.py. torch adds a bias, drops elements, adds the
residual connection and normalizes in separate passes, each of which writes to new memory, and so does its
backward pass. Here one kernel computes all of them row by row, and another one their gradients
(docs/decisions/processors.md has the measurements).

Under autocast, matrices are multiplied in bfloat16, and so are their products; kernels read and write these
matrices as integers of 16 bits. All else is in float32.
"""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertie.base.arrays import Float32s
from bertie.base.kernels import float_kernel, vectorize_loops
from bertie.base.threads import run_in_threads
from bertie.model.cpu import count_threads, product_dtype
from bertie.model.cpu_bfloat16 import rounded, to_numpy, widened
from bertie.model.cpu_math import normal_distribution
from bertie.model.dropout import DropoutMask, draw_factors
from bertie.model.layer_weights import LayerWeights
from bertie.model.memory import converted, new_empty
from bertie.model.products import multiply

# Gradients of biases and norms are sums over blocks of this number of rows, and then over the blocks. This is
# more exact than one long sum, and does not depend on the number of threads.
BLOCK = 64


def linear(rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute `F.linear`, float32 (n, k) -> (n, m).

    Results and gradients are in memory from `new_empty`. Under autocast the result is in bfloat16. Gradients
    of weight and bias are in float32.
    """
    return _linear(rows, weight, bias, product_dtype())


class _Linear(torch.autograd.Function):
    """`linear`."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype) -> Tensor:
        rows, weight = converted(rows, dtype), converted(weight, dtype)
        ctx.save_for_backward(rows, weight)
        if dtype == torch.float32:
            return multiply(rows, weight.t()).add_(bias)
        return torch.addmm(bias.to(dtype), rows, weight.t(), out=new_empty(rows, len(rows), len(weight)))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        rows, weight = ctx.saved_tensors
        grad_rows = converted(multiply(grad, weight), torch.float32)
        grad = grad.contiguous()
        sums = rows.new_empty(_count_blocks(grad), grad.shape[1], dtype=torch.float32)
        _run(_sum_rows, len(sums), to_numpy(grad, sums))
        return grad_rows, _weight_gradient(grad, rows), sums.sum(0), None


_linear = cast(Callable[[Tensor, Tensor, Tensor, torch.dtype], Tensor], _Linear.apply)


def transform_attended(
    attended: Tensor, hidden: Tensor, weights: LayerWeights, eps: float, dropout_p: float
) -> Tensor:
    """Compute the part of a layer after attention, (T, H) -> float32 (T, H).

    It has dropout and exact GELU. This is x = first_norm(hidden + dropout(projection(attended))), and then
    second_norm(x + dropout(narrow(GELU(wide(x))))). The backward pass overwrites the matrices that the
    forward pass has kept, so it can run only once. `hidden` and the weights are in float32.
    """
    return _transform_attended(attended.to(product_dtype()), hidden, eps, dropout_p, *weights)


class _TransformAttended(torch.autograd.Function):
    """`transform_attended`.

    All matrices for the backward pass are in one piece of memory. When it is freed, the gradients of the
    weights fit into it. They did not fit into several pieces with small objects between them
    (docs/decisions/processors.md, "Memory of a step").
    """

    @staticmethod
    def forward(ctx: Any, attended: Tensor, hidden: Tensor, eps: float, p: float, *weights: Tensor) -> Tensor:
        dtype = attended.dtype
        w = LayerWeights(*weights).with_matrices_as(dtype)
        wide_width = -(-len(w.wide) * dtype.itemsize // 4)  # in float32 numbers
        kept = new_empty(hidden, len(hidden), 3 * w.wide.shape[1] + wide_width)
        first, second, output, widened = _divide(kept, w.wide, dtype)
        masks = DropoutMask.draw(p), DropoutMask.draw(p)

        projected = multiply(attended, w.projection.t())  # (T, H), without the bias
        normed = new_empty(hidden, *hidden.shape)
        first_inverses = _normalize(
            projected, w.projection_bias, hidden, w.first_norm, eps, masks[0], first, normed
        )
        multiply(converted(normed, dtype), w.wide.t(), out=widened)  # without the bias
        activated = new_empty(widened, *widened.shape)
        _run(_activate_rows, len(widened), to_numpy(widened, w.wide_bias.clone(), activated))
        multiply(activated, w.narrow.t(), out=projected)
        second_inverses = _normalize(
            projected, w.narrow_bias, normed, w.second_norm, eps, masks[1], second, output
        )

        ctx.save_for_backward(attended, kept, first_inverses, second_inverses, *w)
        ctx.masks = masks
        return output.detach()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        attended, kept, first_inverses, second_inverses, *weights = ctx.saved_tensors
        torch.autograd.graph.increment_version(kept)  # so that a second backward pass is an error
        w, dtype = LayerWeights(*weights), attended.dtype
        first, second, _, widened = _divide(kept, w.wide, dtype)

        grad = grad.contiguous()
        grad_normed, grad_narrowed, second_sums = _differentiate(
            grad, second, second_inverses, w.second_scale, ctx.masks[1], dtype
        )
        grad_widened = multiply(grad_narrowed, w.narrow)  # of the activation, until the kernel has run
        bias_sums = grad.new_empty(_count_blocks(grad), len(w.wide))
        arrays = to_numpy(widened, w.wide_bias.clone(), grad_widened, bias_sums)
        _run(_differentiate_activation, len(bias_sums), arrays)
        grad_narrow = _weight_gradient(grad_narrowed, widened)  # the kernel has written the activation there
        del grad_narrowed
        normed = new_empty(first, *first.shape)
        torch.addcmul(w.first_shift, first, w.first_scale, out=normed)
        grad_wide = _weight_gradient(grad_widened, converted(normed, dtype))
        del normed
        grad_normed.add_(multiply(grad_widened, w.wide))
        del grad_widened
        grad_hidden, grad_projected, first_sums = _differentiate(
            grad_normed, first, first_inverses, w.first_scale, ctx.masks[0], dtype
        )
        grad_weights = LayerWeights(
            _weight_gradient(grad_projected, attended),
            *first_sums,
            grad_wide,
            bias_sums.sum(0),
            grad_narrow,
            *second_sums,
        )
        return multiply(grad_projected, w.projection), grad_hidden, None, None, *grad_weights


_transform_attended = cast(Callable[..., Tensor], _TransformAttended.apply)


def _weight_gradient(grad: Tensor, rows: Tensor) -> Tensor:
    """Return the float32 gradient of a weight, (m, k).

    The rows are (n, k), and the gradients of the products (n, m).
    """
    return converted(multiply(grad.t(), rows), torch.float32)


def _divide(kept: Tensor, wide: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Divide memory into three float32 matrices (T, H) and one (T, I) of type `dtype`.

    `wide`, (I, H), is the weight that widens rows.
    """
    T, (intermediate, H) = len(kept), wide.shape
    flat = kept.view(-1)
    first, second, output = flat[: 3 * T * H].view(3, T, H)
    return first, second, output, flat[3 * T * H :].view(dtype)[: T * intermediate].view(T, intermediate)


def _count_blocks(rows: Tensor) -> int:
    """Return how many blocks rows have."""
    return -(-len(rows) // BLOCK)


def _normalize(
    product: Tensor,
    bias: Tensor,
    residual: Tensor,
    norm: tuple[Tensor, Tensor],
    eps: float,
    mask: DropoutMask,
    standardized: Tensor,
    normed: Tensor,
) -> Tensor:
    """Compute norm(residual + dropout(product + bias)), (T, H), by `_normalize_rows`.

    Returns the inverse standard deviations of the rows, (T,).
    """
    inverses = residual.new_empty(len(product))
    bias, scale, shift = _copy_vectors(bias, *norm)
    arrays = to_numpy(product, bias, residual, scale, shift, standardized, normed, inverses)
    _run(_normalize_rows, len(product), arrays, np.float32(eps), *mask.arguments)
    return inverses


def _differentiate(
    grad: Tensor,
    standardized: Tensor,
    inverses: Tensor,
    scale: Tensor,
    mask: DropoutMask,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor, Tensor]]:
    """Compute the gradients of `_normalize`.

    Returns the gradients of the residual connection and, of type `dtype`, of the product, (T, H) each, and of
    the bias and the norm's scale and shift, (H,) each.
    """
    grad_sum, grad_product = new_empty(grad, *grad.shape), new_empty(grad, *grad.shape, dtype=dtype)
    sums = grad.new_empty(_count_blocks(grad), 3, grad.shape[1])
    arrays = to_numpy(grad, standardized, inverses, *_copy_vectors(scale), grad_sum, grad_product, sums)
    _run(_differentiate_rows, len(sums), arrays, *mask.arguments)
    grad_scale, grad_shift, grad_bias = sums.sum(0)
    return grad_sum, grad_product, (grad_bias, grad_scale, grad_shift)


def _copy_vectors(*vectors: Tensor) -> list[Tensor]:
    """Copy weights before numpy sees them.

    Otherwise FSDP could not free their memory afterwards.
    """
    return [vector.clone() for vector in vectors]


def _run(kernel: Callable[..., None], items: int, arrays: list[Any], *numbers: np.number[Any]) -> None:
    """Run a kernel on rows, or on blocks of rows.

    The size of the first array decides how many threads there are.
    """
    threads = count_threads(arrays[0].size)
    run_in_threads(lambda first, last: kernel(*arrays, *numbers, first, last), items, threads)


@float_kernel
def _sum_rows(rows: NDArray[Any], sums: Float32s, first: int, last: int) -> None:
    """Add the rows of the blocks first..last-1.

    `sums`, (blocks, m), receives the sums.
    """
    vectorize_loops()
    for block in range(first, last):
        total = sums[block]
        for j in range(len(total)):
            total[j] = 0
        for i in range(block * BLOCK, min((block + 1) * BLOCK, len(rows))):
            row = rows[i]
            for j in range(len(total)):
                total[j] += widened(row[j])


@float_kernel
def _normalize_rows(
    product: NDArray[Any],
    bias: Float32s,
    residual: Float32s,
    scale: Float32s,
    shift: Float32s,
    standardized: Float32s,
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
    """Normalize residual + dropout(product + bias) in the rows first..last-1.

    `standardized` receives the sum minus its mean, divided by its standard deviation, `inverses` 1 / this
    deviation, and `normed` the scaled and shifted rows.
    """
    vectorize_loops()
    width = len(bias)
    H = np.float32(width)
    factors = np.empty(width + 1, np.float32)
    for i in range(first, last):
        draw_factors(i, width, key, second_key, dropped_levels, kept, factors)
        source, other, row, target = product[i], residual[i], standardized[i], normed[i]
        total = np.float32(0)
        for j in range(width):
            row[j] = (widened(source[j]) + bias[j]) * factors[j] + other[j]
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
    grad_product: NDArray[Any],
    sums: Float32s,
    key: np.uint32,
    second_key: np.uint32,
    dropped_levels: np.uint32,
    kept: np.float32,
    first: int,
    last: int,
) -> None:
    """Compute the gradients of `_normalize_rows` in the blocks first..last-1 of rows.

    `grad_sum` is the gradient of the sum, and so of the residual connection. It is the gradient g of the
    standardized row x, less the mean of g, less x times the mean of g · x, over the standard deviation.
    `sums`, (blocks, 3, H), has the gradients of scale, shift and bias.
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
                product = of_sum[j] * factors[j]
                of_product[j] = rounded(product, of_product[j])
                grad_bias[j] += product


@float_kernel
def _activate_rows(
    rows: NDArray[Any], bias: Float32s, activated: NDArray[Any], first: int, last: int
) -> None:
    """Compute GELU(row + bias) of the rows first..last-1."""
    vectorize_loops()
    for i in range(first, last):
        row, target = rows[i], activated[i]
        for j in range(len(bias)):
            x = widened(row[j]) + bias[j]
            probability, _ = normal_distribution(x)
            target[j] = rounded(x * probability, target[j])


@float_kernel
def _differentiate_activation(
    rows: NDArray[Any],
    bias: Float32s,
    grad: NDArray[Any],
    sums: Float32s,
    first: int,
    last: int,
) -> None:
    """Compute `_activate_rows` again, and its gradients.

    The rows in the blocks first..last-1 are overwritten with the activation, and `grad`,
    the gradient of the activation, with the gradient of the rows. `sums`, (blocks, 4H), receives the gradient
    of the bias.
    """
    vectorize_loops()
    for block in range(first, last):
        grad_bias = sums[block]
        for j in range(len(bias)):
            grad_bias[j] = 0
        for i in range(block * BLOCK, min((block + 1) * BLOCK, len(rows))):
            row, g = rows[i], grad[i]
            for j in range(len(bias)):
                x = widened(row[j]) + bias[j]
                probability, density = normal_distribution(x)
                row[j] = rounded(x * probability, row[j])
                product = widened(g[j]) * (probability + x * density)
                g[j] = rounded(product, g[j])
                grad_bias[j] += product
