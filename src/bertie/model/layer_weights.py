"""The weights of a layer after attention, as arguments of the fused layers."""

from typing import NamedTuple, Self

import torch
from torch import Tensor

from bertie.model.memory import converted


class LayerWeights(NamedTuple):
    """The weights of a layer after attention. Shapes: see bert.py."""

    projection: Tensor  # (H, H)
    projection_bias: Tensor  # (H,)
    first_scale: Tensor  # (H,), of the first norm
    first_shift: Tensor  # (H,)
    wide: Tensor  # (4H, H)
    wide_bias: Tensor  # (4H,)
    narrow: Tensor  # (H, 4H)
    narrow_bias: Tensor  # (H,)
    second_scale: Tensor  # (H,), of the second norm
    second_shift: Tensor  # (H,)

    def with_matrices_as(self, dtype: torch.dtype) -> Self:
        """Return the weights with the matrices in another type, on a CPU."""
        matrices = ("projection", "wide", "narrow")
        return self._replace(**{name: converted(getattr(self, name), dtype) for name in matrices})

    @property
    def first_norm(self) -> tuple[Tensor, Tensor]:
        """Scale and shift of the first norm."""
        return self.first_scale, self.first_shift

    @property
    def second_norm(self) -> tuple[Tensor, Tensor]:
        """Scale and shift of the second norm."""
        return self.second_scale, self.second_shift
