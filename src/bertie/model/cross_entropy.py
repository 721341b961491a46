"""Cross-entropy over a large vocabulary.

One softmax gives the loss, its gradient, and the number of correct predictions.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from bertie.model.cpu_cross_entropy import DTYPES, cpu_cross_entropy
from bertie.model.gpu import has_kernels
from bertie.model.objectives import IGNORE_INDEX

CHUNK = 2**26  # logits at a time, to bound the memory; large, because each call to a GPU has a cost


def cross_entropy(logits: Tensor, labels: Tensor, all_targets: bool = False) -> tuple[Tensor, Tensor]:
    """Sum the cross-entropy over the targets, and count the correct predictions.

    Args:
        logits: (n, classes). If they require gradients, their gradient overwrites them: new memory for it
            would cost a small model a twentieth of a step.
        labels: classes, int64 (n,); rows with IGNORE_INDEX (-100) are not targets.
        all_targets: whether no label is IGNORE_INDEX, which saves a GPU a pass over the logits.

    Returns:
        The sum in nats, (), float32 or wider, and the count, int64 (). The prediction is the first
        class with the highest logit. The sum can be differentiated only once, because the backward
        pass scales the stored gradient in place.
    """
    return _apply(logits, labels, all_targets)


class _CrossEntropy(torch.autograd.Function):
    """Implementation of `cross_entropy`."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, all_targets: bool) -> tuple[Tensor, Tensor]:
        gradient = logits.detach() if ctx.needs_input_grad[0] else None
        if logits.device.type == "cpu" and logits.dtype in DTYPES:
            loss, correct = cpu_cross_entropy(logits.detach(), labels, overwrite=gradient is not None)
        elif has_kernels(logits) and logits.stride(1) == 1:
            from bertie.model.gpu_kernels import gpu_cross_entropy

            loss, correct = gpu_cross_entropy(logits.detach(), labels, overwrite=gradient is not None)
        else:
            loss, correct = _compute_chunks(logits, labels, all_targets, gradient)
        ctx.save_for_backward(gradient)
        ctx.mark_non_differentiable(correct)
        return loss, correct

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        if has_kernels(gradient) and gradient.is_contiguous():
            from bertie.model.gpu_kernels import scale_in_place

            return scale_in_place(gradient, grad), None, None
        return gradient.mul_(grad), None, None


def _compute_chunks(
    logits: Tensor, labels: Tensor, all_targets: bool, gradient: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Compute `cross_entropy` by operations that do not synchronize a GPU."""
    is_target = labels != IGNORE_INDEX
    classes = labels.clamp(min=0)
    dtype = torch.promote_types(logits.dtype, torch.float32)
    loss, correct = logits.new_zeros((), dtype=dtype), labels.new_zeros(())
    n = max(CHUNK // logits.shape[1], 1)
    probabilities = logits.new_empty(min(n, len(logits)), logits.shape[1], dtype=dtype)  # of a chunk
    for first in range(0, len(logits), n):
        rows = slice(first, first + n)
        s = logits[rows].to(dtype)
        p = torch.softmax(s, 1, out=probabilities[: len(s)])
        best, predicted = s.max(1)
        best_p = p.gather(1, predicted[:, None])[:, 0]
        label_scores = s.gather(1, classes[rows, None])[:, 0]
        # log Σ exp(s) = best - log p(best), and p(best) is never too small for a logarithm.
        loss += (best - label_scores - best_p.log()).where(is_target[rows], 0.0).sum()
        correct += (predicted == labels[rows]).sum()
        if gradient is not None:
            p.scatter_add_(1, classes[rows, None], p.new_full((len(p), 1), -1.0))
            if all_targets:
                gradient[rows] = p
            else:
                torch.mul(p, is_target[rows, None], out=gradient[rows])
    return loss, correct


_apply = cast(Callable[[Tensor, Tensor, bool], tuple[Tensor, Tensor]], _CrossEntropy.apply)
