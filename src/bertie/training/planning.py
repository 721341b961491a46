"""What a run will take, said before it starts: steps, tokens, memory, time, measured on its own model."""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from bertie.model.batch import PackedBatch
from bertie.model.heads import Model

PROBE_SECONDS = 0.5  # a batch that takes this long is large enough to tell the speed of a larger one
FLOAT_BYTES = 4
# What is kept for the backward pass, with that pass's own temporaries and the gaps an allocator leaves: 1.5
# to 1.8 of what is kept, by the peak of whole runs of 4 × 256 at 128 and 512 on a CPU.
WITH_TEMPORARIES = 1.7
EVALUATION_SHARE = 1 / 3  # a forward pass beside forward and backward


class PhaseWork(NamedTuple):
    """A phase of the run, and a sample of it.

    steps             how many
    batch_size        sequences in a step
    batches           a sample of its sequences in packed batches, each larger than the one before
    evaluated_tokens  tokens of all evaluations in this phase
    """

    steps: int
    batch_size: int
    batches: Sequence[PackedBatch]
    evaluated_tokens: int


class Plan(NamedTuple):
    """What a run will take.

    steps         of all phases
    sequences     of all steps
    tokens        of all steps, padding not counted: there is none
    parameters    numbers in the model
    memory_bytes  at the most: weights, gradients, moments, activations, and on a CPU the program itself
    seconds       of training and evaluation
    device        where
    device_bytes  the memory that there is
    """

    steps: int
    sequences: int
    tokens: int
    parameters: int
    memory_bytes: int
    seconds: float
    device: str
    device_bytes: int

    def __str__(self) -> str:
        too_much = (
            f"; that is more than the {_rounded(self.device_bytes)}B there are: lower micro_batch_tokens, "
            f"or set gradient_checkpointing=true"
        )
        return (
            f"{self.steps:,} steps, {self.sequences:,} sequences, about {_rounded(self.tokens)} tokens; "
            f"{_rounded(self.parameters)} parameters; about {_rounded(self.memory_bytes)}B of memory and "
            f"{_spoken(self.seconds)} on {self.device} ({self.tokens / self.seconds:,.0f} tokens/s)"
            f"{too_much if self.memory_bytes > self.device_bytes else ''}"
        )


def make_plan(
    model: Model, phases: Sequence[PhaseWork], micro_batch_tokens: int, ranks: int, autocast: torch.autocast
) -> Plan:
    """Measure `model` on each phase's sample. Its weights stay as they are."""
    device = next(model.parameters()).device
    resident = _resident_bytes()
    steps = sequences = tokens = 0
    seconds, activation_bytes = 0.0, 0.0
    for phase in phases:
        batch = phase.batches[-1]
        phase_tokens = phase.steps * phase.batch_size * batch.num_tokens / len(batch)
        seconds_per_token, bytes_per_token = _probe(model, phase.batches, device, autocast)
        step_tokens = phase.batch_size * batch.num_tokens / len(batch) / ranks
        activation_bytes = max(activation_bytes, bytes_per_token * min(micro_batch_tokens, step_tokens))
        seconds += seconds_per_token * (phase_tokens / ranks + EVALUATION_SHARE * phase.evaluated_tokens)
        steps += phase.steps
        sequences += phase.steps * phase.batch_size
        tokens += round(phase_tokens)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    # Weights, gradients and two moments.
    memory_bytes = 4 * FLOAT_BYTES * parameters + round(WITH_TEMPORARIES * activation_bytes)
    if device.type == "cuda":
        device_bytes = torch.cuda.get_device_properties(device).total_memory
    else:
        device_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        memory_bytes += resident
    return Plan(steps, sequences, tokens, parameters, memory_bytes, seconds, str(device), device_bytes)


def _probe(
    model: Model, batches: Sequence[PackedBatch], device: torch.device, autocast: torch.autocast
) -> tuple[float, float]:
    """Seconds, and bytes kept for the backward pass, for each token of forward and backward."""
    weights = {parameter.data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    def step(batch: PackedBatch) -> float:
        kept.clear()
        started = time.perf_counter()
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), autocast:
            losses = model.losses(batch.to(device))
        torch.autograd.backward(torch.stack([objective.loss_sum for objective in losses.values()]).sum())
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        model.zero_grad()
        return time.perf_counter() - started

    model.train()
    for batch in batches:
        seconds = step(batch)
        if seconds > PROBE_SECONDS:  # the first time, threads and caches are cold
            seconds = min(seconds, step(batch))
        if seconds > PROBE_SECONDS:
            break
    return seconds / batch.num_tokens, sum(kept.values()) / batch.num_tokens


def _resident_bytes() -> int:
    """What this process holds in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _spoken(seconds: float) -> str:
    if seconds < 90:
        return "a minute"
    return f"{seconds / 3600:,.1f} hours" if seconds >= 5400 else f"{seconds / 60:.0f} minutes"


def _rounded(number: float) -> str:
    """`5.4 M`: three digits."""
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.0f} "
