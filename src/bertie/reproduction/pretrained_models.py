"""Pre-train the models that a table's rows are fine-tuned from."""

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bertie.base.checksums import SUMS_FILE, write_sums
from bertie.base.errors import SettingsError
from bertie.base.locks import lock_directory, lock_file
from bertie.base.settings import SETTINGS_FILE, read_settings, resolve
from bertie.model.formats.directory import ModelMetadata
from bertie.model.formats.weights import save_model
from bertie.model.objectives import token_objective
from bertie.reproduction.cells import Outcomes, pretraining_directories, pretraining_directory
from bertie.reproduction.tables import HELD_OUT
from bertie.training.checkpoints import OPTIMIZER_FILE
from bertie.training.distributed import Ranks
from bertie.training.finetuning import InitialModel
from bertie.training.metrics_file import read_metrics
from bertie.training.pretraining import pretrain
from bertie.training.pretraining_settings import PretrainingSettings
from bertie.training.pretraining_setup import PretrainingSetup

RANDOM_MODEL_CARD = "# A BERT with random weights\n\nThe row without pre-training of a table of bertie.\n"


class PretrainedModel(NamedTuple):
    """A model to fine-tune.

    Attributes:
        run: the directory of the pre-training run.
        step: the step of the run that the weights are from; 0 if they are random.
        is_last: whether this is the run's last step, or its only one.
    """

    run: Path
    step: int
    is_last: bool

    @property
    def name(self) -> str:
        """A name that identifies the model among all models in OUT."""
        return f"{self.run.name} {self.step}"

    @property
    def directory(self) -> Path:
        """The directory of the run's last model, with the tokenizer."""
        return self.run / "model"

    @property
    def weights(self) -> Path:
        """The directory with the weights: the run's last model, or a checkpoint.

        Raises:
            SettingsError: the checkpoint was not written, or not kept.
        """
        path = self.directory if self.is_last else self.run / "checkpoints" / f"step-{self.step:08d}"
        if not path.exists():
            raise SettingsError(
                f"{path}: no such checkpoint; set save_every to a divisor of the step, and raise "
                f"keep_checkpoints"
            )
        return path

    @property
    def is_available(self) -> bool:
        """Whether a finished run has the weights and held-out metrics of the step."""
        if not self.directory.exists():
            return False
        try:
            self.weights  # noqa: B018
            self.read_held_out()
        except SettingsError:
            return False
        return True

    def load(self) -> InitialModel:
        """Return the model to fine-tune; raise as `weights`."""
        return InitialModel.load(self.directory)._replace(weights=self.weights)

    def read_held_out(self) -> Outcomes:
        """Return the held-out metrics at the model's step; accuracies are in percent.

        `loss` is the loss of the predicted tokens, whether they are masked or next ones.

        Raises:
            SettingsError: the run was not evaluated at that step.
        """
        if self.step == 0:
            return {}
        rows = read_metrics(self.run / "metrics.jsonl")
        row = next((row for row in rows if row["kind"] == "evaluation" and row["step"] == self.step), None)
        if row is None:
            raise SettingsError(
                f"{self.run}: not evaluated at step {self.step:,}; set evaluate_every to a divisor of it"
            )
        metrics = {name: value for name, value in row.items() if name not in ("kind", "phase")}
        metrics["loss"] = metrics[f"{token_objective(metrics)}_loss"]
        return {
            f"{HELD_OUT}/{name}": 100 * value if name.endswith("_accuracy") else value
            for name, value in metrics.items()
        }


