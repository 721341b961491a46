"""The tables of the paper and the scales of their runs, read from TOML recipes.

The tables are recipes/table5.toml to table8.toml and figure5.toml; `runner.py` runs them.
"""

import re
from collections import Counter
from collections.abc import Collection, Mapping
from functools import partial
from itertools import pairwise
from typing import Annotated, ClassVar, NamedTuple, Self

import pydantic

from bertie.base.errors import SettingsError
from bertie.base.settings import Settings, Tree, merge, resolve, with_current_names
from bertie.recipes import read_recipe
from bertie.reproduction.feature_tagger import FeatureKind, FeatureTaggerSettings
from bertie.reproduction.same_article import SAME_ARTICLE
from bertie.reproduction.split_pairs import SPLIT_PAIRS
from bertie.tasks.registry import find_task
from bertie.training.finetuning_settings import FinetuningSettings
from bertie.training.pretraining_settings import PretrainingSettings

# An outcome is a number that a cell produces; the part of its name before the first slash is its source.
# The sources are the tasks and these:
HELD_OUT = "held_out"  # evaluation of the pre-training run
FEATURES = "features"  # Section 5.3's tagger over frozen vectors
BLIMP = "blimp"  # minimal pairs of sentences, without fine-tuning
DRAWN_TASKS = (SPLIT_PAIRS, SAME_ARTICLE)  # their examples are drawn from the corpus
WITHOUT_FINETUNING = (HELD_OUT, FEATURES, BLIMP)

UNCASED_NOTE = (  # in the report of a table whose models are cased in the paper
    "The vocabulary is uncased, but the paper's models of this table are cased: compare the rows with each "
    "other, not with the paper."
)
FORMER_SOURCES = {"halves": SPLIT_PAIRS}


def source_of(outcome: str) -> str:
    """Return the source of an outcome: HELD_OUT, FEATURES, BLIMP or a task."""
    return outcome.partition("/")[0]


def with_current_source(name: str) -> str:
    """Return the name of an outcome or source, with the current name of the source."""
    source = source_of(name)
    return FORMER_SOURCES.get(source, source) + name.removeprefix(source)


OutcomeName = Annotated[str, pydantic.AfterValidator(with_current_source)]
SourceName = OutcomeName
PretrainingTree = Annotated[Tree, pydantic.AfterValidator(partial(with_current_names, PretrainingSettings))]
FinetuningTree = Annotated[Tree, pydantic.AfterValidator(partial(with_current_names, FinetuningSettings))]


class Column(Settings):
    """A column of a table.

    Its outcome is `held_out/METRIC`, `features/METRIC`, `blimp/accuracy` or `TASK/PART/METRIC`.
    """

    name: str
    outcome: OutcomeName
    lower_is_better: bool = False


class Row(Settings):
    """A row of a table: its changes to the scale's settings, and the paper's numbers."""

    name: str
    paper: dict[str, float] = pydantic.Field({})  # by the names of columns
    pretraining: PretrainingTree = pydantic.Field({})
    pretraining_at: dict[str, PretrainingTree] = pydantic.Field({})  # further changes, by scale
    finetuning: FinetuningTree = pydantic.Field({})
    features: FeatureKind | None = None  # the vectors that Section 5.3's tagger reads
    # By column, if not the column's own outcome; "" if the row has none, such as next-sentence accuracy.
    outcomes: dict[str, OutcomeName] = pydantic.Field({})
    # Fine-tune from the checkpoint after this fraction of the pre-training steps; 0 is a model with random
    # weights, which has not even seen the scale's trunk.
    pretraining_fraction: float = pydantic.Field(1.0, ge=0, le=1)

    renamed: ClassVar[Mapping[str, str]] = {"after": "pretraining_fraction"}

    @property
    def folder(self) -> str:
        """The row's name in the form of a directory name."""
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")

    @property
    def is_pretrained(self) -> bool:
        """Whether the row's model has been pre-trained at all."""
        return self.pretraining_fraction > 0

    def outcome(self, column: Column) -> str:
        """Return the name of the outcome that the row has in a column; "" if it has none."""
        outcome = self.outcomes.get(column.name, column.outcome)
        return "" if source_of(outcome) == HELD_OUT and not self.is_pretrained else outcome


class Claim(Settings):
    """An ordering of two rows that the paper states in words, or that we test."""

    better: str
    worse: str
    columns: tuple[str, ...]


class Ordering(NamedTuple):
    """A claim that one row is better than another in a column."""

    better: Row
    worse: Row
    column: Column


