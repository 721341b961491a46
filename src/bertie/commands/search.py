"""`bertie search`: fine-tune over a grid of settings."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    read_columns,
    read_dev,
)

if TYPE_CHECKING:
    from bertie.api.results import SearchResult

Assignments = Annotated[
    list[str] | None, assignments_option("'learning_rates=[1e-4, 3e-4]' or finetuning.max_seq_length=64")
]


def search(
    out: Annotated[Path, path_option("The search's directory; the best model will be in OUT/model.")],
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
    recipe: Annotated[
        str | None,
        typer.Option(help="The grid: one of those below, by default search, or the path of a .toml file."),
    ] = None,
    assignments: Assignments = None,
    device: Device = "auto",
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume the search in OUT; nothing else is needed.")
    ] = False,
    as_json: Json = False,
    no_verify: NoVerify = False,
) -> None:
    """Fine-tune over a grid of settings; keep the best model.

    The default grid is from Appendix A.3, and the best model is chosen on dev. The same command resumes a
    run that was stopped or killed, and so does `bertie search --resume --out OUT`.
    """
    import bertie
    from bertie.base.settings import parse_assignments

    options = [f"finetuning.device={device}"] if device != "auto" else []
    with exit_when_stopped(lambda: how_to_resume("search", out)):
        result = bertie.search(
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
            recipe=recipe,
            resume=resume,
            settings=parse_assignments([*(assignments or []), *options]),
        )
    if as_json:
        print(json.dumps(list(result.table)))
    else:
        _print_table(result)


def _print_table(result: "SearchResult") -> None:
    print(f"batch  rate     epochs  {result.metric} on {result.part}")
    for trial in result.trials:
        chosen = "  chosen" if trial is result.chosen else ""
        print(
            f"{trial.batch_size:<6} {trial.learning_rate:<8g} {trial.epochs:<7} "
            f"{trial.mean:.2f} ± {trial.std:.2f}{chosen}"
        )
    if baseline := result.baselines.get(result.part):
        print(f"majority baseline       {baseline[result.metric]:.2f}")
    print(result.model_directory)
