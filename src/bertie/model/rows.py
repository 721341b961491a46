"""Rows of zeros after the tokens of a batch, so that the shapes of matrix products recur.

In packed batches the number of tokens differs every time, and some libraries prepare each new shape.
On a CPU, oneDNN, which multiplies bfloat16 and packed weights, compiles a kernel in about a millisecond,
keeps only the last 1,024 primitives (docs/decisions/processors.md), and never frees parts of the others
(docs/decisions/inference.md, "Fused layers in bfloat16"). On a GPU, cuBLAS chooses one of many kernels
(docs/decisions/gpu.md). MKL and OpenBLAS, which multiply other float32 matrices on a CPU, compile nothing.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from bertie.model.packed_weights import can_pack_weights

# Small enough to cost little, and large enough for shapes to recur.
MIN_CPU_MULTIPLE = 4
MAX_CPU_MULTIPLE = 64
GPU_MULTIPLE = 128

MAX_CPU_WIDTH = 512  # models with a larger hidden size trained more slowly with padding on a CPU


def pad_rows(rows: Tensor, hidden_size: int) -> Tensor:
    """Append rows of zeros where a library prepares each new shape.

    No token attends to the added rows; the caller drops them at the end.
    """
    if rows.device.type != "cpu":
        multiple = GPU_MULTIPLE
    elif _is_compiled(hidden_size):
        power_of_two = 1 << len(rows).bit_length() - 1 if len(rows) else 0  # the largest up to the rows
        multiple = min(MAX_CPU_MULTIPLE, max(MIN_CPU_MULTIPLE, power_of_two // 8))
    else:
        multiple = 1
    added = -len(rows) % multiple
    return F.pad(rows, [0, 0] * (rows.dim() - 1) + [0, added]) if added else rows


def _is_compiled(hidden_size: int) -> bool:
    """Return whether oneDNN multiplies, on a CPU."""
    is_bfloat16 = torch.is_autocast_enabled("cpu")
    if torch.is_inference_mode_enabled():
        return is_bfloat16 or can_pack_weights(torch.float32)
    return is_bfloat16 and hidden_size <= MAX_CPU_WIDTH
