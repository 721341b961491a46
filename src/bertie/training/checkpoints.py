"""A run's directory: settings, metrics, and checkpoints that are whole or not there. No pickle.

RUN/settings.toml                     the resolved settings
RUN/metrics.jsonl                     one row a line
RUN/checkpoints/step-00001000/        model.safetensors, optimizer.safetensors, state.json
RUN/model/                            a model directory, when the run has ended
"""

import json
import shutil
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from bertie.base.files import atomic_directory, locked_directory, read_json, sync, write_json
from bertie.model.weights import WEIGHTS_FILE, load_weights, save_weights


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
    window_seconds: float = 0.0
    metrics_bytes: int = 0


class RunDirectory:
    """Where a run writes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.settings_file = path / "settings.toml"
        self.metrics_file = path / "metrics.jsonl"
        self.model_directory = path / "model"
        self._checkpoints = path / "checkpoints"

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(locked_directory(self.path))
            self._metrics = stack.enter_context(self.metrics_file.open("ab"))
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def log(self, row: dict[str, Any]) -> None:
        """Append a row to metrics.jsonl."""
        self._metrics.write(json.dumps(row).encode() + b"\n")
        self._metrics.flush()

    def checkpoints(self) -> list[Path]:
        """The checkpoints there are, oldest first."""
        return sorted(self._checkpoints.glob("step-*"))

    def save(self, state: TrainState, model: nn.Module, optimizer: torch.optim.Optimizer, keep: int) -> None:
        """Write a checkpoint atomically; only then drop all but the newest `keep`."""
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
        for old in self.checkpoints()[:-keep]:
            shutil.rmtree(old)

    def restore(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> TrainState:
        """Fill model and optimizer from the newest checkpoint, and forget the metrics written after it.

        A run that ended before its first checkpoint begins anew.
        """
        if not self.checkpoints():
            self._metrics.truncate(0)
            return TrainState()
        newest = self.checkpoints()[-1]
        state = TrainState(**read_json(newest / "state.json"))
        load_weights(newest / WEIGHTS_FILE, model)
        moments = load_file(newest / "optimizer.safetensors")
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                for moment, value in optimizer.state[parameter].items():
                    value.copy_(moments[f"{name}/{moment}"])
        self._metrics.truncate(state.metrics_bytes)
        return state
