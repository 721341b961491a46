"""Runs the cells of a table: pre-train, fine-tune on each task, score. What is done is not done again.

OUT/pretraining/DIGEST/                 a run of `bertie pretrain`; tables with the same OUT share it
OUT/cells/TABLE/settings.toml           what the cells are of
OUT/cells/TABLE/ROW/seed-0/             a cell: result.json when it is done, error.txt where it failed
OUT/cells/TABLE/ROW/seed-0/TASK-0.0001/ a run of `bertie finetune`
"""

import hashlib
import shutil
import sys
import traceback
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from bertie.base.errors import BertieError, SettingsError
from bertie.base.files import read_json, write_json, write_text
from bertie.base.settings import Settings, Tree, read_toml, resolve, write_toml
from bertie.corpus.shards import Corpus
from bertie.reports.metrics import read_metrics
from bertie.reproduction.passages import PASSAGE_PAIRS, passage_pairs
from bertie.reproduction.tables import FEATURES, HELD_OUT, PASSAGES, Row, Scale, Table
from bertie.tasks.evaluation import USUAL_LENGTH
from bertie.tasks.features import FeatureTaggerSettings, train_feature_tagger
from bertie.tasks.finetuning import FinetuningSettings, Start, finetune
from bertie.tasks.task import Task
from bertie.text.tokenizer import Tokenizer
from bertie.training.pretraining import PretrainingSettings, pretrain

RESULT_FILE, ERROR_FILE = "result.json", "error.txt"
DIGEST_CHARACTERS = 12

Outcomes = dict[str, float]  # by the names that columns have for them


class TaskExamples(NamedTuple):
    """A task whose labels are known, and its examples: to learn from, and of each dev part."""

    task: Task[Any, Any]
    training: Any
    dev: Mapping[str, Any]


class Begun(Settings):
    """What the cells in a directory are of."""

    corpus: str  # its fingerprint
    table: Table
    scale: Scale


