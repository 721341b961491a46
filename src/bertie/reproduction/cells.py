"""The cells of a table, and the directory where they and their runs are kept.

A cell is a row of a table with one seed. The output directory OUT contains

    pretraining/DIGEST/            a run of `bertie pretrain`; the model with random weights of a
                                   row without pre-training
    finetuning/TASK-RATE-DIGEST/   a run of `bertie finetune`; result.json when it is done, examples.npz
    cells/TABLE/ROW/settings.toml  the settings and data of a row's cells
    cells/TABLE/ROW/seed-0/        a cell; result.json when it is done, error.txt if it failed;
                                   examples.npz with the scores of its dev examples

A digest is a hash of a run's settings and data, so rows and tables with the same OUT share the runs
that they have in common. When a pre-training run evaluates and saves is not part of its digest
(`pretraining_directories`).
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple, Self, TypeVar

import pydantic

from bertie.base.errors import DataError
from bertie.base.files import read_json
from bertie.base.settings import Settings, Tree
from bertie.corpus.examples import ExampleSettings
from bertie.reproduction.example_scores import ExampleScores
from bertie.reproduction.split_pairs import SPLIT_PAIRS
from bertie.reproduction.tables import Row, Scale, SourceName, with_current_source
from bertie.tasks.task import Scores
from bertie.training.finetuning_settings import ADDED, FinetuningSettings
from bertie.training.pretraining_settings import PretrainingSettings

RESULT_FILE, ERROR_FILE, SETTINGS_FILE = "result.json", "error.txt", "settings.toml"
DIGEST_CHARACTERS = 12

# Digests and directories use the first names of settings and tasks, so that runs in an existing OUT are
# found after a name has changed.
FIRST_SETTING_NAMES = {
    current: former
    for section in (PretrainingSettings, ExampleSettings, FinetuningSettings)
    for former, current in section.renamed.items()
}
FIRST_TASK_NAMES = {SPLIT_PAIRS: "halves"}
# Settings that the first runs lacked, with the values that leave a run as it was; digests leave them out.
LATER_SETTINGS = (
    ',"batch_size":null',  # of a phase, like the next two
    ',"masking_rate":null',
    ',"pairs":null',
    ',"next_sentence_loss":true',
    ',"near_distance":0',
    ',"class_weights":null',
    ',"frozen_layers":0',
    ',"layer_decay":1.0',
    ',"contrastive_pairs":0',
    ',"patience":0',
    ',"main_metric":null',
    ',"tune_threshold":false',
    ',"calibrate":false',
    ',"language_smoothing":1.0',
    ',"long_texts":"truncate"',
    ',"window_stride":0',
    ',"window_pooling":"mean"',
    ',"shard":false',
    ',"labels_fingerprint":""',
)
# When a pre-training run evaluates and saves. This changes neither its weights nor the outcomes of a cell.
RECORDING_SETTINGS = ("evaluate_every", "save_every", "keep_checkpoints")

Outcomes = dict[str, float]  # by outcome name, as in `Column.outcome`
Value = TypeVar("Value")  # of an outcome: its score, or the scores of its examples
AT_RATE = "@"  # at a scale with several learning rates, result.json has TASK/PART/METRIC@RATE


class RowSettings(Settings):
    """Settings and data that the cells of a row depend on.

    Seeds, claims and the paper's numbers are not part of them, and may change.
    """

    corpus: str  # the fingerprint of the corpus
    sources: dict[SourceName, str]  # a hash of the examples of each source of outcomes
    row: Row
    scale: Scale

    def has_same_outcomes(self, other: Self) -> bool:
        """Return whether cells with the other settings have the same outcomes."""
        return self._comparable() == other._comparable()

    def _comparable(self) -> Self:
        """Return the settings on which the outcomes of the row depend."""

        def without_recording(tree: Tree) -> Tree:
            return {key: value for key, value in tree.items() if key not in RECORDING_SETTINGS}

        scale, row = self.scale, self.row
        trees = {name: without_recording(getattr(scale, name)) for name in ("pretraining", "trunk")}
        tasks = {name: tree for name, tree in scale.tasks.items() if name in self.sources}
        return self.model_copy(
            update={
                "row": row.model_copy(update={"pretraining": without_recording(row.pretraining)}),
                "scale": scale.model_copy(update={**trees, "tasks": tasks}),
            }
        )


class Cell(NamedTuple):
    """A row with one seed.

    A cell is done if it has outcomes, failed if it has a failure message, and otherwise pending.
    `examples` has the scores of the dev examples for the outcomes that have them.
    """

    row: Row
    seed: int
    directory: Path
    outcomes: Outcomes | None = None
    failure: str = ""
    examples: Mapping[str, ExampleScores] = {}

    @property
    def is_pending(self) -> bool:
        """Whether the cell has neither outcomes nor a failure."""
        return self.outcomes is None and not self.failure


def digest(*parts: str) -> str:
    """Return a short hash of strings, for use in names of directories."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:DIGEST_CHARACTERS]


