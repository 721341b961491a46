"""Rows of zeros after the tokens of a batch.

With them, the shapes of matrix products recur. In packed batches the number of tokens differs every time, and
some libraries prepare each new shape. On a CPU, oneDNN, which multiplies bfloat16 and packed weights,
compiles a kernel in about a millisecond, keeps only the last 1,024 primitives (docs/decisions/processors.md),
and never frees parts of the others (docs/decisions/inference.md, "Fused layers in bfloat16"). On a GPU,
cuBLAS chooses one of many kernels (docs/decisions/gpu.md). MKL and OpenBLAS, which multiply other float32
matrices on a CPU, compile nothing.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertie.model.packed_weights import PackedLinear

# Small enough to cost little, and large enough for shapes to recur.
MIN_CPU_MULTIPLE = 4
MAX_CPU_MULTIPLE = 64
GPU_MULTIPLE = 128


def pad_rows(rows: Tensor, linear: nn.Linear | PackedLinear) -> Tensor:
    """Append rows of zeros if `linear` has to prepare each new shape.

    The library that computes it does so. No token attends to the added rows; the caller drops them at the
    end.
    """
    if rows.device.type != "cpu":
        multiple = GPU_MULTIPLE
    elif _is_compiled(linear):
        power_of_two = 1 << len(rows).bit_length() - 1 if len(rows) else 0  # the largest up to the rows
        multiple = min(MAX_CPU_MULTIPLE, max(MIN_CPU_MULTIPLE, power_of_two // 8))
    else:
        multiple = 1
    added = -len(rows) % multiple
    return F.pad(rows, [0, 0] * (rows.dim() - 1) + [0, added]) if added else rows


def _is_compiled(linear: nn.Linear | PackedLinear) -> bool:
    """Return whether oneDNN computes the layer, on a CPU."""
    if isinstance(linear, PackedLinear):
        return True
    return torch.is_autocast_enabled("cpu")