class Cell(NamedTuple):
    """A row with one seed. `outcomes` is None where it failed."""

    row: Row
    seed: int
    directory: Path
    outcomes: Outcomes | None


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
        self.cells, self.pretrainings = out / "cells" / name, out / "pretraining"
        self.fingerprint = Corpus.open(corpus).fingerprint
        for row in table.rows:  # what is wrong with a setting is to be found before anything is trained
            for seed in range(scale.seeds):
                self._pretraining_settings(row, seed)
            for source in (*self.tasks, PASSAGES):
                self._finetuning_settings(row, 0, source, {}, scale.learning_rates[0])

    def run(self) -> list[Cell]:
        """All cells, seed by seed; a failure is written down, and the others go on.

        Raises:
            SettingsError: the cells that are there are of another corpus, table or scale.
            Stopped: a signal came; the same call goes on.
        """
        begun = Begun(corpus=self.fingerprint, table=self.table, scale=self.scale)
        file = self.cells / "settings.toml"
        if file.exists() and resolve(Begun, read_toml(file), source=str(file)) != begun:
            raise SettingsError(
                f"{self.cells}: these cells are of another corpus, table or scale; name another --out"
            )
        write_toml(file, begun)
        cells = []
        places = [(row, seed) for seed in range(self.scale.seeds) for row in self.table.rows]
        for number, (row, seed) in enumerate(places, start=1):
            directory = self.cells / row.folder / f"seed-{seed}"
            if not (directory / RESULT_FILE).exists():
                told = f"cell {number} of {len(places)}: {row.name}, seed {seed}"
                print(f"{self.name}: {told}", file=sys.stderr, flush=True)
                self._try(row, seed, directory)
            done = (directory / RESULT_FILE).exists()
            outcomes = read_json(directory / RESULT_FILE) if done else None
            cells.append(Cell(row, seed, directory, outcomes))
        return cells

    def _try(self, row: Row, seed: int, directory: Path) -> None:
        try:
            outcomes = self._run_cell(row, seed, directory)
        except (BertieError, RuntimeError) as error:  # a loss that is not finite; torch's lack of memory
            print(f"{self.name}: failed: {error}", file=sys.stderr, flush=True)
            write_text(directory / ERROR_FILE, traceback.format_exc())
        else:
            write_json(directory / RESULT_FILE, outcomes)
            (directory / ERROR_FILE).unlink(missing_ok=True)
            for run in directory.glob("*/model"):
                shutil.rmtree(run)

    def _run_cell(self, row: Row, seed: int, directory: Path) -> Outcomes:
        settings = self._pretraining_settings(row, seed)
        run = self._pretrain(settings)
        step = round(row.after * settings.total_steps)
        outcomes = _held_out(run, step)
        start = Start.load(run / "model")
        if step < settings.total_steps:
            start = start._replace(weights=_checkpoint(run, step))
        for source in self.table.sources_of(row):
            if source == FEATURES:
                outcomes |= self._tag(row, seed, run / "model")
            elif source != HELD_OUT:
                outcomes |= self._finetune(row, seed, source, start, directory)
        return outcomes

    def _pretraining_settings(self, row: Row, seed: int) -> PretrainingSettings:
        seed = seed if self.scale.pretrain_each_seed else 0
        changes = {"seed": seed, "device": self.device}
        return resolve(
            PretrainingSettings, self.table.pretraining_of(row, self.scale), changes, source=row.name
        )

    def _pretrain(self, settings: PretrainingSettings) -> Path:
        """The run with these settings on this corpus, which may be there already."""
        said = settings.model_dump_json(exclude={"device"}) + self.fingerprint
        digest = hashlib.sha256(said.encode()).hexdigest()[:DIGEST_CHARACTERS]
        run = self.pretrainings / digest
        if not (run / "model").exists():
            pretrain(settings, self.corpus, run, resume=(run / "settings.toml").exists())
            for moments in run.glob("checkpoints/*/optimizer.safetensors"):
                moments.unlink()  # the run has ended; the weights are for rows that begin from a checkpoint
        return run

    def _finetuning_settings(
        self, row: Row, seed: int, source: str, defaults: Tree, learning_rate: float
    ) -> FinetuningSettings:
        changes = {"seed": seed, "device": self.device, "optimizer": {"learning_rate": learning_rate}}
        of_task = self.scale.tasks.get(source, {})
        layers = (defaults, self.scale.finetuning, of_task, row.finetuning, changes)
        return resolve(FinetuningSettings, *layers, source=row.name)

    def _finetune(self, row: Row, seed: int, source: str, start: Start, directory: Path) -> Outcomes:
        """The scores on every dev part, at the learning rate that does best on the first."""
        task, training, dev = self._passages if source == PASSAGES else self.tasks[source]
        best: Outcomes = {}
        judged = f"{source}/{next(iter(dev))}/{task.main_metric}"
        for rate in self.scale.learning_rates:
            settings = self._finetuning_settings(row, seed, source, task.defaults, rate)
            run = directory / f"{source}-{rate:g}"
            resume = (run / "settings.toml").exists()
            found = finetune(task, start, training, dev, settings, run, resume=resume)
            outcomes = {
                f"{source}/{part}/{metric}": value
                for part, scores in found.scores.items()
                for metric, value in scores.items()
            }
            if not best or outcomes[judged] > best[judged]:
                best = outcomes
        return best

    def _tag(self, row: Row, seed: int, model: Path) -> Outcomes:
        """The scores of Section 5.3's tagger over the model's frozen vectors."""
        assert row.features is not None
        changes = {"seed": seed, "device": self.device}
        settings = resolve(FeatureTaggerSettings, self.scale.tasks.get(FEATURES, {}), changes)
        scores = train_feature_tagger(model, self.ner, row.features, settings)
        return {f"{FEATURES}/{name}": value for name, value in scores.items()}

    @cached_property
    def _passages(self) -> TaskExamples:
        """The pair set of the corpus, which all models learn alike."""
        corpus = Corpus.open(self.corpus)
        tokenizer = Tokenizer.load(corpus.tokenizer_directory)
        longest = self.scale.finetuning.get("max_seq_length", USUAL_LENGTH)
        sizes = self.scale.passages
        training, dev = passage_pairs(corpus, tokenizer, longest, sizes.training, sizes.dev)
        return TaskExamples(PASSAGE_PAIRS, training, {"dev": dev})


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
