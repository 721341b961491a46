"""Rows of zeros after the tokens of a batch, so that the shapes of matrix products recur.

In packed batches the number of tokens differs every time, and some libraries prepare each new shape.
On a CPU, oneDNN, which multiplies bfloat16, compiles a kernel in about a millisecond, keeps only the
last 1,024 primitives (docs/decisions/processors.md), and never frees parts of the others
(docs/decisions/inference.md, "Fused layers in bfloat16"). On a GPU, cuBLAS chooses one of many kernels
(docs/decisions/gpu.md). MKL, which multiplies float32 on a CPU, compiles nothing.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

# Small enough to cost nothing, and large enough for shapes to recur.
CPU_MULTIPLE = 32
GPU_MULTIPLE = 128

MAX_CPU_WIDTH = 512  # models with a larger hidden size trained more slowly with padding on a CPU


def pad_rows(rows: Tensor, hidden_size: int) -> Tensor:
    """Append rows of zeros up to a multiple: on a GPU, and for bfloat16 on a CPU.

    No token attends to the added rows; the caller drops them at the end.
    """
    if rows.device.type == "cpu":
        is_slower = hidden_size > MAX_CPU_WIDTH and not torch.is_inference_mode_enabled()
        if is_slower or not torch.is_autocast_enabled("cpu"):
            return rows
        multiple = CPU_MULTIPLE
    else:
        multiple = GPU_MULTIPLE
    return F.pad(rows, [0, 0] * (rows.dim() - 1) + [0, -len(rows) % multiple])
