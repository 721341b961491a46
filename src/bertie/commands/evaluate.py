"""`bertie evaluate`"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from bertie.commands.options import Device, Json, Precision, PrecisionChoice
from bertie.commands.task_options import (
    Columns,
    KindOf,
    Label,
    Pair,
    Separator,
    TaskName,
    Text,
    custom_task,
    print_scores,
    resolve_task,
)

if TYPE_CHECKING:
    from bertie.tasks.task import Scores, Task


class Scored(NamedTuple):
    """A task with its labels, examples with gold labels, answers to them, and what those are worth."""

    task: "Task[Any, Any]"
    examples: Any
    answers: Any
    scores: "Scores"


def evaluate(
    data: Annotated[Path, typer.Option(help="A file with gold labels, or a folder of official files.")],
    task: TaskName = None,
    model: Annotated[Path | None, typer.Option(help="A fine-tuned model directory.")] = None,
    predictions: Annotated[
        Path | None, typer.Option(help="Or anyone's predictions, in the official form. No model is needed.")
    ] = None,
    null_scores: Annotated[
        Path | None,
        typer.Option(help="squad-v2: how sure they are that there is no answer (null_odds.json)."),
    ] = None,
    part: Annotated[
        str | None, typer.Option(help="The part to score; the task's dev parts if not given.")
    ] = None,
    kind: KindOf = "texts",
    text: Text = "text",
    pair: Pair = None,
    label: Label = "label",
    separator: Separator = None,
    columns: Columns = None,
    max_seq_length: Annotated[int | None, typer.Option(min=3, help="As in fine-tuning if not given.")] = None,
    device: Device = "auto",
    precision: Precision = "float32",
    as_json: Json = False,
) -> None:
    """Score a model, or a file of predictions, against gold labels, as the official scorers do."""
    from bertie.base.errors import SettingsError
    from bertie.tasks.error_analysis import analyze_errors

    if (model is None) == (predictions is None):
        raise SettingsError("give either --model DIR or --predictions FILE")
    if task is None and data.is_dir():
        raise SettingsError(f"--data {data}: a folder; name its task with --task, or give your own file")
    own = custom_task(kind, text, pair, label, separator, columns)
    found = resolve_task(task, own)
    parts = [part] if part else list(found.dev_parts)
    if data.is_file():
        parts = parts[:1]
    if predictions is not None and len(parts) > 1:
        raise SettingsError(f"--predictions is of one part; name it with --part: {', '.join(parts)}")
    scores, details = {}, {}
    for name in parts:
        gold = found.file(data, name)
        if predictions is not None:
            scored = _score_predictions(found, gold, predictions, null_scores)
        else:
            assert model is not None
            scored = _score_model(found, gold, model, max_seq_length, device, precision)
        judged, examples, answers, scores[name] = scored
        details[name] = analyze_errors(judged, examples, answers)
    if as_json and len(scores) == 1:
        (part_scores,) = scores.values()
        print(json.dumps({**part_scores, **details[parts[0]].as_json()}))
    else:
        print_scores(scores, as_json)


def _score_predictions(
    task: "Task[Any, Any]", gold: Path, predictions: Path, null_scores: Path | None
) -> "Scored":
    from bertie.base.errors import SettingsError
    from bertie.tasks.squad.task import QuestionAnswering

    examples = task.read(gold, labelled=True)
    task = task.fitted_to_predictions(examples, predictions)
    if null_scores is None:
        answers = task.read_predictions(examples, predictions)
    elif isinstance(task, QuestionAnswering) and task.allow_no_answer:
        answers = task.read_predictions(examples, predictions, null_scores)
    else:
        raise SettingsError("--null-scores is for questions that may have no answer, such as --task squad-v2")
    return Scored(task, examples, answers, task.score(examples, answers))


def _score_model(
    task: "Task[Any, Any]",
    gold: Path,
    path: Path,
    max_seq_length: int | None,
    device: str,
    precision: "PrecisionChoice",
) -> "Scored":
    from bertie.tasks.evaluation import answer, load_for_task

    loaded = load_for_task(task, path, device, precision, max_seq_length)
    examples = loaded.task.read(gold, labelled=True)
    answers = answer(loaded, examples)
    return Scored(loaded.task, examples, answers, loaded.task.score(examples, answers))
