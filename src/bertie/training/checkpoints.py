"""A training run on disk: settings, metrics and checkpoints.

Checkpoints are written atomically, as safetensors and JSON; nothing is pickled.

RUN/settings.toml                     the resolved settings, with a checksum
RUN/arguments.json                    the arguments that started the run
RUN/metrics.jsonl                     the log, one row per line
RUN/checkpoints/step-00001000/        model.safetensors, optimizer.safetensors, state.json, SHA256SUMS
RUN/model/                            the model directory, written when the run is complete
RUN/finished.json                     fine-tuning: written last, after which no checkpoint is needed
"""

import shutil
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import pydantic
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from bertie.base.checksums import verification, verify, write_sums
from bertie.base.errors import DataError, ModelError
from bertie.base.files import (
    add_path_to_errors,
    atomic_directory,
    read_json,
    remove_directory,
    remove_temporary_files,
    utf8_path,
    write_json,
)
from bertie.base.locks import lock_directory
from bertie.base.settings import ARGUMENTS_FILE, SETTINGS_FILE, Settings, write_settings
from bertie.model.formats.huggingface import WEIGHTS_FILE
from bertie.model.formats.weights import load_weights, save_tensors, save_weights
from bertie.training.distributed import gather_moments, gather_weights, load_moments, torchrun_job
from bertie.training.metrics_file import MetricsFile, read_metrics
from bertie.training.tracking import TensorBoard

JOB = "torchrun_job"  # in arguments.json: the job that wrote it
OPTIMIZER_FILE, STATE_FILE = "optimizer.safetensors", "state.json"


