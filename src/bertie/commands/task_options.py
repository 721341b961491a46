"""Options of `finetune`, `search`, `evaluate` and `export`: the task and its examples."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from bertie.tasks.task import Scores

InitialModel = Annotated[Path | None, typer.Option("--model", help="The model directory to start from.")]
TaskName = Annotated[
    str | None, typer.Option("--task", help="A task of the paper: mrpc, squad-v1, ner, swag, …")
]
Data = Annotated[Path | None, typer.Option(help="The folder of the task's official files.")]
Train = Annotated[Path | None, typer.Option(help="Instead of --task and --data: your own training examples.")]
Dev = Annotated[Path | None, typer.Option(help="Your own examples for evaluation after each epoch.")]
Kind = Annotated[
    Literal["texts", "tags", "questions", "choices"],
    typer.Option("--kind", help="The kind of examples in your own files."),
]
Text = Annotated[str, typer.Option(help="texts: the column of the text.")]
Pair = Annotated[str | None, typer.Option(help="texts: the column of a second text.")]
Label = Annotated[str, typer.Option(help="texts, choices: the column of the label.")]
Separator = Annotated[
    str | None, typer.Option(help="texts: the separator, if a text has several labels in one string.")
]
Columns = Annotated[
    list[str] | None,
    typer.Option(
        "--column",
        metavar="NAME=COLUMN",
        help="The columns of the other kinds. tags: words, tags. questions: identifier (default id), "
        "question, context, answers. choices: context, label, endings (one column of lists, or several "
        "columns separated by commas).",
    ),
]


def read_columns(assignments: Iterable[str] | None) -> dict[str, str]:
    """Return the column of each role, from options of the form NAME=COLUMN.

    Raises:
        SettingsError: an option has another form.
    """
    from bertie.base.errors import SettingsError

    columns = {}
    for assignment in assignments or ():
        role, _, column = assignment.partition("=")
        if not role or not column:
            raise SettingsError(f"--column {assignment}: expected NAME=COLUMN, such as words=tokens")
        columns[role] = column
    return columns


def print_scores(scores: "Mapping[str, Scores]", as_json: bool) -> None:
    """Print the scores of each part to stdout."""
    if as_json:
        print(json.dumps(scores))
        return
    for part, values in scores.items():
        cells = (
            f"{name} {value if isinstance(value, int) else f'{value:.2f}'}" for name, value in values.items()
        )
        print(f"{part:<16} " + "  ".join(cells))
