"""The training loop of pre-training and fine-tuning."""

import math
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from bertie.base.errors import BertieError
from bertie.base.progress import Progress
from bertie.base.random import stream_key
from bertie.model.batch import PackedBatch
from bertie.model.heads import Model
from bertie.model.objectives import TOKEN_OBJECTIVES
from bertie.training.checkpoints import RunDirectory, TrainState
from bertie.training.distributed import Ranks
from bertie.training.health import RunHealth
from bertie.training.schedules import warmup_then_linear_decay
from bertie.training.signals import Stopped, stop_on_signal


class GlobalBatch(NamedTuple):
    """The examples of one step.

    micro_batches  the examples, in parts that fit in memory
    cursor         position in the data after this batch, for TrainState
    phase          index of the phase of the run
    """

    micro_batches: list[PackedBatch]
    cursor: dict[str, Any]
    phase: int

    @property
    def num_tokens(self) -> int:
        """Number of tokens in all micro-batches."""
        return sum(micro_batch.num_tokens for micro_batch in self.micro_batches)


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
    model: Model,
    batches: Iterator[GlobalBatch],
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
    """Train `model` from `state.step` until `schedule.total_steps`, or until `evaluate` sets `state.is_done`.

    Losses are divided by the number of targets in the whole global batch, so the results do not
    depend on how the batch is split into micro-batches, nor on how these are dealt to ranks.
    Dropout is a function of (seed, step, rank).

    Args:
        model: the model, on its device; the sum of its `compute_losses` is minimized.
        batches: the global batches from `state.step` on; the same on every rank.
        optimizer: from `build_optimizer`.
        learning_rate: the peak of the schedule.
        max_gradient_norm: gradients are clipped to this norm, taken over all parameters.
        schedule: when the loop ends, logs, evaluates and saves.
        seed: seed of dropout.
        state: updated in place after each step.
        run: receives checkpoints, and in metrics.jsonl the rows of kind train, evaluation and
            warning.
        evaluate: returns the metrics of an evaluation row; called on the main process, in eval
            mode.
        progress: shows the figures of the last row.
        ranks: processes that train together.
        autocast: context of the forward passes.

    Raises:
        Stopped: a signal stopped the run; a checkpoint is saved.
        BertieError: the gradient is not finite.
    """
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

    with stop_on_signal() as stop:
        while state.step < schedule.total_steps and not state.is_done:
            started = time.perf_counter()
            batch = next(batches)

            rate = learning_rate * warmup_then_linear_decay(
                state.step, schedule.total_steps, schedule.warmup_steps
            )
            for group in optimizer.param_groups:
                group["lr"] = rate * group["rate_scale"]
            _seed_dropout(device, int(stream_key(seed, state.step, ranks.rank)))

            model.train()
            targets = _global_targets(model, batch)
            sums = _backward(model, batch.micro_batches[ranks.rank :: ranks.world_size], targets, autocast)
            ranks.sum_gradients(model)
            gradient_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_gradient_norm).item()
            if not math.isfinite(gradient_norm):
                raise BertieError(_not_finite_message(state.step + 1, run))
            optimizer.step()
            optimizer.zero_grad()

            state.step += 1
            state.cursor = batch.cursor
            state.tokens += batch.num_tokens
            state.examples += sum(len(micro_batch) for micro_batch in batch.micro_batches)
            for name, (loss, correct) in zip(targets, ranks.sum(sums).tolist(), strict=True):
                window_sums = state.window.setdefault(name, [0.0, 0.0, 0])
                window_sums[0] += loss
                window_sums[1] += correct
                window_sums[2] += targets[name]
            state.window_tokens += batch.num_tokens
            state.window_gradient_norm = max(state.window_gradient_norm, gradient_norm)
            state.window_seconds += time.perf_counter() - started

            last = state.step == schedule.total_steps
            if last or _is_due(state.step, schedule.log_every):
                log_training(batch.phase, rate)
            progress.update(state.step)
            if ranks.is_main and (last or _is_due(state.step, schedule.evaluate_every)):
                model.eval()
                log({"kind": "evaluation", "step": state.step, "phase": batch.phase, **evaluate()})
            if state.is_done and state.window:
                log_training(batch.phase, rate)
            signal_number = ranks.max(stop.number, device)
            if signal_number or (last and schedule.save_every) or _is_due(state.step, schedule.save_every):
                run.save(state, model, optimizer, schedule.save_every, schedule.keep_checkpoints)
            if signal_number:
                raise Stopped(signal_number, run.path)


