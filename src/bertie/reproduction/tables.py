"""What a table of the paper is, and the scale it is run at: both are recipes."""

import re
from collections import Counter
from typing import Self

import pydantic

from bertie.base.errors import SettingsError
from bertie.base.settings import Settings, Tree, merge, resolve
from bertie.recipes import FOLDER, read_recipe
from bertie.reproduction.feature_tagger import FeatureKind
from bertie.tasks.registry import find_task

HELD_OUT = "held_out"  # outcomes of pre-training itself
HALVES = "halves"  # the pair set of halves.py
FEATURES = "features"  # Section 5.3's tagger over frozen vectors


def source_of(outcome: str) -> str:
    """HELD_OUT, HALVES, FEATURES or a task's name."""
    return outcome.split("/")[0]


class Column(Settings):
    """A column of a table. An outcome is `held_out/FIGURE`, or `TASK/PART/METRIC`."""

    name: str
    outcome: str
    lower_is_better: bool = False


class Row(Settings):
    """A row of a table: what it changes of the scale's settings, and what the paper has in it."""

    name: str
    paper: dict[str, float] = pydantic.Field({})  # by the names of columns
    pretraining: Tree = pydantic.Field({})
    pretraining_at: dict[str, Tree] = pydantic.Field({})  # what it changes at one scale only
    finetuning: Tree = pydantic.Field({})
    features: FeatureKind | None = None  # which vectors Section 5.3's tagger reads
    outcomes: dict[str, str] = pydantic.Field({})  # where a column has another outcome in this row
    after: float = pydantic.Field(1.0, gt=0, le=1)  # of the steps: fine-tune from the checkpoint there

    @property
    def folder(self) -> str:
        """Its name as that of a folder."""
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")

    def outcome(self, column: Column) -> str:
        """What the row has in a column."""
        return self.outcomes.get(column.name, column.outcome)


class Claim(Settings):
    """An ordering that the paper states without a number for each side, or that is ours to test."""

    better: str
    worse: str
    columns: tuple[str, ...]


class Table(Settings):
    """A table of the paper, or one of ours beside them."""

    title: str
    columns: tuple[Column, ...] = pydantic.Field(min_length=1)
    rows: tuple[Row, ...] = pydantic.Field(min_length=1)
    claims: tuple[Claim, ...] = ()
    pretraining_at: dict[str, Tree] = pydantic.Field({})  # what all its rows change at one scale
    without_at: dict[str, tuple[str, ...]] = pydantic.Field({})  # sources that it leaves out at one scale
    without: tuple[str, ...] = ()  # these, and what the scale leaves out
    cased: bool = False  # as the paper is for named entities

    @pydantic.model_validator(mode="after")
    def _names_are_known(self) -> Self:
        rows, columns = {row.name for row in self.rows}, {column.name for column in self.columns}
        used = [(name, columns) for row in self.rows for name in (*row.paper, *row.outcomes)]
        used += [(name, rows) for claim in self.claims for name in (claim.better, claim.worse)]
        used += [(name, columns) for claim in self.claims for name in claim.columns]
        for name, known in used:
            if name not in known:
                raise ValueError(f"{name!r} is not one of {', '.join(sorted(known))}")
        folders = Counter(row.folder for row in self.rows)
        if twice := [row.name for row in self.rows if folders[row.folder] > 1]:
            raise ValueError(f"these rows would have the same folder: {', '.join(twice)}")
        for row in self.rows:
            if FEATURES in self.sources_of(row) and row.features is None:
                raise ValueError(f"row {row.name!r}: say with 'features' which vectors it reads")
            if row.features is not None and row.after < 1:
                raise ValueError(f"row {row.name!r}: 'features' are of the last step; leave 'after' out")
        return self

    def sources_of(self, row: Row) -> list[str]:
        """Where the row's outcomes come from: HELD_OUT, HALVES, FEATURES, tasks."""
        return list(dict.fromkeys(source_of(row.outcome(column)) for column in self.kept_columns))

    @property
    def kept_columns(self) -> tuple[Column, ...]:
        """Those that are not left out."""
        return tuple(column for column in self.columns if source_of(column.outcome) not in self.without)

    def pretraining_of(self, row: Row, scale: "Scale") -> Tree:
        """The settings of a row's pre-training, less the seed."""
        at_scale = (changes.get(scale.name, {}) for changes in (self.pretraining_at, row.pretraining_at))
        return merge(scale.pretraining, row.pretraining, *at_scale)

    def tasks(self) -> list[str]:
        """The tasks whose files are needed."""
        sources = dict.fromkeys(source for row in self.rows for source in self.sources_of(row))
        return [source for source in sources if source not in (HELD_OUT, HALVES, FEATURES)]

    def claimed(self) -> list[tuple[Row, Row, Column]]:
        """Every ordering (better, worse, column) that the paper's numbers or a claim make."""
        by_name = {row.name: row for row in self.rows}
        orderings = []
        for column in self.kept_columns:
            numbered = [row for row in self.rows if column.name in row.paper]
            numbered.sort(key=lambda row: row.paper[column.name], reverse=not column.lower_is_better)
            for place, better in enumerate(numbered):
                for worse in numbered[place + 1 :]:
                    if better.paper[column.name] != worse.paper[column.name]:
                        orderings.append((better, worse, column))
            for claim in self.claims:
                if column.name in claim.columns:
                    orderings.append((by_name[claim.better], by_name[claim.worse], column))
        return orderings