def pretraining_directory(
    out: Path, settings: PretrainingSettings, corpus_fingerprint: str, initial_model: str = ""
) -> Path:
    """Return the directory of a pre-training run. It does not depend on the device.

    Args:
        out: the output directory OUT.
        settings: the run's settings.
        corpus_fingerprint: the fingerprint of the corpus.
        initial_model: identifies the initial model among all models in `out`; "" for random weights.
    """
    initial_models = [initial_model] if initial_model else []  # runs of earlier versions had none
    return out / "pretraining" / digest(_serialize(settings), corpus_fingerprint, *initial_models)


def pretraining_directories(
    out: Path, settings: PretrainingSettings, corpus_fingerprint: str, initial_model: str
) -> tuple[Path, ...]:
    """Return the directories of a pre-training run, the preferred one first.

    The first one does not depend on when the run evaluates and saves, so that tables share their
    runs. The second one does: earlier versions had no other, and a run whose evaluations or
    checkpoints do not suffice for a row is made again there.

    Args:
        out: the output directory OUT.
        settings: the run's settings.
        corpus_fingerprint: the fingerprint of the corpus.
        initial_model: as in `pretraining_directory`.
    """
    defaults = {name: PretrainingSettings.model_fields[name].default for name in RECORDING_SETTINGS}
    shared = settings.model_copy(update=defaults)
    directories = (
        pretraining_directory(out, given, corpus_fingerprint, initial_model) for given in (shared, settings)
    )
    return tuple(dict.fromkeys(directories))


def finetuning_directory(
    out: Path, task: str, settings: FinetuningSettings, initial_model: str, examples: str
) -> Path:
    """Return the directory of a fine-tuning run. It does not depend on the device.

    Args:
        out: the output directory OUT.
        task: the task's name.
        settings: the run's settings.
        initial_model: identifies the initial model among all models in `out`.
        examples: a hash of the task's examples.
    """
    name = digest(_serialize(settings), initial_model, examples)
    rate = settings.optimizer.learning_rate
    return out / "finetuning" / f"{FIRST_TASK_NAMES.get(task, task)}-{rate:g}-{name}"


def _serialize(settings: PretrainingSettings | FinetuningSettings) -> str:
    """Return settings as JSON, under their first names and without the device."""
    former = {key for key in ADDED if getattr(settings, key, "") is None}  # as in runs of earlier versions
    text = settings.model_dump_json(exclude={"device", *former})
    # In the first runs the default was 16,384 on every device.
    text = text.replace('"micro_batch_tokens":0', '"micro_batch_tokens":16384')
    if '"pairs":"near"' not in text:
        text = re.sub(r',"near_distance":\d+', "", text)  # it has no effect
    for setting in LATER_SETTINGS:
        text = text.replace(setting, "")
    return re.sub(r'"(\w+)":', lambda key: f'"{FIRST_SETTING_NAMES.get(key[1], key[1])}":', text)


def read_outcomes(path: Path) -> Outcomes:
    """Read the outcomes in a result.json, under current names of the sources.

    Raises:
        DataError: the file is damaged.
    """
    try:
        outcomes = pydantic.TypeAdapter(Outcomes).validate_python(read_json(path))
    except (DataError, pydantic.ValidationError):
        raise DataError(f"{path}: damaged; delete it, and the same command computes it again") from None
    return {with_current_source(name): value for name, value in outcomes.items()}


def add_rate(outcomes: Mapping[str, Value], rate: float) -> dict[str, Value]:
    """Add the learning rate of fine-tuning to the names of outcomes."""
    return {f"{name}{AT_RATE}{rate:g}": value for name, value in outcomes.items()}


def best_rate(results: Sequence[Outcomes], outcome: str, rates: Sequence[float]) -> float:
    """Return the learning rate with which a row does best on a task.

    Args:
        results: the outcomes of a row's cells, one element for each seed.
        outcome: the task's main outcome. The best rate has its highest mean over the seeds; of equal
            ones, the first. If each seed had its own best rate, the scores would be too high, because
            noise would select them too.
        rates: the learning rates.
    """
    return max(rates, key=lambda rate: fmean(result[f"{outcome}{AT_RATE}{rate:g}"] for result in results))


def at_rate(outcomes: Mapping[str, Value], task: str, rate: float) -> dict[str, Value]:
    """Keep a task's outcomes at one learning rate, under their names without the rate.

    Outcomes of other sources are unchanged.
    """
    kept = {}
    for name, value in outcomes.items():
        plain, _, own_rate = name.partition(AT_RATE)
        if not name.startswith(f"{task}/"):
            kept[name] = value
        elif own_rate == f"{rate:g}":
            kept[plain] = value
    return kept


def name_outcomes(task: str, scores: Mapping[str, Scores]) -> Outcomes:
    """Name a task's scores TASK/PART/METRIC, as in `Column.outcome`."""
    return {
        f"{task}/{part}/{metric}": value
        for part, part_scores in scores.items()
        for metric, value in part_scores.items()
    }
