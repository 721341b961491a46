"""Read the tables of the paper that fine-tune a given model.

They are Tables 1 to 4, and Table 7. Their recipes are table1.toml to table4.toml and table7.toml;
`checkpoint_runner.py` runs them. A row is a score of a task. Where a table of `tables.py` pre-trains a model
for each of its rows, all rows here start from the same model.
"""

from pathlib import Path
from typing import NamedTuple

import pydantic

from bertie.api.task_data import TaskData, custom_task, read_task_data
from bertie.base.errors import SettingsError
from bertie.base.settings import Settings, Tree, resolve
from bertie.recipes import read_recipe
from bertie.reproduction.feature_tagger import FeatureKind
from bertie.reproduction.tables import FEATURES, Table, source_of
from bertie.tasks.registry import find_task

# Where a task's official files are under --data: the first folder that has all of them.
FOLDERS = {
    "squad-v1": ("squad",),
    "squad-v2": ("squad",),
    "swag": ("swag", "swag*"),
    "ner": ("ner", "ner/*"),
}
GLUE_FOLDERS = ("glue",)


class CheckpointRow(Settings):
    """A row of a table: a score, the paper's numbers, and the official data's size."""

    name: str
    outcome: str  # TASK/PART/METRIC or features/METRIC, as in `tables.Column`
    features: FeatureKind | None = None  # the vectors that Section 5.3's tagger reads
    official_size: int = 0  # examples in the official training file; 0 if not known
    paper: dict[str, float] = pydantic.Field({})  # by model and part

    @property
    def task(self) -> str:
        """The task whose files the row needs."""
        source = source_of(self.outcome)
        return "ner" if source == FEATURES else source


class CheckpointTable(Settings):
    """A table whose rows fine-tune one given model."""

    title: str
    search: Tree  # settings of `bertie search`: the grid and the restarts
    rows: tuple[CheckpointRow, ...] = pydantic.Field(min_length=1)
    average: bool = False  # whether to average the rows that have numbers of the paper
    cased: bool = False  # as in `tables.Table`


class TaskFiles(NamedTuple):
    """A task's folder in the data, and its examples."""

    folder: Path
    examples: TaskData


def is_checkpoint_table(name: str) -> bool:
    """Return whether a table can only be run from a given model."""
    tree = read_recipe(name, "table")
    return "search" in tree and "columns" not in tree


def read_checkpoint_table(name: str) -> CheckpointTable:
    """Read a table to run from a given model, from a shipped recipe or a .toml file.

    Raises:
        SettingsError: there is no such recipe, it has an unknown key, or its rows pre-train models.
    """
    tree = read_recipe(name, "table")
    if "search" not in tree:
        raise SettingsError(f"{name}: its rows pre-train their own models; leave out --model")
    if "columns" not in tree:
        return resolve(CheckpointTable, tree, source=name)
    table = resolve(Table, tree, source=name)
    (column,) = table.columns
    rows = tuple(
        CheckpointRow(
            name=row.name,
            outcome=row.outcome(column),
            features=row.features,
            paper={"BERT-Base, dev": row.paper[column.name]},
        )
        for row in table.rows
        if row.is_pretrained
    )
    return CheckpointTable(title=table.title, search=table.search, rows=rows, cased=table.cased)


def read_found_tasks(table: CheckpointTable, data: Path) -> tuple[dict[str, TaskFiles], dict[str, str]]:
    """Read the tasks of a table that the data hold.

    Returns:
        The tasks by name, and a line for each task whose files are missing.

    Raises:
        SettingsError: the data hold no task of the table.
        DataError: a file cannot be read.
    """
    found: dict[str, TaskFiles] = {}
    missing: dict[str, str] = {}
    for name in dict.fromkeys(row.task for row in table.rows):
        folder = _find_folder(name, data)
        if folder is None:
            task, first = find_task(name), data / FOLDERS.get(name, GLUE_FOLDERS)[0]
            missing[name] = f"no {task.file(first, 'train')}, or a dev file is missing"
        else:
            found[name] = TaskFiles(folder, read_task_data(name, folder, None, None, custom_task()))
    if not found:
        name, line = next(iter(missing.items()))
        raise SettingsError(
            f"{data}: has no task of the table ({name}: {line}); give the folder with the tasks' folders, "
            f"such as {FOLDERS.get(name, GLUE_FOLDERS)[0]} with the files from {find_task(name).website}"
        )
    return found, missing


def _find_folder(name: str, data: Path) -> Path | None:
    """Return the first folder with the training and dev files of a task."""
    task = find_task(name)
    for pattern in FOLDERS.get(name, GLUE_FOLDERS):
        for folder in sorted(data.glob(pattern)):
            files = (task.file(folder, part) for part in ("train", *task.dev_parts))
            if folder.is_dir() and all(file.exists() for file in files):
                return folder
    return None
