"""A model in torch, as an engine."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from bertie.model.batch import PackedBatch, pack
from bertie.model.engines.engine import Float32s
from bertie.model.engines.hardware import Hardware
from bertie.model.formats.directory import ModelMetadata
from bertie.model.formats.weights import load_model
from bertie.model.heads import EncoderModel, Model, PreTrainingModel
from bertie.model.sequences import Int64s, Sequences


class TorchEngine:
    """Computes where the model is. The model is in evaluation mode from now on.

    model  the network itself
    """

    def __init__(self, model: Model | EncoderModel, hardware: Hardware) -> None:
        self.model = model.eval()
        self.architecture = model.architecture
        self.max_tokens = hardware.evaluation_tokens
        self._hardware = hardware
        self._device = next(model.parameters()).device

    @torch.inference_mode()
    def logits(self, batch: Sequences) -> Float32s:
        """See `Engine`."""
        with self._hardware.autocast():
            if isinstance(self.model, PreTrainingModel):
                return _numpy(self.model.next_sentence(self.model.bert.pooled(self._packed(batch))))
            return _numpy(self.model(self._packed(batch)))

    @torch.inference_mode()
    def masked_lm_logits(self, batch: Sequences, masked_positions: Int64s) -> Float32s:
        """See `Engine`."""
        with self._hardware.autocast():
            logits = self.model(self._packed(batch, masked_positions))
        return _numpy(logits[0] if isinstance(self.model, PreTrainingModel) else logits)

    @torch.inference_mode()
    def hidden_states(self, batch: Sequences, layers: Sequence[int]) -> list[Float32s]:
        """See `Engine`."""
        with self._hardware.autocast():
            outputs = list(islice(self.model.bert.layer_outputs(self._packed(batch)), max(layers) + 1))
        return [_numpy(outputs[layer]) for layer in layers]

    def _packed(self, batch: Sequences, masked_positions: Int64s | None = None) -> PackedBatch:
        return pack(*batch, masked_positions=masked_positions).to(self._device)


def load_torch(path: Path, hardware: Hardware) -> tuple[TorchEngine, ModelMetadata]:
    """Read a model directory onto a device. Raises as `load_model`."""
    model, metadata = load_model(path)
    model.to(hardware.device)
    return TorchEngine(model, hardware), metadata


def _numpy(values: Tensor) -> Float32s:
    array: Float32s = values.float().cpu().numpy()
    return array
