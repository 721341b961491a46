"""Layers for inference on a CPU that multiply int8.

Weights are rounded when a model is loaded, with a scale for each output, and inputs in every batch, with a
scale for each row. Products are summed in int32, without rounding. Attention, norms and GELU are in
float32. An export with `int8` rounds in the same way (formats/onnx.py). For shapes, see bert.py.
docs/decisions/inference.md has the measurements.
"""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from bertie.base.arrays import Float32s, Int32s, UInt8s
from bertie.base.errors import SettingsError
from bertie.base.kernels import float_kernel, vectorize_loops
from bertie.base.threads import run_in_threads
from bertie.model.batch import PackedBatch
from bertie.model.bert import BertModel, Layer
from bertie.model.cpu import is_exact_gelu
from bertie.model.cpu_inference_kernels import add_and_normalize, add_bias_and_gelu
from bertie.model.cpu_math import ONE, ZERO
from bertie.model.cpu_vectors import CAN_MULTIPLY_CODES, HAS_VNNI, PANEL, multiply_codes

ZERO_CODE = 128  # the uint8 of 0 in rounded inputs
LARGEST_INPUT = np.float32(127)  # the distance of a row's largest input from the code of 0
# Without VNNI, a processor adds two products of uint8 and int8 in 16 bits: 2 · 255 · 64 < 2**15.
LARGEST_WEIGHT = 127 if HAS_VNNI else 64
ROWS = 96  # computed at a time, so that everything between two products stays in a core's cache
PRODUCTS_PER_THREAD = 1 << 25  # some 100 microseconds of work; starting a thread takes 20

WITHOUT_SIGN = np.int32(0x7FFFFFFF)  # mask of a float32 number's bits that leaves its magnitude
# float32 numbers from 2**23 to 2**24 are 1 apart. So a sum with this one is rounded to an integer, which is
# in the lowest bits of the sum.
ROUNDING = np.float32(3 * 2**22 + ZERO_CODE)


class RoundedWeight(NamedTuple):
    """A weight of out × in numbers, in panels of PANEL outputs.

    Zeros fill the last panel, and the inputs up to a multiple of four.

    Attributes:
        codes: int32 (panels, in / 4, PANEL), four of int8 in each element.
        offsets: int32 (panels, PANEL), what ZERO_CODE adds to the products of an output, negated.
        scales: float32 (panels, PANEL)
    """

    codes: Int32s
    offsets: Int32s
    scales: Float32s


