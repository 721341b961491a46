"""Estimate the cost of a pre-training run: steps, tokens, memory and time."""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from bertie.model.batch import PackedBatch
from bertie.model.heads import Model
from bertie.training.checkpoints import RunDirectory
from bertie.training.distributed import Ranks
from bertie.training.held_out import HeldOut
from bertie.training.loop import isolated_torch
from bertie.training.pretraining_settings import MAY_CHANGE, PretrainingSettings
from bertie.training.pretraining_setup import PretrainedModel, PretrainingSetup, pack_range
from bertie.training.resuming import check_run

BATCH_GROWTH = 4  # measure batches of 1, 4, 16, … sequences
MIN_BATCH_SECONDS = 0.5  # a batch that takes this long predicts the speed of larger ones
FLOAT_BYTES = 4
# Memory of the activations as a multiple of those kept for the backward pass: it includes temporaries of
# that pass, and gaps left by the allocator (docs/pretraining.md says how close the estimates are).
ACTIVATION_OVERHEAD = 1.3
EVALUATION_COST = 1 / 3  # a forward pass, relative to forward and backward

COUNTS = {"trillion": 1e12, "billion": 1e9, "million": 1e6, "thousand": 1e3}
BYTES = {"TB": 1e12, "GB": 1e9, "MB": 1e6, "kB": 1e3}
DURATIONS = {"years": 365 * 86_400, "days": 86_400, "hours": 3600}  # in seconds


class Plan(NamedTuple):
    """The estimated cost of a run, or of the rest of a resumed one.

    steps         still to do, of all phases
    sequences     of these steps
    tokens        of these steps; there is no padding to count
    parameters    of the model
    memory_bytes  peak: weights, gradients, moments, activations; on a CPU also the memory that the
                  process already holds
    seconds       of training and evaluation
    device        where the run computes
    device_bytes  memory of the device
    steps_done    before the run resumes
    """

    steps: int
    sequences: int
    tokens: int
    parameters: int
    memory_bytes: int
    seconds: float
    device: str
    device_bytes: int
    steps_done: int = 0

    def __str__(self) -> str:
        if not self.steps:
            return "no steps left"
        warning = (
            f"; that is more than the {_format_number(self.device_bytes, BYTES)} of this device: lower "
            f"micro_batch_tokens, or set gradient_checkpointing=true"
        )
        left = " left" if self.steps_done else ""
        return (
            f"{self.steps:,} steps{left}, {self.sequences:,} sequences, about "
            f"{_format_number(self.tokens, COUNTS)} tokens; {_format_number(self.parameters, COUNTS)} "
            f"parameters; about {_format_number(self.memory_bytes, BYTES)} of memory and "
            f"{_format_duration(self.seconds)} on {self.device} ({self.tokens / self.seconds:,.0f} tokens/s)"
            f"{warning if self.memory_bytes > self.device_bytes else ''}"
        )


class PhaseSample(NamedTuple):
    """The size of a phase, and batches to measure it on.

    steps              of the phase, still to do
    batch_size         sequences per step
    batches            packed batches of its sequences, each larger than the one before
    evaluation_tokens  tokens of all evaluations in these steps
    """

    steps: int
    batch_size: int
    batches: Sequence[PackedBatch]
    evaluation_tokens: int


def plan_pretraining(
    settings: PretrainingSettings,
    corpus_path: Path,
    output: Path,
    *,
    init: Path | None = None,
    resume: bool = False,
) -> Plan:
    """Estimate the cost of `pretrain` with the same arguments; write nothing.

    Prints the warnings that `pretrain` would print before training.

    Raises the errors that `pretrain` would raise before training, but does not verify the corpus's
    files.
    """
    setup, run = PretrainingSetup.load(settings, corpus_path, init=init), RunDirectory(output)
    check_run(run, setup.settings, resume, MAY_CHANGE)
    with isolated_torch(torch.device(setup.settings.device)):
        model = setup.build_model(init, Ranks())
        HeldOut(setup)  # for its errors
        for finding in () if resume else setup.find_problems():
            print(f"warning: {finding.message}", file=sys.stderr)
        return measure_plan(model, setup, Ranks(), run.newest_step() if resume else 0)


def measure_plan(model: PretrainedModel, setup: PretrainingSetup, ranks: Ranks, steps_done: int = 0) -> Plan:
    """Estimate the cost of the steps after the first `steps_done`.

    The speed of `model` is measured on the phases of these steps. The weights of `model` do not change.
    """
    settings = setup.settings
    remaining = _count_remaining(settings, steps_done)
    samples = [_sample_phase(setup, phase, steps) for phase, steps in enumerate(remaining) if steps]
    shards = ranks.world_size if settings.shard else 1
    plan = _estimate(
        model, samples, settings.micro_batch_tokens, ranks.world_size, shards, settings.autocast()
    )
    return plan._replace(steps_done=steps_done)


