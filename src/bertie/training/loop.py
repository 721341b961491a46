"""The loop that pre-trains and fine-tunes."""

import math
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from bertie.base.errors import BertieError
from bertie.base.progress import Progress
from bertie.base.random import stream_key
from bertie.model.batch import PackedBatch
from bertie.model.heads import Model
from bertie.training.checkpoints import RunDirectory, TrainState
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


class Pace(NamedTuple):
    """When things happen, in steps. All of them happen at the end too; but `save_every` 0 is never."""

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
    pace: Pace,
    seed: int,
    state: TrainState,
    run: RunDirectory,
    evaluate: Callable[[], dict[str, float]],
    progress: Progress,
) -> None:
    """Train `model` until `pace.total_steps`, going on from `state`.

    Losses are divided by the number of targets in the whole global batch, so cutting it into micro-batches
    changes nothing. Dropout is a function of (seed, step). Rows go to metrics.jsonl.

    Raises:
        Stopped: a signal came; the run is saved.
        BertieError: the loss is not finite.
    """
    device = next(model.parameters()).device
    with stop_on_signal() as stop:
        while state.step < pace.total_steps:
            started = time.perf_counter()
            batch = next(batches)

            rate = learning_rate * warmup_then_linear_decay(state.step, pace.total_steps, pace.warmup_steps)
            for group in optimizer.param_groups:
                group["lr"] = rate
            torch.manual_seed(int(stream_key(seed, state.step)))

            model.train()
            targets = _global_targets(model, batch)
            for micro_batch in batch.micro_batches:
                losses = model.losses(micro_batch.to(device))
                terms = [objective.loss_sum / targets[name] for name, objective in losses.items()]
                torch.autograd.backward(torch.stack(terms).sum())
                for name, objective in losses.items():
                    sums = state.window.setdefault(name, [0.0, 0, 0])
                    sums[0] += objective.loss_sum.item()
                    sums[1] += int(objective.correct)
                    sums[2] += objective.targets
            gradient_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_gradient_norm).item()
            if not math.isfinite(gradient_norm):
                raise BertieError(_not_finite(state.step, run))
            optimizer.step()
            optimizer.zero_grad()

            state.step += 1
            state.cursor = batch.cursor
            tokens = sum(micro_batch.num_tokens for micro_batch in batch.micro_batches)
            state.tokens += tokens
            state.window_tokens += tokens
            state.examples += sum(len(micro_batch) for micro_batch in batch.micro_batches)
            state.window_seconds += time.perf_counter() - started

            last = state.step == pace.total_steps
            if last or _due(state.step, pace.log_every):
                row = {"kind": "train", "step": state.step, "phase": batch.phase, **_close_window(state)}
                row |= {"learning_rate": rate, "gradient_norm": gradient_norm}
                run.log(row)
                progress.update(state.step, _shown(row))
            progress.update(state.step)
            if last or _due(state.step, pace.evaluate_every):
                model.eval()
                run.log({"kind": "evaluation", "step": state.step, "phase": batch.phase, **evaluate()})
            if pace.save_every and (last or stop.number or _due(state.step, pace.save_every)):
                run.save(state, model, optimizer, pace.keep_checkpoints)
            if stop.number:
                raise Stopped(stop.number)


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def _global_targets(model: Model, batch: GlobalBatch) -> dict[str, int]:
    """How many targets each objective has in the whole global batch."""
    totals: dict[str, int] = {}
    for micro_batch in batch.micro_batches:
        for name, count in model.target_counts(micro_batch).items():
            totals[name] = totals.get(name, 0) + count
    return totals


def _close_window(state: TrainState) -> dict[str, Any]:
    """The figures since the last row; the window begins anew."""
    state.seconds += state.window_seconds
    row: dict[str, Any] = {"tokens": state.tokens, "examples": state.examples, "loss": 0.0}
    for name, (loss, correct, targets) in state.window.items():
        row[f"{name}_loss"] = loss / targets
        row[f"{name}_accuracy"] = correct / targets
        row["loss"] += loss / targets
    row["seconds"] = round(state.seconds, 3)
    row["tokens_per_second"] = round(state.window_tokens / state.window_seconds, 1)
    state.window, state.window_tokens, state.window_seconds = {}, 0, 0.0
    return row


SHOWN = {"loss": "loss", "masked_lm_accuracy": "masked words", "next_sentence_accuracy": "next sentence"}


def _shown(row: dict[str, Any]) -> dict[str, str | float]:
    """The figures of a row that the live display has room for."""
    shown: dict[str, str | float] = {label: f"{row[key]:.2f}" for key, label in SHOWN.items() if key in row}
    shown["tokens/s"] = f"{row['tokens_per_second']:,.0f}"
    return shown


def _not_finite(step: int, run: RunDirectory) -> str:
    saved = run.checkpoints()
    kept = f"the last checkpoint is {saved[-1]}" if saved else "there is no checkpoint yet"
    return f"the gradient at step {step} is not finite; {kept}; lower optimizer.learning_rate"
