"""`bertie evaluate`: score a model or a file of predictions."""

import json
from pathlib import Path
from typing import Annotated

import typer

from bertie.commands.options import Device, Json, Precision
from bertie.commands.task_options import (
    Columns,
    Kind,
    Label,
    OnError,
    Pair,
    Separator,
    TaskName,
    Text,
    print_scores,
    read_columns,
)


def evaluate(
    data: Annotated[Path, typer.Option(help="A file with gold labels, or the folder of a task's files.")],
    task: TaskName = None,
    model: Annotated[
        list[Path] | None,
        typer.Option(help="A fine-tuned model directory; repeat it for an ensemble of several."),
    ] = None,
    predictions: Annotated[
        Path | None,
        typer.Option(help="Instead of --model: anyone's predictions, in the official format."),
    ] = None,
    null_scores: Annotated[
        Path | None,
        typer.Option(help="squad-v2: the null odds that belong to --predictions (null_odds.json)."),
    ] = None,
    part: Annotated[
        str | None, typer.Option(help="The part to score; by default the task's dev parts.")
    ] = None,
    kind: Kind = "texts",
    text: Text = "text",
    pair: Pair = None,
    label: Label = "label",
    separator: Separator = None,
    columns: Columns = None,
    on_error: OnError = "stop",
    max_seq_length: Annotated[
        int | None, typer.Option(min=3, help="The longest sequence in tokens; by default as in fine-tuning.")
    ] = None,
    device: Device = "auto",
    precision: Precision = "float32",
    as_json: Json = False,
) -> None:
    """Score a model or predictions as the official scorers do."""
    import bertie

    result = bertie.evaluate(
        model,
        data,
        task=task,
        predictions=predictions,
        null_scores=null_scores,
        part=part,
        kind=kind,
        text=text,
        pair=pair,
        label=label,
        separator=separator,
        columns=read_columns(columns),
        on_error=on_error,
        max_seq_length=max_seq_length,
        device=device,
        precision=precision,
    )
    if as_json and len(result.scores) == 1:
        (part_name,) = result.scores
        print(json.dumps({**result.scores[part_name], **result.analyses[part_name].as_json()}))
    else:
        print_scores(result.scores, as_json, result.baselines)
