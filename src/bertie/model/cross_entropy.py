"""Cross-entropy over many classes: exponentials once, and the gradient where they stand."""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from bertie.model.labels import IGNORED


class _CrossEntropy(torch.autograd.Function):
    """Over a vocabulary of 8,192 it takes a CPU half the time of F.cross_entropy and argmax."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        best, guesses = logits.max(1)  # torch's argmax is four times as slow in bfloat16
        is_target = labels != IGNORED
        classes = labels.clamp(min=0)[:, None]
        likelihoods = logits - best[:, None].float()  # float32 (n, classes), their logarithms as yet
        of_labels = likelihoods.gather(1, classes)[:, 0]
        totals = likelihoods.exp_().sum(1)
        ctx.save_for_backward(likelihoods, totals, classes, is_target)
        ctx.dtype = logits.dtype
        correct = (guesses == labels).sum()
        ctx.mark_non_differentiable(correct)
        return (totals.log() - of_labels).where(is_target, 0.0).sum(), correct

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None]:
        likelihoods, totals, classes, is_target = ctx.saved_tensors
        scale = grad * is_target
        gradient = likelihoods.mul_((scale / totals)[:, None])
        gradient.scatter_add_(1, classes, -scale[:, None])
        return gradient.to(ctx.dtype), None


def cross_entropy(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The sum over the targets, in nats, and how many of them have the highest logit.

    Args:
        logits: (n, classes).
        labels: int64 (n,); -100 is no target.

    Returns:
        The sum, float32 (), whose gradient can be taken once, and the number, int64 ().
    """
    return _apply(logits, labels)


_apply = cast(Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], _CrossEntropy.apply)
