"""Run the cells of a table: pre-train, fine-tune on each task, score.

Finished cells and runs are never repeated. Several processes may run the same table, or several
tables with the same OUT: a process locks the cell and the run that it works on. The processes
communicate only through the files in OUT (see `cells`).
"""

import shutil
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from bertie.base.errors import BertieError, SettingsError
from bertie.base.files import sha256, write_json, write_text
from bertie.base.locks import LockedError, lock_file
from bertie.base.progress import format_duration
from bertie.base.settings import Tree, merge, read_toml, resolve, write_toml
from bertie.corpus.shards import Corpus
from bertie.reproduction.cells import (
    AT_RATE,
    ERROR_FILE,
    RESULT_FILE,
    SETTINGS_FILE,
    Cell,
    Outcomes,
    RowSettings,
    add_rate,
    digest,
    finetuning_directory,
    name_outcomes,
    pretraining_directory,
    read_outcomes,
    select_rate,
)
from bertie.reproduction.feature_tagger import FeatureTaggerSettings, train_feature_tagger
from bertie.reproduction.split_pairs import SPLIT_PAIRS, SPLIT_PAIRS_TASK, draw_split_pairs
from bertie.reproduction.tables import FEATURES, HELD_OUT, Row, Scale, Table, source_of
from bertie.tasks.ner import NER
from bertie.tasks.task import Task
from bertie.text.tokenizer import Tokenizer
from bertie.training.finetuning import InitialModel, finetune
from bertie.training.finetuning_settings import FinetuningSettings
from bertie.training.metrics_file import read_metrics
from bertie.training.pretraining import pretrain
from bertie.training.pretraining_settings import PretrainingSettings

WAIT_SECONDS = 5.0  # between attempts to lock a cell of other processes; cells take minutes


class TaskExamples(NamedTuple):
    """A task, with its labels known, and its examples.

    Attributes:
        task: the task.
        training: the training examples.
        dev: the examples of each dev part.
        digest: a hash of all examples.
    """

    task: Task[Any, Any]
    training: Any
    dev: Mapping[str, Any]
    digest: str


