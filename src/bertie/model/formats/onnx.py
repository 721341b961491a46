"""A model -> a graph of ONNX, of standard operators alone; ONNX Runtime fuses them as it loads the graph.

Inputs and outputs have the names, shapes and dtypes that optimum gives them, so that what reads its exports
reads these: int64 `input_ids`, `attention_mask` and `token_type_ids` (N, S), for multiple choice
(N, choices, S). Shapes: see batch.py; but here sequences are padded, all to the same length S.

In int8 a product takes weights rounded beforehand, with a scale for each output, and activations rounded as
they come, with a scale for each token. onnxruntime's own quantize_dynamic has one scale for all tokens of a
batch, so that the largest number in it spoils the others (docs/onnx.md).
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

import bertie
from bertie.base.errors import ModelError
from bertie.model.bert import Layer
from bertie.model.config import BertConfig
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

OPSET, IR_VERSION = 23, 11  # the first with Attention; ONNX Runtime has it since 1.23
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
# Two products with uint8 fit the 16 bits in which processors without VNNI add them: 2 · 255 · 64 < 2**15.
INT8_LIMIT = 64
TEXTS: list[str | int] = ["batch"]  # the names of sizes that are free
TOKENS: list[str | int] = ["batch", "sequence"]
CHOICES: list[str | int] = ["batch", "choices"]
MAX_BYTES = 2**31 - 1  # of a protocol buffer


class Quantization(NamedTuple):
    """What is in int8.

    layers      the matrices of the encoder's layers
    embeddings  the word embeddings, and with them the decoder of a masked-LM head
    """

    layers: bool = False
    embeddings: bool = False


class _Output(NamedTuple):
    value: str
    shape: list[str | int]


def save_onnx(
    file: Path, model: Model | EncoderModel, config: BertConfig, quantization: Quantization
) -> None:
    """Write a model as a graph with its weights.

    Raises:
        ModelError: the model reads from left to right or has a BiLSTM, or is too large.
    """
    graph = _Graph(model, config, quantization)
    outputs = graph.head(model)
    if (size := sum(len(weight.raw_data) for weight in graph.weights.values())) > MAX_BYTES:
        raise ModelError(f"{file}: {size:,} bytes of weights, of which ONNX takes {MAX_BYTES:,}; try int8")
    for name, (value, _) in outputs.items():
        graph.nodes.append(helper.make_node("Identity", [value], [name]))
    shape = [*CHOICES, "sequence"] if isinstance(model, MultipleChoiceModel) else TOKENS
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
    onnx.save(proto, file)


class _Graph:
    """The nodes so far, and their weights under the names that they have in torch. Values are names."""

    def __init__(self, model: Model | EncoderModel, config: BertConfig, quantization: Quantization) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, TensorProto] = {}
        self.bert, self.config, self.quantization = model.bert, config, quantization
        self._names = {part: name for name, part in model.named_modules()}

    def head(self, model: Model | EncoderModel) -> dict[str, _Output]:
        """The whole network: what it gives, by optimum's names, or where that has none by `transformers`'.

        Raises:
            ModelError: see `save_onnx`.
        """
        if isinstance(model, LanguageModel) or self.config.is_decoder or self.bert.bilstm is not None:
            raise ModelError(
                f"a {model.architecture} that reads from left to right or has a BiLSTM cannot be exported; "
                f"use its directory as it is"
            )
        V, H = self.config.vocab_size, self.config.hidden_size
        match model:
            case EncoderModel():
                hidden = self.encode()
                outputs = {"last_hidden_state": _Output(hidden, [*TOKENS, H])}
                if self.bert.pooler is not None:
                    outputs["pooler_output"] = _Output(self.pooled(self.first(hidden)), [*TEXTS, H])
                return outputs
            case PreTrainingModel():
                hidden = self.encode()
                next_sentence = self.linear(self.pooled(self.first(hidden)), model.next_sentence)
                return {
                    "prediction_logits": _Output(self.masked_lm(hidden, model.masked_lm), [*TOKENS, V]),
                    "seq_relationship_logits": _Output(next_sentence, [*TEXTS, 2]),
                }
            case MaskedLMModel():
                return {"logits": _Output(self.masked_lm(self.encode(), model.masked_lm), [*TOKENS, V])}
            case QuestionAnsweringModel():
                starts, ends = self.split(self.linear(self.encode(), model.qa_outputs), 2)
                axis = self.constant("last", [2])
                return {
                    "start_logits": _Output(self.op("Squeeze", starts, axis), TOKENS),
                    "end_logits": _Output(self.op("Squeeze", ends, axis), TOKENS),
                }
            case NextSentenceModel():
                logits = self.linear(self.pooled(self.encode(only_first=True)), model.next_sentence)
                return {"logits": _Output(logits, [*TEXTS, 2])}
            case MultipleChoiceModel():
                rows = self.op("Concat", self.constant("any", [-1]), self.length(), axis=0)
                flat = [self.op("Reshape", name, rows) for name in INPUTS]
                scores = self.linear(self.pooled(self.encode(flat, only_first=True)), model.classifier)
                choices = self.op("Shape", "input_ids", end=2)
                return {"logits": _Output(self.op("Reshape", scores, choices), CHOICES)}
            case ClassificationModel():
                logits = self.linear(self.pooled(self.encode(only_first=True)), model.classifier)
                return {"logits": _Output(logits, [*TEXTS, model.classifier.out_features])}
            case TokenClassificationModel():
                logits = self.linear(self.encode(), model.classifier)
                return {"logits": _Output(logits, [*TOKENS, model.classifier.out_features])}

    def encode(self, inputs: Sequence[str] = INPUTS, only_first: bool = False) -> str:
        """The last layer's output (N, S, H), or that of each [CLS] alone (N, H)."""
        input_ids, attention_mask, token_type_ids = inputs
        embeddings, S = self.bert.embeddings, self.length()
        positions = self.weight(embeddings.position_embeddings)
        hidden = self.op("Slice", positions, self.constant("zero", [0]), S)  # (S, H)
        token_types = self.weight(embeddings.token_type_embeddings)
        hidden = self.op("Add", self.op("Gather", token_types, token_type_ids), hidden)
        hidden = self.norm(self.op("Add", self.words(input_ids), hidden), embeddings.norm)
        mask = self.op("Cast", attention_mask, to=TensorProto.BOOL)
        mask = self.op("Unsqueeze", mask, self.constant("heads_and_queries", [1, 2]))  # (N, 1, 1, S)
        one = self.constant("one", [1])
        mask = self.op("Expand", mask, self.op("Concat", one, one, S, one, axis=0))  # (N, 1, S, S)
        *lower, last = cast(Iterable[Layer], self.bert.layers)
        for layer in lower:
            hidden = self.layer(hidden, mask, layer)
        return self.layer(hidden, mask, last, only_first)

    def layer(self, hidden: str, mask: str, layer: Layer, only_first: bool = False) -> str:
        """See `bert.Layer`."""
        int8, heads = self.quantization.layers, self.config.num_attention_heads
        qkv = self.split(self.linear(hidden, layer.qkv, int8), 3)
        attended = self.op("Attention", *qkv, mask, q_num_heads=heads, kv_num_heads=heads)
        if only_first:  # from here on a token needs no other
            hidden, attended = self.first(hidden), self.first(attended)
        attended = self.linear(attended, layer.attention_output, int8)
        hidden = self.norm(self.op("Add", hidden, attended), layer.attention_norm)
        widened = self.gelu(self.linear(hidden, layer.intermediate, int8))
        return self.norm(self.op("Add", hidden, self.linear(widened, layer.output, int8)), layer.output_norm)

    def pooled(self, first: str) -> str:
        """Of each [CLS], (N, H)."""
        assert self.bert.pooler is not None
        return self.op("Tanh", self.linear(first, self.bert.pooler))

    def masked_lm(self, hidden: str, head: MaskedLMHead) -> str:
        """The logits of all tokens, (N, S, V).

        Bertie reads those of [MASK] alone, but an input that says where these are would be unknown to others.
        """
        hidden = self.norm(self.gelu(self.linear(hidden, head.dense)), head.norm)
        decoder = self.bert.embeddings.word_embeddings
        logits = self.product(hidden, decoder, self.quantization.embeddings)
        return self.op("Add", logits, self.constant(f"{self._names[head]}.bias", head.bias))

    def words(self, input_ids: str) -> str:
        """The word embeddings, (N, S, H)."""
        words = self.bert.embeddings.word_embeddings
        if not self.quantization.embeddings:
            return self.op("Gather", self.weight(words), input_ids)
        table, scale = self.quantized(words)
        scales = self.op("Unsqueeze", self.op("Gather", scale, input_ids), self.constant("last", [2]))
        rounded = self.op("Cast", self.op("Gather", table, input_ids), to=TensorProto.FLOAT)
        return self.op("Mul", rounded, scales)

    def linear(self, x: str, part: nn.Linear, int8: bool = False) -> str:
        """x (…, in) · weightᵀ + bias."""
        bias = self.constant(f"{self._names[part]}.bias", part.bias)
        return self.op("Add", self.product(x, part, int8), bias)

    def product(self, x: str, part: nn.Linear | nn.Embedding, int8: bool) -> str:
        """x (…, in) · weightᵀ."""
        if not int8:
            return self.op("MatMul", x, self.factor(self.weight(part), part))
        weight, scales = self.quantized(part)
        size_out, size_in = part.weight.shape
        rows = self.op("Reshape", x, self.constant(f"rows_of_{size_in}", [-1, size_in]))
        axis = self.constant("axis_1", [1])
        largest = self.op("ReduceMax", self.op("Abs", rows), axis, keepdims=0)
        row_scales = self.op("Mul", largest, self.constant("uint8_step", torch.tensor(1 / 127)))
        # Signed numbers around 128: two signed ones ONNX Runtime multiplied 7 times slower.
        middle = self.constant("uint8_middle", torch.tensor(128, dtype=torch.uint8))
        middles = self.op("Expand", middle, self.op("Shape", row_scales))
        rounded = self.op("QuantizeLinear", rows, row_scales, middles, axis=0)
        product = self.op("MatMulInteger", rounded, self.factor(weight, part), middle)
        product = self.op("Cast", product, to=TensorProto.FLOAT)
        product = self.op("Mul", self.op("Mul", product, self.op("Unsqueeze", row_scales, axis)), scales)
        width = self.constant(f"width_{size_out}", [size_out])
        shape = self.op("Concat", self.op("Shape", x, end=-1), width, axis=0)
        return self.op("Reshape", product, shape)

    def factor(self, weight: str, part: nn.Linear | nn.Embedding) -> str:
        """A weight as (in, out): that of the words is stored as they are looked up."""
        return self.op("Transpose", weight) if isinstance(part, nn.Embedding) else weight

    def norm(self, x: str, part: nn.LayerNorm) -> str:
        """Over the last axis."""
        name = self._names[part]
        gamma, beta = self.weight(part), self.constant(f"{name}.bias", part.bias)
        return self.op("LayerNormalization", x, gamma, beta, epsilon=self.config.layer_norm_eps)

    def gelu(self, x: str) -> str:
        """The configured one."""
        return self.op("Gelu", x, approximate="none" if self.config.hidden_act == "gelu" else "tanh")

    def first(self, x: str) -> str:
        """Of each sequence the first token, (N, S, H) -> (N, H)."""
        return self.op("Gather", x, self.constant("first", 0), axis=1)

    def length(self) -> str:
        """S, as a shape of one size."""
        return self.op("Shape", "input_ids", start=-1)

    def split(self, x: str, parts: int) -> list[str]:
        """The last axis in equal parts."""
        return self.ops("Split", (x,), parts, axis=-1, num_outputs=parts)

    def weight(self, part: nn.Linear | nn.Embedding | nn.LayerNorm) -> str:
        """Its `weight`; of a linear layer (in, out)."""
        return self.constant(f"{self._names[part]}.weight", _oriented(part, part.weight))

    def quantized(self, part: nn.Linear | nn.Embedding) -> tuple[str, str]:
        """Its `weight` in int8, and the scale of each output or word."""
        name, weight = f"{self._names[part]}.weight", part.weight
        scale = (weight.abs().amax(1) / INT8_LIMIT).clamp(min=torch.finfo(weight.dtype).tiny)
        table = _oriented(part, (weight / scale[:, None]).round().to(torch.int8))
        return self.constant(f"{name}_int8", table), self.constant(f"{name}_scale", scale)

    def constant(self, name: str, values: Tensor | list[int] | int) -> str:
        """A tensor that is part of the file, once."""
        if name not in self.weights:
            array = values.detach().numpy() if isinstance(values, Tensor) else np.array(values, np.int64)
            self.weights[name] = numpy_helper.from_array(array, name)
        return name

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """The value that an operator of one output gives."""
        (output,) = self.ops(kind, inputs, 1, **attributes)
        return output

    def ops(self, kind: str, inputs: Sequence[str], outputs: int, **attributes: Any) -> list[str]:
        """The values that an operator gives."""
        values = [f"{kind}_{len(self.nodes)}_{number}" for number in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, values, **attributes))
        return values


def _oriented(part: nn.Module, weight: Tensor) -> Tensor:
    """As a product takes it: linear layers have (out, in) in torch."""
    return weight.T if isinstance(part, nn.Linear) else weight
