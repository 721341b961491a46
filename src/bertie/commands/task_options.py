"""Options of the commands that have a task and its examples.

These are `finetune`, `search`, `evaluate` and `export`.
"""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from bertie.commands.options import local_path_option

if TYPE_CHECKING:
    from bertie.tasks.task import Scores

InitialModel = Annotated[Path | None, local_path_option("The model directory to start from.", "--model")]
_TASKS = (
    "Texts, in GLUE's .tsv files: cola, sst-2, mrpc, sts-b, qqp, mnli, qnli, rte, wnli, ax. Questions, in "
    "SQuAD's .json files: squad-v1, squad-v2. Tagged words, in columns: ner. Multiple choice, in SWAG's .csv "
    "files: swag. Embeddings: sts-b-embeddings."
)
_IN_DATA = f"A task of the paper, with its official files in --data. {_TASKS}"
TaskName = Annotated[str | None, typer.Option("--task", help=_IN_DATA)]
TaskNameWithBlimp = Annotated[
    str | None, typer.Option("--task", help=f"{_IN_DATA} Minimal pairs, for a pre-trained model: blimp.")
]
MeasuredTask = Annotated[
    str | None,
    typer.Option(
        "--task", help=f"The task on which to measure the model, with the gold labels in --dev. {_TASKS}"
    ),
]
Data = Annotated[Path | None, local_path_option("The folder of the task's official files.")]
Train = Annotated[Path | None, local_path_option("Instead of --task and --data: your own training examples.")]
Dev = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|FRACTION",
        help="Your own examples for evaluation after each epoch; or the fraction of --train to draw instead, "
        "such as 0.1, at most 0.5.",
    ),
]
OnError = Annotated[
    Literal["stop", "skip"],
    typer.Option(
        help="At a malformed row of your own tables, or one without a text or a label: stop, or skip and "
        "report it."
    ),
]
Kind = Annotated[
    Literal["texts", "tags", "entities", "questions", "choices", "pairs", "scored-pairs"],
    typer.Option(
        "--kind",
        help="The kind of examples in your own files. tags are tagged words; entities are given by their "
        "characters in texts. pairs and scored-pairs train embeddings: pairs of texts that belong together, "
        "or pairs with a score of their similarity.",
    ),
]
Text = Annotated[str, typer.Option(help="texts, entities, pairs, scored-pairs: the column of the text.")]
MeasuredText = Annotated[
    str | None,
    typer.Option(
        "--text",
        help="texts, entities, pairs, scored-pairs: the column of the text; by default the column of the "
        "model's fine-tuning, or text.",
    ),
]
Pair = Annotated[
    str | None,
    typer.Option(
        help="texts, pairs, scored-pairs: the column of a second text; for the two kinds of pairs, pair by "
        "default."
    ),
]
Label = Annotated[str, typer.Option(help="texts, choices, scored-pairs: the column of the label or score.")]
MeasuredLabel = Annotated[
    str | None,
    typer.Option(
        "--label",
        help="texts, choices, scored-pairs: the column of the label or score; by default the column of the "
        "model's fine-tuning, or label.",
    ),
]
Separator = Annotated[
    str | None, typer.Option(help="texts: the separator, if a text has several labels in one string.")
]
MeasuredSeparator = Annotated[
    str | None,
    typer.Option(
        "--separator",
        help="texts: the separator, if a text has several labels in one string; by default the one of the "
        "model's fine-tuning.",
    ),
]
LabelType = Annotated[
    Literal["classes", "numbers"] | None,
    typer.Option(
        help="texts: the type of the labels; by default numbers (a regression) if some have fractions, "
        "otherwise classes."
    ),
]
Columns = Annotated[
    list[str] | None,
    typer.Option(
        "--column",
        metavar="NAME=COLUMN",
        help="The columns of the other kinds. tags: words, tags. entities: text, entities. questions: "
        "question, context, answers, identifier (by default id, or the number of the row). choices: context, "
        "label, endings (one column of lists, or several columns separated by commas).",
    ),
]


def read_columns(assignments: Iterable[str] | None) -> dict[str, str]:
    """Return the column of each role, from options of the form NAME=COLUMN.

    Raises:
        SettingsError: an option has another form.
    """
    from bertie.base.errors import SettingsError

    columns: dict[str, str] = {}
    for assignment in assignments or ():
        role, _, column = assignment.partition("=")
        if not role or not column:
            raise SettingsError(f"--column {assignment}: expected NAME=COLUMN, such as words=tokens")
        if role in columns:
            raise SettingsError(
                f"--column {assignment}: {role} has the column {columns[role]!r} already; omit one"
            )
        columns[role] = column
    return columns


def read_dev(dev: str | None) -> str | float | None:
    """Return --dev as a fraction if it is a number, otherwise as the path of a file.

    Raises:
        SettingsError: it is empty, a percentage, or a number with a decimal comma.
    """
    from bertie.base.errors import SettingsError

    if dev is not None and re.fullmatch(r"\s*|[\d.,]+\s*%|\d*,\d+", dev):
        raise SettingsError(f"--dev {dev!r}: give a file, or a fraction with a decimal point, such as 0.1")
    try:
        return None if dev is None else float(dev)
    except ValueError:
        return dev


def print_scores(
    scores: "Mapping[str, Scores]",
    as_json: bool,
    baselines: "Mapping[str, Scores] | None" = None,
    baseline_name: str = "majority baseline",
) -> None:
    """Print the scores of each part to stdout.

    Without JSON, print the scores of the baseline, too.
    """
    if as_json:
        print(json.dumps(scores))
        return
    for part, values in scores.items():
        print(f"{part:<17} {_format_scores(values)}")
        if baselines and part in baselines:
            print(f"{baseline_name:<17} {_format_scores(baselines[part])}")


def _format_scores(scores: "Scores") -> str:
    return "  ".join(
        f"{name} {value if isinstance(value, int) else f'{value:.2f}'}" for name, value in scores.items()
    )