class Table(Settings):
    """A table of the paper, or one of ours."""

    title: str
    columns: tuple[Column, ...] = pydantic.Field(min_length=1)
    rows: tuple[Row, ...] = pydantic.Field(min_length=1)
    claims: tuple[Claim, ...] = ()
    pretraining_at: dict[str, PretrainingTree] = pydantic.Field({})  # changes to all rows, by scale
    excluded_at: dict[str, tuple[SourceName, ...]] = pydantic.Field({})  # sources to leave out, by scale
    # Sources to leave out, or parts as TASK/PART; `read_table` adds the scale's.
    excluded: tuple[SourceName, ...] = ()
    excluded_rows_at: dict[str, tuple[str, ...]] = pydantic.Field({})  # rows to leave out, by scale
    cased: bool = False  # whether the paper's models have a cased vocabulary, as for named entities
    search: Tree = pydantic.Field({})  # how `checkpoint_tables` fine-tunes a given model

    renamed: ClassVar[Mapping[str, str]] = {"without": "excluded", "without_at": "excluded_at"}

    @pydantic.model_validator(mode="after")
    def _names_are_known(self) -> Self:
        rows, columns = [row.name for row in self.rows], [column.name for column in self.columns]
        used_rows = [name for claim in self.claims for name in (claim.better, claim.worse)]
        used_rows += [name for excluded in self.excluded_rows_at.values() for name in excluded]
        used_columns = [name for row in self.rows for name in (*row.paper, *row.outcomes)]
        used_columns += [name for claim in self.claims for name in claim.columns]
        for kind, known, used in (("row", rows, used_rows), ("column", columns, used_columns)):
            for name in used:
                if name not in known:
                    raise ValueError(f"unknown {kind} {name!r}; the {kind}s are {', '.join(sorted(known))}")
        return self

    @pydantic.model_validator(mode="after")
    def _folders_are_unique(self) -> Self:
        counts = Counter(row.folder for row in self.rows)
        if shared := [row.name for row in self.rows if counts[row.folder] > 1]:
            raise ValueError(f"these rows would share one directory: {', '.join(shared)}; rename all but one")
        return self

    @pydantic.model_validator(mode="after")
    def _rows_have_features(self) -> Self:
        for row in self.rows:
            if FEATURES in self.sources_of(row) and row.features is None:
                raise ValueError(f"row {row.name!r}: set 'features' to the vectors that the tagger reads")
            if row.features is not None and 0 < row.pretraining_fraction < 1:
                raise ValueError(
                    f"row {row.name!r}: 'features' come from the last step; remove 'pretraining_fraction'"
                )
        return self

    @property
    def included_columns(self) -> tuple[Column, ...]:
        """The columns of which neither the source nor TASK/PART is excluded."""
        return tuple(
            column
            for column in self.columns
            if not {source_of(column.outcome), column.outcome.rpartition("/")[0]} & {*self.excluded}
        )

    def sources_of(self, row: Row) -> list[str]:
        """Return the sources of the row's outcomes, each once."""
        outcomes = (row.outcome(column) for column in self.included_columns)
        return list(dict.fromkeys(source_of(outcome) for outcome in outcomes if outcome))

    def task_names(self) -> list[str]:
        """Return the names of the tasks whose official files are needed."""
        sources = dict.fromkeys(source for row in self.rows for source in self.sources_of(row))
        return [source for source in sources if source not in (*WITHOUT_FINETUNING, *DRAWN_TASKS)]

    def merge_pretraining(self, row: Row, scale: "Scale") -> Tree:
        """Return the settings of a row's pre-training at a scale, without the seed."""
        at_scale = (changes.get(scale.name, {}) for changes in (self.pretraining_at, row.pretraining_at))
        return merge(scale.pretraining, row.pretraining, *at_scale)

    def merge_trunk(self, row: Row, scale: "Scale") -> Tree | None:
        """Return the settings of the run that a row's pre-training continues.

        The seed is not among them. Rows with the same network and optimizer share their trunk.

        Returns:
            None if the scale has no trunk, or the row is not pre-trained.
        """
        if not scale.trunk or not row.is_pretrained:
            return None
        merged = self.merge_pretraining(row, scale)
        own: Tree = {key: merged[key] for key in ("model", "optimizer") if key in merged}
        return merge(scale.pretraining, own, scale.trunk)

    def without_rows(self, names: Collection[str]) -> Self:
        """Return this table without some rows and the claims about them."""
        rows = tuple(row for row in self.rows if row.name not in names)
        claims = tuple(claim for claim in self.claims if not {claim.better, claim.worse} & {*names})
        return self.model_copy(update={"rows": rows, "claims": claims})

    def orderings(self) -> list[Ordering]:
        """Return the orderings to test, each once.

        These are the rows that are next to each other in the paper's order of a column, and the
        claims. Rows with equal numbers are not ordered; each of them is next to the rows before and
        after them.
        """
        by_name = {row.name: row for row in self.rows}
        names = []
        for column in self.included_columns:
            numbers = {row.name: row.paper[column.name] for row in self.rows if column.name in row.paper}
            levels = sorted(set(numbers.values()), reverse=not column.lower_is_better)
            names += [
                (better, worse, column)
                for level, next_level in pairwise(levels)
                for better in numbers
                for worse in numbers
                if (numbers[better], numbers[worse]) == (level, next_level)
            ]
            names += [
                (claim.better, claim.worse, column) for claim in self.claims if column.name in claim.columns
            ]
        unique = {(better, worse, column.name): column for better, worse, column in names}
        return [Ordering(by_name[key[0]], by_name[key[1]], column) for key, column in unique.items()]


