"""A run's directory: settings, metrics, and checkpoints that are whole or not there. No pickle.

RUN/settings.toml                     the resolved settings
RUN/metrics.jsonl                     one row a line
RUN/checkpoints/step-00001000/        model.safetensors, optimizer.safetensors, state.json
RUN/model/                            a model directory, when the run has ended
"""

import json
import os
import shutil
from collections.abc import Iterator, Set
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from bertie.base.errors import DataError, ModelError, SettingsError
from bertie.base.files import (
    atomic_directory,
    clear_leftovers,
    lock_directory,
    read_json,
    sync,
    write_errors,
    write_json,
)
from bertie.base.settings import Settings, read_toml, resolve
from bertie.model.formats.huggingface import WEIGHTS_FILE
from bertie.model.formats.weights import load_weights, save_weights
from bertie.training.tracking import TensorBoard


@dataclass
class TrainState:
    """All that a run needs beside weights and moments to go on as if it had never stopped.

    step           steps done
    tokens         tokens learnt from
    examples       sequences learnt from
    seconds        time spent in training steps
    cursor         where the data stands
    window         sums since the last row of metrics: {objective: [loss, correct, targets]}
    window_tokens  tokens since the last row
    window_gradient_norm  the largest norm since the last row, before clipping
    window_seconds time since the last row
    metrics_bytes  the length of metrics.jsonl; what stands behind it belongs to steps that will be done again
    """

    step: int = 0
    tokens: int = 0
    examples: int = 0
    seconds: float = 0.0
    cursor: dict[str, Any] = field(default_factory=dict)
    window: dict[str, list[float]] = field(default_factory=dict)
    window_tokens: int = 0
    window_gradient_norm: float = 0.0
    window_seconds: float = 0.0
    metrics_bytes: int = 0


# Settings that name by its hash what a run learns from, is judged by and starts from.
FINGERPRINTS = {
    "corpus": "corpus",
    "training_set": "training set",
    "dev_sets": "dev sets",
    "start": "model to start from",
}


