"""Exhaustive search (Appendix A.3): fine-tune over a grid, and choose on dev."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pydantic

from bertie.base.checksums import verify
from bertie.base.errors import DataError
from bertie.base.files import atomic_directory, copy_directory, read_json, remove_directory, write_json
from bertie.base.locks import lock_directory
from bertie.base.settings import Settings
from bertie.tasks.task import Scores, Task
from bertie.training.checkpoints import RunDirectory
from bertie.training.finetuning import InitialModel, apply_settings, encode_examples, finetune, report_inputs
from bertie.training.finetuning_settings import MAY_CHANGE, FinetuningSettings, lacking_settings
from bertie.training.resuming import check_run

# The axes of the grid: setting of fine-tuning -> setting of the search.
GRID = {
    "batch_size": "batch_sizes",
    "optimizer.learning_rate": "learning_rates",
    "epochs": "epochs",
    "seed": "restarts",
}
# Settings that may change when a search resumes: the grid, and settings that may change in fine-tuning.
SEARCH_MAY_CHANGE = {*GRID.values(), *(f"finetuning.{key}" for key in MAY_CHANGE)}

RESULT_FILE = "result.json"  # scores of a complete run
TRIALS_FOLDER, FORMER_TRIALS_FOLDER = "trials", "cells"


class SearchSettings(Settings):
    """Settings of a search; the default grid comes from Appendix A.3.

    Attributes:
        batch_sizes: the batch sizes of the grid.
        learning_rates: the learning rates of the grid.
        epochs: the numbers of epochs of the grid.
        restarts: runs of each trial, with the seeds 0, 1 and so on.
        training_fingerprint: as in `FinetuningSettings`.
        dev_fingerprint: as in `FinetuningSettings`.
        finetuning: all settings of fine-tuning that are not in the grid.
    """

    batch_sizes: tuple[pydantic.PositiveInt, ...] = pydantic.Field((16, 32), min_length=1)
    learning_rates: tuple[pydantic.PositiveFloat, ...] = pydantic.Field((5e-5, 3e-5, 2e-5), min_length=1)
    epochs: tuple[pydantic.PositiveInt, ...] = pydantic.Field((2, 3, 4), min_length=1)
    restarts: int = pydantic.Field(1, gt=0)
    training_fingerprint: str = ""
    dev_fingerprint: str = ""
    finetuning: FinetuningSettings = FinetuningSettings()

    renamed: ClassVar[Mapping[str, str]] = {
        "training_set": "training_fingerprint",
        "dev_sets": "dev_fingerprint",
    }


class Trial(NamedTuple):
    """A combination of settings, with one run per restart.

    batch_size, learning_rate, epochs  the settings
    runs                               directory of each run
    scores                             main score of each run on the first dev part, in percent
    """

    batch_size: int
    learning_rate: float
    epochs: int
    runs: tuple[Path, ...]
    scores: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean score of the restarts."""
        return float(np.mean(self.scores))

    @property
    def best_run(self) -> Path:
        """Directory of the run with the highest score, the first of several."""
        return self.runs[int(np.argmax(self.scores))]

    @property
    def std(self) -> float:
        """Sample standard deviation over the restarts; 0 for a single one."""
        return float(np.std(self.scores, ddof=1)) if len(self.scores) > 1 else 0.0


class Search(NamedTuple):
    """The result of a search: all trials, and the one with the highest mean score."""

    trials: list[Trial]
    chosen: Trial


def search(
    task: Task[Any, Any],
    initial_model: InitialModel,
    training_examples: Any,
    dev_examples: Mapping[str, Any],
    settings: SearchSettings,
    output: Path,
    *,
    arguments: Mapping[str, Any] | None = None,
    sources: Mapping[str, str] | None = None,
) -> Search:
    """Fine-tune with every combination of the grid; choose the best one on dev.

    The best run of the chosen trial is copied to `output`/model. For the other trials, the
    scores and predictions are kept, but not the models.

    A search that was stopped or killed resumes when called again with the same arguments: complete
    runs are not repeated, and incomplete ones resume. The grid may change. If the best run's
    model was deleted earlier, that run is repeated.

    Args:
        task, initial_model, training_examples, dev_examples, arguments, sources: as in `finetune`.
        settings: the grid, and the other settings of fine-tuning.
        output: directory of the search.

    Raises:
        SettingsError: the settings of the resumed search differ outside the grid.
        DataError: the resumed search started with other examples or another model, or the scores of a
            run are damaged.
        ModelError: the model of the best run is damaged.
        BertieError: another process writes to `output`.
        Stopped: a signal stopped the search.
    """
    with lock_directory(output):
        task = apply_settings(task, settings.finetuning, dev_examples)
        inputs, parts, finetuning = encode_examples(
            task, initial_model, training_examples, dev_examples, settings.finetuning
        )
        report_inputs(task, inputs, parts, finetuning)
        directory = RunDirectory(output, arguments=arguments)
        lacking = lacking_settings(directory.settings_file, "finetuning")
        finetuning = finetuning.model_copy(update=dict.fromkeys(lacking))
        fingerprints = {key: getattr(finetuning, key) for key in ("training_fingerprint", "dev_fingerprint")}
        settings = settings.model_copy(update={"finetuning": finetuning, **fingerprints})
        resume, lacking = directory.settings_file.exists(), {f"finetuning.{key}" for key in lacking}
        check_run(directory, settings, resume, SEARCH_MAY_CHANGE | lacking)
        directory.write_settings(settings)
        trials_folder = _trials_folder(output)
        runner = _TrialRunner(
            task, initial_model, training_examples, dev_examples, finetuning, trials_folder, sources
        )
        return _search(runner, settings, directory.model_directory)


