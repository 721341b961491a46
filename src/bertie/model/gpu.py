"""Faster ways to compute parts of the model on a GPU. Shapes: see bert.py.

docs/decisions/gpu.md has the measurements.
"""

import functools
import sys

import torch
import torch.nn.functional as F
from torch import Tensor

from bertie.model.batch import PackedBatch

MAX_HEAD_SIZE = 256  # of torch's flash attention; it is a multiple of HEAD_SIZE_MULTIPLE
HEAD_SIZE_MULTIPLE = 8

# Tensor cores read eight numbers in bfloat16 at a time. For other widths cuBLAS takes slower kernels, and
# adds the bias in another kernel.
WIDTH_MULTIPLE = 8


def can_attend_on_gpu(qkv: Tensor, num_heads: int, dropout_p: float) -> bool:
    """Return whether `gpu_attention` applies to queries, keys and values (T, 3H)."""
    head_size = qkv.shape[1] // 3 // num_heads
    if qkv.device.type != "cuda" or head_size % HEAD_SIZE_MULTIPLE or head_size > MAX_HEAD_SIZE:
        return False
    if qkv.dtype == torch.bfloat16:
        return torch.cuda.get_device_capability(qkv.device) >= (8, 0)  # flash attention needs Ampere
    # With dropout, the backward pass of torch's kernel for float32 drops other weights than the forward pass.
    return qkv.dtype == torch.float32 and not dropout_p


def gpu_attention(qkv: Tensor, batch: PackedBatch, num_heads: int, dropout_p: float, causal: bool) -> Tensor:
    """Compute `packed_attention` with torch's kernels for packed sequences.

    `scaled_dot_product_attention` uses the same kernels, but takes packed sequences only as nested tensors,
    at several milliseconds a call. For padded sequences it prefers cuDNN, which prepares each new shape.
    torch's `varlen_attn` has no dropout.
    """
    q, k, v = qkv.view(len(qkv), 3, num_heads, -1).unbind(1)  # (T, A, D) each
    bounds, longest = batch.cu_seqlens, batch.max_seqlen
    added_rows = len(qkv) - batch.num_tokens
    if added_rows:  # as one more sequence: outside of sequences, the kernels leave the results undefined
        bounds, longest = F.pad(bounds, (0, 1), value=len(qkv)), max(longest, added_rows)
    attended: Tensor
    if qkv.dtype == torch.bfloat16:
        attended, *_ = torch.ops.aten._flash_attention_forward(
            q, k, v, bounds, bounds, longest, longest, dropout_p, causal, False
        )  # (T, A, D)
    else:
        attended, *_ = torch.ops.aten._efficient_attention_forward(
            *(x[None] for x in (q, k, v)),
            None,
            bounds,
            bounds,
            longest,
            longest,
            dropout_p,
            int(causal),
            compute_log_sumexp=qkv.requires_grad,  # for the backward pass
        )  # (1, T, A, D)
    return attended.reshape(len(qkv), -1)  # (T, H)


def padded_linear(values: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute `F.linear`, with a multiple of eight output columns.

    Columns of -inf are appended.

    Args:
        values: (n, H).
        weight: (V, H).
        bias: (V,).
    """
    missing = -len(weight) % WIDTH_MULTIPLE
    return F.linear(values, F.pad(weight, (0, 0, 0, missing)), F.pad(bias, (0, missing), value=-torch.inf))


def can_transform_on_gpu(hidden: Tensor) -> bool:
    """Return whether `gpu_training.transform_attended` takes a layer's input, (T, H).

    It does in autocast.
    """
    return has_kernels(hidden) and torch.is_autocast_enabled("cuda")


def has_kernels(values: Tensor) -> bool:
    """Return whether `gpu_kernels` can be used for a tensor.

    The tensor must be on a GPU for which Triton compiles.
    """
    return values.device.type == "cuda" and values.dtype != torch.float64 and _can_compile()


@functools.cache
def _can_compile() -> bool:
    """Try a kernel; warn once if it does not compile.

    Triton needs a C compiler, Python's header files, and a directory for compiled kernels.
    """
    try:
        from bertie.model.gpu_kernels import scale_in_place

        scale_in_place(torch.ones(1, device="cuda"), torch.ones((), device="cuda"))
    except Exception as error:  # Triton raises many kinds; torch's operations do not need it
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        print(
            f"warning: Triton compiles no kernels ({reason}), so steps on the GPU take longer; it needs a C "
            f"compiler, Python's header files, and a directory that it can write (TRITON_CACHE_DIR)",
            file=sys.stderr,
        )
        return False
    return True
