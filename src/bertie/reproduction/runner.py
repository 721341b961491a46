"""Run the cells of a table: pre-train, fine-tune on each task, score.

Finished cells and runs are never repeated. Several processes may run the same table, or several
tables with the same OUT: a process locks the cell and the run that it works on. The processes
communicate only through the files in OUT (see `cells`).
"""

import shutil
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from bertie.base.errors import BertieError, SettingsError
from bertie.base.files import FULL_DISK, remove_temporary_files, write_json, write_text
from bertie.base.locks import LockedError, lock_file, remove_stale_locks
from bertie.base.progress import format_duration
from bertie.base.settings import SETTINGS_FILE, Tree, merge, read_toml, resolve, write_toml
from bertie.model.engines.hardware import Hardware
from bertie.reproduction.cells import (
    AT_RATE,
    ERROR_FILE,
    RESULT_FILE,
    Cell,
    Outcomes,
    RowSettings,
    add_rate,
    at_rate,
    best_rate,
    finetuning_directory,
    name_outcomes,
    read_outcomes,
)
from bertie.reproduction.example_scores import ExampleScores, read_example_scores, write_example_scores
from bertie.reproduction.feature_tagger import FeatureTaggerSettings, train_feature_tagger
from bertie.reproduction.pretrained_models import PretrainedModel, Pretraining
from bertie.reproduction.scoring import score_examples, score_minimal_pairs
from bertie.reproduction.sources import Sources
from bertie.reproduction.tables import (
    BLIMP,
    FEATURES,
    HELD_OUT,
    WITHOUT_FINETUNING,
    Row,
    Scale,
    Table,
    source_of,
)
from bertie.training.finetuning import finetune
from bertie.training.finetuning_settings import FinetuningSettings
from bertie.training.pretraining_settings import PretrainingSettings

WAIT_SECONDS = 5.0  # between attempts to lock a cell of other processes; cells take minutes


class CellResult(NamedTuple):
    """The outcomes of a cell or a fine-tuning, and the scores of the dev examples."""

    outcomes: Outcomes
    examples: dict[str, ExampleScores]


