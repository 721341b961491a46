"""Write a model as an ONNX graph of standard operators, in float32 or int8.

The graph is built node by node rather than traced by an exporter:

- bertie's model takes packed batches. The graph takes padded ones, and has the inputs and outputs
  of optimum's exports, so that other libraries can use it.
- After the attention of the last layer, a classifier computes only [CLS].
- In int8, activations have a scale for each token. onnxruntime's own `quantize_dynamic` has one
  scale for all tokens of a batch, so the largest value sets the step for all.

Standard operators were as fast as operators of the domain com.microsoft: ONNX Runtime fuses them
when it loads the graph. docs/decisions/onnx.md has the measurements.

Inputs are int64 `input_ids`, `attention_mask` and `token_type_ids`, (N, S), or (N, choices, S) for
multiple choice. The letters of shapes are explained in bert.py, but here S is the common length to
which all sequences of a batch are padded.

In int8, weights are rounded at export, with a scale for each output, and activations at run time. Metadata of
the graph say whether its weights have 8 bits.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

import bertie
from bertie.base.errors import ModelError
from bertie.model.bert import Layer
from bertie.model.config import BertConfig
from bertie.model.engines.onnx_engine import WEIGHT_BITS
from bertie.model.heads import (
    ClassificationModel,
    EncoderModel,
    LanguageModel,
    MaskedLMHead,
    MaskedLMModel,
    Model,
    MultipleChoiceModel,
    NextSentenceModel,
    PreTrainingModel,
    QuestionAnsweringModel,
    TokenClassificationModel,
)

OPSET, IR_VERSION = 23, 11  # the first opset with Attention, which ONNX Runtime supports since 1.23
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
# The largest rounded weight, by the bits of weights. Processors without VNNI add two products of uint8 and
# int8 in 16 bits: 2 · 255 · 64 < 2**15.
LARGEST_WEIGHT = {7: 64, 8: 127}
# Shapes of outputs; names are dimensions of any size.
PER_SEQUENCE: list[str | int] = ["batch"]
PER_TOKEN: list[str | int] = ["batch", "sequence"]
PER_CHOICE: list[str | int] = ["batch", "choices"]
MAX_BYTES = 2**31 - 1  # of a protocol buffer


WeightBits = Literal[7, 8]


class Quantization(NamedTuple):
    """The matrices to store in int8.

    Attributes:
        layers: whether to quantize the matrices of the encoder's layers
        embeddings: whether to quantize the word embeddings and, tied to them, the decoder of a
            masked-LM head
        weight_bits: 7, or 8 for processors that add products of uint8 and int8 in 32 bits
    """

    layers: bool = False
    embeddings: bool = False
    weight_bits: WeightBits = 7


class _Output(NamedTuple):
    """An output of the graph: the name of the value that it returns, and its shape."""

    value: str
    shape: list[str | int]


def save_onnx(
    file: Path, model: Model | EncoderModel, config: BertConfig, quantization: Quantization
) -> None:
    """Write a model to one ONNX file, with the graph and the weights.

    Raises:
        ModelError: the model is left-to-right, has a BiLSTM, or exceeds the 2 GiB of a protocol
            buffer.
    """
    graph = _GraphBuilder(model, config, quantization)
    outputs = graph.add_model(model)
    if (size := sum(len(weight.raw_data) for weight in graph.weights.values())) > MAX_BYTES:
        raise ModelError(
            f"{file}: {size:,} bytes of weights exceed ONNX's limit of {MAX_BYTES:,}; try --int8"
        )
    for name, (value, _) in outputs.items():
        graph.nodes.append(helper.make_node("Identity", [value], [name]))
    shape = [*PER_CHOICE, "sequence"] if isinstance(model, MultipleChoiceModel) else PER_TOKEN
    proto = helper.make_model(
        helper.make_graph(
            graph.nodes,
            model.architecture,
            [helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name in INPUTS],
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, o.shape) for n, o in outputs.items()],
            list(graph.weights.values()),
        ),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="bertie",
        producer_version=bertie.__version__,
    )
    if quantization.weight_bits == 8:
        helper.set_model_props(proto, {WEIGHT_BITS: "8"})
    onnx.save(proto, file)


class _GraphBuilder:
    """Builder of an ONNX graph; its methods take and return the names of values.

    Attributes:
        nodes: the nodes so far
        weights: the constants so far, by name; weights have the names of their parameters in torch
    """

    def __init__(self, model: Model | EncoderModel, config: BertConfig, quantization: Quantization) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, TensorProto] = {}
        self.bert, self.config, self.quantization = model.bert, config, quantization
        self._module_names = {module: name for name, module in model.named_modules()}

    def add_model(self, model: Model | EncoderModel) -> dict[str, _Output]:
        """Add the whole network; return its outputs by name.

        The names are the same as in optimum's exports, or in `transformers` if optimum exports no
        such model.

        Raises:
            ModelError: the model is left-to-right or has a BiLSTM.
        """
        if isinstance(model, LanguageModel) or self.config.is_decoder or self.bert.bilstm is not None:
            raise ModelError(
                f"a {model.architecture} that is left-to-right or has a BiLSTM cannot be exported; use its "
                f"model directory instead"
            )
        V, H = self.config.vocab_size, self.config.hidden_size
        match model:
            case EncoderModel():
                hidden = self.encoder()
                outputs = {"last_hidden_state": _Output(hidden, [*PER_TOKEN, H])}
                if self.bert.pooler is not None:
                    pooled = self.pooler(self.first_token(hidden))
                    outputs["pooler_output"] = _Output(pooled, [*PER_SEQUENCE, H])
                return outputs
            case PreTrainingModel():
                hidden = self.encoder()
                next_sentence = self.linear(self.pooler(self.first_token(hidden)), model.next_sentence)
                masked_lm = self.masked_lm(hidden, model.masked_lm)
                return {
                    "prediction_logits": _Output(masked_lm, [*PER_TOKEN, V]),
                    "seq_relationship_logits": _Output(next_sentence, [*PER_SEQUENCE, 2]),
                }
            case MaskedLMModel():
                return {"logits": _Output(self.masked_lm(self.encoder(), model.masked_lm), [*PER_TOKEN, V])}
            case QuestionAnsweringModel():
                starts, ends = self.split(self.linear(self.encoder(), model.qa_outputs), 2)
                axis = self.constant("last", [2])
                return {
                    "start_logits": _Output(self.op("Squeeze", starts, axis), PER_TOKEN),
                    "end_logits": _Output(self.op("Squeeze", ends, axis), PER_TOKEN),
                }
            case NextSentenceModel():
                logits = self.linear(self.pooler(self.encoder(only_first=True)), model.next_sentence)
                return {"logits": _Output(logits, [*PER_SEQUENCE, 2])}
            case MultipleChoiceModel():
                rows = self.op("Concat", self.constant("any", [-1]), self.length(), axis=0)
                flat_inputs = [self.op("Reshape", name, rows) for name in INPUTS]  # (N · choices, S)
                scores = self.linear(
                    self.pooler(self.encoder(flat_inputs, only_first=True)), model.classifier
                )
                shape = self.op("Shape", "input_ids", end=2)
                return {"logits": _Output(self.op("Reshape", scores, shape), PER_CHOICE)}
            case ClassificationModel():
                logits = self.linear(self.classifier_input(model), model.classifier)
                return {"logits": _Output(logits, [*PER_SEQUENCE, model.classifier.out_features])}
            case TokenClassificationModel():
                logits = self.linear(self.encoder(), model.classifier)
                return {"logits": _Output(logits, [*PER_TOKEN, model.classifier.out_features])}

    def encoder(self, inputs: Sequence[str] = INPUTS, only_first: bool = False) -> str:
        """Add the embeddings and layers; return all tokens, (N, S, H), or [CLS], (N, H)."""
        input_ids, attention_mask, token_type_ids = inputs
        embeddings, S = self.bert.embeddings, self.length()
        positions = self.weight(embeddings.position_embeddings)
        hidden = self.op("Slice", positions, self.constant("zero", [0]), S)  # (S, H)
        token_types = self.weight(embeddings.token_type_embeddings)
        hidden = self.op("Add", self.op("Gather", token_types, token_type_ids), hidden)
        hidden = self.norm(self.op("Add", self.word_embeddings(input_ids), hidden), embeddings.norm)
        mask = self.op("Cast", attention_mask, to=TensorProto.BOOL)
        mask = self.op("Unsqueeze", mask, self.constant("heads_and_queries", [1, 2]))  # (N, 1, 1, S)
        one = self.constant("one", [1])
        mask = self.op("Expand", mask, self.op("Concat", one, one, S, one, axis=0))  # (N, 1, S, S)
        shape = self.op("Shape", input_ids)
        hidden = self.rows(hidden, self.config.hidden_size)
        *lower, last = cast(Iterable[Layer], self.bert.layers)
        for layer in lower:
            hidden = self.layer(hidden, mask, shape, layer)
        hidden = self.layer(hidden, mask, shape, last, only_first)
        return hidden if only_first else self.tokens(hidden, shape, self.config.hidden_size)

    def layer(self, hidden: str, mask: str, shape: str, layer: Layer, only_first: bool = False) -> str:
        """Add `bert.Layer`, (N · S, H) -> (N · S, H); or return only [CLS], (N, H)."""
        H, heads = self.config.hidden_size, self.config.num_attention_heads
        int8 = self.zero_points(hidden) if self.quantization.layers else None
        qkv = self.split(self.tokens(self.linear(hidden, layer.qkv, int8), shape, 3 * H), 3)
        attended = self.op("Attention", *qkv, mask, q_num_heads=heads, kv_num_heads=heads)
        if only_first:  # after attention, tokens do not depend on each other
            hidden, attended = self.first_token(self.tokens(hidden, shape, H)), self.first_token(attended)
            int8 = self.zero_points(hidden) if self.quantization.layers else None
        # `rows` for [CLS], too: ONNX Runtime infers no width of Attention's output, which the product needs.
        attended = self.linear(self.rows(attended, H), layer.attention_output, int8)
        hidden = self.norm(self.op("Add", hidden, attended), layer.attention_norm)
        intermediate = self.activation(self.linear(hidden, layer.intermediate, int8))
        output = self.linear(intermediate, layer.output, int8)
        return self.norm(self.op("Add", hidden, output), layer.output_norm)

    def rows(self, x: str, width: int) -> str:
        """Lay the tokens of all sequences end to end: (N, S, width) -> (N · S, width)."""
        return self.op("Reshape", x, self.constant(f"rows_of_{width}", [-1, width]))

    def tokens(self, rows: str, shape: str, width: int) -> str:
        """Divide rows into sequences again: (N · S, width) -> (N, S, width).

        `shape` is (N, S).
        """
        return self.op(
            "Reshape", rows, self.op("Concat", shape, self.constant(f"width_{width}", [width]), axis=0)
        )

    def pooler(self, first: str) -> str:
        """Add the pooler over the hidden states of [CLS], (N, H) -> (N, H)."""
        assert self.bert.pooler is not None
        return self.op("Tanh", self.linear(first, self.bert.pooler))

    def classifier_input(self, model: ClassificationModel) -> str:
        """Add the vectors that a classifier reads, (N, H).

        They are from the pooler, or means scaled to length 1. The sum over the tokens has the direction of
        the mean, so nothing divides by their number.
        """
        if model.pooling == "pooler":
            return self.pooler(self.encoder(only_first=True))
        hidden, axis = self.encoder(), self.constant("axis_1", [1])
        mask = self.op("Unsqueeze", self.op("Cast", "attention_mask", to=TensorProto.FLOAT), axis)
        total = self.op("Squeeze", self.op("MatMul", mask, hidden), axis)  # (N, 1, S) · (N, S, H)
        return self.op("Div", total, self.op("ReduceL2", total, axis, keepdims=1))

    def masked_lm(self, hidden: str, head: MaskedLMHead) -> str:
        """Add the masked-LM head; return the logits of all tokens, (N, S, V).

        bertie reads only the logits of [MASK] tokens, but other libraries would not supply an input
        with the positions of these tokens.
        """
        decoder, V = self.bert.embeddings.word_embeddings, self.config.vocab_size
        hidden = self.rows(hidden, self.config.hidden_size)
        hidden = self.norm(self.activation(self.linear(hidden, head.dense)), head.norm)
        int8 = self.zero_points(hidden) if self.quantization.embeddings else None
        logits = self.matmul(hidden, decoder, int8)
        logits = self.op("Add", logits, self.constant(f"{self._module_names[head]}.bias", head.bias))
        return self.tokens(logits, self.op("Shape", "input_ids"), V)

    def word_embeddings(self, input_ids: str) -> str:
        """Look up the word embeddings, (N, S) -> (N, S, H)."""
        embeddings = self.bert.embeddings.word_embeddings
        if not self.quantization.embeddings:
            return self.op("Gather", self.weight(embeddings), input_ids)
        table, scale = self.int8_weight(embeddings)
        scales = self.op("Unsqueeze", self.op("Gather", scale, input_ids), self.constant("last", [2]))
        rounded = self.op("Cast", self.op("Gather", table, input_ids), to=TensorProto.FLOAT)
        return self.op("Mul", rounded, scales)

    def linear(self, x: str, module: nn.Linear, int8: str | None = None) -> str:
        """Add a linear layer: x (…, in) · weightᵀ + bias; see `matmul`."""
        # (1, out): with (out), ONNX Runtime would replace Add and Gelu by BiasGelu, which takes longer.
        bias = self.constant(f"{self._module_names[module]}.bias", module.bias[None])
        return self.op("Add", self.matmul(x, module, int8), bias)

    def matmul(self, x: str, module: nn.Linear | nn.Embedding, int8: str | None) -> str:
        """Add the product x (…, in) · weightᵀ.

        In int8, x is (rows, in) with a scale for each row, and `int8` are the `zero_points` of the rows.
        """
        if int8 is None:
            return self.op("MatMul", x, self.right_factor(self.weight(module), module))
        weight, scales = self.int8_weight(module)
        axis = self.constant("axis_1", [1])
        largest = self.op("ReduceMax", self.op("Abs", x), axis, keepdims=0)
        row_scales = self.op("Mul", largest, self.constant("uint8_step", torch.tensor(1 / 127)))
        rounded = self.op("QuantizeLinear", x, row_scales, int8, axis=0)
        product = self.op("MatMulInteger", rounded, self.right_factor(weight, module), self.middle())
        product = self.op("DequantizeLinear", product, row_scales, axis=0)
        return self.op("Mul", product, scales)

    def zero_points(self, x: str) -> str:
        """Return the uint8 of 0 for each row of x."""
        return self.op("Expand", self.middle(), self.op("Shape", x, end=1))

    def middle(self) -> str:
        """Return 128, the uint8 of 0.

        ONNX Runtime took 7 times as long to multiply two int8 matrices.
        """
        return self.constant("uint8_middle", torch.tensor(128, dtype=torch.uint8))

    def right_factor(self, weight: str, module: nn.Linear | nn.Embedding) -> str:
        """Return a stored weight as (in, out), the right factor of a product.

        Embeddings are stored as (out, in), for the lookup, and are transposed.
        """
        return self.op("Transpose", weight) if isinstance(module, nn.Embedding) else weight

    def norm(self, x: str, module: nn.LayerNorm) -> str:
        """Add a layer norm over the last axis."""
        name = self._module_names[module]
        gamma, beta = self.weight(module), self.constant(f"{name}.bias", module.bias)
        return self.op("LayerNormalization", x, gamma, beta, epsilon=self.config.layer_norm_eps)

    def activation(self, x: str) -> str:
        """Add the configured activation."""
        match self.config.hidden_act:
            case "gelu":
                return self.op("Gelu", x, approximate="none")
            case "gelu_new":
                return self.op("Gelu", x, approximate="tanh")
            case "relu":
                return self.op("Relu", x)
            case "tanh":
                return self.op("Tanh", x)
            case "linear":
                return x

    def first_token(self, x: str) -> str:
        """Return the first token of each sequence, (N, S, H) -> (N, H)."""
        return self.op("Gather", x, self.constant("first", 0), axis=1)

    def length(self) -> str:
        """Return S as a tensor (1)."""
        return self.op("Shape", "input_ids", start=-1)

    def split(self, x: str, parts: int) -> list[str]:
        """Split the last axis into equal parts."""
        return self.ops("Split", (x,), parts, axis=-1, num_outputs=parts)

    def weight(self, module: nn.Linear | nn.Embedding | nn.LayerNorm) -> str:
        """Store a module's `weight`, transposed to (in, out) for a linear layer."""
        return self.constant(f"{self._module_names[module]}.weight", _orient(module, module.weight))

    def int8_weight(self, module: nn.Linear | nn.Embedding) -> tuple[str, str]:
        """Store a module's `weight` in int8, and the scale of each output or word."""
        name, weight = f"{self._module_names[module]}.weight", module.weight
        largest = LARGEST_WEIGHT[self.quantization.weight_bits]
        scale = (weight.abs().amax(1) / largest).clamp(min=torch.finfo(weight.dtype).tiny)
        rounded = _orient(module, (weight / scale[:, None]).round().to(torch.int8))
        return self.constant(f"{name}_int8", rounded), self.constant(f"{name}_scale", scale)

    def constant(self, name: str, values: Tensor | list[int] | int) -> str:
        """Store a constant tensor, once for each name; return the name."""
        if name not in self.weights:
            array = values.detach().numpy() if isinstance(values, Tensor) else np.array(values, np.int64)
            self.weights[name] = numpy_helper.from_array(array, name)
        return name

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one output; return the name of the output."""
        (output,) = self.ops(kind, inputs, 1, **attributes)
        return output

    def ops(self, kind: str, inputs: Sequence[str], output_count: int, **attributes: Any) -> list[str]:
        """Add a node of the operator `kind`; return the names of its outputs."""
        outputs = [f"{kind}_{len(self.nodes)}_{i}" for i in range(output_count)]
        self.nodes.append(helper.make_node(kind, inputs, outputs, **attributes))
        return outputs


def _orient(module: nn.Module, weight: Tensor) -> Tensor:
    """Return a linear layer's weight transposed to (in, out), and others unchanged."""
    return weight.T if isinstance(module, nn.Linear) else weight
