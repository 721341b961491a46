"""Run models that formats/onnx.py exported in ONNX Runtime, without torch."""

import os
import platform
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bertie.base.environment import install_command
from bertie.base.errors import ModelError
from bertie.model.engines.engine import Float32s
from bertie.model.formats.directory import ModelMetadata
from bertie.model.sequences import Int64s, Sequences

ONNX_FILE = "model.onnx"  # the name that optimum and sentence-transformers look for
WEIGHT_BITS = "bertie_weight_bits"  # metadata of a graph in int8 whose weights have 8 bits


class OnnxEngine:
    """An `Engine` on the CPU, which pads the sequences of a batch to the longest, S."""

    max_batch_tokens = 256
    # A run of the graph takes as long as 5 to 10 tokens, for 6 × 384 and 12 × 768 in float32 and int8, so
    # more padding costs more than another run (docs/decisions/inference.md).
    max_batch_padding: int | None = 8
    length_multiple = 1  # S is rounded up to a multiple of it

    def __init__(self, path: Path, metadata: ModelMetadata) -> None:
        """Load the graph of a model directory.

        Raises:
            ModelError: the library that runs the graph is not installed or cannot read the file, or this
                processor cannot run the graph.
            SettingsError: the library cannot run this export.
        """
        self.architecture = metadata.architecture
        self._path = path
        self._max_length = metadata.config.max_position_embeddings
        self.num_hidden_layers = metadata.config.num_hidden_layers
        self.hidden_size = metadata.config.hidden_size
        self.outputs = self._load(path / ONNX_FILE)

    def _load(self, file: Path) -> list[str]:
        """Load the graph; return the names of its outputs."""
        try:
            import onnxruntime
        except ModuleNotFoundError:
            raise ModelError(
                f"{self._path}: an exported model needs ONNX Runtime: {install_command('onnx')}"
            ) from None
        options = onnxruntime.SessionOptions()
        # Next to other processes, a batch took half as long again with spinning (docs/onnx.md).
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        # Ragged batches have ever new shapes. ONNX Runtime would plan the memory of each one, and keep it:
        # 733 instead of 583 MiB after 3,000 texts, in the same time (docs/serving.md).
        options.enable_mem_pattern = False
        options.intra_op_num_threads = num_threads()
        try:
            self._session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # ONNX Runtime's errors have no common base class
            reason = str(error).replace("\n", " ")
            raise ModelError(f"{file}: ONNX Runtime cannot read it ({reason}); export it again") from None
        if self._session.get_modelmeta().custom_metadata_map.get(WEIGHT_BITS) == "8" and not has_vnni():
            raise ModelError(
                f"{self._path}: its weights of 8 bits need a processor with VNNI; export it without "
                f"--weight-bits 8"
            )
        return [value.name for value in self._session.get_outputs()]

    def _infer(self, outputs: Sequence[str], inputs: dict[str, Int64s]) -> list[Float32s]:
        """Run the graph; return the named outputs."""
        values: list[Float32s] = self._session.run(outputs, inputs)
        return values

    def logits(self, batch: Sequences) -> Float32s:
        """See `Engine`."""
        match self.architecture:
            case "BertForPreTraining":
                (logits,), _ = self._run(batch, "seq_relationship_logits")
            case "BertForQuestionAnswering":
                starts_and_ends, mask = self._run(batch, "start_logits", "end_logits")
                logits = np.stack(starts_and_ends, axis=-1)[mask]
            case "BertForTokenClassification":
                (logits,), mask = self._run(batch, "logits")
                logits = logits[mask]
            case _:
                (logits,), _ = self._run(batch, "logits")
        return logits

    def masked_lm_logits(self, batch: Sequences, masked_positions: Int64s) -> Float32s:
        """See `Engine`."""
        name = "prediction_logits" if self.architecture == "BertForPreTraining" else "logits"
        (logits,), mask = self._run(batch, name)
        sequences, offsets = np.nonzero(mask)
        return logits[sequences[masked_positions], offsets[masked_positions]]

    def hidden_states(self, batch: Sequences, layers: Sequence[int]) -> list[Float32s]:
        """See `Engine`."""
        if "last_hidden_state" not in self.outputs or {*layers} != {self.num_hidden_layers}:
            raise ModelError(
                f"{self._path}: an exported {self.architecture} outputs only {', '.join(self.outputs)}; "
                f"use the model directory that it was exported from"
            )
        (hidden,), mask = self._run(batch, "last_hidden_state")
        return [hidden[mask]] * len(layers)

    def attention_probabilities(self, sequence: Sequences) -> Float32s:
        """See `Engine`."""
        raise ModelError(
            f"{self._path}: an exported model outputs no attention probabilities; use the model directory "
            f"that it was exported from"
        )

    def _run(self, batch: Sequences, *outputs: str) -> tuple[list[Float32s], npt.NDArray[np.bool_]]:
        """Run the graph on a batch.

        Returns:
            The named outputs, each (N, …) or (N, S, …), and the mask of the tokens, (N, S).
        """
        lengths = np.diff(batch.bounds)
        S = min(-lengths.max() // self.length_multiple * -self.length_multiple, self._max_length)
        mask = np.arange(S) < lengths[:, None]  # (N, S)
        inputs = {"attention_mask": mask.astype(np.int64)}
        for name in ("input_ids", "token_type_ids"):
            inputs[name] = np.zeros(mask.shape, dtype=np.int64)
            inputs[name][mask] = getattr(batch, name)
        if self.architecture == "BertForMultipleChoice":  # takes (examples, choices, S)
            inputs = {name: values[:, None] for name, values in inputs.items()}
        return self._infer(outputs, inputs), mask


def num_threads() -> int:
    """Return the number of threads of OMP_NUM_THREADS, as for torch; 0, one for each core, without it.

    ONNX Runtime does not read the variable.
    """
    threads = os.environ.get("OMP_NUM_THREADS", "")
    return int(threads) if threads.isdecimal() else 0


def has_vnni(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Return whether this processor adds products of uint8 and int8 in 32 bits.

    Processors of other kinds than x86 do; elsewhere than on Linux it is not known, and believed.
    """
    if platform.machine() not in ("x86_64", "AMD64") or not cpuinfo.exists():
        return True
    flags = cpuinfo.read_text().split()
    return "avx512_vnni" in flags or "avx_vnni" in flags
