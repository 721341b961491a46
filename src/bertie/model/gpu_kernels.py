"""Kernels for a GPU, written in Triton. Shapes: see bert.py.

In bfloat16 autocast, torch adds a bias, drops elements, adds the residual connection, normalizes and rounds
to bfloat16 in separate passes over memory, and so does its backward pass. Cross-entropy takes more than ten
operations. Here each is one kernel (docs/decisions/gpu.md has the measurements).

Triton comes with torch for CUDA. Ask `gpu.has_kernels` before importing this module.
"""

import functools
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from bertie.model.dropout import DropoutMask
from bertie.model.objectives import IGNORE_INDEX

# The fastest of a few on an H200 (docs/decisions/gpu.md).
TILE_ELEMENTS = 4096  # a program works on the rows of one tile at a time
NUM_WARPS = 4
PROGRAMS_PER_MULTIPROCESSOR = 8  # of the backward pass, in which each program adds up gradients of weights
LOGITS_AT_A_TIME = 4096


class Normalized(NamedTuple):
    """The result of `normalize` in two types, and the moments for its gradients."""

    exact: Tensor  # float32 (T, H), for the next residual connection
    rounded: Tensor  # bfloat16 (T, H), for the next linear layer
    moments: Tensor  # (2, T), mean and inverse standard deviation of each row


def normalize(
    product: Tensor,
    bias: Tensor,
    residual: Tensor,
    norm: tuple[Tensor, Tensor],
    eps: float,
    mask: DropoutMask,
) -> Normalized:
    """Compute norm(residual + dropout(product + bias)).

    Args:
        product: of a linear layer without its bias, bfloat16 (T, H).
        bias: (H,).
        residual: float32 (T, H).
        norm: scale and shift of the norm, (H,) each.
        eps: epsilon of the norm.
        mask: of dropout; it drops the same elements as on a CPU.
    """
    T, H = product.shape
    exact, rounded = torch.empty_like(residual), torch.empty_like(product)
    moments = residual.new_empty(2, T)
    sizes = _tile_sizes(H)
    _normalize_rows[(triton.cdiv(T, sizes[1]),)](
        *(product, bias, residual, *norm, exact, rounded, moments, T, eps, *_mask_arguments(mask)),
        *sizes,
        num_warps=NUM_WARPS,
    )
    return Normalized(exact, rounded, moments)


def differentiate(
    grad_exact: Tensor,
    grad_rounded: Tensor | None,
    product: Tensor,
    bias: Tensor,
    residual: Tensor,
    scale: Tensor,
    moments: Tensor,
    mask: DropoutMask,
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor, Tensor]]:
    """Compute the gradients of the arguments of `normalize`.

    Returns the gradients of the product, bfloat16 (T, H), of the residual connection, float32 (T, H), and of
    the bias and the norm's scale and shift, (H,) each.
    """
    T, H = product.shape
    sizes = _tile_sizes(H)
    programs = min(triton.cdiv(T, sizes[1]), _count_multiprocessors() * PROGRAMS_PER_MULTIPROCESSOR)
    grad_product, grad_residual = torch.empty_like(product), torch.empty_like(residual)
    sums = residual.new_empty(programs, 3, H)
    _differentiate_rows[(programs,)](
        *(grad_exact, grad_rounded, product, bias, residual, scale, moments),
        *(grad_product, grad_residual, sums, T, *_mask_arguments(mask)),
        *sizes,
        num_warps=NUM_WARPS,
    )
    grad_bias, grad_scale, grad_shift = sums.sum(0)
    return grad_product, grad_residual, (grad_bias, grad_scale, grad_shift)


def gpu_cross_entropy(logits: Tensor, labels: Tensor, overwrite: bool) -> tuple[Tensor, Tensor]:
    """Compute `cross_entropy` of logits (n, classes).

    If asked, overwrite the logits with their gradient. The elements of a row must be adjacent in memory.
    """
    n, classes = logits.shape
    losses = logits.new_empty(n, dtype=torch.float32)
    hits = logits.new_empty(n, dtype=torch.int32)
    with torch.cuda.device(logits.device):  # Triton starts kernels on the current device
        _cross_entropy_rows[(n,)](
            *(logits, labels, losses, hits),
            *(classes, logits.stride(0), overwrite, IGNORE_INDEX, LOGITS_AT_A_TIME),
        )
    return losses.sum(), hits.sum()