class PairCounts(Settings):
    """Numbers of pairs to draw from the corpus for training and for evaluation."""

    training: int = pydantic.Field(60_000, ge=4)
    dev: int = pydantic.Field(10_000, ge=4)


class Scale(Settings):
    """A scale: the size of a table's runs, and their common settings."""

    name: str
    seeds: int = pydantic.Field(5, gt=0)
    pretrain_each_seed: bool  # if False, each row is pre-trained once, and only fine-tuning is restarted
    vocabulary_size: int = pydantic.Field(30_522, gt=0)
    held_out: float = pydantic.Field(0.005, ge=0, lt=1)  # fraction of the documents
    pretraining: PretrainingTree = pydantic.Field({})
    # Changes to `pretraining` for a run that the pre-training of all rows continues; {} for none.
    trunk: PretrainingTree = pydantic.Field({})
    finetuning: FinetuningTree = pydantic.Field({})
    learning_rates: tuple[float, ...] = pydantic.Field(min_length=1)  # of fine-tuning; the best on dev wins
    tasks: dict[SourceName, Tree] = pydantic.Field({})  # changes to fine-tuning, by task
    # Folders under --data with the official files of tasks; "glue" for a task that is not listed.
    folders: dict[str, str] = pydantic.Field({})
    # Fractions of tasks' training examples that are not trained on, but evaluated as the part "held_out".
    training_held_out: dict[str, float] = pydantic.Field({})
    split_pairs: PairCounts = PairCounts()
    same_article: PairCounts = PairCounts(training=40_000, dev=5_000)
    blimp_pairs: int = pydantic.Field(100, gt=0)  # of each paradigm, the first ones
    excluded: tuple[SourceName, ...] = ()  # tasks that are out of reach at this scale, or TASK/PART

    renamed: ClassVar[Mapping[str, str]] = {"halves": SPLIT_PAIRS, "without": "excluded"}

    @pydantic.field_validator("tasks")
    @classmethod
    def _settings_have_current_names(cls, tasks: dict[str, Tree]) -> dict[str, Tree]:
        return {
            task: with_current_names(FeatureTaggerSettings if task == FEATURES else FinetuningSettings, tree)
            for task, tree in tasks.items()
        }


def read_table(name: str, scale: Scale) -> Table:
    """Read a table from a shipped recipe or a .toml file.

    Columns that the scale excludes are left out.

    Raises:
        SettingsError: there is no such recipe, it has an unknown key or name, or a row has no
            settings for the scale.
    """
    recipe = read_recipe(name, "table")
    if "rows" not in recipe:
        raise SettingsError(f"{name}: not a table, because it has no rows; choose a table such as table5")
    table = resolve(Table, recipe, source=name)
    excluded = (*scale.excluded, *table.excluded_at.get(scale.name, ()))
    table = table.model_copy(update={"excluded": excluded})
    table = table.without_rows(table.excluded_rows_at.get(scale.name, ()))
    for row in table.rows:
        if row.pretraining_at and scale.name not in row.pretraining_at:
            raise SettingsError(
                f"{name}: row {row.name!r} has settings for the scales {', '.join(row.pretraining_at)}, "
                f"not for {scale.name!r}; copy the table and add them"
            )
    return table


def read_scale(name: str) -> Scale:
    """Read a scale by its name (`paper`, `laptop`) or from a .toml file.

    Raises:
        SettingsError: there is no such scale, or it has an unknown key or task.
    """
    scale = resolve(Scale, read_recipe(name, "scale"), source=name)
    for task in (*scale.tasks, *scale.folders, *scale.excluded, *scale.training_held_out):
        if source_of(task) not in (*WITHOUT_FINETUNING, *DRAWN_TASKS):
            find_task(source_of(task))
    return scale