@dataclass
class TrainState:
    """State that a resume needs besides the weights and optimizer moments.

    step                  completed steps
    tokens                tokens trained on
    examples              sequences trained on
    seconds               time spent in training steps, up to the last row of metrics
    cursor                position in the data
    window                sums since the last row of metrics: {objective: [loss, correct, targets]}
    window_tokens         tokens since the last row
    window_gradient_norm  largest gradient norm before clipping since the last row
    window_seconds        time spent in training steps since the last row
    window_skipped        steps without a finite gradient since the last row
    skipped_in_a_row      steps without a finite gradient since the last one that had one
    is_done               whether the run ends here, before its last step (early stopping)
    metrics_bytes         size of metrics.jsonl; a resumed run drops and repeats the rows after it
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
    window_skipped: int = 0
    skipped_in_a_row: int = 0
    is_done: bool = False
    metrics_bytes: int = 0


class RunDirectory:
    """A run's directory, locked and open for writing inside a `with` block.

    Only the main process (`is_main`) locks it and writes; the other ranks read checkpoints. `arguments`
    are recorded so that the run resumes without them.
    """

    def __init__(
        self,
        path: Path,
        is_main: bool = True,
        tensorboard: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        self.path, self.is_main = path, is_main
        self._arguments = arguments
        self.settings_file = path / SETTINGS_FILE
        self.model_directory = path / "model"
        self._finished_file = path / "finished.json"
        self._checkpoints = path / "checkpoints"
        self._metrics = MetricsFile(path / "metrics.jsonl")
        self._tensorboard = TensorBoard(path / "tensorboard") if tensorboard and is_main else None

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            if self.is_main:
                stack.enter_context(lock_directory(self.path))
                remove_temporary_files(self._checkpoints)
                stack.enter_context(self._metrics)
            if self._tensorboard is not None:
                stack.callback(self._tensorboard.close)
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        # Closing retries a write that a full disk refused, and may fail again.
        with add_path_to_errors(self._metrics.path):
            self._open.close()

    def write_settings(self, settings: Settings) -> None:
        """Write the arguments, then the settings, which make the directory a run."""
        if not self.is_main:
            return
        if self._arguments is not None:
            job = torchrun_job()
            write_json(self.path / ARGUMENTS_FILE, {**self._arguments, **({JOB: job} if job else {})})
        write_settings(self.settings_file, settings)

    def log(self, row: dict[str, Any]) -> None:
        """Append a row to metrics.jsonl, and to TensorBoard's files if the run has them."""
        if not self.is_main:
            return
        self._metrics.append(row)
        if self._tensorboard is not None:
            self._tensorboard.log(row)

    def rows(self) -> list[dict[str, Any]]:
        """Read the rows of metrics.jsonl; none if there is no such file yet."""
        return read_metrics(self._metrics.path) if self._metrics.path.exists() else []

    def checkpoints(self) -> list[Path]:
        """List the checkpoints, oldest first."""
        return sorted(self._checkpoints.glob("step-" + "[0-9]" * 8))

    def newest_step(self) -> int:
        """Return the step of the newest checkpoint; 0 without one."""
        return _step_of(self.checkpoints()[-1]) if self.checkpoints() else 0

    def has_progress(self) -> bool:
        """Return whether there is a checkpoint after step 0 or a row of metrics.

        A torn row counts, too. Only the initial weights, as a checkpoint of step 0, are written before the
        settings.
        """
        metrics = self._metrics.path
        return self.newest_step() > 0 or (metrics.exists() and metrics.stat().st_size > 0)

    def remove_checkpoints(self) -> None:
        """Delete all checkpoints."""
        for path in self.checkpoints() if self.is_main else ():
            remove_directory(path)

    def save(
        self,
        state: TrainState,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        save_every: int,
        keep_checkpoints: int,
    ) -> None:
        """Write a checkpoint, then delete all but the newest `keep_checkpoints`.

        All ranks must call it together. A checkpoint from a stop between two multiples of `save_every` is
        kept only as long as it is the newest, so that it never displaces a regular one.
        """
        weights, moments = gather_weights(model), gather_moments(model, optimizer)
        if not self.is_main:
            return
        state.metrics_bytes = self._metrics.sync()
        with atomic_directory(self._checkpoints / f"step-{state.step:08d}") as temporary:
            save_weights(temporary / WEIGHTS_FILE, weights)
            save_tensors(temporary / OPTIMIZER_FILE, moments)
            write_json(temporary / STATE_FILE, asdict(state))
            write_sums(temporary)
        self.rotate(save_every, keep_checkpoints)

    def rotate(self, save_every: int, keep_checkpoints: int) -> None:
        """Delete checkpoints that `save` does not keep; a kill may have interrupted it."""
        if not self.is_main or not self.checkpoints():
            return
        *older, newest = self.checkpoints()
        regular = [path for path in older if save_every and _step_of(path) % save_every == 0]
        for path in set(older).difference([*regular, newest][-keep_checkpoints:]):
            remove_directory(path)

    def is_finished(self, last_step: int) -> bool:
        """Return whether a fine-tuning run has ended, so that its model is the result.

        Earlier versions wrote no finished.json, but removed the checkpoints after the evaluation of
        the last step.
        """
        if not self.model_directory.exists():
            return False
        return self._finished_file.exists() or (
            not self.checkpoints()
            and any(row["kind"] == "evaluation" and row["step"] == last_step for row in self.rows())
        )

    def finish(self, last_step: int) -> None:
        """Record that the run has ended, and delete its checkpoints.

        An earlier record is kept.
        """
        if not self._finished_file.exists():
            write_json(self._finished_file, {"step": last_step})
        if self._checkpoints.exists():
            shutil.rmtree(self._checkpoints.resolve())  # it may be a link to a larger disk
        self._checkpoints.unlink(missing_ok=True)

    def restore(
        self, model: nn.Module, total_steps: int, check: Callable[[TrainState], None] | None = None
    ) -> TrainState:
        """Load state and weights of the newest checkpoint.

        The metrics that were logged after it are dropped. Without any checkpoint, the run starts over: the
        model stays as it is, and metrics.jsonl is emptied.

        Args:
            model: the model whose weights are replaced.
            total_steps: the steps of the whole run.
            check: raises ValueError if the state is not one of this run.

        Raises:
            ModelError: the checkpoint is damaged.
            DataError: metrics.jsonl lacks earlier rows, and there is no later step, whose rows the report
                could show.
        """
        if not self.checkpoints():
            self._truncate_metrics(TrainState())
            return TrainState()
        newest = self.checkpoints()[-1]
        earlier = f"remove {newest} to resume from the checkpoint before"
        for weights in (False, True):
            verify(newest, weights=weights, remedy=earlier)
        state = _read_state(newest / STATE_FILE, earlier)
        try:
            if check:
                check(state)
        except ValueError:
            raise ModelError(f"{newest / STATE_FILE}: damaged (cursor); {earlier}") from None
        with verification(False):  # verified above
            load_weights(newest, model)
        if not self._truncate_metrics(state):
            problem = f"{self._metrics.path}: lacks rows that were logged up to step {state.step:,}"
            if state.is_done or state.step >= total_steps:
                raise DataError(f"{problem}; restore the file, or {earlier}")
            print(f"warning: {problem}; the run resumes, and its report lacks their figures", file=sys.stderr)
        return state

    def restore_moments(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Load the optimizer's state of the newest checkpoint, if there is one."""
        if self.checkpoints():
            load_moments(model, optimizer, _read_moments(self.checkpoints()[-1] / OPTIMIZER_FILE))

    def _truncate_metrics(self, state: TrainState) -> bool:
        """Drop the rows after a checkpoint, and return whether all earlier ones are there."""
        return not self.is_main or self._metrics.truncate(state.metrics_bytes, state.step)


def _step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))


def _read_state(path: Path, remedy: str) -> TrainState:
    """Read state.json; raise ModelError if it is damaged."""
    try:
        return pydantic.TypeAdapter(TrainState).validate_python(read_json(path))
    except pydantic.ValidationError as error:
        key = ".".join(map(str, error.errors()[0]["loc"]))
        raise ModelError(f"{path}: damaged ({key}); {remedy}") from None


def _read_moments(path: Path) -> dict[str, Tensor]:
    """Load the optimizer's state; raise ModelError if the file is missing or damaged."""
    try:
        with utf8_path(path) as name:
            return load_file(name)
    except (FileNotFoundError, SafetensorError) as error:
        raise ModelError(
            f"{path}: missing or damaged ({error}); remove {path.parent} to resume from the checkpoint before"
        ) from None
