"""The training loop of pre-training and fine-tuning."""

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from bertie.base.arrays import Int64s
from bertie.base.environment import freed_memory_kept
from bertie.base.errors import BertieError
from bertie.base.progress import Progress
from bertie.base.random import stream_key
from bertie.model.batch import PackedBatch
from bertie.model.heads import Model
from bertie.model.objectives import TOKEN_OBJECTIVES
from bertie.training.checkpoints import RunDirectory, TrainState
from bertie.training.distributed import LossFunction, Ranks, is_sharded
from bertie.training.health import RunHealth
from bertie.training.schedules import warmup_then_linear_decay
from bertie.training.signals import Stopped, stop_on_signal

# A few bad batches do no harm, since they change nothing. A model that has diverged has no good ones.
MAX_SKIPPED_STEPS = 10  # in a row

# Held while a run trains: it draws from the random generators of the process, which a run in another thread
# would change.
training_lock = threading.RLock()


@contextmanager
def isolated_torch(device: torch.device) -> Iterator[None]:
    """Train in the block, without effects on torch's state outside of it.

    The caller's inference mode has no effect, and the random generators are restored afterwards. A run seeds
    the generators of the CPU and of its device, from which a script may draw, too.
    """
    with torch.inference_mode(False), torch.random.fork_rng([device] if device.type == "cuda" else []):
        yield


class Batch(NamedTuple):
    """The examples of one step that one rank computes.

    micro_batches  the examples, in parts that fit in memory; in pre-training, all ranks have equally many
    phase          index of the phase of the run
    is_spare       whether the examples do not count: there were fewer examples than ranks, and a rank
                   without any could not take part
    position       where this rank's data continues after the batch, unless the step determines it
    """

    micro_batches: list[PackedBatch]
    phase: int
    is_spare: bool = False
    position: Any = None


class Batches(Protocol):
    """The batches of a rank, one for each step."""

    def __next__(self) -> Batch:
        """Return the next batch."""

    def cursor(self, batch: Batch) -> dict[str, Any]:
        """Return the position in the data after a batch, for TrainState.

        All ranks must call it together.
        """


class LoopSchedule(NamedTuple):
    """The length of a run and its periodic work, in steps.

    Logging, evaluation and saving also happen after the last step. With an `_every` of 0, logging
    and evaluation happen only then, and checkpoints are written only when a signal stops the run.
    """

    total_steps: int
    warmup_steps: int
    log_every: int
    evaluate_every: int
    save_every: int
    keep_checkpoints: int


