"""Tied word embeddings on a CPU, and the conditions for its fused layers.

For shapes, see bert.py. docs/decisions/processors.md has the measurements.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MIN_ELEMENTS_PER_THREAD = 1 << 17  # some 50 microseconds of a kernel's work; starting a thread takes 20


def embed_and_tie(weight: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Look up word embeddings that the decoder uses too.

    On a CPU, autograd would write the gradient of the embeddings to new memory as large as the weights,
    and the sum with the decoder's gradient to more. Here the decoder's gradient becomes the sum.

    Args:
        weight: the word embeddings, (V, H).
        ids: indices of tokens, (T,).

    Returns:
        The vectors of the tokens, (T, H), and the weights for the decoder, (V, H), to be used once.
    """
    if weight.device.type != "cpu":  # a GPU would add in another order in every run
        return F.embedding(ids, weight), weight
    return _embed_and_tie(weight, ids)


class _EmbedAndTie(torch.autograd.Function):
    """`embed_and_tie` on a CPU."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(ids)
        return F.embedding(ids, weight), weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, grad_vectors: Tensor, grad_decoder: Tensor) -> tuple[Tensor, None]:
        (ids,) = ctx.saved_tensors
        return grad_decoder.index_add_(0, ids, grad_vectors), None


_embed_and_tie = cast(Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], _EmbedAndTie.apply)


def can_fuse_inference(values: Tensor) -> bool:
    """Return whether the layers of `cpu_inference` apply.

    They do in float32 on a CPU, also under autocast.
    """
    return values.device.type == "cpu" and values.dtype == torch.float32


def can_fuse(values: Tensor) -> bool:
    """Return whether the layers of `cpu_training` apply.

    They do in float32 on a CPU, also in autocast to bfloat16.
    """
    return can_fuse_inference(values) and product_dtype() in (torch.float32, torch.bfloat16)


def product_dtype() -> torch.dtype:
    """Return the type in which matrices are multiplied on a CPU.

    It is the type of autocast, otherwise float32.
    """
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.float32


def is_exact_gelu(activation: nn.Module) -> bool:
    """Return whether a module is GELU as the fused layers compute it.

    They do not use the approximation by tanh.
    """
    return isinstance(activation, nn.GELU) and activation.approximate == "none"


def count_threads(elements: int) -> int:
    """Return how many threads a kernel uses for an array of this size.

    There are at most as many as torch uses.
    """
    return max(1, min(torch.get_num_threads(), elements // MIN_ELEMENTS_PER_THREAD))
