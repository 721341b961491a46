"""The parts of a layer after attention, once as a fused kernel and once as autograd sees them."""

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertie.model.dropout import DropoutMask, draw_factors
from bertie.model.layer_weights import LayerWeights

EPS = 1e-3  # large enough for a test to notice where it is missing

Transform = Callable[[Tensor, Tensor, LayerWeights, float, float], Tensor]


class Parts(nn.Module):
    """The parts of a layer after attention; the norms have weights that are not 1 and 0."""

    def __init__(self, width: int, transform: Transform) -> None:
        super().__init__()
        self.transform = transform
        self.linear, self.wide = nn.Linear(width, width), nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width, eps=EPS) for _ in range(2))
        for parameter in self.norms.parameters():
            nn.init.normal_(parameter)

    def fused(self, inputs: Tensor, residual: Tensor, dropout_p: float) -> Tensor:
        weights = [self.linear, self.norms[0], self.wide, self.narrow, self.norms[1]]
        weights = LayerWeights(*(parameter for part in weights for parameter in (part.weight, part.bias)))
        return self.transform(inputs, residual, weights, EPS, dropout_p)

    def plain(self, inputs: Tensor, residual: Tensor, dropout_p: float) -> Tensor:
        """The same, as autograd sees it, with the same masks."""
        first, second = self.norms
        normed = first(residual + dropped(self.linear(inputs), dropout_p))
        return second(normed + dropped(self.narrow(F.gelu(self.wide(normed))), dropout_p))

    def gradients(self, form: str, dropout_p: float, rows: Tensor, target: Tensor) -> list[Tensor]:
        """Return the output and all gradients, for random inputs in `rows`, (2, rows, width)."""
        torch.manual_seed(3)  # of the masks
        inputs, residual = (part.clone().requires_grad_() for part in rows)
        output = getattr(self, form)(inputs, residual, dropout_p)
        return [output.detach(), *torch.autograd.grad(output, [inputs, residual, *self.parameters()], target)]


def factors_of(mask: DropoutMask, rows: int, width: int) -> Tensor:
    """Return the factors that `draw_factors` draws for each row, (rows, width)."""
    factors = np.empty((rows, width + 1), np.float32)
    for row in range(rows):
        draw_factors(row, width, *mask.arguments, factors[row])
    return torch.from_numpy(factors[:, :width])


def dropped(values: Tensor, dropout_p: float) -> Tensor:
    return values * factors_of(DropoutMask.draw(dropout_p), *values.shape).to(values.dtype)
