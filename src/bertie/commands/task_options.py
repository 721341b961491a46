"""What `finetune`, `search` and `evaluate` share: which task, and whose files."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

if TYPE_CHECKING:
    from bertie.tasks.task import Scores, Task
    from bertie.training.finetuning import FinetuningSettings

Kind = Literal["texts", "tags", "questions", "choices"]

TaskName = Annotated[str | None, typer.Option("--task", help="A task of the paper: mrpc, squad-v1, ner, …")]
Data = Annotated[Path | None, typer.Option(help="The folder of the task's official files.")]
Train = Annotated[Path | None, typer.Option(help="Instead of --task: your own file to learn from.")]
Dev = Annotated[Path | None, typer.Option(help="Your own file to be judged by.")]
KindOf = Annotated[Kind, typer.Option("--kind", help="What is in your own files.")]
Text = Annotated[str, typer.Option(help="texts: the column of the text.")]
Pair = Annotated[str | None, typer.Option(help="texts: the column of a second text.")]
Label = Annotated[str, typer.Option(help="texts, choices: the column of the label.")]
Separator = Annotated[str | None, typer.Option(help="texts: what stands between several labels of a text.")]
Columns = Annotated[
    list[str] | None,
    typer.Option(
        "--column",
        metavar="NAME=COLUMN",
        help="The other kinds: tags have words, tags; questions have identifier (id if not given), "
        "question, context, answers; choices have context, endings (one column of lists, or several with "
        "commas between) and label.",
    ),
]
Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, e.g. epochs=4."),
]


class TaskData(NamedTuple):
    """A task whose labels are known, and its files read."""

    task: "Task[Any, Any]"
    training: Any
    dev: dict[str, Any]
    unlabelled: dict[str, Any]  # the official parts without gold labels


def custom_task(
    kind: Kind, text: str, pair: str | None, label: str, separator: str | None, columns: list[str] | None
) -> "Task[Any, Any]":
    """The family for a person's own files, with the names of its columns.

    Raises:
        SettingsError: a column's name is given in another form, the family has no such column, or the
            separator is empty.
    """
    from bertie.base.errors import SettingsError
    from bertie.tasks.custom import (
        CustomClassification,
        CustomMultipleChoice,
        CustomQuestionAnswering,
        CustomTagging,
    )

    if separator == "":
        raise SettingsError("--separator is empty; give what stands between two labels")
    if kind == "texts":
        if columns:
            raise SettingsError("--column is for the other kinds; texts have --text, --pair, --label")
        return CustomClassification(text=text, pair=pair, label=label, separator=separator)
    families: dict[Kind, tuple[Callable[..., Task[Any, Any]], tuple[str, ...]]] = {
        "tags": (CustomTagging, ("words", "tags")),
        "questions": (CustomQuestionAnswering, ("identifier", "question", "context", "answers")),
        "choices": (CustomMultipleChoice, ("context", "endings", "label")),
    }
    family, known = families[kind]
    named: dict[str, Any] = {"label": label} if kind == "choices" else {}
    for assignment in columns or []:
        name, _, column = assignment.partition("=")
        if name not in known or not column:
            raise SettingsError(f"--column {assignment}: {kind} have NAME=COLUMN with {', '.join(known)}")
        named[name] = tuple(column.split(",")) if name == "endings" else column
    return family(**named)


def resolve_task(task: str | None, own: "Task[Any, Any]") -> "Task[Any, Any]":
    """The task of the paper that is named, or else one's own.

    Raises:
        SettingsError: there is none of that name, or what is said of one's own files is said beside it.
    """
    from bertie.base.errors import SettingsError
    from bertie.tasks.custom import CustomClassification
    from bertie.tasks.registry import find_task

    if task is None:
        return own
    if own != CustomClassification():
        raise SettingsError(
            f"--task {task} knows its own files; --kind, --text, --pair, --label, --separator and --column "
            "are for yours"
        )
    return find_task(task)


def read_data(
    task: str | None, data: Path | None, train: Path | None, dev: Path | None, own: "Task[Any, Any]"
) -> TaskData:
    """Read what is to be learnt: the official files of a task, or one's own.

    Raises:
        SettingsError: neither or both are given, or parts of both, or there is no such task or folder.
        DataError: a file cannot be read.
    """
    from bertie.base.errors import SettingsError
    from bertie.tasks.glue import GlueTask

    if (task is None) == (train is None) or (task is None) != (data is None):
        raise SettingsError("give either --task NAME --data FOLDER, or --train FILE and --dev FILE")
    if dev is not None and train is None:
        raise SettingsError("--dev goes with --train; a task of the paper has its own dev files")
    if train is not None:
        return _read_files(own, train, {"dev": dev} if dev else {}, {})
    assert data is not None
    found = resolve_task(task, own)
    if not data.is_dir():  # one file would be learnt from and judged by
        raise SettingsError(f"--data {data}: not a folder; give that of the task's official files")
    if isinstance(found, GlueTask) and found.note:
        print(f"{found.name}: {found.note}", file=sys.stderr)
    dev_files = {part: found.file(data, part) for part in found.dev_parts}
    test_files = {part: found.file(data, part) for part in found.test_parts}
    unlabelled = {part: file for part, file in test_files.items() if file.exists()}
    return _read_files(found, found.file(data, "train"), dev_files, unlabelled)


def _read_files(
    task: "Task[Any, Any]", train: Path, dev: Mapping[str, Path], unlabelled: Mapping[str, Path]
) -> TaskData:
    training = task.read(train, labelled=True)
    task = task.fitted(training)
    task.check_training(training, train)
    _show_labels(task, training)
    return TaskData(
        task,
        training,
        {part: task.read(file, labelled=True) for part, file in dev.items()},
        {part: task.read(file, labelled=False) for part, file in unlabelled.items()},
    )


def write_submissions(found: TaskData, run: Path, settings: "FinetuningSettings") -> None:
    """Answer the official parts without gold labels, in files as the task's server takes them."""
    from bertie.tasks.evaluation import answer, load_for_task
    from bertie.tasks.glue import GlueTask

    if not found.unlabelled:
        return
    loaded = load_for_task(found.task, run / "model", settings.device)
    for part, examples in found.unlabelled.items():
        predictions = answer(loaded, examples)
        official = found.task.submissions if isinstance(found.task, GlueTask) else {}
        file = run / "submission" / official.get(part, found.task.predictions_file)
        found.task.write_predictions(examples, predictions, file)


def _show_labels(task: "Task[Any, Any]", training: Any) -> None:
    """Say what there is to learn, on stderr."""
    from bertie.tasks.classification import TextClassification

    print(f"{task.name}: {len(training):,} examples", file=sys.stderr)
    if isinstance(task, TextClassification) and task.problem_type == "regression":
        print("labels: numbers, so it is a regression", file=sys.stderr)
    elif isinstance(task, TextClassification):
        counts = task.label_counts(training)
        print("labels:", ", ".join(f"{label} {count:,}" for label, count in counts.items()), file=sys.stderr)
    elif task.labels:
        print("labels:", ", ".join(task.labels), file=sys.stderr)


def print_scores(scores: "dict[str, Scores]", as_json: bool) -> None:
    """Print the scores of each part, on stdout."""
    import json

    if as_json:
        print(json.dumps(scores))
        return
    for part, values in scores.items():
        shown = (
            f"{name} {value if isinstance(value, int) else f'{value:.2f}'}" for name, value in values.items()
        )
        print(f"{part:<16} " + "  ".join(shown))