def _search(runner: "_TrialRunner", settings: SearchSettings, output: Path) -> Search:
    """Run the trials, and copy the best run's model to `output`."""
    combinations = itertools.product(  # each one once, even if the grid lists a value twice
        dict.fromkeys(settings.batch_sizes),
        dict.fromkeys(settings.learning_rates),
        dict.fromkeys(settings.epochs),
    )
    trials: list[Trial] = []
    for batch_size, learning_rate, epochs in combinations:
        trials.append(runner.run_trial(batch_size, learning_rate, epochs, settings.restarts))
        _remove_models(trials, keep=_best(trials))
    chosen = _best(trials)
    model = runner.best_model(chosen)
    remedy = f"delete {model} and resume the search, which trains this run again"
    verify(model, remedy=remedy)
    verify(model, weights=True, remedy=remedy)
    with atomic_directory(output) as temporary:
        copy_directory(model, temporary)
    return Search(trials, chosen)


@dataclass(frozen=True)
class _TrialRunner:
    """Runs trials in subfolders of `folder`, unless their results are there already."""

    task: Task[Any, Any]
    initial_model: InitialModel
    training_examples: Any
    dev_examples: Mapping[str, Any]
    settings: FinetuningSettings
    folder: Path
    sources: Mapping[str, str] | None

    def run_trial(self, batch_size: int, learning_rate: float, epochs: int, restarts: int) -> Trial:
        """Run a combination of the grid with the seeds 0 to `restarts` - 1."""
        runs, scores = [], []
        for seed in range(restarts):
            run = self.folder / f"batch{batch_size}-rate{learning_rate!r}-epochs{epochs}-seed{seed}"
            self._run(run, batch_size, learning_rate, epochs, seed)
            runs.append(run)
            scores.append(_read_score(run / RESULT_FILE, self.task.main_metric))
        return Trial(batch_size, learning_rate, epochs, tuple(runs), tuple(scores))

    def best_model(self, trial: Trial) -> Path:
        """Return the best run's model directory; repeat the run if its model is gone."""
        run = trial.best_run
        if not (run / "model").exists():
            remove_directory(run)
            seed = trial.runs.index(run)
            self._run(run, trial.batch_size, trial.learning_rate, trial.epochs, seed)
        return run / "model"

    def _run(self, run: Path, batch_size: int, learning_rate: float, epochs: int, seed: int) -> None:
        """Start, resume or skip a run; write its scores."""
        if not (run / RESULT_FILE).exists():
            optimizer = self.settings.optimizer.model_copy(update={"learning_rate": learning_rate})
            changes = {"batch_size": batch_size, "optimizer": optimizer, "epochs": epochs, "seed": seed}
            result = finetune(
                self.task,
                self.initial_model,
                self.training_examples,
                self.dev_examples,
                self.settings.model_copy(update=changes),
                run,
                resume=(run / "settings.toml").exists(),
                inputs_reported=True,
                sources=self.sources,
            )
            write_json(run / RESULT_FILE, result.scores)


def _read_score(path: Path, metric: str) -> float:
    """Return the main score of a run on the first dev part.

    Raises:
        DataError: the file of its scores is damaged.
    """
    try:
        scores = pydantic.TypeAdapter(dict[str, Scores]).validate_python(read_json(path))
        return next(iter(scores.values()))[metric]
    except (DataError, pydantic.ValidationError, StopIteration, KeyError):
        raise DataError(
            f"{path}: damaged; delete it and resume the search, which evaluates or trains this run again"
        ) from None


def _trials_folder(output: Path) -> Path:
    """Return the folder of the runs, which had another name in earlier versions."""
    former = output / FORMER_TRIALS_FOLDER
    return former if former.exists() else output / TRIALS_FOLDER


def _best(trials: list[Trial]) -> Trial:
    """Return the trial with the highest mean score, the first of several."""
    return max(trials, key=lambda trial: trial.mean)


def _remove_models(trials: list[Trial], keep: Trial) -> None:
    for trial in trials:
        for run in trial.runs:
            if run not in keep.runs:
                remove_directory(run / "model")
