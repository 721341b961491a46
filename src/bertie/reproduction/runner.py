"""Runs the cells of a table: pre-train, fine-tune on each task, score. What is done is not done again.

OUT/pretraining/DIGEST/              a run of `bertie pretrain`
OUT/finetuning/TASK-0.0001-DIGEST/   a run of `bertie finetune`: result.json when it is done
OUT/cells/TABLE/ROW/settings.toml    what the cells of a row are of
OUT/cells/TABLE/ROW/seed-0/          a cell: result.json when it is done, error.txt where it failed

Rows and tables with the same OUT share the runs that they have in common. Several processes may run one
table, or several with the same OUT: each cell and each run is taken by one of them. There is nothing else
between them but these files.
"""

import hashlib
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
from bertie.base.files import read_json, sha256, write_json, write_text
from bertie.base.progress import duration
from bertie.base.settings import Settings, Tree, read_toml, resolve, write_toml
from bertie.corpus.shards import Corpus
from bertie.reports.metrics import read_metrics
from bertie.reproduction.feature_tagger import FeatureTaggerSettings, train_feature_tagger
from bertie.reproduction.locks import Taken, taken
from bertie.reproduction.split_pairs import SPLIT_PAIRS_TASK, draw_split_pairs
from bertie.reproduction.tables import FEATURES, HALVES, HELD_OUT, Row, Scale, Table, source_of
from bertie.tasks.classification import TextClassification
from bertie.tasks.ner import NER
from bertie.tasks.task import Scores, Task
from bertie.text.tokenizer import Tokenizer
from bertie.training.finetuning import FinetuningSettings, InitialModel, finetune
from bertie.training.pretraining import PretrainingSettings, pretrain

RESULT_FILE, ERROR_FILE = "result.json", "error.txt"
DIGEST_CHARACTERS = 12
WAIT_SECONDS = 5.0  # until what others have taken is looked at again; cells take minutes

Outcomes = dict[str, float]  # by the names that columns have for them


class TaskExamples(NamedTuple):
    """A task whose labels are known, its examples to learn from and of each dev part, and a hash of them."""

    task: Task[Any, Any]
    training: Any
    dev: Mapping[str, Any]
    digest: str


class RowSettings(Settings):
    """What the cells of a row are of. How many there are, and what is claimed of them, may change."""

    corpus: str  # its fingerprint
    sources: dict[str, str]  # where the outcomes come from, and a hash of the examples there
    row: Row
    scale: Scale


class Cell(NamedTuple):
    """A row with one seed: done where it has outcomes, failed where a message says why, else yet to run."""

    row: Row
    seed: int
    directory: Path
    outcomes: Outcomes | None = None
    failure: str = ""