class Runner:
    """Runs a table at a scale.

    Args:
        name: the table's name in `out` and in progress lines.
        table: the table to run.
        scale: the scale to run it at.
        corpus: a prepared corpus to pre-train on.
        tasks: the tasks to fine-tune on, by name.
        ner: folder of the official NER files, for the tagger over features.
        out: the directory to write.
        device: the device to compute on.

    Raises:
        SettingsError: a setting of the table or the scale is unknown or invalid.
    """

    def __init__(
        self,
        name: str,
        table: Table,
        scale: Scale,
        corpus: Path,
        tasks: Mapping[str, TaskExamples],
        ner: Path,
        out: Path,
        device: str,
    ) -> None:
        self.name, self.table, self.scale, self.device = name, table, scale, device
        self.corpus, self.tasks, self.ner, self.out = corpus, tasks, ner, out
        self.corpus_fingerprint = Corpus.open(corpus).fingerprint
        self.failures: dict[Path, str] = {}  # messages by cell directory; only cells of this process
        for row in table.rows:  # find invalid settings before anything is trained
            self._pretraining_settings(row, 0)
            for task in (*self.tasks, SPLIT_PAIRS):
                self._finetuning_settings(row, 0, task, {}, scale.learning_rates[0])
        self._feature_tagger_settings(0)

    def run(self) -> Iterator[list[Cell]]:
        """Run all cells, seed by seed; yield their state at the start and after each cell.

        A cell that fails does not stop the others. Cells that other processes have locked are
        skipped until nothing else is pending, and then waited for.

        Raises:
            SettingsError: existing cells were made from another corpus, row or scale or from other
                examples, or a column has an unknown outcome.
            DataError: the corpus is too small for the split pairs.
            Stopped: a signal stopped the run; the same call resumes it.
        """
        for row in self.table.rows:  # find missing data and unknown outcomes before anything is trained
            self._check_outcomes(row, self.majority_baseline)
        self._write_row_settings()
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
        """Scores of always predicting the majority class, for tasks that have one."""
        tasks = dict(self.tasks)
        if any(SPLIT_PAIRS in self.table.sources_of(row) for row in self.table.rows):
            tasks[SPLIT_PAIRS] = self._split_pairs
        outcomes: Outcomes = {}
        for name, (task, training, dev, _) in tasks.items():
            baselines = {part: task.majority_baseline(training, examples) for part, examples in dev.items()}
            outcomes |= name_outcomes(name, {part: scores for part, scores in baselines.items() if scores})
        return outcomes

    @cached_property
    def _split_pairs(self) -> TaskExamples:
        """The split pairs of the corpus, which are the same for all models."""
        corpus = Corpus.open(self.corpus)
        vocabulary = Tokenizer.load(corpus.tokenizer_directory).vocabulary
        counts = self.scale.split_pairs
        training, dev = draw_split_pairs(corpus, vocabulary, counts.training, counts.dev)
        examples_digest = digest(self.corpus_fingerprint, counts.model_dump_json())
        return TaskExamples(SPLIT_PAIRS_TASK, training, {"dev": dev}, examples_digest)

    def _check_outcomes(self, row: Row, outcomes: Outcomes) -> None:
        """Reject columns with an outcome that its source does not produce.

        Sources without outcomes in `outcomes` are not checked.

        Raises:
            SettingsError: a column has an unknown outcome.
        """
        sources = {source_of(name) for name in outcomes}
        for column in self.table.included_columns:
            outcome = row.outcome(column)
            if source_of(outcome) in sources and outcome not in outcomes:
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
            if file.exists() and resolve(RowSettings, read_toml(file), source=str(file)) != settings:
                raise SettingsError(
                    f"{file.parent}: these cells were made from another corpus, row or scale, or from other "
                    f"examples; choose another --out, or delete this directory"
                )
        for file, settings in settings_by_file.items():
            write_toml(file, settings)

    def _row_settings(self, row: Row) -> RowSettings:
        pretraining = self.table.merge_pretraining(row, self.scale)
        settings = self._pretraining_settings(row, 0)
        if any(settings.examples_of(phase).pairs == "near" for phase in range(len(settings.phases))):
            # Also if it is the default: cells of earlier versions have another distance, and lack it.
            pretraining = merge({"examples": {"near_distance": settings.examples.near_distance}}, pretraining)
        return RowSettings(
            corpus=self.corpus_fingerprint,
            sources={source: self._examples_digest(source) for source in self.table.sources_of(row)},
            row=row.model_copy(update={"pretraining": pretraining, "pretraining_at": {}, "paper": {}}),
            scale=self.scale.model_copy(update={"seeds": 1}),
        )

    def _row_directory(self, row: Row) -> Path:
        return self.out / "cells" / self.name / row.folder

    def _examples_digest(self, source: str) -> str:
        """Return a hash of the training and dev examples of a source."""
        if source == HELD_OUT:
            return ""  # the corpus has a fingerprint
        if source == FEATURES:
            return digest(*(sha256(NER.file(self.ner, part)) for part in ("train", "dev")))
        return self._task_examples(source).digest

    def _task_examples(self, task: str) -> TaskExamples:
        return self._split_pairs if task == SPLIT_PAIRS else self.tasks[task]

    def _read_cells(self) -> list[Cell]:
        """Return the current state of every cell, whichever process has run it."""
        results = {row.name: self._read_results(row) for row in self.table.rows}
        cells = []
        for seed in range(self.scale.seeds):
            for row in self.table.rows:
                directory = self._row_directory(row) / f"seed-{seed}"
                outcomes = results[row.name].get(seed)
                if outcomes is None:
                    cells.append(Cell(row, seed, directory, failure=self.failures.get(directory, "")))
                    continue
                self._check_outcomes(row, outcomes)
                if seed > 0 and not self.scale.pretrain_each_seed:  # count the only pre-training once
                    outcomes = {name: x for name, x in outcomes.items() if source_of(name) != HELD_OUT}
                cells.append(Cell(row, seed, directory, outcomes))
        return cells

    def _read_results(self, row: Row) -> dict[int, Outcomes]:
        """Return the outcomes of a row's finished cells by seed, at each task's best learning rate."""
        read = {
            seed: self._read_result(self._row_directory(row) / f"seed-{seed}")
            for seed in range(self.scale.seeds)
        }
        done = {seed: outcomes for seed, outcomes in read.items() if outcomes is not None}
        results = list(done.values())
        if results and len(self.scale.learning_rates) > 1:
            for task in self._finetuned_tasks(row):
                results = select_rate(results, self._main_outcome(task), self.scale.learning_rates)
        return dict(zip(done, results, strict=True))

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
                if source_of(name) not in (HELD_OUT, FEATURES) and AT_RATE not in name:
                    return None
        return outcomes

    def _finetuned_tasks(self, row: Row) -> list[str]:
        return [source for source in self.table.sources_of(row) if source not in (HELD_OUT, FEATURES)]

    def _main_outcome(self, task_name: str) -> str:
        """Return the outcome that selects the learning rate: the main score on the first dev part."""
        task, _, dev, _ = self._task_examples(task_name)
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
                    write_json(directory / RESULT_FILE, self._run_cell(row, seed))
                    (directory / ERROR_FILE).unlink(missing_ok=True)
        except LockedError:
            return False
        # Errors of the user, out of memory in torch and numpy, and errors of the operating system.
        except (BertieError, RuntimeError, MemoryError, OSError) as error:
            self.failures[directory] = " ".join(str(error).split()) or type(error).__name__
            self._print(f"{row.name}, seed {seed} failed: {self.failures[directory]}")
            with suppress(OSError):  # the directory may not be writable
                write_text(directory / ERROR_FILE, traceback.format_exc())
        return True

    def _run_cell(self, row: Row, seed: int) -> Outcomes:
        settings = self._pretraining_settings(row, seed)
        run = pretraining_directory(self.out, settings, self.corpus_fingerprint)
        with lock_file(run):
            self._print(f"{row.name}, seed {seed}")
            self._pretrain(settings, run)
        step = round(row.pretraining_fraction * settings.total_steps)
        outcomes = _read_held_out(run, step)
        initial_model = InitialModel.load(run / "model")
        if step < settings.total_steps:
            initial_model = initial_model._replace(weights=_find_checkpoint(run, step))
        for task in self._finetuned_tasks(row):
            outcomes |= self._finetune(row, seed, task, initial_model, f"{run.name} {step}")
        # Last, because the tagger is not kept: if another process has locked a fine-tuning run, this cell is
        # tried again from its start.
        if FEATURES in self.table.sources_of(row):
            outcomes |= self._train_feature_tagger(row, seed, run / "model")
        self._check_outcomes(row, {name.partition(AT_RATE)[0]: x for name, x in outcomes.items()})
        return outcomes

    def _pretrain(self, settings: PretrainingSettings, run: Path) -> None:
        """Start or resume a pre-training run, unless it is done."""
        if not (run / "model").exists():
            pretrain(settings, self.corpus, run, resume=(run / SETTINGS_FILE).exists())
        for moments in run.glob("checkpoints/*/optimizer.safetensors"):
            moments.unlink()  # the run is complete; rows that start from a checkpoint need only its weights

    def _finetune(
        self, row: Row, seed: int, task_name: str, initial_model: InitialModel, initial_model_name: str
    ) -> Outcomes:
        """Fine-tune with each learning rate; return the scores on dev.

        With several learning rates, the names of the scores have the rate. `initial_model_name`
        identifies the initial model among all models in `out`.
        """
        task, training, dev, examples_digest = self._task_examples(task_name)
        outcomes: Outcomes = {}
        for learning_rate in self.scale.learning_rates:
            settings = self._finetuning_settings(row, seed, task_name, task.defaults, learning_rate)
            run = finetuning_directory(self.out, task_name, settings, initial_model_name, examples_digest)
            with lock_file(run):
                if not (run / RESULT_FILE).exists():
                    resume = (run / SETTINGS_FILE).exists()
                    evaluation = finetune(task, initial_model, training, dev, settings, run, resume=resume)
                    write_json(run / RESULT_FILE, name_outcomes(task_name, evaluation.scores))
                    shutil.rmtree(run / "model")
            scores = read_outcomes(run / RESULT_FILE)
            outcomes |= add_rate(scores, learning_rate) if len(self.scale.learning_rates) > 1 else scores
        return outcomes

    def _train_feature_tagger(self, row: Row, seed: int, model: Path) -> Outcomes:
        """Train Section 5.3's tagger over the model's frozen vectors; return its scores."""
        assert row.features is not None
        scores = train_feature_tagger(model, self.ner, row.features, self._feature_tagger_settings(seed))
        return {f"{FEATURES}/{name}": value for name, value in scores.items()}

    def _pretraining_settings(self, row: Row, seed: int) -> PretrainingSettings:
        seed = seed if self.scale.pretrain_each_seed else 0
        changes = {"seed": seed, "device": self.device}
        tree = self.table.merge_pretraining(row, self.scale)
        return resolve(PretrainingSettings, tree, changes, source=f"{self.name}, row {row.name!r}")

    def _finetuning_settings(
        self, row: Row, seed: int, task: str, defaults: Tree, learning_rate: float
    ) -> FinetuningSettings:
        changes = {"seed": seed, "device": self.device, "optimizer": {"learning_rate": learning_rate}}
        task_changes = self.scale.tasks.get(task, {})
        layers = (defaults, self.scale.finetuning, task_changes, row.finetuning, changes)
        return resolve(FinetuningSettings, *layers, source=f"{self.name}, row {row.name!r}")

    def _feature_tagger_settings(self, seed: int) -> FeatureTaggerSettings:
        changes = {"seed": seed, "device": self.device}
        tree = self.scale.tasks.get(FEATURES, {})
        return resolve(
            FeatureTaggerSettings, tree, changes, source=f"scale {self.scale.name!r}, tasks.{FEATURES}"
        )


def _read_held_out(run: Path, step: int) -> Outcomes:
    """Return the held-out metrics of a pre-training run at a step.

    Raises:
        SettingsError: the run was not evaluated at that step.
    """
    rows = read_metrics(run / "metrics.jsonl")
    row = next((row for row in rows if row["kind"] == "evaluation" and row["step"] == step), None)
    if row is None:
        raise SettingsError(f"{run}: not evaluated at step {step:,}; set evaluate_every to a divisor of it")
    return {f"{HELD_OUT}/{name}": value for name, value in row.items() if name not in ("kind", "phase")}


def _find_checkpoint(run: Path, step: int) -> Path:
    """Return the checkpoint of a run at a step.

    Raises:
        SettingsError: the checkpoint was not written, or not kept.
    """
    path = run / "checkpoints" / f"step-{step:08d}"
    if not path.exists():
        raise SettingsError(
            f"{path}: no such checkpoint; set save_every to a divisor of the step, and raise keep_checkpoints"
        )
    return path
