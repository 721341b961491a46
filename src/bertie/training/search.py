"""Appendix A.3's exhaustive search: every batch size, learning rate and number of epochs, chosen on dev."""

import itertools
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pydantic

from bertie.base.files import atomic_directory, read_json, write_json
from bertie.base.settings import Settings, write_toml
from bertie.tasks.task import Scores, Task
from bertie.training.checkpoints import RunDirectory, check_run
from bertie.training.finetuning import MAY_CHANGE, FinetuningSettings, InitialModel, encode_all, finetune

# Each axis by the setting of fine-tuning that it stands for.
GRID = {
    "batch_size": "batch_sizes",
    "optimizer.learning_rate": "learning_rates",
    "epochs": "epochs",
    "seed": "restarts",
}
# What may be another when a search goes on, for it can be widened; and what may in fine-tuning.
WIDENED = {*GRID.values(), *(f"finetuning.{key}" for key in MAY_CHANGE)}

RESULT_FILE = "result.json"  # of a run that has ended: its scores


class SearchSettings(Settings):
    """The grid of Appendix A.3; for GLUE, Section 4.1 has another."""

    batch_sizes: tuple[int, ...] = pydantic.Field((16, 32), min_length=1)
    learning_rates: tuple[float, ...] = pydantic.Field((5e-5, 3e-5, 2e-5), min_length=1)
    epochs: tuple[int, ...] = pydantic.Field((2, 3, 4), min_length=1)
    restarts: int = pydantic.Field(1, gt=0)  # each with a seed of its own
    training_set: str = ""  # hashes, filled in at the start, as those of fine-tuning
    dev_sets: str = ""
    finetuning: FinetuningSettings = FinetuningSettings()  # what the grid leaves open


class Trial(NamedTuple):
    """A place of the grid, and the runs it took.

    batch_size, learning_rate, epochs  its settings
    runs                               a directory for each restart
    scores                             the main score of each on the first dev part, in percent
    """

    batch_size: int
    learning_rate: float
    epochs: int
    runs: tuple[Path, ...]
    scores: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Of the restarts."""
        return float(np.mean(self.scores))

    @property
    def std(self) -> float:
        """Of the restarts, as of a sample; 0 where there is one."""
        return float(np.std(self.scores, ddof=1)) if len(self.scores) > 1 else 0.0


class Search(NamedTuple):
    """A finished search: all cells, and the one of the highest mean."""

    cells: list[Trial]
    chosen: Trial


def search(
    task: Task[Any, Any],
    start: InitialModel,
    training: Any,
    dev: Mapping[str, Any],
    settings: SearchSettings,
    output: Path,
) -> Search:
    """Fine-tune for each cell and restart; `output`/model is the best run of the best cell.

    A run that has ended is not repeated, and one that was killed goes on where it was: the same command,
    given again, finishes the search. Of the other cells, scores and predictions are kept, not the models:
    where a changed grid makes another run the best, that one is done again.

    Raises:
        SettingsError: the search in `output` was begun with other settings than those of the grid.
        DataError: it was begun with other examples.
        Stopped: a signal came.
    """
    _, _, fitted = encode_all(task, start, training, dev, settings.finetuning)
    data = {"training_set": fitted.training_set, "dev_sets": fitted.dev_sets}
    settings = settings.model_copy(update={"finetuning": fitted, **data})
    directory = RunDirectory(output)
    check_run(directory, settings, resume=directory.settings_file.exists(), may_change=WIDENED)
    write_toml(directory.settings_file, settings)
    cells: list[Trial] = []
    grid = itertools.product(  # each cell once
        dict.fromkeys(settings.batch_sizes),
        dict.fromkeys(settings.learning_rates),
        dict.fromkeys(settings.epochs),
    )
    for batch_size, learning_rate, epochs in grid:
        runs, scores = [], []
        for seed in range(settings.restarts):
            run = output / "cells" / f"batch{batch_size}-rate{learning_rate:g}-epochs{epochs}-seed{seed}"
            seeded = _settings_of(settings.finetuning, batch_size, learning_rate, epochs, seed)
            found = _run_once(task, start, training, dev, seeded, run)
            runs.append(run)
            scores.append(next(iter(found.values()))[task.main_metric])
        cells.append(Trial(batch_size, learning_rate, epochs, tuple(runs), tuple(scores)))
        _drop_models_but(_best(cells), cells)
    chosen = _best(cells)
    seed = int(np.argmax(chosen.scores))
    run = chosen.runs[seed]
    if not (run / "model").exists():
        shutil.rmtree(run)
        seeded = _settings_of(settings.finetuning, *chosen[:3], seed)
        _run_once(task, start, training, dev, seeded, run)
    with atomic_directory(output / "model") as temporary:
        shutil.copytree(run / "model", temporary, dirs_exist_ok=True)
    return Search(cells, chosen)


def _settings_of(
    finetuning: FinetuningSettings, batch_size: int, learning_rate: float, epochs: int, seed: int
) -> FinetuningSettings:
    """Those of a run."""
    optimizer = finetuning.optimizer.model_copy(update={"learning_rate": learning_rate})
    changes = {"batch_size": batch_size, "optimizer": optimizer, "epochs": epochs, "seed": seed}
    return finetuning.model_copy(update=changes)


def _run_once(
    task: Task[Any, Any],
    start: InitialModel,
    training: Any,
    dev: Mapping[str, Any],
    settings: FinetuningSettings,
    run: Path,
) -> dict[str, Scores]:
    """The scores of a run, which is done only where it has not been."""
    if not (run / RESULT_FILE).exists():
        resume = (run / "settings.toml").exists()
        result = finetune(task, start, training, dev, settings, run, resume=resume)
        write_json(run / RESULT_FILE, result.scores)
    scores: dict[str, Scores] = read_json(run / RESULT_FILE)
    return scores


def _best(cells: list[Trial]) -> Trial:
    """The first of the highest mean."""
    return max(cells, key=lambda cell: cell.mean)


def _drop_models_but(best: Trial, cells: list[Trial]) -> None:
    for cell in cells:
        for run in cell.runs:
            if run not in best.runs:
                shutil.rmtree(run / "model", ignore_errors=True)
