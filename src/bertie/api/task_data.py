"""The examples of a task: official files, or custom data in files and in memory."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from bertie.api.arguments import check_command, recall_arguments, require_arguments
from bertie.base.errors import DataError, SettingsError
from bertie.base.files import write_json
from bertie.base.memory import MemoryTable, Source, as_source
from bertie.base.settings import Tree
from bertie.base.texts import count_noun
from bertie.model.config import BertConfig, ProblemType
from bertie.model.formats.directory import read_labelled_columns
from bertie.tasks.custom.choices import CustomMultipleChoice
from bertie.tasks.custom.classification import CustomClassification
from bertie.tasks.custom.entities import CustomEntities
from bertie.tasks.custom.questions import CustomQuestionAnswering
from bertie.tasks.custom.tagging import CustomTagging
from bertie.tasks.dev_split import check_fraction, draw_dev_examples
from bertie.tasks.evaluation import load_for_task
from bertie.tasks.pairs import CustomPairs, CustomScoredPairs
from bertie.tasks.registry import find_task
from bertie.tasks.task import Head, Task
from bertie.training.metrics_file import run_facts

if TYPE_CHECKING:
    from bertie.training.finetuning import InitialModel

OnError = Literal["stop", "skip"]
LabelType = Literal["classes", "numbers"]
Kind = Literal["texts", "tags", "entities", "questions", "choices", "pairs", "scored-pairs"]
AnyTask = Task[Any, Any]
CUSTOM_DEFAULTS = {"kind": "texts", "text": "text", "label": "label", "on_error": "stop"}  # of `custom_task`

# The kinds of custom data that have `columns`: their tasks, and the roles of the columns.
_FAMILIES: dict[Kind, tuple[Callable[..., AnyTask], tuple[str, ...]]] = {
    "tags": (CustomTagging, ("words", "tags")),
    "entities": (CustomEntities, ("text", "entities")),
    "questions": (CustomQuestionAnswering, ("identifier", "question", "context", "answers")),
    "choices": (CustomMultipleChoice, ("context", "endings", "label")),
}

_PAIRS: dict[Kind, type[CustomPairs | CustomScoredPairs]] = {
    "pairs": CustomPairs,
    "scored-pairs": CustomScoredPairs,
}
_PROBLEM_TYPES: dict[LabelType, ProblemType] = {
    "classes": "single_label_classification",
    "numbers": "regression",
}
_UNITS: dict[Head, str] = {"tagging": "sentences", "spans": "questions"}
DEV_ROWS_FILE = "dev_rows.json"


class TaskData(NamedTuple):
    """A task with its labels, and its examples.

    task      fitted to the training examples
    training  the training examples
    dev       the examples of each dev set
    test      the examples of each official part without gold labels
    sources   the file or table of each part, "train" and those above
    dev_rows  the numbers, from 1, of the training examples that were drawn as the dev set; None if the
              dev set has its own source
    """

    task: AnyTask
    training: Any
    dev: dict[str, Any]
    test: dict[str, Any]
    sources: dict[str, Source]
    dev_rows: list[int] | None = None

    def describe(self, shorten: bool = False) -> dict[str, str]:
        """Return the source and the number of examples of each part.

        Args:
            shorten: whether to name only the file, without its folder.
        """
        unit = _UNITS.get(self.task.head, "rows")
        examples = {"train": self.training, **self.dev, **self.test}
        lines = {}
        for part, source in self.sources.items():
            name = source.name if shorten else str(source)
            if isinstance(source, MemoryTable):
                name = "a table in memory"
            drawn = ", drawn from it" if part == "dev" and self.dev_rows is not None else ""
            lines[part] = f"{name}, {len(examples[part]):,} {unit}{drawn}"
        return lines


def custom_task(
    kind: Kind = "texts",
    text: str = "text",
    pair: str | None = None,
    label: str = "label",
    separator: str | None = None,
    columns: Mapping[str, Any] | None = None,
    on_error: OnError = "stop",
    label_type: LabelType | None = None,
) -> AnyTask:
    """Return the task for custom data of a kind, with the names of its columns.

    Raises:
        SettingsError: the kind has no such column, or no use for the separator, or this is empty; or one
            column is to be read twice.
    """
    if separator == "":
        raise SettingsError("the separator is empty; give the text between two labels")
    if separator and kind != "texts":
        raise SettingsError(f"the separator is for the labels of texts; leave it out with {kind}")
    if label_type and kind != "texts":
        raise SettingsError(f"the label type is for texts; leave it out with {kind}")
    if label_type and separator:
        raise SettingsError("the label type is for one label a text; leave it out with a separator")
    if columns and kind in ("texts", *_PAIRS):
        raise SettingsError(
            f"columns are for tags, entities, questions and choices; {kind} have text, pair and label"
        )
    if kind in ("texts", *_PAIRS):
        used = {"text": text, "pair": pair or ("pair" if kind in _PAIRS else None), "label": label}
        if kind == "pairs":  # they have no label
            del used["label"]
        _check_distinct(used.items())
    if kind in _PAIRS:
        return _PAIRS[kind](text=text, pair=pair or "pair", label=label, on_error=on_error)
    if kind == "texts":
        task = CustomClassification(text=text, pair=pair, label=label, separator=separator, on_error=on_error)
        return task.with_problem_type(_PROBLEM_TYPES[label_type]) if label_type else task
    family, roles = _FAMILIES[kind]
    arguments: dict[str, Any] = {"choices": {"label": label}, "entities": {"text": text}}.get(kind, {})
    for role, column in (columns or {}).items():
        if role not in roles or not column:
            raise SettingsError(f"columns: {kind} have no {role!r}; use {', '.join(roles)}")
        arguments[role] = _parse_columns(role, column)
    family_task = family(**arguments, on_error=on_error)
    _check_distinct((role, column) for role in roles for column in _as_columns(getattr(family_task, role)))
    return family_task


def _check_used(kind: Kind, text: str | None, pair: str | None, label: str | None) -> None:
    """Raise SettingsError if a column is given by an argument that this kind of custom data does not read."""
    for name, column, kinds in (
        ("text", text, ("texts", "entities", *_PAIRS)),
        ("pair", pair, ("texts", *_PAIRS)),
        ("label", label, ("texts", "choices", "scored-pairs")),
    ):
        if kind not in kinds and column not in (None, CUSTOM_DEFAULTS.get(name)):
            advice = "leave it out"
            if kind in _FAMILIES:
                advice = f"name {', '.join(_FAMILIES[kind][1])} with --column (columns=…)"
            raise SettingsError(f"{name} {column!r}: {kind} have no such column; {advice}")


def _parse_columns(role: str, value: Any) -> str | tuple[str, ...]:
    """Return the column of a role; for endings, a tuple of columns.

    Raises:
        SettingsError: it is not a name, or for endings not a list of names.
    """
    has_several = role == "endings"
    names = value if has_several and isinstance(value, list | tuple) else [value]
    if not all(isinstance(name, str) for name in names):
        expected = "the name of a column" + ", or a list of names" * has_several
        raise SettingsError(f"columns: {role} is {value!r}; give {expected}")
    if has_several:
        return tuple(value.split(",") if isinstance(value, str) else value)
    return str(value)


def _as_columns(value: str | tuple[str, ...]) -> tuple[str, ...]:
    """Return the columns of a role as a tuple."""
    return (value,) if isinstance(value, str) else value


def _check_distinct(columns: Iterable[tuple[str, str | None]]) -> None:
    """Raise SettingsError if two roles, or two endings, have the same column."""
    role_of: dict[str, str] = {}
    for role, column in columns:
        if column is None:
            continue
        if column in role_of:
            raise SettingsError(
                f"{role_of[column]} and {role} are both the column {column!r}; choose two columns"
            )
        role_of[column] = role


def recall_task_arguments(
    run: Path, command: Literal["finetune", "search"], given: Mapping[str, Any], resume: bool
) -> Tree:
    """Return the arguments of a run of `finetune` or `search`.

    On resume they are the recorded ones.

    Raises:
        SettingsError: an argument is missing or contradicts a recorded one, or the run is of another command.
    """
    check_command(run, command)
    dev = given["dev"]
    if getattr(dev, "ndim", 1) == 0:  # a number of numpy or torch
        dev = dev.item()
    given = {**given, "dev": float(dev) if isinstance(dev, Real) else dev}
    _check_used(given.get("kind") or "texts", given.get("text"), given.get("pair"), given.get("label"))
    arguments = recall_arguments(run, given, CUSTOM_DEFAULTS) if resume else dict(given)
    descriptions = {"model": "the model directory"}
    if resume and arguments["task"] is None:
        descriptions["train"] = "the training examples"
    require_arguments(run, arguments, resume, **descriptions)
    return arguments


def read_arguments(arguments: Mapping[str, Any]) -> TaskData:
    """Read the examples that these arguments of `finetune` name.

    Errors are as in `read_task_data`.
    """
    keys = ("kind", "text", "pair", "label", "separator", "columns", "on_error", "label_type")
    custom = custom_task(**{key: arguments[key] for key in keys if arguments.get(key) is not None})
    data = None if arguments["data"] is None else Path(arguments["data"])
    return read_task_data(arguments["task"], data, arguments["train"], arguments["dev"], custom)


def resolve_task(task: str | None, custom: AnyTask) -> AnyTask:
    """Return the paper's task of that name, or else the custom task.

    Raises:
        SettingsError: there is no such task, or columns of custom data are given beside it.
    """
    if task is None:
        return custom
    if custom != CustomClassification():
        raise SettingsError(
            f"task {task} has its own file format; kind, text, pair, label, separator, columns, on_error and "
            f"label_type are for custom data"
        )
    return find_task(task)


def measured_task(
    task: str | None,
    models: Sequence[Path],
    kind: Kind,
    text: str | None,
    pair: str | None,
    label: str | None,
    separator: str | None,
    columns: Mapping[str, Any] | None,
    on_error: OnError = "stop",
) -> AnyTask:
    """Return the task on which to measure models, of the paper or custom.

    See `custom_task`.

    Columns and the separator, if not given, come from the first model's fine-tuning, if it has recorded them.

    Raises:
        SettingsError: as in `resolve_task`.
        ModelError: the first model's directory is missing or damaged.
    """
    if task is None:
        _check_used(kind, text, pair, label)
    recorded = dict(read_labelled_columns(models[0])) if models and task is None else {}
    recorded["label"] = label = label or recorded.get("label") or "label"
    recorded["text"] = text = text or recorded.get("text") or "text"
    if kind == "texts" and separator is None:
        separator = recorded.get("separator")
    if kind in ("texts", *_PAIRS):
        pair = pair or recorded.get("pair")
    else:
        roles = _FAMILIES[kind][1]
        columns = {role: recorded[role] for role in roles if role in recorded} | dict(columns or {})
    return resolve_task(task, custom_task(kind, text, pair, label, separator, columns, on_error))


def read_task_data(task: str | None, data: Path | None, train: Any, dev: Any, custom: AnyTask) -> TaskData:
    """Read the examples of a task of the paper, or custom ones.

    Args:
        task: the name of a task of the paper, or None for custom data.
        data: the folder of the task's official files.
        train: custom training examples, a path or a table in memory.
        dev: custom dev examples, or the fraction of the training examples to draw as such, or None.
        custom: the task of custom data.

    Raises:
        SettingsError: arguments are missing or contradict each other, or there is no such task or folder.
        DataError: the examples cannot be read.
    """
    if (task is None) == (train is None) or (task is None) != (data is None):
        raise SettingsError("give either task and data (its folder), or train and dev (your own examples)")
    if dev is not None and train is None:
        raise SettingsError("dev goes with train; a task of the paper has its own dev files")
    if data is None:
        source = as_source(train, "train")
        if isinstance(dev, int | float):
            check_fraction(dev)  # before the data are read
            return _split(_read(custom, source, {}, {}), dev)
        if dev is None:
            return _read(custom, source, {}, {})
        dev = as_source(dev, "dev")
        if isinstance(dev, Path) and not dev.exists():  # reported before the training examples are read
            raise DataError(f"{dev}: no such file; --dev (dev=…) is a file, or a fraction such as 0.1")
        return _read(custom, source, {"dev": dev}, {})
    paper_task = resolve_task(task, custom)
    if trained_on := paper_task.trained_on:
        raise SettingsError(
            f"{task}: no training examples; fine-tune on {trained_on}, and evaluate that model on {task}"
        )
    if not data.is_dir():  # a single file would be training and dev data at once
        raise SettingsError(
            f"{data}: not a folder; give the folder of the official files of {task}, from "
            f"{paper_task.website}"
        )
    if paper_task.note:
        print(f"{paper_task.name}: {paper_task.note}", file=sys.stderr)
    train = official_files(paper_task, data, ["train"])["train"]
    dev = official_files(paper_task, data, paper_task.dev_parts)
    test = {part: paper_task.file(data, part) for part in paper_task.test_parts}
    return _read(paper_task, train, dev, {part: file for part, file in test.items() if file.exists()})


def official_files(task: AnyTask, data: Path, parts: Iterable[str]) -> dict[str, Path]:
    """Return the official files of some parts.

    Raises:
        DataError: one is missing from their folder.
    """
    files = {part: task.file(data, part) for part in parts}
    for file in files.values():
        if not file.exists():
            raise DataError(
                f"{file}: no such file; --data (data=…) is the folder of the official files of {task.name}, "
                f"from {task.website}"
            )
    return files


def _read(task: AnyTask, train: Any, dev: Mapping[str, Any], test: Mapping[str, Any]) -> TaskData:
    training = task.read(train, labelled=True)
    task = task.fitted(training)
    task.check_training(training, train)
    print(f"{task.name}: {count_noun(len(training), 'training example')}", file=sys.stderr)
    if labels := task.describe_labels(training):
        print(f"labels: {labels}", file=sys.stderr)
    return TaskData(
        task,
        training,
        {part: task.read(source, labelled=True) for part, source in dev.items()},
        {part: task.read(source, labelled=False) for part, source in test.items()},
        {"train": train, **dev, **test},
    )


def _split(data: TaskData, fraction: float) -> TaskData:
    """Take a fraction of the training examples as the dev set."""
    task, examples, source = data.task, data.training, data.sources["train"]
    drawn = draw_dev_examples(task, examples, fraction, source)
    rest = sorted(set(range(len(examples))).difference(drawn))
    print(f"dev: {len(drawn):,} of the training examples, which leaves {len(rest):,}", file=sys.stderr)
    return data._replace(
        training=task.select(examples, rest),
        dev={"dev": task.select(examples, drawn)},
        sources={"train": source, "dev": source},
        dev_rows=[index + 1 for index in drawn],
    )


def describe_sources(start: "InitialModel", data: TaskData) -> dict[str, str]:
    """Return the base model and the data for a model card.

    Paths are without the folders of this machine.
    """
    path = Path(str(start.weights)).resolve()
    name = f"{path.parent.name}/model" if path.name == "model" else path.name  # RUN/model
    return {"base model": f"{name}, {_describe_network(start.config)}", **data.describe(shorten=True)}


def describe_run(
    start: "InitialModel", data: TaskData, run: Path, metrics: Sequence[Mapping[str, Any]]
) -> dict[str, str]:
    """Return the facts in the head of a report.

    They are the base model, the data, the date and the duration.
    """
    model = f"{start.weights}, {_describe_network(start.config)}"
    return {"base model": model, **data.describe(), **run_facts(run, metrics)}


def _describe_network(config: BertConfig) -> str:
    return f"{count_noun(config.num_hidden_layers, 'layer')}, hidden size {config.hidden_size}"


def write_dev_rows(data: TaskData, run: Path) -> None:
    """Record which training examples were drawn as the dev set, if any were."""
    if data.dev_rows is not None:
        write_json(run / DEV_ROWS_FILE, {"source": str(data.sources["train"]), "rows": data.dev_rows})


def write_test_predictions(data: TaskData, run: Path, device: str) -> None:
    """Predict the official test parts; write the files that the task's server takes."""
    if not data.test:
        return
    loaded = load_for_task(data.task, run / "model", device)
    for part, examples in data.test.items():
        name = data.task.submission_files.get(part, data.task.predictions_file)
        data.task.write_predictions(examples, loaded.predict(examples, part), run / "submission" / name)