class RunDirectory:
    """Where a run writes. Of several ranks the first one alone writes; the others read checkpoints."""

    def __init__(self, path: Path, is_main: bool = True, tensorboard: bool = False) -> None:
        self.path, self.is_main = path, is_main
        self._tensorboard = TensorBoard(path / "tensorboard") if tensorboard and is_main else None
        self.settings_file = path / "settings.toml"
        self.metrics_file = path / "metrics.jsonl"
        self.model_directory = path / "model"
        self._checkpoints = path / "checkpoints"

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            if self.is_main:
                stack.enter_context(lock_directory(self.path))
                clear_leftovers(self._checkpoints)
                self._metrics = stack.enter_context(self.metrics_file.open("ab"))
            if self._tensorboard is not None:
                stack.callback(self._tensorboard.close)
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        with write_errors(self.metrics_file):  # on a full disk, what could not be logged is tried again
            self._open.close()

    def log(self, row: dict[str, Any]) -> None:
        """Append a row to metrics.jsonl."""
        if not self.is_main:
            return
        with write_errors(self.metrics_file):
            self._metrics.write(json.dumps(row).encode() + b"\n")
            self._metrics.flush()
        if self._tensorboard is not None:
            self._tensorboard.log(row)

    def rows(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl so far."""
        if not self.metrics_file.exists():
            return []
        return [json.loads(line) for line in self.metrics_file.read_text().splitlines()]

    def checkpoints(self) -> list[Path]:
        """The checkpoints there are, oldest first."""
        return sorted(self._checkpoints.glob("step-" + "[0-9]" * 8))

    def save(
        self, state: TrainState, model: nn.Module, optimizer: torch.optim.Optimizer, every: int, keep: int
    ) -> None:
        """Write a checkpoint atomically; only then drop all but the newest `keep`.

        Of the older ones those count whose step is a multiple of `every`. The others were written by stops,
        and are not to take the place of one that somebody waits for.
        """
        if not self.is_main:
            return
        sync(self.metrics_file)
        state.metrics_bytes = self._metrics.tell()
        moments: dict[str, Tensor] = {}
        for name, parameter in model.named_parameters():
            for moment in ("exp_avg", "exp_avg_sq", "step"):
                moments[f"{name}/{moment}"] = optimizer.state[parameter][moment]
        with atomic_directory(self._checkpoints / f"step-{state.step:08d}") as temporary:
            save_weights(temporary / WEIGHTS_FILE, model)
            save_file(moments, temporary / "optimizer.safetensors")
            write_json(temporary / "state.json", asdict(state))
        *older, newest = self.checkpoints()
        regular = [path for path in older if every and int(path.name.removeprefix("step-")) % every == 0]
        for path in set(older).difference([*regular, newest][-keep:]):
            shutil.rmtree(path)

    def forget_checkpoints(self) -> None:
        """Remove them all, or none: the run has ended, and its model is saved."""
        folder = self._checkpoints.resolve()  # it may be a link to a larger disk
        leftover = folder.with_name(".checkpoints.tmp")  # what a kill leaves is cleared as others are
        folder.rename(leftover)
        shutil.rmtree(leftover)
        self._checkpoints.unlink(missing_ok=True)

    def restore(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> TrainState:
        """Fill model and optimizer from the newest checkpoint, and forget the metrics written after it.

        A run that ended before its first checkpoint begins anew.
        """
        if not self.checkpoints():
            self._forget_metrics(0)
            return TrainState()
        newest = self.checkpoints()[-1]
        state = TrainState(**read_json(newest / "state.json"))
        load_weights(newest, model)
        moments = _load_moments(newest / "optimizer.safetensors")
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                for moment, value in optimizer.state[parameter].items():
                    value.copy_(moments[f"{name}/{moment}"])
        self._forget_metrics(state.metrics_bytes)
        return state

    def _forget_metrics(self, kept_bytes: int) -> None:
        if self.is_main:
            # What is cut keeps its old position until it is written to. It may also be shorter than it was.
            self._metrics.truncate(min(kept_bytes, self._metrics.seek(0, os.SEEK_END)))
            self._metrics.seek(0, os.SEEK_END)


def check_run(run: RunDirectory, settings: Settings, resume: bool, may_change: Set[str]) -> None:
    """Refuse to write over another run, and to go on with other settings, other data or another model.

    `may_change` has the settings' keys, those of inner sections with dots.

    Raises:
        SettingsError: there is no run to resume, or one that was not to be resumed, or it is another one.
        DataError: the run began with other data, or from another model.
    """
    if not run.settings_file.exists():
        if resume:
            raise SettingsError(f"{run.path}: there is no run to resume; start it without --resume")
        return
    if not resume:
        raise SettingsError(f"{run.path}: already holds a run; go on with --resume, or name another --out")
    before = resolve(type(settings), read_toml(run.settings_file), source=str(run.settings_file))
    for (key, old), (_, new) in zip(_settings_of(before), _settings_of(settings), strict=True):
        if old == new or key in may_change:
            continue
        if what := FINGERPRINTS.get(key.rpartition(".")[2]):
            if old:  # older runs do not say what they started from
                raise DataError(f"{run.path}: this run began with another {what}; give what it began with")
            continue
        raise SettingsError(
            f"{run.path}: {key} was {old!r} when the run began and is {new!r} now; resume with the same "
            f"settings, or start a new run"
        )


def _settings_of(section: Settings, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every setting's key, with dots where it is of an inner section, and its value."""
    for key, value in section:
        if isinstance(value, Settings):
            yield from _settings_of(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _load_moments(path: Path) -> dict[str, Tensor]:
    """The optimizer's state.

    Raises:
        ModelError: the file is absent or damaged.
    """
    try:
        return load_file(path)
    except (FileNotFoundError, SafetensorError) as error:
        raise ModelError(
            f"{path}: absent or damaged ({error}); without {path.parent} the run goes on from the one before"
        ) from None