class Runner:
    """A table at a scale, on a corpus and the files of its tasks.

    Args:
        name: what the table is called in `out`.
        table, scale: what is to be run.
        corpus: a prepared corpus.
        tasks: what is learnt in fine-tuning, by the tasks' names.
        ner: the folder of the official files that the tagger over features learns from.
        out: where all is written.
        device: where to compute.
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
        self.corpus, self.tasks, self.ner = corpus, tasks, ner
        self.cells = out / "cells" / name
        self.pretrainings, self.finetunings = out / "pretraining", out / "finetuning"
        self.fingerprint = Corpus.open(corpus).fingerprint
        self.failures: dict[Path, str] = {}  # of this process, by the cells' directories
        for row in table.rows:  # what is wrong with a setting is to be found before anything is trained
            self._pretraining_settings(row, 0)
            for source in (*self.tasks, HALVES):
                self._finetuning_settings(row, 0, source, {}, scale.learning_rates[0])
        self._tagger_settings(0)

    def run(self) -> Iterator[list[Cell]]:
        """Run all cells, seed by seed; give them as they are at first, and again whenever one has ended.

        A failure is written down, and the others go on. What another process has taken is passed over, and
        waited for when there is nothing else to do.

        Raises:
            SettingsError: the cells that are there are of another corpus, row or scale, or of other examples,
                or have not the outcome that a column names.
            DataError: the corpus is too small for the pair set.
            Stopped: a signal came; the same call goes on.
        """
        for row in self.table.rows:  # what is missing, in the pair set too, is to be found before all else
            self._check_columns(row, self.commonest)
        self._begin()
        started, first_to_do = time.monotonic(), 0
        while True:
            cells = self._read_cells()
            yield cells
            to_do = [cell for cell in cells if cell.outcomes is None and not cell.failure]
            if not to_do:
                return
            first_to_do = first_to_do or len(to_do)
            told = f"{len(to_do)} of {len(cells)} cells to run"
            if ended := first_to_do - len(to_do):
                left = (time.monotonic() - started) / ended * len(to_do)
                told += f", about {duration(left)} left"
            self._say(told)
            if not any(self._take(cell) for cell in to_do):
                self._say("other processes are at all of these; waiting")
                while not any(self._take(cell) for cell in to_do):
                    time.sleep(WAIT_SECONDS)

    def _say(self, line: str) -> None:
        print(f"{self.name}: {line}", file=sys.stderr, flush=True)

    def _begin(self) -> None:
        """Refuse to go on with other cells, and write down what these are of."""
        begun = {}
        for row in self.table.rows:
            file = self.cells / row.folder / "settings.toml"
            pretraining = self.table.pretraining_of(row, self.scale)
            begun[file] = RowSettings(
                corpus=self.fingerprint,
                sources={source: self._digest_of(source) for source in self.table.sources_of(row)},
                row=row.model_copy(update={"pretraining": pretraining, "pretraining_at": {}, "paper": {}}),
                scale=self.scale.model_copy(update={"seeds": 1}),
            )
            if file.exists() and resolve(RowSettings, read_toml(file), source=str(file)) != begun[file]:
                raise SettingsError(
                    f"{file.parent}: these cells are of another corpus, row or scale, or of other examples; "
                    "name another --out, or remove them"
                )
        for file, settings in begun.items():
            write_toml(file, settings)

    def _read_cells(self) -> list[Cell]:
        """What there is of all cells, whichever process has run them."""
        cells = []
        for seed in range(self.scale.seeds):
            for row in self.table.rows:
                directory = self.cells / row.folder / f"seed-{seed}"
                result = directory / RESULT_FILE
                if not result.exists():
                    cells.append(Cell(row, seed, directory, failure=self.failures.get(directory, "")))
                    continue
                outcomes: Outcomes = read_json(result)
                self._check_columns(row, outcomes)
                if seed > 0 and not self.scale.pretrain_each_seed:  # the one pre-training counts once
                    outcomes = {name: of for name, of in outcomes.items() if source_of(name) != HELD_OUT}
                cells.append(Cell(row, seed, directory, outcomes))
        return cells

    def _check_columns(self, row: Row, outcomes: Outcomes) -> None:
        """Refuse a column that names none of the outcomes, where its source has some among them."""
        sources = {source_of(name) for name in outcomes}
        for column in self.table.kept_columns:
            outcome = row.outcome(column)
            if source_of(outcome) in sources and outcome not in outcomes:
                raise SettingsError(f"{column.name}: no outcome {outcome!r}; there are {', '.join(outcomes)}")

    def _take(self, cell: Cell) -> bool:
        """Run a cell unless it is done; False where another process has it, or its pre-training."""
        row, seed, directory = cell[:3]
        try:
            with taken(directory):
                if not (directory / RESULT_FILE).exists():
                    write_json(directory / RESULT_FILE, self._run_cell(row, seed))
                    (directory / ERROR_FILE).unlink(missing_ok=True)
        except Taken:
            return False
        # Besides what the user can mend: torch's lack of memory, numpy's, and what the system refuses.
        except (BertieError, RuntimeError, MemoryError, OSError) as error:
            self.failures[directory] = " ".join(str(error).split()) or type(error).__name__
            self._say(f"failed: {self.failures[directory]}")
            with suppress(OSError):  # it may be this directory that cannot be written
                write_text(directory / ERROR_FILE, traceback.format_exc())
        return True

    def _run_cell(self, row: Row, seed: int) -> Outcomes:
        settings = self._pretraining_settings(row, seed)
        run = self.pretrainings / digest(settings.model_dump_json(exclude={"device"}), self.fingerprint)
        with taken(run):
            self._say(f"{row.name}, seed {seed}")
            self._pretrain(settings, run)
        step = round(row.after * settings.total_steps)
        outcomes = _held_out(run, step)
        start = InitialModel.load(run / "model")
        if step < settings.total_steps:
            start = start._replace(weights=_checkpoint(run, step))
        sources = self.table.sources_of(row)
        for source in sources:
            if source not in (HELD_OUT, FEATURES):
                outcomes |= self._finetune(row, seed, source, start, f"{run.name} {step}")
        if FEATURES in sources:  # last: another process may have a fine-tuning, and these are not kept
            outcomes |= self._tag(row, seed, run / "model")
        self._check_columns(row, outcomes)
        return outcomes

    def _pretraining_settings(self, row: Row, seed: int) -> PretrainingSettings:
        seed = seed if self.scale.pretrain_each_seed else 0
        changes = {"seed": seed, "device": self.device}
        return resolve(
            PretrainingSettings, self.table.pretraining_of(row, self.scale), changes, source=row.name
        )

    def _pretrain(self, settings: PretrainingSettings, run: Path) -> None:
        """Run it, or go on with it, unless it is done."""
        if not (run / "model").exists():
            pretrain(settings, self.corpus, run, resume=(run / "settings.toml").exists())
        for moments in run.glob("checkpoints/*/optimizer.safetensors"):
            moments.unlink()  # the run has ended; the weights are for rows that begin from a checkpoint

    def _finetuning_settings(
        self, row: Row, seed: int, source: str, defaults: Tree, learning_rate: float
    ) -> FinetuningSettings:
        changes = {"seed": seed, "device": self.device, "optimizer": {"learning_rate": learning_rate}}
        of_task = self.scale.tasks.get(source, {})
        layers = (defaults, self.scale.finetuning, of_task, row.finetuning, changes)
        return resolve(FinetuningSettings, *layers, source=row.name)

    def _finetune(self, row: Row, seed: int, source: str, start: InitialModel, trained: str) -> Outcomes:
        """The scores on every dev part, at the learning rate that does best on the first.

        `trained` says what `start` is, among all that there is in `out`.
        """
        task, training, dev, examples = self._halves if source == HALVES else self.tasks[source]
        best: Outcomes = {}
        judged = f"{source}/{next(iter(dev))}/{task.main_metric}"
        for rate in self.scale.learning_rates:
            settings = self._finetuning_settings(row, seed, source, task.defaults, rate)
            named = digest(settings.model_dump_json(exclude={"device"}), trained, examples)
            run = self.finetunings / f"{source}-{rate:g}-{named}"
            with taken(run):
                if not (run / RESULT_FILE).exists():
                    resume = (run / "settings.toml").exists()
                    found = finetune(task, start, training, dev, settings, run, resume=resume)
                    write_json(run / RESULT_FILE, _outcomes(source, found.scores))
                    shutil.rmtree(run / "model")
            outcomes: Outcomes = read_json(run / RESULT_FILE)
            if not best or outcomes[judged] > best[judged]:
                best = outcomes
        return best

    def _tag(self, row: Row, seed: int, model: Path) -> Outcomes:
        """The scores of Section 5.3's tagger over the model's frozen vectors."""
        assert row.features is not None
        scores = train_feature_tagger(model, self.ner, row.features, self._tagger_settings(seed))
        return {f"{FEATURES}/{name}": value for name, value in scores.items()}

    def _tagger_settings(self, seed: int) -> FeatureTaggerSettings:
        changes = {"seed": seed, "device": self.device}
        return resolve(FeatureTaggerSettings, self.scale.tasks.get(FEATURES, {}), changes, source=FEATURES)

    def _digest_of(self, source: str) -> str:
        """A hash of the examples that a source learns from and is judged by."""
        if source == HELD_OUT:
            return ""  # the corpus has one
        if source == FEATURES:
            return digest(*(sha256(NER.file(self.ner, part)) for part in ("train", "dev")))
        return self._halves.digest if source == HALVES else self.tasks[source].digest

    @cached_property
    def commonest(self) -> Outcomes:
        """What is scored by giving all examples of a task the label that is commonest in training."""
        tasks = dict(self.tasks)
        if any(HALVES in self.table.sources_of(row) for row in self.table.rows):
            tasks[HALVES] = self._halves
        found: Outcomes = {}
        for source, (task, training, dev, _) in tasks.items():
            if isinstance(task, TextClassification):
                found |= _outcomes(
                    source,
                    {
                        part: task.score(examples, task.majority(training, examples))
                        for part, examples in dev.items()
                    },
                )
        return found

    @cached_property
    def _halves(self) -> TaskExamples:
        """The pair set of the corpus, which all models learn alike."""
        corpus = Corpus.open(self.corpus)
        vocabulary = Tokenizer.load(corpus.tokenizer_directory).vocabulary
        counts = self.scale.halves
        training, dev = draw_split_pairs(corpus, vocabulary, counts.training, counts.dev)
        return TaskExamples(
            SPLIT_PAIRS_TASK, training, {"dev": dev}, digest(self.fingerprint, counts.model_dump_json())
        )


def digest(*said: str) -> str:
    """A short name for what has no name of its own."""
    return hashlib.sha256("\0".join(said).encode()).hexdigest()[:DIGEST_CHARACTERS]


def _outcomes(source: str, scores: Mapping[str, Scores]) -> Outcomes:
    """The scores of each part of a task, as columns name them."""
    return {
        f"{source}/{part}/{metric}": value
        for part, of_part in scores.items()
        for metric, value in of_part.items()
    }


def _held_out(run: Path, step: int) -> Outcomes:
    """The held-out figures of pre-training at a step.

    Raises:
        SettingsError: it was not evaluated there.
    """
    rows = read_metrics(run / "metrics.jsonl")
    found = next((row for row in rows if row["kind"] == "evaluation" and row["step"] == step), None)
    if found is None:
        raise SettingsError(f"{run}: not evaluated at step {step:,}; let evaluate_every divide it")
    return {f"{HELD_OUT}/{name}": value for name, value in found.items() if name not in ("kind", "phase")}


def _checkpoint(run: Path, step: int) -> Path:
    """The weights at a step.

    Raises:
        SettingsError: they were not kept.
    """
    path = run / "checkpoints" / f"step-{step:08d}"
    if not path.exists():
        raise SettingsError(
            f"{path}: no such checkpoint; let save_every divide the step, and raise keep_checkpoints"
        )
    return path
