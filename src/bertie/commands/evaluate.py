"""`bertie evaluate`: score a model or a file of predictions."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from bertie.commands.options import (
    Device,
    Json,
    NoVerify,
    Precision,
    PrecisionChoice,
    check_stdout,
    given_options,
    local_path_option,
)
from bertie.commands.task_options import (
    Columns,
    Kind,
    MeasuredLabel,
    MeasuredSeparator,
    MeasuredText,
    OnError,
    Pair,
    TaskNameWithBlimp,
    print_scores,
    read_columns,
)

BLIMP_OPTIONS = {"--task", "--model", "--data", "--add-to-report", "--device", "--precision", "--json"}

Models = Annotated[
    list[Path] | None,
    local_path_option(
        "A fine-tuned model directory; repeat it for an ensemble of several. For blimp, a pre-trained model.",
        "--model",
    ),
]
MaxSeqLength = Annotated[
    int | None, typer.Option(min=3, help="The longest sequence in tokens; by default as in fine-tuning.")
]
AddToReport = Annotated[
    bool,
    typer.Option(
        "--add-to-report",
        help="blimp: write the scores to the run of --model RUN/model, and show them in its report.html.",
    ),
]


def evaluate(
    context: typer.Context,
    data: Annotated[Path, local_path_option("A file with gold labels, or the folder of a task's files.")],
    task: TaskNameWithBlimp = None,
    models: Models = None,
    predictions: Annotated[
        Path | None,
        local_path_option("Instead of --model: anyone's predictions, in the official format."),
    ] = None,
    null_scores: Annotated[
        Path | None,
        local_path_option("squad-v2: the null odds that belong to --predictions (null_odds.json)."),
    ] = None,
    part: Annotated[str | None, typer.Option(help="The part to score; by default all dev parts.")] = None,
    kind: Kind = "texts",
    text: MeasuredText = None,
    pair: Pair = None,
    label: MeasuredLabel = None,
    separator: MeasuredSeparator = None,
    columns: Columns = None,
    on_error: OnError = "stop",
    max_seq_length: MaxSeqLength = None,
    add_to_report: AddToReport = False,
    device: Device = "auto",
    precision: Precision = "float32",
    as_json: Json = False,
    no_verify: NoVerify = False,
) -> None:
    """Score a model or predictions as the official scorers do."""
    import bertie

    check_stdout()
    if task and task.lower() == "blimp":
        _evaluate_blimp(given_options(context), models or [], data, add_to_report, device, precision, as_json)
        return
    if add_to_report:
        raise bertie.SettingsError("--add-to-report is for --task blimp; omit it")
    result = bertie.evaluate(
        models,
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
        print_scores(result.scores, as_json, result.baselines, "gold majority")


def _evaluate_blimp(
    given: set[str],
    models: list[Path],
    data: Path,
    add_to_report: bool,
    device: str,
    precision: PrecisionChoice,
    as_json: bool,
) -> None:
    """Score a pre-trained model on BLiMP, and print its accuracy.

    It is printed by phenomenon and paradigm.
    """
    import bertie
    from bertie.tasks.blimp import NUM_PARADIGMS

    if unfit := sorted(given - BLIMP_OPTIONS):
        raise bertie.SettingsError(f"{unfit[0]}: not supported with --task blimp; omit it")
    if len(models) != 1:
        raise bertie.SettingsError("blimp: give the directory of one pre-trained model (--model)")
    scores = bertie.evaluate_blimp(
        models[0], data, add_to_report=add_to_report, device=device, precision=precision
    )
    if (found := len(scores.paradigms)) < NUM_PARADIGMS:
        print(f"{data}: {found} of BLiMP's {NUM_PARADIGMS} files; the scores are of these", file=sys.stderr)
    if as_json:
        print(json.dumps(scores._asdict()))
        return
    print(f"accuracy {scores.accuracy:.2f}  pairs {scores.pairs}")
    for by_name in (scores.phenomena, scores.paradigms):
        print()
        for name, accuracy in by_name.items():
            print(f"{name:<56} {accuracy:6.2f}")
