"""The part of a layer after attention, for training in bfloat16 on a GPU.

For shapes, see bert.py. It is one autograd function: single operations in autograd and autocast take more
time of the processor, for which the GPU waits (docs/decisions/gpu.md has the measurements).
"""

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from bertie.model.dropout import DropoutMask
from bertie.model.gpu_kernels import Normalized, differentiate, normalize
from bertie.model.layer_weights import LayerWeights


def transform_attended(
    attended: Tensor, hidden: Tensor, weights: LayerWeights, eps: float, dropout_p: float
) -> Tensor:
    """Compute the part of a layer after attention, in autocast.

    It has dropout and exact GELU.

    Args:
        attended: the result of attention, (T, H).
        hidden: the input of the layer, float32 (T, H).
        weights: of the layer, float32; they are multiplied in bfloat16.
        eps: epsilon of both norms.
        dropout_p: probability of zeroing an element, rounded to a multiple of 1/65,536.

    Returns:
        The output of the layer, float32 (T, H).
    """
    with torch.cuda.device(hidden.device):  # Triton starts kernels on the current device
        return _transform_attended(
            attended.bfloat16().contiguous(), hidden.contiguous(), eps, dropout_p, *weights
        )


class _TransformAttended(torch.autograd.Function):
    """`transform_attended`.

    The backward pass rounds the weights to bfloat16 again, so that these copies need not be kept.
    """

    @staticmethod
    def forward(ctx: Any, attended: Tensor, hidden: Tensor, eps: float, p: float, *weights: Tensor) -> Tensor:
        w = LayerWeights(*weights)
        masks = DropoutMask.draw(p), DropoutMask.draw(p)
        first = attended @ w.projection.bfloat16().t()  # (T, H), without the bias
        x = normalize(first, w.projection_bias, hidden, w.first_norm, eps, masks[0])  # (T, H)
        widened = F.linear(x.rounded, w.wide.bfloat16(), w.wide_bias.bfloat16())  # (T, 4H)
        activated = F.gelu(widened)  # (T, 4H)
        second = activated @ w.narrow.bfloat16().t()  # (T, H), without the bias
        y = normalize(second, w.narrow_bias, x.exact, w.second_norm, eps, masks[1])  # (T, H)
        ctx.save_for_backward(attended, hidden, first, *x, widened, activated, second, y.moments, *weights)
        ctx.masks = masks
        return y.exact

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        attended, hidden, first, *x_and_others = ctx.saved_tensors
        x = Normalized(*x_and_others[:3])
        widened, activated, second, second_moments, *weights = x_and_others[3:]
        w = LayerWeights(*weights)

        grad_second, grad_exact, second_sums = differentiate(
            *(grad.contiguous(), None, second, w.narrow_bias, x.exact),
            *(w.second_scale, second_moments, ctx.masks[1]),
        )
        grad_activated = grad_second @ w.narrow.bfloat16()  # (T, 4H)
        grad_widened = torch.ops.aten.gelu_backward(grad_activated, widened)  # (T, 4H)
        grad_rounded = grad_widened @ w.wide.bfloat16()  # (T, H)
        grad_first, grad_hidden, first_sums = differentiate(
            *(grad_exact, grad_rounded, first, w.projection_bias, hidden),
            *(w.first_scale, x.moments, ctx.masks[0]),
        )
        grad_weights = LayerWeights(
            _multiply(grad_first, attended),
            *first_sums,
            _multiply(grad_widened, x.rounded),
            grad_widened.sum(0, dtype=torch.float32),
            _multiply(grad_second, activated),
            *second_sums,
        )
        return grad_first @ w.projection.bfloat16(), grad_hidden, None, None, *grad_weights


_transform_attended = cast(Callable[..., Tensor], _TransformAttended.apply)


def _multiply(grad: Tensor, values: Tensor) -> Tensor:
    """Return the float32 gradient of a linear layer's weight.

    It is computed from the gradient of the layer's output and from its input.
    """
    return torch.mm(grad.t(), values, out_dtype=torch.float32)