def scale_in_place(values: Tensor, factor: Tensor) -> Tensor:
    """Multiply values, contiguous, by a factor that is on the GPU, ()."""
    count = values.numel()
    _scale_elements[(triton.cdiv(count, TILE_ELEMENTS),)](values, factor, count, TILE_ELEMENTS)
    return values


@functools.cache
def _count_multiprocessors() -> int:
    """Return how many multiprocessors the GPU has."""
    return torch.cuda.get_device_properties().multi_processor_count


def _tile_sizes(H: int) -> tuple[int, int, int]:
    """Return the kernels' constants: the sizes of a row and of a tile.

    These are the width of a row, and the rows and columns of a tile.
    """
    columns = triton.next_power_of_2(H)
    return H, max(TILE_ELEMENTS // columns, 1), columns


def _mask_arguments(mask: DropoutMask) -> tuple[int, int, int, float]:
    """Return the kernels' arguments for a mask.

    The keys are int32, because Triton compiles again for numbers that need another type.
    """
    key, second_key = mask.key.view("int32").tolist()
    return key, second_key, mask.dropped_levels, mask.scale


# Otherwise, Triton would compile these kernels again for other values of the arguments named here.
@triton.jit(do_not_specialize=["T", "key", "second_key", "dropped_levels"])
def _normalize_rows(
    product,
    bias,
    residual,
    scale,
    shift,
    exact,
    rounded,
    moments,
    T,
    eps,
    key,
    second_key,
    dropped_levels,
    kept,
    H: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Normalize a tile of rows, and keep their statistics.

    These are the mean and the inverse standard deviation of each row.
    """
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    in_row = columns < H
    in_tile = (rows < T)[:, None] & in_row[None, :]
    offsets = rows.to(tl.int64)[:, None] * H + columns[None, :]
    factors = _dropout_factors(rows, columns, H, key, second_key, dropped_levels, kept)
    total = _load(product, offsets, in_tile) + _load(bias, columns, in_row)[None, :]
    total = tl.where(in_tile, total * factors, 0) + _load(residual, offsets, in_tile)
    mean = tl.sum(total, 1) / H
    centred = tl.where(in_tile, total - mean[:, None], 0)
    inverse = 1 / tl.sqrt(tl.sum(centred * centred, 1) / H + eps)
    normed = centred * inverse[:, None] * _load(scale, columns, in_row)[None, :]
    normed += _load(shift, columns, in_row)[None, :]
    tl.store(exact + offsets, normed, mask=in_tile)
    tl.store(rounded + offsets, normed.to(rounded.dtype.element_ty), mask=in_tile)
    tl.store(moments + rows, mean, mask=rows < T)
    tl.store(moments + T + rows, inverse, mask=rows < T)


@triton.jit(do_not_specialize=["T", "key", "second_key", "dropped_levels"])
def _differentiate_rows(
    grad_exact,
    grad_rounded,
    product,
    bias,
    residual,
    scale,
    moments,
    grad_product,
    grad_residual,
    sums,
    T,
    key,
    second_key,
    dropped_levels,
    kept,
    H: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Compute the gradients of `_normalize_rows`.

    Of n programs, each takes every n-th tile of rows. `sums`, (programs, 3, H), receives the gradients of
    bias, scale and shift. `grad_rounded` may be None.
    """
    columns = tl.arange(0, COLUMNS)
    in_row = columns < H
    biases = _load(bias, columns, in_row)[None, :]
    scales = _load(scale, columns, in_row)[None, :]
    grad_bias = tl.zeros([ROWS, COLUMNS], tl.float32)
    grad_scale = tl.zeros([ROWS, COLUMNS], tl.float32)
    grad_shift = tl.zeros([ROWS, COLUMNS], tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(T, ROWS), tl.num_programs(0)):
        rows = tile * ROWS + tl.arange(0, ROWS)
        in_tile = (rows < T)[:, None] & in_row[None, :]
        offsets = rows.to(tl.int64)[:, None] * H + columns[None, :]
        factors = _dropout_factors(rows, columns, H, key, second_key, dropped_levels, kept)
        total = (_load(product, offsets, in_tile) + biases) * factors + _load(residual, offsets, in_tile)
        mean = tl.load(moments + rows, mask=rows < T, other=0)[:, None]
        inverse = tl.load(moments + T + rows, mask=rows < T, other=0)[:, None]
        standardized = tl.where(in_tile, (total - mean) * inverse, 0)
        grad = _load(grad_exact, offsets, in_tile)
        if grad_rounded is not None:
            grad += _load(grad_rounded, offsets, in_tile)
        scaled = grad * scales
        mean_scaled = tl.sum(scaled, 1)[:, None] / H
        slope = tl.sum(scaled * standardized, 1)[:, None] / H
        of_sum = tl.where(in_tile, inverse * (scaled - mean_scaled - standardized * slope), 0)
        of_product = of_sum * factors
        tl.store(grad_residual + offsets, of_sum, mask=in_tile)
        tl.store(grad_product + offsets, of_product.to(grad_product.dtype.element_ty), mask=in_tile)
        grad_bias += of_product
        grad_scale += grad * standardized
        grad_shift += grad
    target = sums + tl.program_id(0) * 3 * H + columns
    tl.store(target, tl.sum(grad_bias, 0), mask=in_row)
    tl.store(target + H, tl.sum(grad_scale, 0), mask=in_row)
    tl.store(target + 2 * H, tl.sum(grad_shift, 0), mask=in_row)


@triton.jit
def _load(pointer, offsets, mask):
    """Load elements as float32; 0 outside the mask."""
    return tl.load(pointer + offsets, mask=mask, other=0).to(tl.float32)


@triton.jit
def _dropout_factors(rows, columns, H: tl.constexpr, key, second_key, dropped_levels, kept):
    """Return the factors of `dropout.draw_factors`.

    The two halves of a row share hashes.
    """
    HALF: tl.constexpr = (H + 1) // 2
    in_second_half = (columns >= HALF)[None, :]
    positions = rows[:, None] * HALF + tl.where(in_second_half, columns[None, :] - HALF, columns[None, :])
    bits = positions.to(tl.uint32) * 0x9E3779B9 + key.to(tl.uint32)
    bits = ((bits ^ (bits >> 16)) * 0x7FEB352D) ^ second_key.to(tl.uint32)
    bits = (bits ^ (bits >> 15)) * 0x846CA68B
    bits = bits ^ (bits >> 16)
    levels = tl.where(in_second_half, bits >> 16, bits & 0xFFFF)
    return tl.where(levels >= dropped_levels, kept, 0.0)


@triton.jit
def _cross_entropy_rows(
    logits,
    labels,
    losses,
    hits,
    CLASSES: tl.constexpr,
    ROW_STRIDE: tl.constexpr,
    OVERWRITE: tl.constexpr,
    IGNORED: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Compute the loss of a row, whether the prediction is right, and the gradient."""
    row = tl.program_id(0)
    logits += row.to(tl.int64) * ROW_STRIDE
    label = tl.load(labels + row)
    best = -float("inf")
    predicted = 0
    total = 0.0  # of exp(logit - best)
    for first in range(0, CLASSES, COLUMNS):
        columns = first + tl.arange(0, COLUMNS)
        x = tl.load(logits + columns, mask=columns < CLASSES, other=-float("inf")).to(tl.float32)
        highest = tl.max(x, 0)
        if highest > best:
            predicted = first + tl.argmax(x, 0)
            total *= tl.exp(best - highest)
            best = highest
        total += tl.sum(tl.exp(x - best), 0)
    is_target = label != IGNORED
    label_logit = tl.load(logits + label, mask=is_target, other=0.0).to(tl.float32)
    tl.store(losses + row, tl.where(is_target, tl.log(total) + best - label_logit, 0.0))
    tl.store(hits + row, (predicted == label).to(tl.int32))
    if OVERWRITE:
        tl.debug_barrier()  # the label's logit has been read
        factor = tl.where(is_target, 1 / total, 0.0)
        for first in range(0, CLASSES, COLUMNS):
            columns = first + tl.arange(0, COLUMNS)
            x = tl.load(logits + columns, mask=columns < CLASSES, other=-float("inf")).to(tl.float32)
            gradient = tl.exp(x - best) * factor - tl.where((columns == label) & is_target, 1.0, 0.0)
            tl.store(logits + columns, gradient.to(logits.dtype.element_ty), mask=columns < CLASSES)


@triton.jit(do_not_specialize=["count"])
def _scale_elements(values, factor, count, COLUMNS: tl.constexpr):
    """Multiply a block of elements by a factor."""
    offsets = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    scaled = tl.load(values + offsets, mask=offsets < count).to(tl.float32) * tl.load(factor).to(tl.float32)
    tl.store(values + offsets, scaled.to(values.dtype.element_ty), mask=offsets < count)
