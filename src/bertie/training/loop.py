"""The loop that pre-trains and fine-tunes."""

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
    """What one step learns from.

    micro_batches  it in parts that fit in memory
    cursor         where the data stands after it
    phase          which phase of the run it belongs to
    """

    micro_batches: list[PackedBatch]
    cursor: dict[str, Any]
    phase: int

    @property
    def num_tokens(self) -> int:
        """The number of tokens in all micro-batches."""
        return sum(micro_batch.num_tokens for micro_batch in self.micro_batches)


class LoopSchedule(NamedTuple):
    """When things happen, in steps. All happen at the end too; with `save_every` 0 only a stop saves."""

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
    """Train `model` until `schedule.total_steps`, going on from `state`.

    Losses are divided by the number of targets in the whole global batch, so cutting it into micro-batches,
    and dealing those to ranks, changes nothing. Dropout is a function of (seed, step, rank). Rows go to
    metrics.jsonl.

    Raises:
        Stopped: a signal came; the run is saved.
        BertieError: the loss is not finite.
    """
    device = next(model.parameters()).device
    health = RunHealth(run.rows(), schedule.warmup_steps, schedule.total_steps)

    def log(row: dict[str, Any]) -> None:
        run.log(row)
        for finding in health.check(row):
            progress.say(f"warning: {finding.message}")
            run.log({"kind": "warning", "step": row["step"], **finding._asdict()})

    with stop_on_signal() as stop:
        while state.step < schedule.total_steps:
            started = time.perf_counter()
            batch = next(batches)

            rate = learning_rate * warmup_then_linear_decay(
                state.step, schedule.total_steps, schedule.warmup_steps
            )
            for group in optimizer.param_groups:
                group["lr"] = rate
            torch.manual_seed(int(stream_key(seed, state.step, ranks.rank)))

            model.train()
            targets = _global_targets(model, batch)
            sums = _backward(model, batch.micro_batches[ranks.rank :: ranks.world_size], targets, autocast)
            ranks.sum_gradients(model)
            gradient_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_gradient_norm).item()
            if not math.isfinite(gradient_norm):
                raise BertieError(_not_finite(state.step, run))
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
            if last or _due(state.step, schedule.log_every):
                row = {"kind": "train", "step": state.step, "phase": batch.phase, "learning_rate": rate}
                row |= _close_window(state)
                log(row)
                progress.update(state.step, _shown(row))
            progress.update(state.step)
            if ranks.is_main and (last or _due(state.step, schedule.evaluate_every)):
                model.eval()
                log({"kind": "evaluation", "step": state.step, "phase": batch.phase, **evaluate()})
            signal_number = ranks.any(stop.number, device)
            if signal_number or (last and schedule.save_every) or _due(state.step, schedule.save_every):
                run.save(state, model, optimizer, schedule.save_every, schedule.keep_checkpoints)
            if signal_number:
                raise Stopped(signal_number)


def _backward(
    model: Model, micro_batches: list[PackedBatch], targets: dict[str, int], autocast: torch.autocast
) -> torch.Tensor:
    """Add the gradients of some micro-batches; the sums of loss and correct for each objective, (…, 2)."""
    device = next(model.parameters()).device
    sums = torch.zeros(len(targets), 2, dtype=torch.float64, device=device)
    for micro_batch in micro_batches:
        with autocast:
            losses = model.losses(micro_batch.to(device))
        terms = [objective.loss_sum / targets[name] for name, objective in losses.items()]
        torch.autograd.backward(torch.stack(terms).sum())
        for total, name in zip(sums, targets, strict=True):
            total[0] += losses[name].loss_sum.detach()
            correct = losses[name].correct
            total[1] += math.nan if correct is None else correct
    return sums


def split_micro_batches(
    bounds: npt.NDArray[np.int64], micro_batch_tokens: int, multiple: int = 1
) -> list[tuple[int, int]]:
    """Cut sequences, in order, into micro-batches of nearly as many tokens each.

    Args:
        bounds: int64 (N+1,), cuts the tokens into sequences.
        micro_batch_tokens: about so many at most, or one sequence alone.
        multiple: the number of micro-batches is a multiple of it, so that as many ranks have the same work.

    Returns:
        For each micro-batch its first sequence, and the one behind its last.
    """
    tokens = bounds[-1] - bounds[0]
    count = -(-tokens // (micro_batch_tokens * multiple)) * multiple
    shares = bounds[0] + tokens * np.arange(count + 1) // count
    cuts = np.unique(np.searchsorted(bounds, shares))  # one long sequence may fill several shares
    return list(pairwise(cuts.tolist()))


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def _global_targets(model: Model, batch: GlobalBatch) -> dict[str, int]:
    """How many targets each objective has in the whole global batch; 1 where it has none, and no loss."""
    totals: dict[str, int] = {}
    for micro_batch in batch.micro_batches:
        for name, count in model.target_counts(micro_batch).items():
            totals[name] = totals.get(name, 0) + count
    return {name: max(count, 1) for name, count in totals.items()}


def _close_window(state: TrainState) -> dict[str, Any]:
    """The figures since the last row; the window begins anew."""
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


SHOWN = {
    "loss": "loss",
    **{f"{objective}_accuracy": words for objective, words in TOKEN_OBJECTIVES.items()},
    "next_sentence_accuracy": "next sentence",
}


def _shown(row: dict[str, Any]) -> dict[str, str | float]:
    """The figures of a row that the live display has room for."""
    shown: dict[str, str | float] = {label: f"{row[key]:.2f}" for key, label in SHOWN.items() if key in row}
    shown["tokens/s"] = f"{row['tokens_per_second']:,.0f}"
    return shown


def _not_finite(step: int, run: RunDirectory) -> str:
    saved = run.checkpoints()
    kept = f"the last checkpoint is {saved[-1]}" if saved else "there is no checkpoint yet"
    return f"the gradient at step {step} is not finite; {kept}; lower optimizer.learning_rate"
