"""Run a model of any architecture in torch."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import islice, pairwise
from pathlib import Path
from threading import Barrier

import numpy as np
import torch
from torch import Tensor, nn

from bertie.model.batch import PackedBatch, pack
from bertie.model.cpu import MAX_THREADS_OF_FUSED_LAYERS
from bertie.model.engines.engine import Float32s
from bertie.model.engines.hardware import Hardware
from bertie.model.formats.directory import ModelMetadata
from bertie.model.formats.weights import load_model
from bertie.model.heads import EncoderModel, Model, PreTrainingModel
from bertie.model.packed_weights import can_pack_weights, pack_weights
from bertie.model.sequences import Int64s, Sequences, sizes_of

# With AVX-512, torch's fused attention kernel computes 16 keys at a time, and the rest one by one: 31 keys
# take twice as long as 32 (docs/decisions/inference.md).
CPU_VECTOR_LENGTH = 16

# A batch is divided between threads if each part has so many tokens, since products of fewer take longer per
# token, and no part is so much longer than the mean. A batch as a whole takes 1.2 to 1.4 times as long
# (docs/decisions/inference.md).
MIN_PART_TOKENS = 64
MAX_PART_SIZE = 1.25


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

    def logits(self, batch: Sequences) -> Float32s:
        """See `Engine`."""
        (logits,) = self._run(lambda packed: [self._logits(packed)], batch)
        return logits

    def _logits(self, batch: PackedBatch) -> Tensor:
        if isinstance(self.model, PreTrainingModel):
            logits: Tensor = self.model.next_sentence(self.model.bert.pool(batch))
        else:
            logits = self.model(batch)
        return logits

    def masked_lm_logits(self, batch: Sequences, masked_positions: Int64s) -> Float32s:
        """See `Engine`."""
        (logits,) = self._run(lambda packed: [self._masked_lm_logits(packed)], batch, masked_positions)
        return logits

    def _masked_lm_logits(self, batch: PackedBatch) -> Tensor:
        outputs = self.model(batch)
        logits: Tensor = outputs[0] if isinstance(self.model, PreTrainingModel) else outputs
        return logits

    def hidden_states(self, batch: Sequences, layers: Sequence[int]) -> list[Float32s]:
        """See `Engine`."""

        def states(packed: PackedBatch) -> list[Tensor]:
            outputs = islice(self.model.bert.hidden_states(packed), max(layers) + 1)
            kept = {layer: output for layer, output in enumerate(outputs) if layer in layers}
            return [kept[layer] for layer in layers]

        return self._run(states, batch)

    def cls_vectors(self, batch: Sequences) -> Float32s:
        """See `Engine`."""
        (vectors,) = self._run(lambda packed: [self.model.bert.cls_vectors(packed)], batch)
        return vectors

    def attention_probabilities(self, sequence: Sequences) -> Float32s:
        """See `Engine`."""
        with torch.inference_mode(), self._hardware.autocast():
            return _to_numpy(self.model.bert.attention_probabilities(self._pack(sequence)))

    def _run(
        self,
        compute: Callable[[PackedBatch], list[Tensor]],
        batch: Sequences,
        masked_positions: Int64s | None = None,
    ) -> list[Float32s]:
        """Compute outputs of the sequences, tokens or masked tokens of a batch, (N, …), (T, …) or (M, …).

        On more than two threads of a CPU, each thread computes a part of the batch by itself. So all of them
        compute in the fused layers, which take two threads at most, and none waits for another.
        """

        def compute_part(part: tuple[Sequences, Int64s | None]) -> list[Float32s]:
            with torch.inference_mode(), self._hardware.autocast():
                return [_to_numpy(output) for output in compute(self._pack(*part))]

        threads = torch.get_num_threads()
        cuts = [0, len(batch.bounds) - 1]
        if self._device.type == "cpu" and threads > MAX_THREADS_OF_FUSED_LAYERS:
            cuts = find_cuts(batch.bounds, threads)
        if len(cuts) == 2:
            return compute_part((batch, masked_positions))
        outputs = _workers(threads).map(compute_part, divide(batch, masked_positions, cuts))
        return [np.concatenate(values) for values in zip(*outputs, strict=True)]

    def _pack(self, batch: Sequences, masked_positions: Int64s | None = None) -> PackedBatch:
        vector_length = CPU_VECTOR_LENGTH if self._device.type == "cpu" else 1
        packed = pack(*batch, masked_positions=masked_positions, vector_length=vector_length)
        return packed.to(self._device)


def find_cuts(bounds: Int64s, threads: int) -> list[int]:
    """Return where to divide N sequences into consecutive parts, one for each thread.

    Args:
        bounds: start of each sequence, and the end of the last one, (N+1,).
        threads: how many parts.

    Returns:
        The first sequence of each part, and N; [0, N] if the parts would be too short or too unequal.
    """
    mean = bounds[-1] / threads
    middles = (bounds[1:] + bounds[:-1]) / 2
    cuts = np.searchsorted(middles, mean * np.arange(threads + 1))  # the nearest bounds
    is_balanced = sizes_of(bounds[cuts]).max() <= MAX_PART_SIZE * mean
    return cuts.tolist() if mean >= MIN_PART_TOKENS and is_balanced else [0, len(bounds) - 1]


def divide(
    batch: Sequences, masked_positions: Int64s | None, cuts: list[int]
) -> Iterator[tuple[Sequences, Int64s | None]]:
    """Divide a batch, and its masked tokens, which ascend, into the parts of `find_cuts`."""
    input_ids, token_type_ids, bounds = batch
    for first, last in pairwise(cuts):
        start, end = bounds[first], bounds[last]
        part = Sequences(input_ids[start:end], token_type_ids[start:end], bounds[first : last + 1] - start)
        if masked_positions is None:
            yield part, None
        else:
            inside = (masked_positions >= start) & (masked_positions < end)
            yield part, masked_positions[inside] - start


@cache
def _workers(threads: int) -> ThreadPoolExecutor:
    """Return a pool of threads, in each of which torch computes in one thread.

    `torch.set_num_threads` is for the thread that calls it, and for threads that use torch for the first time
    afterwards. So all threads of the pool start here, and then the number is set back.
    """
    all_started = Barrier(threads)

    def use_one_thread() -> None:
        torch.get_num_threads()  # its first call in a thread would undo the next line
        torch.set_num_threads(1)
        all_started.wait()

    pool = ThreadPoolExecutor(threads, "parts", use_one_thread)
    for started in [pool.submit(all_started.wait) for _ in range(threads)]:
        started.result()
    torch.set_num_threads(threads)
    return pool


def load_torch_engine(path: Path, hardware: Hardware) -> tuple[TorchEngine, ModelMetadata]:
    """Load a model directory onto the device of `hardware`.

    Raises:
        DataError: see `load_model`.
        ModelError: see `load_model`.
    """
    model, metadata = load_model(path)
    model.to(hardware.device)
    if hardware.device == "cpu":
        prepare_weights(model, torch.bfloat16 if hardware.precision == "bfloat16" else torch.float32)
    return TorchEngine(model, hardware), metadata


@cache
def _use_one_thread_after_fork() -> None:
    """Let forked processes compute in one thread, as PyTorch's `DataLoader` does.

    The threads of OpenMP are not in a forked process, which would wait for them forever.
    """
    os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))


def prepare_weights(model: Model | EncoderModel, dtype: torch.dtype) -> None:
    """Store the weights of linear layers as products of this type are fastest on a CPU."""
    if can_pack_weights(dtype):
        pack_weights(model.bert.layers, dtype)
    if dtype == torch.bfloat16:
        round_weights(model)
    elif torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
        transpose_weights(model)


def round_weights(model: Model | EncoderModel) -> None:
    """Store the weights of linear layers in bfloat16, so that autocast need not round them in every batch.

    Those of the last layer's queries, keys and values remain in float32, in which `pooling_attention`
    multiplies them.
    """
    kept = model.bert.layers[-1].qkv
    for module in model.modules():
        if isinstance(module, nn.Linear) and module is not kept:
            module.weight.data = module.weight.data.bfloat16()


def transpose_weights(model: nn.Module) -> None:
    """Store the weights of linear layers in the order in which MKL reads them.

    A weight remains (out, in), but each of its columns is contiguous. MKL rearranges the weight in every
    product, in less time from this order: products of 8 to 128 tokens are 1.1 to 2.5 times as fast, and
    those of 256 and more as fast as before (docs/decisions/inference.md).
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
