"""The weights of a layer after attention, as arguments of the fused layers."""

from typing import NamedTuple

from torch import Tensor


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

    @property
    def first_norm(self) -> tuple[Tensor, Tensor]:
        """Scale and shift of the first norm."""
        return self.first_scale, self.first_shift

    @property
    def second_norm(self) -> tuple[Tensor, Tensor]:
        """Scale and shift of the second norm."""
        return self.second_scale, self.second_shift