class Int8Linear(nn.Module):
    """A linear layer for inference with a rounded weight.

    Args:
        linear: the layer to round, with a bias.
        keep_weight: whether to also keep the float32 weight, in the attribute `weight`.
    """

    weight: Tensor | None

    def __init__(self, linear: nn.Linear, keep_weight: bool = False) -> None:
        super().__init__()
        self.weight = linear.weight if keep_weight else None
        self.bias = linear.bias
        self.out_features, self.size = linear.out_features, linear.weight.numel()
        self.rounded = round_weight(linear.weight.detach().numpy())

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute the layer, float32 (rows, in) -> (rows, out)."""
        return self.without_bias(inputs) + self.bias

    def without_bias(self, inputs: Tensor) -> Tensor:
        """Compute the layer without its bias, float32 (rows, in) -> (rows, out)."""
        rows = inputs.shape[0]
        result = torch.empty(rows, self.out_features)
        multiply = partial(_multiply_rows, inputs.numpy(), *self.rounded, result.numpy())
        run_in_threads(multiply, rows, _count_threads(rows * self.size))
        return result


class Int8Layer(Layer):
    """A `Layer` for inference with rounded weights.

    Args:
        layer: the layer to round.
        keep_weight: whether to also keep the float32 weight of queries, keys and values, for
            `pooling_attention`.
    """

    def __init__(self, layer: Layer, keep_weight: bool) -> None:
        nn.Module.__init__(self)
        self.num_heads, self.is_decoder, self.activation = layer.num_heads, layer.is_decoder, layer.activation
        self.attention_norm, self.output_norm = layer.attention_norm, layer.output_norm
        self._size, weights = 0, []
        for name in ("qkv", "attention_output", "intermediate", "output"):
            linear = Int8Linear(getattr(layer, name), keep_weight and name == "qkv")
            setattr(self, name, linear)
            if name != "qkv":
                self._size += linear.size
                weights += [*linear.rounded, linear.bias.detach().numpy()]
        for norm in (layer.attention_norm, layer.output_norm):
            weights += [norm.weight.detach().numpy(), norm.bias.detach().numpy()]
        self._weights: list[Any] = [*weights, np.float32(layer.output_norm.eps)]

    def forward(
        self,
        hidden: Tensor,
        batch: PackedBatch,
        positions: Tensor | None = None,
        one_per_sequence: bool = False,
    ) -> Tensor:
        """See `Layer.forward`."""
        attended = self._attend(hidden, batch, positions if one_per_sequence else None, True)  # (T or R, H)
        if positions is not None:
            hidden = hidden.index_select(0, positions)  # (R, H)
            if not one_per_sequence:
                attended = attended.index_select(0, positions)  # (R, H)
        if is_exact_gelu(self.activation):
            return self._transform(attended, hidden)
        hidden = self.attention_norm(hidden + self.attention_output(attended))  # (T or R, H)
        widened = self.activation(self.intermediate(hidden))  # (T or R, 4H)
        output: Tensor = self.output_norm(hidden + self.output(widened))  # (T or R, H)
        return output

    def _transform(self, attended: Tensor, hidden: Tensor) -> Tensor:
        """Compute what follows attention, (rows, H) -> (rows, H)."""
        rows = hidden.shape[0]
        result = torch.empty_like(hidden)
        transform = partial(_transform_rows, attended.numpy(), hidden.numpy(), result.numpy(), *self._weights)
        run_in_threads(transform, rows, _count_threads(rows * self._size))
        return result


def round_weights(bert: BertModel) -> None:
    """Round the weights of the encoder's layers.

    Raises:
        SettingsError: this processor does not multiply vectors of int8.
    """
    if not CAN_MULTIPLY_CODES:
        raise SettingsError(
            "precision = 'int8': this needs a processor with AVX2; export the model with --int8, or omit "
            "precision"
        )
    last = len(bert.layers) - 1
    for i, layer in enumerate(bert.layers):
        assert isinstance(layer, Layer)
        bert.layers[i] = Int8Layer(layer, keep_weight=i == last)


def _count_threads(products: int) -> int:
    """Return how many threads compute so many products."""
    return min(torch.get_num_threads(), products // PRODUCTS_PER_THREAD)


def round_weight(weight: Float32s) -> RoundedWeight:
    """Round a weight, (out, in); see `RoundedWeight`."""
    out, size_in = weight.shape
    scales = np.maximum(np.abs(weight).max(1) / LARGEST_WEIGHT, np.finfo(np.float32).tiny)  # (out,)
    codes = np.zeros((-(-out // PANEL) * PANEL, -(-size_in // 4) * 4), np.int8)
    codes[:out, :size_in] = np.rint(weight / scales[:, None])
    panels = codes.reshape(-1, PANEL, codes.shape[1] // 4, 4).transpose(0, 2, 1, 3)
    return RoundedWeight(
        codes=np.ascontiguousarray(panels).view(np.int32)[..., 0],
        offsets=(-ZERO_CODE * codes.sum(1, dtype=np.int32)).reshape(-1, PANEL),
        scales=np.pad(scales, (0, len(codes) - out)).reshape(-1, PANEL),
    )


@float_kernel
def _transform_rows(
    attended: Float32s,
    hidden: Float32s,
    result: Float32s,
    projection: Int32s,
    projection_offsets: Int32s,
    projection_scales: Float32s,
    projection_bias: Float32s,
    wide: Int32s,
    wide_offsets: Int32s,
    wide_scales: Float32s,
    wide_bias: Float32s,
    narrow: Int32s,
    narrow_offsets: Int32s,
    narrow_scales: Float32s,
    narrow_bias: Float32s,
    first_scale: Float32s,
    first_shift: Float32s,
    second_scale: Float32s,
    second_shift: Float32s,
    eps: np.float32,
    first: int,
    last: int,
) -> None:
    """Compute what follows attention for the rows first..last-1, (rows, H), with the exact GELU."""
    vectorize_loops()
    middle = np.empty((ROWS, len(projection_bias)), np.float32)
    widened = np.empty((ROWS, len(wide_bias)), np.float32)
    rounded = np.empty((ROWS, max(wide.shape[1], narrow.shape[1])), np.int32)
    for begin in range(first, last, ROWS):
        n = min(ROWS, last - begin)
        end = begin + n
        _multiply(attended[begin:end], projection, projection_offsets, projection_scales, rounded, middle[:n])
        add_and_normalize(middle, projection_bias, hidden[begin:end], first_scale, first_shift, eps, 0, n)
        _multiply(middle[:n], wide, wide_offsets, wide_scales, rounded, widened[:n])
        add_bias_and_gelu(widened, wide_bias, 0, n)
        _multiply(widened[:n], narrow, narrow_offsets, narrow_scales, rounded, result[begin:end])
        add_and_normalize(result[begin:end], narrow_bias, middle, second_scale, second_shift, eps, 0, n)


@float_kernel
def _multiply_rows(
    inputs: Float32s,
    codes: Int32s,
    offsets: Int32s,
    scales: Float32s,
    result: Float32s,
    first: int,
    last: int,
) -> None:
    """Write the product of the rows first..last-1, (rows, in), with a rounded weight, (rows, out)."""
    vectorize_loops()
    rounded = np.empty((ROWS, codes.shape[1]), np.int32)
    for begin in range(first, last, ROWS):
        end = min(begin + ROWS, last)
        _multiply(inputs[begin:end], codes, offsets, scales, rounded, result[begin:end])


@float_kernel
def _multiply(
    inputs: Float32s, codes: Int32s, offsets: Int32s, scales: Float32s, rounded: Int32s, result: Float32s
) -> None:
    """Write the product of at most ROWS inputs, (rows, in), with a rounded weight, (rows, out).

    `rounded` has at least ROWS · in / 4 elements, which are written.
    """
    vectorize_loops()
    n, out, columns = len(inputs), result.shape[1], codes.shape[1]
    input_codes = rounded.reshape(-1)[: n * columns].reshape(n, columns)
    row_scales = np.empty(ROWS, np.float32)
    last_panel = np.empty((ROWS, PANEL), np.float32)
    for i in range(n):
        row_scales[i] = _round_row(inputs[i], input_codes[i].view(np.uint8))
    for panel in range(len(codes)):
        column = panel * PANEL
        next_panel = codes[min(panel + 1, len(codes) - 1)]
        weight = codes[panel], next_panel, offsets[panel], scales[panel]
        if column + PANEL <= out:
            multiply_codes(input_codes, *weight, row_scales, result, column)
        else:
            multiply_codes(input_codes, *weight, row_scales, last_panel, 0)
            result[:, column:] = last_panel[:n, : out - column]


@float_kernel
def _round_row(row: Float32s, codes: UInt8s) -> np.float32:
    """Write the codes of a row, and return their scale: value = scale · (code - ZERO_CODE)."""
    vectorize_loops()
    bits = row.view(np.int32)
    largest = np.int32(0)
    for j in range(len(row)):
        magnitude = np.int32(bits[j] & WITHOUT_SIGN)
        largest = magnitude if magnitude > largest else largest
    scale = np.int32(largest).view(np.float32) / LARGEST_INPUT
    inverse = ONE / scale if scale > ZERO else ZERO
    for j in range(len(row)):
        codes[j] = np.uint8(np.float32(row[j] * inverse + ROUNDING).view(np.int32))
    return scale
