"""`bertie finetune`"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from bertie.commands.options import Device, Json
from bertie.commands.task_options import (
    Assignments,
    Columns,
    Data,
    Dev,
    KindOf,
    Label,
    Pair,
    Separator,
    TaskName,
    Text,
    Train,
    custom_task,
    print_scores,
    read_data,
    write_submissions,
)


def finetune(
    model: Annotated[Path, typer.Option(help="The model directory to start from.")],
    out: Annotated[Path, typer.Option(help="The run's folder; the model will be in OUT/model.")],
    task: TaskName = None,
    data: Data = None,
    train: Train = None,
    dev: Dev = None,
    kind: KindOf = "texts",
    text: Text = "text",
    pair: Pair = None,
    label: Label = "label",
    separator: Separator = None,
    columns: Columns = None,
    assignments: Assignments = None,
    device: Device = "auto",
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in OUT.")] = False,
    as_json: Json = False,
) -> None:
    """Fine-tune a model on a task of the paper, or on your own labelled files."""
    from bertie.base.settings import read_assignments, resolve
    from bertie.reports.finetuning import write_report
    from bertie.reports.metrics import read_metrics
    from bertie.tasks.error_analysis import analyze_errors
    from bertie.training.finetuning import FinetuningSettings, InitialModel
    from bertie.training.finetuning import finetune as run
    from bertie.training.signals import Stopped

    # What is wrong with these is told before the data are read.
    changes = read_assignments([*(assignments or []), f"device={device}"])
    resolve(FinetuningSettings, changes, source="--set").resolved()
    start = InitialModel.load(model)
    own = custom_task(kind, text, pair, label, separator, columns)
    found = read_data(task, data, train, dev, own)
    if not found.dev:
        print("bertie: no --dev: the last epoch's model is kept, unjudged", file=sys.stderr)
    settings = resolve(FinetuningSettings, found.task.defaults, changes, source="--set").resolved()
    try:
        result = run(found.task, start, found.training, found.dev, settings, out, resume=resume)
    except Stopped as stopped:
        print(f"bertie: stopped and saved in {out}; go on with --resume", file=sys.stderr)
        sys.exit(128 + stopped.number)
    write_submissions(found, out, settings)
    details = {
        part: analyze_errors(result.task, found.dev[part], result.predictions[part]) for part in found.dev
    }
    write_report(
        out / "report.html",
        f"{found.task.name}, fine-tuned",
        read_metrics(out / "metrics.jsonl"),
        result.scores,
        details,
        (out / "settings.toml").read_text(encoding="utf-8"),
        main_metric=found.task.main_metric,
    )
    print_scores(result.scores, as_json)
    print(out / "model", file=sys.stderr if as_json else sys.stdout)
