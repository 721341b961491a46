"""Run a table from a given model: search, train taggers, report.

The output directory OUT contains

    TABLE.md                     the results beside the paper's
    TABLE/plan.json              the model, the data, the budget, and the cap that follows from it
    TABLE/TASK/                  a run of `bertie search`; result.json when it is done
    TABLE/features-KIND-seed-0/  result.json of a tagger over features
    TABLE/glue.zip               Table 1: the predictions for GLUE's server, if all tasks are here

Finished cells are never repeated; a search that was killed resumes. Several processes may run the same
table: a process locks the cell that it works on.
"""

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pydantic

from bertie.api.arguments import PathLike
from bertie.api.search import search
from bertie.api.task_data import describe_sources
from bertie.base.arguments import checked
from bertie.base.errors import DataError, SettingsError
from bertie.base.files import check_creatable, read_json, sha256, write_json
from bertie.base.locks import LockedError, lock_directory, lock_file
from bertie.base.outputs import check_not_input
from bertie.base.progress import format_duration
from bertie.base.settings import Tree, merge, resolve
from bertie.reproduction.budget import Cost, choose_cap, measure_search, measure_tagger
from bertie.reproduction.cells import RESULT_FILE, digest, name_outcomes
from bertie.reproduction.checkpoint_report import RowResult, write_checkpoint_report
from bertie.reproduction.checkpoint_tables import (
    FOLDERS,
    CheckpointRow,
    read_checkpoint_table,
    read_found_tasks,
)
from bertie.reproduction.feature_tagger import FeatureKind, FeatureTaggerSettings, train_feature_tagger
from bertie.reproduction.runner import WAIT_SECONDS
from bertie.reproduction.tables import FEATURES, UNCASED_NOTE, read_scale
from bertie.tasks.evaluation import DEFAULT_MAX_SEQ_LENGTH
from bertie.tasks.glue import write_submission
from bertie.training.finetuning import InitialModel, hash_weights
from bertie.training.search import SearchSettings

PLAN_FILE, SUBMISSION_FILE = "plan.json", "glue.zip"


class _PlanFile(pydantic.BaseModel):
    """The contents of a table's plan.json."""

    model: str
    data: str
    restarts: int
    search: Tree
    tagger: Tree
    budget: float
    max_training_examples: int
    seconds_uncapped: float
    cells: dict[str, dict[str, float]]


class _ResultFile(pydantic.BaseModel):
    """The contents of a cell's result.json."""

    scores: dict[str, list[float]]
    majority_baseline: dict[str, float]
    settings: str
    trained_on: int
    available: int
    seconds: float


def _read_checked(path: Path, contents: type[pydantic.BaseModel], remedy: str) -> Tree:
    """Read a JSON file of these contents; raise DataError with the remedy if it is damaged."""
    try:
        tree: Tree = read_json(path)
        contents.model_validate(tree)
    except (DataError, pydantic.ValidationError):
        raise DataError(f"{path}: damaged; {remedy}") from None
    return tree


class Cell(NamedTuple):
    """A search over a task, or a tagger over features of it."""

    task: str
    features: FeatureKind | None = None
    seed: int = 0

    @property
    def name(self) -> str:
        """The name of the cell's directory."""
        return self.task if self.features is None else f"{FEATURES}-{self.features}-seed-{self.seed}"


@checked
def reproduce(
    table: str,
    *,
    model: PathLike,
    data: PathLike,
    out: PathLike,
    budget: float = 0,
    restarts: int | None = None,
    scale: str = "paper",
    device: str = "auto",
) -> dict[str, float]:
    """Fine-tune a model on the tasks of a table, like `bertie reproduce --model`.

    The same call resumes a table that was stopped or killed; finished tasks are not repeated. Tasks
    whose files are missing are left out and named in the report, OUT/TABLE.md.

    Args:
        table: "table1", "table2", "table3", "table4" or "table7", or the path of a .toml file.
        model: the model directory to start from; its head is ignored.
        data: the folder of the official files: DIR/glue, DIR/squad, DIR/swag, DIR/ner.
        out: the directory to write; several tables can share it.
        budget: minutes that the table may take; training examples are capped to fit. 0 caps nothing.
        restarts: runs of each combination of settings; by default 1, in Table 7 5.
        scale: Table 7: the scale whose settings the tagger over features has.
        device: where to compute.

    Returns:
        The score of each row on dev, in percent.

    Raises:
        SettingsError: the budget is too small, the data hold no task of the table, or `out` holds the
            table of another model or of other data, or with another budget.
        DataError, ModelError: the data or the model cannot be read.
        Stopped: SIGINT, SIGTERM or SIGHUP came; the same call resumes the table.

    Example:
        >>> scores = bertie.reproduce("table4", model="run/model", data="data", out="tables")
        >>> list(scores)
        ['accuracy']
    """
    runner = CheckpointRunner(table, Path(model), Path(data), Path(out), scale, restarts, device)
    return runner.run(budget)