class Pretraining(NamedTuple):
    """A row's pre-training with one seed.

    Attributes:
        settings: the settings of the row's own run.
        trunk: the settings of the run that it continues; None if it starts from random weights.
        fraction: the fraction of the row's own steps after which the model is used; 0 for random
            weights.
    """

    settings: PretrainingSettings
    trunk: PretrainingSettings | None
    fraction: float

    def run(self, corpus: Path, corpus_fingerprint: str, out: Path, title: str) -> PretrainedModel:
        """Return the model; make it first, unless it exists.

        Args:
            corpus: the corpus to pre-train on.
            corpus_fingerprint: its fingerprint.
            out: the directory OUT (see `cells`).
            title: the line to print on stderr before a run.

        Raises:
            LockedError: another process makes the model, or the trunk.
        """
        step = round(self.fraction * self.settings.total_steps)
        trunk = pretraining_directory(out, self.trunk, corpus_fingerprint) if self.trunk else None
        name = trunk.name if trunk else "" if step else "random weights"
        model = self._choose_run(pretraining_directories(out, self.settings, corpus_fingerprint, name), step)
        run = model.run
        with lock_file(run):
            if not model.directory.exists():
                print(title, file=sys.stderr, flush=True)
                if self.trunk and trunk:
                    _make_trunk(self.trunk, corpus, trunk)
                if step:
                    _pretrain(self.settings, corpus, run, trunk / "model" if trunk else None)
                else:
                    _write_random_model(self.settings, corpus, model.directory)
            _remove_moments(run)
        return model

    def _choose_run(self, directories: Sequence[Path], step: int) -> PretrainedModel:
        """Return the model in the first of some directories that has it.

        If none has, return the one to make it in. That is a run that has been started, or else the first one
        that is missing. If a finished run lacks the step, another one is made only if its checkpoints and
        evaluations will have it.
        """
        is_last = step in (0, self.settings.total_steps)
        models = [PretrainedModel(directory, step, is_last) for directory in directories]
        for model in models:
            if model.is_available:
                return model
        unfinished = [model for model in models if not model.directory.exists()]
        if not unfinished or (len(unfinished) < len(models) and not self._will_record(step)):
            return models[0]  # its errors say which settings to change
        started = (model for model in unfinished if (model.run / SETTINGS_FILE).exists())
        return next(started, unfinished[0])

    def _will_record(self, step: int) -> bool:
        """Return whether a finished run will have a checkpoint and metrics of a step.

        The run has these settings.
        """
        settings = self.settings
        if step == settings.total_steps:
            return True
        if any(every == 0 or step % every for every in (settings.save_every, settings.evaluate_every)):
            return False
        num_later_checkpoints = math.ceil((settings.total_steps - step) / settings.save_every)
        return num_later_checkpoints < settings.keep_checkpoints


def _make_trunk(settings: PretrainingSettings, corpus: Path, trunk: Path) -> None:
    """Make the trunk, unless it exists.

    It is locked only here, so that several processes can continue it at the same time.
    """
    with lock_file(trunk):
        if not (trunk / "model").exists():
            _pretrain(settings, corpus, trunk, None)
        _remove_moments(trunk)


def _pretrain(settings: PretrainingSettings, corpus: Path, run: Path, init: Path | None) -> None:
    """Start a run, or resume it.

    An earlier version may have started it with other evaluations, which may not change on resume.
    """
    file = run / SETTINGS_FILE
    resume = file.exists()
    if resume:
        started = resolve(PretrainingSettings, read_settings(file), source=str(file))
        settings = settings.model_copy(update={"evaluate_every": started.evaluate_every})
    pretrain(settings, corpus, run, init=None if resume else init, resume=resume)


def _remove_moments(run: Path) -> None:
    """Remove the files that only a resume of a run would need.

    Rows that start from a checkpoint need its weights. A killed process may have removed a part of the
    files. In between, a checkpoint has no sums, and loads.
    """
    with lock_directory(run):
        for checkpoint in run.glob("checkpoints/*"):
            moments, sums = checkpoint / OPTIMIZER_FILE, checkpoint / SUMS_FILE
            if moments.exists():
                sums.unlink(missing_ok=True)
                moments.unlink()
            if not sums.exists():
                write_sums(checkpoint)


def _write_random_model(settings: PretrainingSettings, corpus: Path, path: Path) -> None:
    """Write the model that a run without a trunk would start from.

    The run has these settings.
    """
    setup = PretrainingSetup.load(settings, corpus)
    model = setup.build_model(None, Ranks())
    metadata = ModelMetadata(setup.settings.model, model.architecture, (), setup.tokenizer)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_model(path, model, metadata, RANDOM_MODEL_CARD)