def train(
    compute_losses: LossFunction,
    batches: Batches,
    optimizer: torch.optim.Optimizer,
    *,
    learning_rate: float,
    max_gradient_norm: float,
    schedule: LoopSchedule,
    seed: int,
    state: TrainState,
    run: RunDirectory,
    evaluate: Callable[[], dict[str, float]],
    progress: Progress,
    ranks: Ranks,
    autocast: torch.autocast,
) -> None:
    """Train a model from `state.step` on.

    The loop ends after `schedule.total_steps`, or when `evaluate` sets `state.is_done`. Losses are divided by
    the number of targets of all ranks, so the results do not depend on how a batch is shared by the ranks and
    split into micro-batches. Dropout is a function of (seed, step, rank).

    A step whose gradient is not finite changes nothing but the counters. All ranks have the same
    gradient norm, so they all skip it.

    Args:
        compute_losses: the model, on its device; the sum of its losses is minimized.
        batches: the batches from `state.step` on.
        optimizer: from `build_optimizer`.
        learning_rate: the peak of the schedule.
        max_gradient_norm: gradients are clipped to this norm, taken over all parameters.
        schedule: when the loop ends, logs, evaluates and saves.
        seed: seed of dropout.
        state: updated in place after each step.
        run: receives checkpoints, and in metrics.jsonl the rows of kind train, evaluation and
            warning.
        evaluate: returns the metrics of an evaluation row; called in eval mode, on all ranks.
        progress: shows the figures of the last row.
        ranks: processes that train together.
        autocast: context of the forward passes.

    Raises:
        Stopped: a signal stopped the run; a checkpoint is saved.
        BertieError: the gradients of MAX_SKIPPED_STEPS steps in a row were not finite; a checkpoint is
            saved.
    """
    model = compute_losses.model
    device = next(model.parameters()).device
    health = RunHealth(run.rows(), schedule.warmup_steps, schedule.total_steps)
    run.rotate(schedule.save_every, schedule.keep_checkpoints)

    def log(row: dict[str, Any]) -> None:
        run.log(row)
        for finding in health.check(row):
            progress.print(f"warning: {finding.message}")
            run.log({"kind": "warning", "step": row["step"], **finding._asdict()})

    def log_training(phase: int, rate: float) -> None:
        row = {"kind": "train", "step": state.step, "phase": phase, "learning_rate": rate}
        row |= _close_window(state)
        log(row)
        progress.update(state.step, _progress_figures(row))

    def save(batch: Batch) -> None:
        state.cursor = batches.cursor(batch)
        run.save(state, model, optimizer, schedule.save_every, schedule.keep_checkpoints)

    following: Batch | None = None
    with stop_on_signal() as stop, freed_memory_kept():
        while state.step < schedule.total_steps and not state.is_done:
            started = time.perf_counter()
            batch = next(batches) if following is None else following

            rate = learning_rate * warmup_then_linear_decay(
                state.step, schedule.total_steps, schedule.warmup_steps
            )
            for group in optimizer.param_groups:
                group["lr"] = rate * group["rate_scale"]
            _seed_dropout(device, int(stream_key(seed, state.step, ranks.rank)))

            model.train()
            counts = _count(model, batch, ranks)
            sums = _backward(compute_losses, batch, counts.targets, ranks.world_size, autocast)
            norm = _clip_gradients(model, max_gradient_norm)
            # A GPU is still computing: the next batch is made meanwhile. `float` waits for the GPU.
            following = next(batches) if state.step + 1 < schedule.total_steps else None
            gradient_norm = float(norm)
            if math.isfinite(gradient_norm):
                _add_to_window(state, counts.targets, ranks.sum(sums), gradient_norm)
                optimizer.step()
                state.skipped_in_a_row = 0
            else:
                state.skipped_in_a_row += 1
                state.window_skipped += 1
            optimizer.zero_grad()

            state.step += 1
            state.tokens += counts.tokens
            state.examples += counts.examples
            state.window_tokens += counts.tokens
            state.window_seconds += time.perf_counter() - started

            last = state.step == schedule.total_steps
            if last or _is_due(state.step, schedule.log_every):
                log_training(batch.phase, rate)
            progress.update(state.step)
            if last or _is_due(state.step, schedule.evaluate_every):
                model.eval()
                log({"kind": "evaluation", "step": state.step, "phase": batch.phase, **evaluate()})
            is_done, signal_number = ranks.elementwise_max(np.array([state.is_done, stop.number])).tolist()
            state.is_done = bool(is_done)
            if state.is_done and state.window:
                log_training(batch.phase, rate)
            if state.skipped_in_a_row == MAX_SKIPPED_STEPS:
                state.skipped_in_a_row = 0  # so that a resumed run tries as many again
                save(batch)
                raise BertieError(_not_finite_message(state.step, run))
            if signal_number or (last and schedule.save_every) or _is_due(state.step, schedule.save_every):
                save(batch)
            if signal_number:
                raise Stopped(signal_number, run.path)