class PairCounts(Settings):
    """How many pairs of halves are learnt from, and judged by."""

    training: int = pydantic.Field(60_000, ge=4)
    dev: int = pydantic.Field(10_000, ge=4)


class Scale(Settings):
    """How large the runs of a table are."""

    name: str
    seeds: int = pydantic.Field(5, gt=0)
    pretrain_each_seed: bool  # or once a row, and the seeds are restarts of fine-tuning alone
    vocabulary_size: int = pydantic.Field(30_522, gt=0)
    held_out: float = 0.005  # of the documents
    pretraining: Tree = pydantic.Field({})
    finetuning: Tree = pydantic.Field({})
    learning_rates: tuple[float, ...] = pydantic.Field(min_length=1)  # of fine-tuning; the best on dev counts
    tasks: dict[str, Tree] = pydantic.Field({})  # what one of them changes of fine-tuning
    folders: dict[str, str] = pydantic.Field({})  # of a task's official files under --data; else it is glue
    halves: PairCounts = PairCounts()
    without: tuple[str, ...] = ()  # tasks that are out of reach at this scale


def read_table(name: str, scale: Scale) -> Table:
    """A table by its recipe's name or path, less the columns that the scale is without.

    Raises:
        SettingsError: there is none, it has an unknown key or name, or a row is not made for the scale.
    """
    recipe = read_recipe(name)
    if "rows" not in recipe:
        raise SettingsError(f"{name}: not a table, for it has no rows")
    table = resolve(Table, recipe, source=name)
    without = (*scale.without, *table.without_at.get(scale.name, ()))
    table = table.model_copy(update={"without": without})
    for row in table.rows:
        if row.pretraining_at and scale.name not in row.pretraining_at:
            raise SettingsError(
                f"{name}: row {row.name!r} has settings at {', '.join(row.pretraining_at)}, not at "
                f"{scale.name!r}; copy the table and add them"
            )
    return table


def read_scale(name: str) -> Scale:
    """A scale by its name (`paper`, `laptop`), or by the path of a .toml file.

    Raises:
        SettingsError: there is none, or it has an unknown key or task.
    """
    known = [path.stem.removeprefix("scale-") for path in sorted(FOLDER.glob("scale-*.toml"))]
    if not name.endswith(".toml") and name not in known:
        raise SettingsError(f"no scale {name!r}; known: {', '.join(known)}, or the path of a .toml file")
    scale = resolve(Scale, read_recipe(f"scale-{name}" if name in known else name), source=name)
    for task in (*scale.tasks, *scale.folders, *scale.without):
        if task not in (HALVES, FEATURES):
            find_task(task)
    return scale