def _seed_dropout(device: torch.device, seed: int) -> None:
    """Seed the generators of the CPU and of the device.

    Where there is no GPU, `torch.manual_seed` formats the stack three times, which costs over a
    millisecond.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


def _backward(
    model: Model, micro_batches: list[PackedBatch], targets: dict[str, int], autocast: torch.autocast
) -> torch.Tensor:
    """Add the gradients of `micro_batches` to the parameters.

    Returns:
        For each objective the sum of losses, and the number of targets predicted correctly (nan if
        the objective does not count them): float64 (objectives, 2).
    """
    device = next(model.parameters()).device
    sums = torch.zeros(len(targets), 2, dtype=torch.float64, device=device)
    for micro_batch in micro_batches:
        with autocast:
            losses = model.compute_losses(micro_batch.to(device))
        terms = [objective.loss_sum / targets[name] for name, objective in losses.items()]
        torch.autograd.backward(torch.stack(terms).sum())
        for total, name in zip(sums, targets, strict=True):
            total[0] += losses[name].loss_sum.detach()
            correct = losses[name].num_correct
            total[1] += math.nan if correct is None else correct
    return sums


def split_micro_batches(
    bounds: npt.NDArray[np.int64], micro_batch_tokens: int, multiple: int = 1
) -> list[tuple[int, int]]:
    """Split sequences, in order, into micro-batches of about equal token counts.

    Args:
        bounds: bounds of the sequences in the tokens, int64 (N+1,).
        micro_batch_tokens: about how many tokens a micro-batch has at most, unless it is one long
            sequence.
        multiple: make the number of micro-batches a multiple of it, so that this many ranks have
            equal work. Sequences longer than a micro-batch may prevent that.

    Returns:
        The (start, stop) sequence indices of each micro-batch.
    """
    tokens = bounds[-1] - bounds[0]
    count = -(-tokens // (micro_batch_tokens * multiple)) * multiple
    targets = bounds[0] + tokens * np.arange(count + 1) // count
    cuts = np.unique(np.searchsorted(bounds, targets))  # several targets may be in one long sequence
    return list(pairwise(cuts.tolist()))


def _is_due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def _global_targets(model: Model, batch: GlobalBatch) -> dict[str, int]:
    """Count each objective's targets in the global batch; at least 1, to divide by."""
    totals: dict[str, int] = {}
    for micro_batch in batch.micro_batches:
        for name, count in model.count_targets(micro_batch).items():
            totals[name] = totals.get(name, 0) + count
    return {name: max(count, 1) for name, count in totals.items()}


def _close_window(state: TrainState) -> dict[str, Any]:
    """Return the metrics since the last row, and reset the sums of `state`."""
    state.seconds += state.window_seconds
    row: dict[str, Any] = {"tokens": state.tokens, "examples": state.examples, "loss": 0.0}
    for name, (loss, correct, targets) in state.window.items():
        row[f"{name}_loss"] = loss / targets
        if not math.isnan(correct):  # a regression has no accuracy
            row[f"{name}_accuracy"] = correct / targets
        row["loss"] += loss / targets
    row["gradient_norm"] = state.window_gradient_norm
    row["seconds"] = round(state.seconds, 3)
    row["tokens_per_second"] = round(state.window_tokens / state.window_seconds, 1)
    state.window, state.window_tokens = {}, 0
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
    checkpoints = run.checkpoints()
    newest = f"the last checkpoint is {checkpoints[-1]}" if checkpoints else "there is no checkpoint yet"
    return f"the gradient at step {step} is not finite; {newest}; lower optimizer.learning_rate"
