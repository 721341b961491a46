"""An exported model in ONNX Runtime: no torch. onnx.py writes what is read here."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bertie.base.errors import ModelError
from bertie.model.engines.engine import Float32s
from bertie.model.formats.directory import ModelMetadata
from bertie.model.sequences import Int64s, Sequences

ONNX_FILE = "model.onnx"  # the name that optimum and sentence-transformers look for


class OnnxEngine:
    """Computes on the processor. The sequences of a batch are padded to the longest one's length, S."""

    max_tokens = 2048  # as torch on a processor: Hardware.evaluation_tokens

    def __init__(self, path: Path, metadata: ModelMetadata) -> None:
        """Read the graph in a model directory.

        Raises:
            ModelError: ONNX Runtime is not installed, or cannot read the file.
        """
        try:
            import onnxruntime
        except ModuleNotFoundError:
            raise ModelError(
                f"{path}: an exported model, which needs ONNX Runtime: pip install 'bertie[onnx]'"
            ) from None
        self.architecture = metadata.architecture
        self._path = path
        self._num_hidden_layers = metadata.config.num_hidden_layers
        file = path / ONNX_FILE
        options = onnxruntime.SessionOptions()
        # Beside other work, threads that wait by spinning took half as long again (docs/onnx.md).
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            self._session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # its errors have no base of their own
            reason = str(error).replace("\n", " ")
            raise ModelError(f"{file}: ONNX Runtime cannot read it ({reason}); export it again") from None
        self.outputs = [value.name for value in self._session.get_outputs()]

    def logits(self, batch: Sequences) -> Float32s:
        """See `Engine`."""
        match self.architecture:
            case "BertForPreTraining":
                (logits,), _ = self._run(batch, "seq_relationship_logits")
            case "BertForQuestionAnswering":
                ends, mask = self._run(batch, "start_logits", "end_logits")
                logits = np.stack(ends, axis=-1)[mask]
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
        if "last_hidden_state" not in self.outputs or {*layers} != {self._num_hidden_layers}:
            raise ModelError(
                f"{self._path}: an exported {self.architecture} gives {', '.join(self.outputs)} alone; "
                f"take the directory that it was exported from"
            )
        (hidden,), mask = self._run(batch, "last_hidden_state")
        return [hidden[mask]] * len(layers)

    def _run(self, batch: Sequences, *outputs: str) -> tuple[list[Float32s], npt.NDArray[np.bool_]]:
        """Some outputs, each (N, …) or (N, S, …), and where in (N, S) there are tokens."""
        lengths = np.diff(batch.bounds)
        mask = np.arange(lengths.max()) < lengths[:, None]  # (N, S)
        values = {"attention_mask": mask.astype(np.int64)}
        for name in ("input_ids", "token_type_ids"):
            values[name] = np.zeros(mask.shape, dtype=np.int64)
            values[name][mask] = getattr(batch, name)
        if self.architecture == "BertForMultipleChoice":  # takes (examples, choices, S)
            values = {name: value[:, None] for name, value in values.items()}
        return self._session.run(outputs, values), mask
