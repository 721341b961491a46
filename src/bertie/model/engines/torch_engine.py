"""Run a model of any architecture in torch."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor, nn

from bertie.base.arrays import Float32s, Int64s
from bertie.model.batch import PackedBatch, pack
from bertie.model.cpu_int8 import round_weights
from bertie.model.engines.hardware import Hardware
from bertie.model.formats.directory import ModelMetadata
from bertie.model.formats.weights import load_model
from bertie.model.heads import EncoderModel, Model, PreTrainingModel
from bertie.model.packed_weights import can_pack_weights, pack_weights
from bertie.model.sequences import Sequences

# For head sizes that bertie's attention kernel does not take. With AVX-512, torch's fused kernel computes 16
# keys at a time, and the rest one by one: 31 keys take twice as long as 32 (docs/decisions/inference.md).
CPU_VECTOR_LENGTH = 16


class TorchEngine:
    """An `Engine` on the device of a model.

    Attributes:
        model: the network, switched to evaluation mode
    """

    def __init__(self, model: Model | EncoderModel, hardware: Hardware) -> None:
        self.model = model.eval()
        self.architecture = model.architecture
        self.num_hidden_layers = len(model.bert.layers)
        self.hidden_size = model.bert.embeddings.word_embeddings.embedding_dim
        self.max_batch_tokens = hardware.inference_batch_tokens
        self._hardware = hardware
        self._device = next(model.parameters()).device
        _use_one_thread_after_fork()

    @torch.inference_mode()
    def logits(self, batch: Sequences) -> Float32s:
        """See `Engine`."""
        with self._hardware.autocast():
            if isinstance(self.model, PreTrainingModel):
                return _to_numpy(self.model.next_sentence(self.model.bert.pool(self._pack(batch))))
            return _to_numpy(self.model(self._pack(batch)))

    @torch.inference_mode()
    def masked_lm_logits(self, batch: Sequences, masked_positions: Int64s) -> Float32s:
        """See `Engine`."""
        with self._hardware.autocast():
            logits = self.model(self._pack(batch, masked_positions))
        return _to_numpy(logits[0] if isinstance(self.model, PreTrainingModel) else logits)

    @torch.inference_mode()
    def hidden_states(self, batch: Sequences, layers: Sequence[int]) -> list[Float32s]:
        """See `Engine`."""
        with self._hardware.autocast():
            outputs = islice(self.model.bert.hidden_states(self._pack(batch)), max(layers) + 1)
            kept = {layer: output for layer, output in enumerate(outputs) if layer in layers}
        return [_to_numpy(kept[layer]) for layer in layers]

    @torch.inference_mode()
    def cls_vectors(self, batch: Sequences) -> Float32s:
        """See `Engine`."""
        with self._hardware.autocast():
            return _to_numpy(self.model.bert.cls_vectors(self._pack(batch)))

    @torch.inference_mode()
    def attention_probabilities(self, sequence: Sequences) -> Float32s:
        """See `Engine`."""
        with self._hardware.autocast():
            return _to_numpy(self.model.bert.attention_probabilities(self._pack(sequence)))

    def _pack(self, batch: Sequences, masked_positions: Int64s | None = None) -> PackedBatch:
        if self._device.type == "cpu":
            return pack(*batch, masked_positions=masked_positions, vector_length=CPU_VECTOR_LENGTH)
        return pack(*batch, masked_positions=masked_positions).to(self._device)


def load_torch_engine(
    path: Path, hardware: Hardware, *, int8: bool = False
) -> tuple[TorchEngine, ModelMetadata]:
    """Load a model directory onto the device of `hardware`.

    With `int8`, which needs a CPU, the weights of the encoder's layers are rounded.

    Raises:
        DataError: see `load_model`.
        ModelError: see `load_model`.
        SettingsError: this processor cannot multiply int8.
    """
    model, metadata = load_model(path)
    model.to(hardware.device)
    if int8:
        round_weights(model.bert)
        transpose_weights(model)
    elif hardware.device == "cpu":
        prepare_weights(model, torch.bfloat16 if hardware.precision == "bfloat16" else torch.float32)
    return TorchEngine(model, hardware), metadata


@contextmanager
def evaluation_engine(model: Model | EncoderModel, hardware: Hardware) -> Iterator[TorchEngine]:
    """Yield an engine for a float32 model between two epochs of its training.

    Where packed weights are faster, the engine has packed copies of the encoder's linear layers, and the
    model has its own layers again afterwards.
    """
    layers = model.bert.layers
    linear_layers = [dict(layer.named_children()) for layer in layers]
    if hardware.device == "cpu" and can_pack_weights(torch.float32):
        pack_weights(layers, torch.float32)
    try:
        yield TorchEngine(model, hardware)
    finally:
        for layer, modules in zip(layers, linear_layers, strict=True):
            for name, module in modules.items():
                setattr(layer, name, module)


@cache
def _use_one_thread_after_fork() -> None:
    """Let forked processes compute in one thread, as PyTorch's `DataLoader` does.

    The threads of OpenMP are not in a forked process, which would wait for them forever.
    """
    os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))


def prepare_weights(model: Model | EncoderModel, dtype: torch.dtype) -> None:
    """Store the weights of linear layers as a CPU multiplies them fastest.

    This concerns their order and their type.
    """
    if can_pack_weights(dtype):
        pack_weights(model.bert.layers, dtype)
    if dtype == torch.bfloat16:
        halve_weights(model)
    elif torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
        transpose_weights(model)


def halve_weights(model: Model | EncoderModel) -> None:
    """Store the weights of linear layers in bfloat16.

    Otherwise autocast would round them in every batch. The weight of the last layer's queries, keys and
    values remains in float32 for `pooling_attention`.
    """
    kept = model.bert.layers[-1].qkv
    for module in model.modules():
        if isinstance(module, nn.Linear) and module is not kept:
            module.weight.data = module.weight.data.bfloat16()


def transpose_weights(model: nn.Module) -> None:
    """Store the weights of linear layers in the order in which MKL reads them.

    A weight remains (out, in), but each of its columns is contiguous. MKL rearranges the weight in every
    product, in less time from this order: products of 8 to 128 tokens are 1.1 to 2.5 times as fast, and
    longer products as fast as before (docs/decisions/inference.md).
    """
    for module in model.modules():
        if isinstance(module, nn.Linear):
            weight: Tensor = module.weight.data
            size_out, size_in = weight.shape
            # Without 64 bytes between columns of 3,072 numbers, few tokens take 1.3 times as long.
            columns = torch.empty(size_in, size_out + 16)[:, :size_out]
            for begin in range(0, size_out, 64):  # a seventh of the time of one copy
                columns[:, begin : begin + 64] = weight[begin : begin + 64].t()
            module.weight.data = columns.t()


def _to_numpy(values: Tensor) -> Float32s:
    array: Float32s = values.float().cpu().numpy()
    return array
