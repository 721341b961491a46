"""`bertie finetune`: fine-tune a model on labelled data."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from bertie.commands.options import (
    Device,
    Json,
    NoVerify,
    assignments_option,
    exit_when_stopped,
    how_to_resume,
    path_option,
)
from bertie.commands.task_options import (
    Columns,
    Data,
    Dev,
    InitialModel,
    Kind,
    Label,
    LabelType,
    OnError,
    Pair,
    Separator,
    TaskName,
    Text,
    Train,
    print_scores,
    read_columns,
    read_dev,
)

Assignments = Annotated[list[str] | None, assignments_option("epochs=4 or optimizer.learning_rate=1e-3")]


def finetune(
    out: Annotated[Path, path_option("The run's directory; the model will be in OUT/model.")],
    model: InitialModel = None,
    task: TaskName = None,
    data: Data = None,
    train: Train = None,
    dev: Dev = None,
    kind: Kind = "texts",
    text: Text = "text",
    pair: Pair = None,
    label: Label = "label",
    separator: Separator = None,
    columns: Columns = None,
    on_error: OnError = "stop",
    label_type: LabelType = None,
    assignments: Assignments = None,
    device: Device = "auto",
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume the run in OUT; nothing else is needed.")
    ] = False,
    as_json: Json = False,
    no_verify: NoVerify = False,
) -> None:
    """Fine-tune a model on a task of the paper or your own files.

    Ctrl-C saves the run; `bertie finetune --resume --out OUT` continues it.
    --resume resumes a run that was stopped or killed.
    """
    import bertie
    from bertie.base.settings import parse_assignments

    with exit_when_stopped(lambda: how_to_resume("finetune", out)):
        run = bertie.finetune(
            model,
            train=train,
            dev=read_dev(dev),
            task=task,
            data=data,
            out=out,
            kind=kind,
            text=text,
            pair=pair,
            label=label,
            separator=separator,
            columns=read_columns(columns),
            on_error=on_error,
            label_type=label_type,
            resume=resume,
            settings=parse_assignments(
                [*(assignments or []), *([f"device={device}"] if device != "auto" else [])]
            ),
        )
    from bertie.training.distributed import is_main_process  # late, since it imports torch

    if is_main_process():
        print_scores(run.scores, as_json, run.baselines)
        print(run.model_directory, file=sys.stderr if as_json else sys.stdout)
