"""Linear layers for inference on a CPU, with weights packed for oneDNN.

The weights are in the order in which oneDNN reads them. Other layers pass their weights as they are, and
oneDNN rearranges them in every product. For four tokens, rearranging takes as long as the product itself
(docs/decisions/inference.md, "Packed weights in oneDNN"). torch has packed weights in two operators that its
compiler uses; their names begin with an underscore.
"""

from typing import cast

import torch
from torch import Tensor, nn

from bertie.model.products import mkl_lacks_avx512

TYPICAL_ROWS = 64  # oneDNN chooses the order that is fastest for this number of rows


class PackedLinear(nn.Module):
    """A linear layer for inference with a packed weight.

    Args:
        linear: the layer to pack, with a bias.
        dtype: float32 or bfloat16: the type of the weight, of the inputs of its products, and of the result.
        keep_weight: whether to also keep the unpacked float32 weight, in the attribute `weight`.
    """

    weight: Tensor | None

    def __init__(self, linear: nn.Linear, dtype: torch.dtype, keep_weight: bool = False) -> None:
        super().__init__()
        self.weight = linear.weight if keep_weight else None
        self.bias = linear.bias
        self.dtype = dtype
        weight = linear.weight.detach().to(dtype)
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, TYPICAL_ROWS)

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute the layer, (rows, in) -> (rows, out)."""
        return self._compute(inputs, self.bias)

    def without_bias(self, inputs: Tensor) -> Tensor:
        """Compute the layer without its bias, (rows, in) -> (rows, out)."""
        return self._compute(inputs, None)

    def with_gelu(self, inputs: Tensor) -> Tensor:
        """Compute the exact GELU of the layer, (rows, in) -> (rows, out)."""
        return self._compute(inputs, self.bias, "gelu")

    def _compute(self, inputs: Tensor, bias: Tensor | None, activation: str = "none") -> Tensor:
        result = torch.ops.mkldnn._linear_pointwise(
            inputs.to(self.dtype), self._packed, bias, activation, [], "none"
        )
        return cast(Tensor, result)


def pack_weights(layers: nn.ModuleList, dtype: torch.dtype) -> None:
    """Pack the weights of the encoder's layers.

    The last layer also keeps the unpacked weight of queries, keys and values, for `pooling_attention`.
    """
    for layer in layers:
        for name in ("qkv", "attention_output", "intermediate", "output"):
            keep_weight = name == "qkv" and layer is layers[-1]
            setattr(layer, name, PackedLinear(getattr(layer, name), dtype, keep_weight))


def can_pack_weights(dtype: torch.dtype) -> bool:
    """Return whether oneDNN multiplies fastest by packed weights.

    This depends on the processor.
    """
    if dtype == torch.bfloat16:
        return torch.cpu._is_avx512_bf16_supported()
    return mkl_lacks_avx512()