def _seed_dropout(device: torch.device, seed: int) -> None:
    """Seed the generators of the CPU and of the device.

    Where there is no GPU, `torch.manual_seed` formats the stack three times, which costs over a
    millisecond.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        # `torch.cuda.manual_seed` would seed the current device, which may be another one.
        torch.cuda.default_generators[device.index].manual_seed(seed)


class _Counts(NamedTuple):
    """The size of a batch over all ranks.

    Each objective has at least one target, to divide by.
    """

    tokens: int
    examples: int
    targets: dict[str, int]


def _count(model: Model, batch: Batch, ranks: Ranks) -> _Counts:
    targets: dict[str, int] = {}
    for micro_batch in batch.micro_batches:
        for name, count in model.count_targets(micro_batch).items():
            targets[name] = targets.get(name, 0) + count
    tokens = sum(micro_batch.num_tokens for micro_batch in batch.micro_batches)
    examples = sum(len(micro_batch) for micro_batch in batch.micro_batches)
    counts = torch.tensor([tokens, examples, *targets.values()])
    tokens, examples, *sums = ranks.sum(counts * (not batch.is_spare)).tolist()
    return _Counts(tokens, examples, {name: max(n, 1) for name, n in zip(targets, sums, strict=True)})


@torch.enable_grad()  # a script may have called torch.set_grad_enabled(False)
def _backward(
    compute_losses: LossFunction,
    batch: Batch,
    targets: dict[str, int],
    world_size: int,
    autocast: torch.autocast,
) -> torch.Tensor:
    """Add the gradients of the losses of all ranks to the parameters.

    Returns:
        For each objective the sum of this rank's losses, and the number of targets predicted correctly
        (nan if the objective does not count them): float64 (objectives, 2).
    """
    device = next(compute_losses.parameters()).device
    sums = torch.zeros(len(targets), 2, dtype=torch.float64, device=device)
    weight = 0 if batch.is_spare else 1
    for index, micro_batch in enumerate(batch.micro_batches, 1):
        with compute_losses.summing(index == len(batch.micro_batches)):
            with autocast:
                losses = compute_losses(micro_batch.to(device))
            terms = [
                objective.loss_sum * (weight * world_size / targets[name])
                for name, objective in losses.items()
            ]
            torch.autograd.backward(torch.stack(terms).sum())
        for total, name in zip(sums, targets, strict=True):
            total[0] += weight * losses[name].loss_sum.detach()
            correct = losses[name].num_correct
            total[1] += math.nan if correct is None else weight * correct
    return sums


def _clip_gradients(model: Model, max_norm: float) -> torch.Tensor:
    """Clip the gradients to a norm, and return the norm before, ().

    The norm is taken over all parameters.
    """
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    return norm.full_tensor() if is_sharded(model) else norm  # type: ignore[attr-defined]


def _add_to_window(
    state: TrainState, targets: dict[str, int], sums: torch.Tensor, gradient_norm: float
) -> None:
    """Add the figures of a step to the sums since the last row of metrics."""
    for name, (loss, correct) in zip(targets, sums.tolist(), strict=True):
        window_sums = state.window.setdefault(name, [0.0, 0.0, 0])
        window_sums[0] += loss
        window_sums[1] += correct
        window_sums[2] += targets[name]
    state.window_gradient_norm = max(state.window_gradient_norm, gradient_norm)


def count_micro_batches(bounds: Int64s, micro_batch_tokens: int) -> int:
    """Return into how many micro-batches to split sequences.

    Their bounds are int64 (N+1,).
    """
    return -(-int(bounds[-1] - bounds[0]) // micro_batch_tokens)


def split_sequences(bounds: Int64s, count: int) -> list[tuple[int, int]]:
    """Split sequences, in order, into `count` parts of about equal token counts.

    Args:
        bounds: bounds of the sequences in the tokens, int64 (N+1,).
        count: the number of parts, but at most N; each part has at least one sequence.

    Returns:
        The (start, stop) sequence indices of each part.
    """
    size = len(bounds) - 1
    count = min(count, size)
    targets = bounds[0] + (bounds[-1] - bounds[0]) * np.arange(count + 1) // count
    cuts = np.searchsorted(bounds, targets)
    parts = np.arange(count + 1)
    cuts = np.maximum.accumulate(cuts - parts) + parts  # several targets may be in one long sequence
    cuts = np.minimum(cuts, size - count + parts)
    return list(pairwise(cuts.tolist()))


def _is_due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def _close_window(state: TrainState) -> dict[str, Any]:
    """Return the metrics since the last row, and reset the sums of `state`."""
    state.seconds += state.window_seconds
    row: dict[str, Any] = {"tokens": state.tokens, "examples": state.examples}
    if state.window_skipped:
        row["skipped_steps"] = state.window_skipped
    if state.window:  # not every step was skipped
        row |= {"loss": 0.0, "gradient_norm": state.window_gradient_norm}
    for name, (loss, correct, targets) in state.window.items():
        row[f"{name}_loss"] = loss / targets
        if not math.isnan(correct):  # a regression has no accuracy
            row[f"{name}_accuracy"] = correct / targets
        row["loss"] += loss / targets
    row["seconds"] = round(state.seconds, 3)
    row["tokens_per_second"] = round(state.window_tokens / state.window_seconds, 1)
    state.window, state.window_tokens, state.window_skipped = {}, 0, 0
    state.window_gradient_norm = state.window_seconds = 0.0
    return row


PROGRESS_LABELS = {
    "loss": "loss",
    **{f"{objective}_accuracy": label for objective, label in TOKEN_OBJECTIVES.items()},
    "next_sentence_accuracy": "next-sentence accuracy",
}


def _progress_figures(row: dict[str, Any]) -> dict[str, str | float]:
    """Select and format the metrics of a row that fit into the progress line."""
    figures: dict[str, str | float] = {
        label: f"{row[key]:.2f}" for key, label in PROGRESS_LABELS.items() if key in row
    }
    figures["tokens/s"] = f"{row['tokens_per_second']:,.0f}"
    return figures


def _not_finite_message(step: int, run: RunDirectory) -> str:
    return (
        f"{run.path}: the gradients of steps {step - MAX_SKIPPED_STEPS + 1:,} to {step:,} were not finite; "
        f"the run saved the weights from before these steps. Pass --resume (resume=True) to continue with "
        f"the next data. If it stops again, start a new run with a lower optimizer.learning_rate"
    )