class CheckpointRunner:
    """Run a table from a given model; takes the arguments of `reproduce`."""

    def __init__(
        self, name: str, model: Path, data: Path, out: Path, scale: str, restarts: int | None, device: str
    ) -> None:
        self.table = read_checkpoint_table(name)
        self.name, self.model, self.device = Path(name).stem, model, device
        self.folder, self.report_file = out / self.name, out / f"{self.name}.md"
        changes: Tree = {"finetuning": {"device": device}}
        changes |= {} if restarts is None else {"restarts": restarts}
        self.search = merge(self.table.search, changes)
        self.restarts = resolve(SearchSettings, self.search, source=name).restarts
        tree = read_scale(scale).tasks.get(FEATURES, {})
        self.tagger = resolve(FeatureTaggerSettings, tree, {"device": device}, source=scale)
        self.start = InitialModel.load(model)
        check_creatable(self.folder, out)
        check_not_input(out, [model, data])
        self.tasks, self.missing = read_found_tasks(self.table, data)

    def run(self, budget: float) -> dict[str, float]:
        """Run the cells that are not done, and return the score of each row.

        Wait for cells of other processes.
        """
        with lock_directory(self.folder, shared=True):
            with lock_file(self.folder / PLAN_FILE, wait=True):
                plan = self._read_plan(budget)
            while pending := [cell for cell in self._cells() if not self._result_file(cell).exists()]:
                self._write_report(plan)
                self._print_progress(pending, plan)
                if not any(self._try_cell(cell, plan) for cell in pending):
                    self._print("all of these are running in other processes; waiting")
                    while not any(self._try_cell(cell, plan) for cell in pending):
                        time.sleep(WAIT_SECONDS)
            return self._write_report(plan)

    def _result_file(self, cell: Cell) -> Path:
        return self.folder / cell.name / RESULT_FILE

    def _try_cell(self, cell: Cell, plan: Tree) -> bool:
        """Run a cell, unless it is done; return False if another process has locked it."""
        file = self._result_file(cell)
        try:
            with lock_file(file.parent):
                if not file.exists():
                    started = time.perf_counter()
                    result = self._run_cell(cell, plan)
                    result["seconds"] = time.perf_counter() - started
                    write_json(file, result)
        except LockedError:
            return False
        return True

    def _cells(self) -> list[Cell]:
        """Return the cells whose data are here, in the order of the table's rows."""
        cells = []
        for row in self.table.rows:
            if row.task in self.tasks:
                seeds = range(self.restarts if row.features else 1)
                cells += [Cell(row.task, row.features, seed) for seed in seeds]
        return list(dict.fromkeys(cells))

    def _run_cell(self, cell: Cell, plan: Tree) -> dict[str, Any]:
        """Run a cell; return its scores, and the number of its training examples."""
        cap, available = plan["max_training_examples"], plan["cells"][cell.name]["available"]
        trained_on = {"trained_on": min(cap or available, available), "available": available}
        if cell.features is None:
            return trained_on | self._run_search(cell.task, cap)
        settings = self.tagger.model_copy(update={"seed": cell.seed, "max_training_examples": cap})
        scores = train_feature_tagger(self.model, self.tasks[cell.task].folder, cell.features, settings)
        return trained_on | {
            "scores": {f"{FEATURES}/{name}": [value] for name, value in scores.items()},
            "majority_baseline": {},
            "settings": _describe_settings(settings.batch_size, settings.learning_rate, settings.epochs),
        }

    def _run_search(self, name: str, cap: int) -> dict[str, Any]:
        """Run or resume a search; return the scores of all restarts of the chosen trial."""
        settings = merge(self._search_settings(name), {"finetuning": {"max_training_examples": cap}})
        folder, output = self.tasks[name].folder, self.folder / name
        result = search(self.model, task=name, data=folder, out=output, settings=settings)
        chosen = result.chosen
        runs = [name_outcomes(name, read_json(run / RESULT_FILE)) for run in chosen.runs]
        return {
            "scores": {outcome: [run[outcome] for run in runs] for outcome in runs[0]},
            "majority_baseline": name_outcomes(name, result.baselines),
            "settings": _describe_settings(chosen.batch_size, chosen.learning_rate, chosen.epochs),
        }

    def _search_settings(self, task: str) -> Tree:
        """Return the settings of a search, for sequences that fit the model."""
        positions = self.start.config.max_position_embeddings
        default = self.tasks[task].examples.task.defaults.get("max_seq_length", DEFAULT_MAX_SEQ_LENGTH)
        return merge({"finetuning": {"max_seq_length": min(default, positions)}}, self.search)

    def _read_plan(self, budget: float) -> Tree:
        """Return the plan that the table was started with; make it when the table starts.

        Raises:
            SettingsError: the table was started with another plan, or the budget is too small.
            DataError: the file of the plan is damaged.
        """
        paths = [path for task in self.tasks.values() for path in task.examples.sources.values()]
        given: Tree = {
            "model": hash_weights(self.start),
            "data": digest(*(sha256(Path(str(path))) for path in paths)),
            "restarts": self.restarts,
            "search": merge(self.search),
            "tagger": self.tagger.model_dump(mode="json"),
            "budget": budget,
        }
        for section in (given["search"]["finetuning"], given["tagger"]):
            section.pop("device")  # the same run may resume on another one
        file = self.folder / PLAN_FILE
        if file.exists():
            plan = _read_checked(file, _PlanFile, "restore it, or choose another --out")
            if changed := [key for key, value in given.items() if plan[key] != value]:
                raise SettingsError(
                    f"{self.folder}: started with another {', '.join(changed)}; give the same, or choose "
                    f"another --out"
                )
            return plan
        plan = given | self._estimate(budget)
        write_json(file, plan)
        return plan

    def _estimate(self, budget: float) -> Tree:
        """Measure every cell, and choose the cap that fits them to the budget."""
        costs: dict[str, Cost] = {}
        for cell in self._cells():
            folder, examples = self.tasks[cell.task]
            self._print(f"measuring {cell.name}")
            if cell.features is None:
                layers = ({"finetuning": examples.task.defaults}, self._search_settings(cell.task))
                costs[cell.name] = measure_search(examples, self.start, resolve(SearchSettings, *layers))
                continue
            same = [cost for name, cost in costs.items() if name.startswith(FEATURES)]
            sentences = len(examples.training)
            costs[cell.name] = same[0] if same else measure_tagger(self.model, folder, sentences, self.tagger)
        cap = choose_cap(list(costs.values()), 60 * budget) if budget else 0
        whole, capped = (sum(cost.seconds(n) for cost in costs.values()) for n in (0, cap))
        self._print(f"about {format_duration(whole)} for all training examples")
        if cap:
            self._print(
                f"about {format_duration(capped)} with at most {cap:,} training examples a task, to fit "
                f"--budget {budget:g}"
            )
        cells = {
            name: {"seconds": cost.seconds(cap), "available": cost.available} for name, cost in costs.items()
        }
        return {"max_training_examples": cap, "seconds_uncapped": whole, "cells": cells}

    def _print_progress(self, pending: list[Cell], plan: Tree) -> None:
        seconds = sum(plan["cells"][cell.name]["seconds"] for cell in pending)
        self._print(f"{len(pending)} of {len(self._cells())} runs left, about {format_duration(seconds)}")

    def _print(self, line: str) -> None:
        print(f"{self.name}: {line}", file=sys.stderr, flush=True)

    def _write_report(self, plan: Tree) -> dict[str, float]:
        """Write the report of the cells that are done; return the score of each row."""
        remedy = "delete it, and the same command computes it again"
        results = {
            cell.name: _read_checked(file, _ResultFile, remedy)
            for cell in self._cells()
            if (file := self._result_file(cell)).exists()
        }
        rows = [RowResult(row, self._results_of(row, results)) for row in self.table.rows]
        notes = [f"{name}: {line}" for name, line in self.missing.items()]
        notes += self._write_submission()
        notes += [UNCASED_NOTE] if self.table.cased and self.start.tokenizer.lowercase else []
        model = describe_sources(self.start, next(iter(self.tasks.values())).examples)["base model"]
        write_checkpoint_report(self.report_file, self.table, model, self.tasks, plan, rows, notes)
        return {result.row.name: result.mean for result in rows if result.cells}

    def _results_of(self, row: CheckpointRow, results: Mapping[str, Tree]) -> list[Tree]:
        """Return the results of a row's finished cells."""
        cells = (Cell(row.task, row.features, seed) for seed in range(self.restarts if row.features else 1))
        return [results[cell.name] for cell in cells if cell.name in results]

    def _write_submission(self) -> list[str]:
        """Write glue.zip if the table is GLUE's.

        Otherwise, or if a task is missing, return a line that says why it is not written.
        """
        if not any(row.task not in FOLDERS for row in self.table.rows):
            return []
        files = {file.name: file for file in self.folder.glob("*/submission/*.tsv")}
        try:
            write_submission(files, self.folder / SUBMISSION_FILE)
        except DataError as error:
            return [str(error).removeprefix(f"{self.folder}/")]
        return []


def _describe_settings(batch_size: int, learning_rate: float, epochs: int) -> str:
    return f"batch {batch_size}, rate {learning_rate:g}, {epochs} epochs"
