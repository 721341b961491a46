"""Run models that formats/onnx.py exported in ONNX Runtime, without torch."""

import os
import platform
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from bertie.base.arrays import Bools, Float32s, Int64s
from bertie.base.environment import install_command
from bertie.base.errors import ModelError
from bertie.base.files import utf8_path
from bertie.base.processors import available_cores
from bertie.base.texts import count_noun
from bertie.model.formats.directory import ModelMetadata
from bertie.model.sequences import Sequences, check_segments, token_indices

ONNX_FILE = "model.onnx"  # the name that optimum and sentence-transformers look for
OUTPUTS = {  # of other architectures "logits"
    "BertModel": ("last_hidden_state",),
    "BertForPreTraining": ("prediction_logits", "seq_relationship_logits"),
    "BertForQuestionAnswering": ("start_logits", "end_logits"),
}
WEIGHT_BITS = "bertie_weight_bits"  # metadata of a graph in int8 whose weights have 8 bits


class OnnxEngine:
    """An `Engine` on the CPU that runs exported graphs in ONNX Runtime.

    A batch is computed in runs of the graph, as many at a time as the engine has threads. The sequences of a
    run are padded to the longest, S.
    """

    max_run_tokens = 256
    # A run of the graph takes as long as 5 to 10 tokens, for 6 × 384 and 12 × 768 in float32 and int8, so
    # more padding costs more than another run (docs/decisions/inference.md).
    max_run_padding = 8
    has_parallel_runs = True  # False if a run uses all threads well
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
        self._type_vocab_size = metadata.config.type_vocab_size
        self.num_hidden_layers = metadata.config.num_hidden_layers
        self.hidden_size = metadata.config.hidden_size
        self.outputs = self._load(path / ONNX_FILE)
        self._check_outputs(metadata)
        # On two cores, two runs at a time take 0.7 to 0.8 of the time of one after the other in int8, and
        # about 0.9 in float32 (docs/decisions/inference.md).
        self._parallel_runs = num_threads() if self.has_parallel_runs else 1
        self._pool = ThreadPoolExecutor(self._parallel_runs)
        # With one run for each thread, a batch is 2 to 8 % slower, since threads wait for the longest run.
        # With four it is 2 to 4 % faster, but short requests wait longer for a batch of a long request.
        self.max_batch_tokens = 2 * self._parallel_runs * self.max_run_tokens

    def _check_outputs(self, metadata: ModelMetadata) -> None:
        """Check that the graph has the outputs that config.json describes.

        Raises:
            ModelError: it has not.
        """
        labels = len(metadata.labels)
        for name in OUTPUTS.get(self.architecture, ("logits",)):
            if name not in self.outputs or (labels and self.outputs[name] not in (labels, None)):
                outputs = ", ".join(f"{output} ({size})" for output, size in self.outputs.items())
                raise ModelError(
                    f"{self._path}: config.json describes a {self.architecture}"
                    + f" with {count_noun(labels, 'label')}" * bool(labels)
                    + f", but {ONNX_FILE} has the outputs {outputs}; copy both from one export"
                )

    def _load(self, file: Path) -> dict[str, int | None]:
        """Load the graph; return its outputs with the size of their last dimension, None if it varies."""
        try:
            import onnxruntime
        except ModuleNotFoundError:
            raise ModelError(
                f"{self._path}: an exported model needs ONNX Runtime: {install_command('onnx')}"
            ) from None
        options = onnxruntime.SessionOptions()
        # Next to other processes, a batch took half as long again with spinning (docs/onnx.md).
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        # Ragged batches always have new shapes. ONNX Runtime would plan the memory of each one, and keep it:
        # 733 instead of 583 MiB after 3,000 texts, in the same time.
        options.enable_mem_pattern = False
        options.intra_op_num_threads = num_threads()
        try:
            with utf8_path(file) as name:
                self._session = onnxruntime.InferenceSession(
                    name, options, providers=["CPUExecutionProvider"]
                )
        except Exception as error:  # ONNX Runtime's errors have no common base class
            reason = str(error).replace("\n", " ")
            raise ModelError(f"{file}: ONNX Runtime cannot read it ({reason}); export it again") from None
        if self._session.get_modelmeta().custom_metadata_map.get(WEIGHT_BITS) == "8" and not has_vnni():
            raise ModelError(
                f"{self._path}: its weights of 8 bits need a processor with VNNI; export it without "
                f"--weight-bits 8"
            )
        sizes = {value.name: value.shape[-1] for value in self._session.get_outputs()}
        return {name: size if isinstance(size, int) else None for name, size in sizes.items()}

    def _infer(self, outputs: Sequence[str], inputs: dict[str, Int64s]) -> list[Float32s]:
        """Run the graph; return the named outputs."""
        values: list[Float32s] = self._session.run(outputs, inputs)
        return values

    def logits(self, batch: Sequences) -> Float32s:
        """See `Engine`."""
        match self.architecture:
            case "BertForPreTraining":
                (logits,) = self._run(batch, ["seq_relationship_logits"])
            case "BertForQuestionAnswering":
                logits = np.stack(
                    self._run(batch, ["start_logits", "end_logits"], _all_tokens(batch)), axis=-1
                )
            case "BertForTokenClassification":
                (logits,) = self._run(batch, ["logits"], _all_tokens(batch))
            case _:
                (logits,) = self._run(batch, ["logits"])
        return logits

    def masked_lm_logits(self, batch: Sequences, masked_positions: Int64s) -> Float32s:
        """See `Engine`."""
        name = "prediction_logits" if self.architecture == "BertForPreTraining" else "logits"
        (logits,) = self._run(batch, [name], masked_positions)
        return logits

    def hidden_states(self, batch: Sequences, layers: Sequence[int]) -> list[Float32s]:
        """See `Engine`."""
        if {*layers} != {self.num_hidden_layers}:
            raise self._lacks_vectors()
        return [self._last_hidden_state(batch, _all_tokens(batch))] * len(layers)

    def cls_vectors(self, batch: Sequences) -> Float32s:
        """See `Engine`."""
        return self._last_hidden_state(batch, batch.bounds[:-1])

    def _last_hidden_state(self, batch: Sequences, tokens: Int64s) -> Float32s:
        if "last_hidden_state" not in self.outputs:
            raise self._lacks_vectors()
        (hidden,) = self._run(batch, ["last_hidden_state"], tokens)
        return hidden

    def _lacks_vectors(self) -> ModelError:
        return ModelError(
            f"{self._path}: an exported {self.architecture} outputs only {', '.join(self.outputs)}; "
            f"use the model directory that it was exported from"
        )

    def attention_probabilities(self, sequence: Sequences) -> Float32s:
        """See `Engine`."""
        raise ModelError(
            f"{self._path}: an exported model outputs no attention probabilities; use the model directory "
            f"that it was exported from"
        )

    def _run(self, batch: Sequences, outputs: Sequence[str], tokens: Int64s | None = None) -> list[Float32s]:
        """Compute the named outputs of a batch of N sequences and T tokens.

        Args:
            batch: the sequences.
            outputs: the names.
            tokens: the K tokens whose outputs to return; None for outputs of sequences.

        Returns:
            float32 (N, …) or (K, …) for each output.

        Raises:
            ModelError: the model has only one segment, and the batch has pairs of texts.
        """
        check_segments(batch.token_type_ids, self._type_vocab_size)
        if len(batch.bounds) == 2:  # one sequence needs no sorting of its results
            values = self._infer(outputs, self._pad(batch)[0])
            return values if tokens is None else [value[0, tokens] for value in values]

        if tokens is not None:
            row_of_token = np.full(batch.bounds[-1], -1)  # of the result; -1: the token has none
            row_of_token[tokens] = np.arange(len(tokens))

        run_tokens = min(self.max_run_tokens, int(batch.bounds[-1]) // self._parallel_runs)
        runs = [*batch.batches(run_tokens, self.max_run_padding)]

        def compute(run: tuple[Int64s, Sequences]) -> tuple[Int64s, list[Float32s]]:
            """Return the rows of the result that a run computes, and their values.

            There are values for each output.
            """
            indices, sequences = run
            inputs, mask = self._pad(sequences)
            values = self._infer(outputs, inputs)
            if tokens is None:
                return indices, values
            rows = row_of_token[token_indices(batch.bounds, indices)]
            mask[mask] = rows >= 0
            return rows[rows >= 0], [value[mask] for value in values]

        compute_all = self._pool.map if min(len(runs), self._parallel_runs) > 1 else map
        parts = [*compute_all(compute, reversed(runs))]  # long ones first, so that all threads end together
        count = len(batch.bounds) - 1 if tokens is None else len(tokens)
        results = [np.empty((count, *value.shape[1:]), np.float32) for value in parts[0][1]]
        for rows, values in parts:
            for result, value in zip(results, values, strict=True):
                result[rows] = value
        return results

    def _pad(self, sequences: Sequences) -> tuple[dict[str, Int64s], Bools]:
        """Return the inputs of the graph, and the mask of the tokens, each (N, S)."""
        lengths = sequences.lengths
        S = min(-lengths.max() // self.length_multiple * -self.length_multiple, self._max_length)
        mask = np.arange(S) < lengths[:, None]  # (N, S)
        inputs = {"attention_mask": mask.astype(np.int64)}
        for name in ("input_ids", "token_type_ids"):
            inputs[name] = np.zeros(mask.shape, dtype=np.int64)
            inputs[name][mask] = getattr(sequences, name)
        if self.architecture == "BertForMultipleChoice":  # takes (examples, choices, S)
            inputs = {name: values[:, None] for name, values in inputs.items()}
        return inputs, mask


def _all_tokens(batch: Sequences) -> Int64s:
    return np.arange(len(batch.input_ids))


def num_threads() -> int:
    """Return the number of threads of OMP_NUM_THREADS, as for torch.

    Without it, return one for each core. ONNX Runtime does not read the variable.
    """
    threads = os.environ.get("OMP_NUM_THREADS", "")
    return (int(threads) if threads.isdecimal() else 0) or available_cores()


def has_int8_layers(file: Path) -> bool:
    """Return whether the layers of an exported graph multiply in int8.

    The graph's nodes come before its weights, and name them: `formats/onnx.py`, `int8_weight`.
    """
    with file.open("rb") as opened:
        return b"qkv.weight_int8" in opened.read(65_536)


def has_vnni(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Return whether this processor adds products of uint8 and int8 in 32 bits.

    Processors other than x86 do.
    """
    if platform.machine() != "x86_64":
        return True
    flags = cpuinfo.read_text().split()
    return "avx512_vnni" in flags or "avx_vnni" in flags