def _count_remaining(settings: PretrainingSettings, steps_done: int) -> list[int]:
    """Return the number of steps of each phase that remain.

    The first `steps_done` steps of the run are done.
    """
    remaining = []
    for phase in settings.phases:
        done = min(steps_done, phase.steps)
        remaining.append(phase.steps - done)
        steps_done -= done
    return remaining


def _sample_phase(setup: PretrainingSetup, phase: int, steps: int) -> PhaseSample:
    """Pack the first examples of a phase in batches that grow to a micro-batch.

    Of the phase, `steps` remain.
    """
    settings = setup.settings
    batch_size = settings.batch_size_of(phase)
    # A micro-batch has no more examples than tokens; a batch may not fit in memory.
    examples = setup.example_stream(phase).next(min(batch_size, settings.micro_batch_tokens))
    batches, size = [pack_range(examples, 0, 1)], BATCH_GROWTH
    while size <= len(examples) and examples.bounds[size] <= settings.micro_batch_tokens:
        batches.append(pack_range(examples, 0, size))
        size *= BATCH_GROWTH
    evaluations = -(-steps // settings.evaluate_every) if settings.evaluate_every else 1
    mean_length = examples.bounds[-1] / len(examples)
    evaluation_tokens = round(evaluations * settings.held_out_examples * mean_length)
    return PhaseSample(steps, batch_size, batches, evaluation_tokens)


def _estimate(
    model: Model,
    samples: Sequence[PhaseSample],
    micro_batch_tokens: int,
    world_size: int,
    shards: int,
    autocast: torch.autocast,
) -> Plan:
    device = next(model.parameters()).device
    resident_bytes = _resident_bytes()
    steps = sequences = tokens = 0
    seconds, activation_bytes = 0.0, 0.0
    for sample in samples:
        batch = sample.batches[-1]
        phase_tokens = sample.steps * sample.batch_size * batch.num_tokens / len(batch)
        seconds_per_token, bytes_per_token = _measure(model, sample.batches, device, autocast)
        step_tokens = sample.batch_size * batch.num_tokens / len(batch) / world_size
        activation_bytes = max(activation_bytes, bytes_per_token * min(micro_batch_tokens, step_tokens))
        seconds += (
            seconds_per_token * (phase_tokens + EVALUATION_COST * sample.evaluation_tokens) / world_size
        )
        steps += sample.steps
        sequences += sample.steps * sample.batch_size
        tokens += round(phase_tokens)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    arrays = 3 if device.type == "cpu" else 4  # gradients and two moments; on a CPU the weights are resident
    memory_bytes = arrays * FLOAT_BYTES * parameters // shards + round(ACTIVATION_OVERHEAD * activation_bytes)
    if device.type == "cuda":
        device_bytes = torch.cuda.get_device_properties(device).total_memory
    else:
        device_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        memory_bytes += resident_bytes
    return Plan(steps, sequences, tokens, parameters, memory_bytes, seconds, str(device), device_bytes)


@torch.enable_grad()
def _measure(
    model: Model, batches: Sequence[PackedBatch], device: torch.device, autocast: torch.autocast
) -> tuple[float, float]:
    """Measure forward and backward passes on growing batches.

    Returns:
        Seconds, and bytes kept for the backward pass, both per token.
    """
    weights = {parameter.data_ptr() for parameter in model.parameters()}
    saved_bytes: dict[int, int] = {}  # by address, for a storage may be saved several times

    def record(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved_bytes[storage.data_ptr()] = storage.nbytes()
        return tensor

    def time_step(batch: PackedBatch) -> float:
        saved_bytes.clear()
        started = time.perf_counter()
        with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor), autocast:
            losses = model.compute_losses(batch.to(device))
        torch.autograd.backward(torch.stack([objective.loss_sum for objective in losses.values()]).sum())
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        model.zero_grad()
        return time.perf_counter() - started

    model.train()
    for batch in batches:
        seconds = min(time_step(batch), time_step(batch))  # the first time, threads and caches are cold
        if seconds > MIN_BATCH_SECONDS:
            break
    return seconds / batch.num_tokens, sum(saved_bytes.values()) / batch.num_tokens


def _resident_bytes() -> int:
    """Return how much memory this process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _format_duration(seconds: float) -> str:
    for unit, size in DURATIONS.items():
        if seconds >= 1.5 * size:
            return f"{seconds / size:,.1f} {unit}"
    return "a minute" if seconds < 90 else f"{seconds / 60:.0f} minutes"


def _format_number(number: float, units: Mapping[str, float]) -> str:
    """Format a number with three digits and the largest unit that fits: `5.4 million`."""
    for unit, size in units.items():
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.0f}"