class Runner:
    """Runs a table at a scale.

    The corpus is read only in `run`.

    Args:
        name: the table's name in `out` and in progress lines.
        table: the table to run.
        scale: the scale to run it at.
        sources: the data to fine-tune and score on, and the prepared corpus to pre-train on.
        out: the directory to write.
        device: the device to compute on.

    Raises:
        SettingsError: a setting of the table or the scale is unknown or invalid, or this machine does not
            have the device.
        DataError: the files of named entities or of BLiMP are missing or cannot be read.
    """

    def __init__(
        self,
        name: str,
        table: Table,
        scale: Scale,
        sources: Sources,
        out: Path,
        device: str,
    ) -> None:
        self.name, self.table, self.scale, self.device = name, table, scale, device
        self.sources, self.out = sources, out
        self.failures: dict[Path, str] = {}  # messages by cell directory; only cells of this process
        self.reported: set[tuple[Any, ...]] = set()  # tasks and lengths whose inputs stderr has notes about
        # Find a missing device, invalid settings and missing files before a corpus is prepared.
        Hardware(device=device, precision="float32").resolved()
        for row in table.rows:
            self._pretraining(row, 0)
            for task in self._finetuned_tasks(row):
                self._finetuning_settings(row, 0, task, {}, scale.learning_rates[0])
            for source in {FEATURES, BLIMP}.intersection(table.sources_of(row)):
                sources.digest(source)
        self._feature_tagger_settings(0)

    def run(self) -> Iterator[list[Cell]]:
        """Run all cells, seed by seed; yield their state at the start and after each cell.

        A cell that fails does not stop the others. Cells that other processes have locked are
        skipped until nothing else is pending, and then waited for.

        Raises:
            SettingsError: existing cells were made from another corpus, row or scale or from other
                examples, or a column has an unknown outcome.
            DataError: data are missing, or the corpus is too small to draw pairs from it.
            Stopped: a signal stopped the run; the same call resumes it.
            OSError: the disk is full; the same call resumes the run.
        """
        for row in self.table.rows:  # find missing data and unknown outcomes before anything is trained
            self._check_outcomes(row, self.majority_baseline)
        self._write_row_settings()
        for cell in self._read_cells():
            remove_stale_locks(cell.directory)
        started, num_pending_at_start = time.monotonic(), 0
        while True:
            cells = self._read_cells()
            yield cells
            pending = [cell for cell in cells if cell.is_pending]
            if not pending:
                return
            num_pending_at_start = num_pending_at_start or len(pending)
            status = f"{len(pending)} of {len(cells)} cells to run"
            if num_ended := num_pending_at_start - len(pending):
                seconds_left = (time.monotonic() - started) / num_ended * len(pending)
                status += f", about {format_duration(seconds_left)} left"
            self._print(status)
            if not any(self._try_cell(cell) for cell in pending):
                self._print("all of these are running in other processes; waiting")
                while not any(self._try_cell(cell) for cell in pending):
                    time.sleep(WAIT_SECONDS)

    @cached_property
    def majority_baseline(self) -> Outcomes:
        """Scores of always predicting the majority class, for sources that have one."""
        names = {source for row in self.table.rows for source in self.table.sources_of(row)}
        outcomes: Outcomes = {}
        for name in sorted(names):
            outcomes |= self.sources.majority_baseline(name)
        return outcomes

    def _check_outcomes(self, row: Row, outcomes: Outcomes) -> None:
        """Reject columns with an outcome that its source does not produce.

        Sources without outcomes in `outcomes` are not checked.

        Raises:
            SettingsError: a column has an unknown outcome.
        """
        sources = {source_of(name) for name in outcomes}
        for column in self.table.included_columns:
            outcome = row.outcome(column)
            if outcome and source_of(outcome) in sources and outcome not in outcomes:
                raise SettingsError(
                    f"{self.name}, column {column.name!r}: unknown outcome {outcome!r}; choose from "
                    f"{', '.join(outcomes)}"
                )

    def _write_row_settings(self) -> None:
        """Write the settings of each row.

        Raises:
            SettingsError: existing cells were made with other settings or data.
        """
        settings_by_file = {
            self._row_directory(row) / SETTINGS_FILE: self._row_settings(row) for row in self.table.rows
        }
        for file, settings in settings_by_file.items():
            if file.exists() and not settings.has_same_outcomes(
                resolve(RowSettings, read_toml(file), source=str(file))
            ):
                raise SettingsError(
                    f"{file.parent}: these cells were made from another corpus, row or scale, or from other "
                    f"examples; choose another --out, or delete this directory"
                )
        for file, settings in settings_by_file.items():
            with lock_file(file, wait=True):
                write_toml(file, settings)

    def _row_settings(self, row: Row) -> RowSettings:
        pretraining = self.table.merge_pretraining(row, self.scale)
        settings = self._pretraining(row, 0).settings
        if any(settings.examples_of(phase).pairs == "near" for phase in range(len(settings.phases))):
            # Also if it is the default: cells of earlier versions have another distance, and lack it.
            pretraining = merge({"examples": {"near_distance": settings.examples.near_distance}}, pretraining)
        return RowSettings(
            corpus=self.sources.corpus.fingerprint,
            sources={source: self.sources.digest(source) for source in self.table.sources_of(row)},
            row=row.model_copy(update={"pretraining": pretraining, "pretraining_at": {}, "paper": {}}),
            scale=self.scale.model_copy(update={"seeds": 1}),
        )

    def _row_directory(self, row: Row) -> Path:
        return self.out / "cells" / self.name / row.folder

    def _read_cells(self) -> list[Cell]:
        """Return the current state of every cell, whichever process has run it."""
        results = {row.name: self._read_results(row) for row in self.table.rows}
        cells = []
        for seed in range(self.scale.seeds):
            for row in self.table.rows:
                directory = self._row_directory(row) / f"seed-{seed}"
                if seed not in results[row.name]:
                    cells.append(Cell(row, seed, directory, failure=self.failures.get(directory, "")))
                    continue
                outcomes, examples = results[row.name][seed]
                self._check_outcomes(row, outcomes)
                if seed > 0 and not self.scale.pretrain_each_seed:  # count the only pre-training once
                    outcomes = {name: x for name, x in outcomes.items() if source_of(name) != HELD_OUT}
                cells.append(Cell(row, seed, directory, outcomes, examples=examples))
        return cells

    def _read_results(self, row: Row) -> dict[int, CellResult]:
        """Return the results of a row's finished cells by seed.

        Scores are from each task's best learning rate.
        """
        results = {}
        for seed in range(self.scale.seeds):
            directory = self._row_directory(row) / f"seed-{seed}"
            outcomes = self._read_result(directory)
            if outcomes is not None:
                results[seed] = CellResult(outcomes, read_example_scores(directory))
        if results and len(self.scale.learning_rates) > 1:
            for task in self._finetuned_tasks(row):
                rate = best_rate(
                    [result.outcomes for result in results.values()],
                    self._main_outcome(task),
                    self.scale.learning_rates,
                )
                results = {
                    seed: CellResult(at_rate(outcomes, task, rate), at_rate(examples, task, rate))
                    for seed, (outcomes, examples) in results.items()
                }
        return results

    def _read_result(self, directory: Path) -> Outcomes | None:
        """Return the outcomes in a cell's result.json; None if the cell has to be run.

        Earlier versions kept only the best rate of each seed. Such a cell is run again; its
        fine-tuning runs are all there, and so nothing is trained.
        """
        if not (directory / RESULT_FILE).exists():
            return None
        outcomes = read_outcomes(directory / RESULT_FILE)
        if len(self.scale.learning_rates) > 1:
            for name in outcomes:
                if source_of(name) not in WITHOUT_FINETUNING and AT_RATE not in name:
                    return None
        return outcomes

    def _finetuned_tasks(self, row: Row) -> list[str]:
        return [source for source in self.table.sources_of(row) if source not in WITHOUT_FINETUNING]

    def _main_outcome(self, task_name: str) -> str:
        """Return the outcome that selects the learning rate.

        It is the main score on the first dev part.
        """
        task, _, dev, _ = self.sources.task_examples(task_name)
        return f"{task_name}/{next(iter(dev))}/{task.main_metric}"

    def _print(self, line: str) -> None:
        print(f"{self.name}: {line}", file=sys.stderr, flush=True)

    def _try_cell(self, cell: Cell) -> bool:
        """Run a cell, unless it is done.

        Returns:
            False if another process has locked the cell or one of its runs.
        """
        row, seed, directory = cell.row, cell.seed, cell.directory
        try:
            with lock_file(directory):
                if self._read_result(directory) is None:
                    remove_temporary_files(directory)
                    outcomes, examples = self._run_cell(row, seed)
                    write_example_scores(directory, examples)
                    (directory / ERROR_FILE).unlink(missing_ok=True)
                    write_json(directory / RESULT_FILE, outcomes)
        except LockedError:
            return False
        # Errors of the user, out of memory in torch and numpy, and errors of the operating system.
        except (BertieError, RuntimeError, MemoryError, OSError) as error:
            if isinstance(error, OSError) and error.errno in FULL_DISK:
                raise  # the other cells would fail, too
            self.failures[directory] = " ".join(str(error).split()) or type(error).__name__
            self._print(f"{row.name}, seed {seed} failed: {self.failures[directory]}")
            with suppress(OSError):  # the directory may not be writable
                write_text(directory / ERROR_FILE, traceback.format_exc())
        return True

    def _run_cell(self, row: Row, seed: int) -> CellResult:
        title = f"{self.name}: {row.name}, seed {seed}"
        corpus = self.sources.corpus
        model = self._pretraining(row, seed).run(corpus.path, corpus.fingerprint, self.out, title)
        outcomes, examples = model.read_held_out(), dict[str, ExampleScores]()
        for task in self._finetuned_tasks(row):
            scores, task_examples = self._finetune(row, seed, task, model)
            outcomes |= scores
            examples |= task_examples
        # Last, because their results are not kept: if another process has locked a fine-tuning run, this cell
        # is tried again from its start.
        if BLIMP in self.table.sources_of(row):
            is_right = score_minimal_pairs(model, self.sources.minimal_pairs, self.device, f"{title}, BLiMP")
            outcomes[f"{BLIMP}/accuracy"] = 100 * float(is_right.mean())
            examples[f"{BLIMP}/accuracy"] = is_right
        if FEATURES in self.table.sources_of(row):
            outcomes |= self._train_feature_tagger(row, seed, model.directory)
        self._check_outcomes(row, {name.partition(AT_RATE)[0]: x for name, x in outcomes.items()})
        return CellResult(outcomes, examples)

    def _finetune(self, row: Row, seed: int, task_name: str, model: PretrainedModel) -> CellResult:
        """Fine-tune with each learning rate; return the scores on dev.

        With several learning rates, the names of the scores have the rate.
        """
        task, training, dev, examples_digest = self.sources.task_examples(task_name)
        outcomes: Outcomes = {}
        examples: dict[str, ExampleScores] = {}
        for learning_rate in self.scale.learning_rates:
            settings = self._finetuning_settings(row, seed, task_name, task.defaults, learning_rate)
            run = finetuning_directory(self.out, task_name, settings, model.name, examples_digest)
            with lock_file(run):
                if not (run / RESULT_FILE).exists():
                    resume = (run / SETTINGS_FILE).exists()
                    read = (task_name, settings.max_seq_length, settings.classifier_pooling)
                    evaluation = finetune(
                        task,
                        model.load(),
                        training,
                        dev,
                        settings,
                        run,
                        resume=resume,
                        inputs_reported=read in self.reported,
                    )
                    self.reported.add(read)
                    scored = score_examples(task, dev, evaluation.predictions)
                    write_example_scores(run, {f"{task_name}/{name}": x for name, x in scored.items()})
                    write_json(run / RESULT_FILE, name_outcomes(task_name, evaluation.scores))
                # Not needed from here on; a killed process may have left it, whole or in part.
                shutil.rmtree(run / "model", ignore_errors=True)
            scores, own = read_outcomes(run / RESULT_FILE), read_example_scores(run)
            if len(self.scale.learning_rates) > 1:
                scores, own = add_rate(scores, learning_rate), add_rate(own, learning_rate)
            outcomes |= scores
            examples |= own
        return CellResult(outcomes, examples)

    def _train_feature_tagger(self, row: Row, seed: int, model: Path) -> Outcomes:
        """Train Section 5.3's tagger over the model's frozen vectors; return its scores."""
        assert row.features is not None
        settings = self._feature_tagger_settings(seed)
        scores = train_feature_tagger(model, self.sources.folders["ner"], row.features, settings)
        return {f"{FEATURES}/{name}": value for name, value in scores.items()}

    def _pretraining(self, row: Row, seed: int) -> Pretraining:
        trunk = self.table.merge_trunk(row, self.scale)
        return Pretraining(
            self._pretraining_settings(row, seed, self.table.merge_pretraining(row, self.scale)),
            None if trunk is None else self._pretraining_settings(row, seed, trunk),
            row.pretraining_fraction,
        )

    def _pretraining_settings(self, row: Row, seed: int, tree: Tree) -> PretrainingSettings:
        seed = seed if self.scale.pretrain_each_seed else 0
        changes = {"seed": seed, "device": self.device}
        return resolve(PretrainingSettings, tree, changes, source=self._describe(row))

    def _finetuning_settings(
        self, row: Row, seed: int, task: str, defaults: Tree, learning_rate: float
    ) -> FinetuningSettings:
        changes = {"seed": seed, "device": self.device, "optimizer": {"learning_rate": learning_rate}}
        task_changes = self.scale.tasks.get(task, {})
        layers = (defaults, self.scale.finetuning, task_changes, row.finetuning, changes)
        return resolve(FinetuningSettings, *layers, source=self._describe(row))

    def _describe(self, row: Row) -> str:
        """Return where the settings of a row come from, for error messages."""
        return f"{self.name}, row {row.name!r}, scale {self.scale.name!r}"

    def _feature_tagger_settings(self, seed: int) -> FeatureTaggerSettings:
        changes = {"seed": seed, "device": self.device}
        tree = self.scale.tasks.get(FEATURES, {})
        return resolve(
            FeatureTaggerSettings, tree, changes, source=f"scale {self.scale.name!r}, tasks.{FEATURES}"
        )
