"""Fine-tune a model on a task of the paper or on custom data."""

import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from bertie.api.arguments import PathLike, free_directory, nest_settings, record_arguments
from bertie.api.results import FinetuningResult, Metrics
from bertie.api.task_data import (
    Kind,
    LabelType,
    OnError,
    TaskData,
    describe_run,
    describe_sources,
    read_arguments,
    recall_task_arguments,
    write_dev_rows,
    write_test_predictions,
)
from bertie.base.arguments import checked
from bertie.base.errors import SettingsError
from bertie.base.files import read_json_object
from bertie.base.outputs import check_not_input
from bertie.base.settings import SETTINGS_FILE, Tree, merge, read_settings, resolve
from bertie.reports.finetuning import write_report
from bertie.tasks.evaluation import Evaluation, check_length, find_failures, majority_baselines
from bertie.tasks.task import Scores
from bertie.training import finetuning
from bertie.training.checkpoints import RunDirectory
from bertie.training.contrastive import describe_contrastive
from bertie.training.distributed import count_processes, is_main_process, join_ranks
from bertie.training.finetuning import InitialModel, check_frozen_layers
from bertie.training.finetuning_settings import CONTRASTIVE_DEFAULTS, FinetuningSettings
from bertie.training.metrics_file import read_metrics
from bertie.training.model_selection import SCORES_FILE, describe_decisions
from bertie.training.resuming import check_changes, check_new_run, continues_job, lock_run


@checked
def finetune(
    model: PathLike | None = None,
    *,
    train: Any = None,
    dev: Any = None,
    task: str | None = None,
    data: PathLike | None = None,
    out: PathLike | None = None,
    kind: Kind = "texts",
    text: str = "text",
    pair: str | None = None,
    label: str = "label",
    separator: str | None = None,
    columns: Mapping[str, Any] | None = None,
    on_error: OnError = "stop",
    label_type: LabelType | None = None,
    resume: bool = False,
    settings: Mapping[str, Any] | None = None,
    **more_settings: Any,
) -> FinetuningResult:
    """Fine-tune a model, like `bertie finetune`.

    Args:
        model: the model directory to start from.
        train: your examples: a csv, tsv, jsonl or Parquet file, a list of dicts, a DataFrame or a Dataset.
        dev: examples for evaluation after each epoch; the best epoch is kept, without `dev` the last one. A
            number such as 0.1 draws this fraction of each label's training examples (see dev_rows.json).
        task, data: instead of `train`: a task of the paper, such as "mrpc", and the folder of its files.
        out: the run's directory; by default the first free one of `finetuned`, `finetuned-2`, ….
        kind: "texts", "tags", "entities", "questions", "choices", "pairs" or "scored-pairs", with
            examples in `FinetuningResult`.
        text, pair: texts, entities, pairs: the columns of the text, and of a second text if there is one.
        label: texts, choices, scored pairs: the column of the label. In texts, lists mean several labels,
            fractions mean regression, all else classes; `label_type`, "numbers" or "classes", overrides this.
        separator: texts: the separator, if a text has several labels in one string.
        columns: the other kinds: the column of each role, such as `{"words": "tokens", "tags": "ner_tags"}`.
        on_error: "stop" at a row that is malformed or lacks text or label, or "skip" and count it.
        resume: continue the run in `out`. It has recorded its arguments, except for data in memory.
        settings: settings of fine-tuning, such as `{"epochs": 4, "optimizer.learning_rate": 3e-5}`.
        **more_settings: the same as keywords, such as `epochs=4` or `optimizer={"learning_rate": 3e-5}`.

    Raises:
        SettingsError: arguments contradict each other, a setting is unknown, or `out` holds another run.
        DataError, ModelError: the data or the model cannot be read.
        Stopped: a signal came; the run is saved and can be resumed.

    Example:
        >>> rows = [{"review": "good film", "stars": "5"}, {"review": "bad film", "stars": "1"}] * 8
        >>> options = {"text": "review", "label": "stars", "out": "reviews", "epochs": 1}
        >>> sorted(bertie.finetune("run/model", train=rows, dev=rows, **options).scores["dev"])
        ['accuracy', 'f1_macro']
    """
    output = _find_output(out, resume)
    arguments: Tree = {"model": model, "train": train, "dev": dev, "task": task, "data": data, "kind": kind}
    arguments |= {"text": text, "pair": pair, "label": label, "separator": separator, "on_error": on_error}
    arguments |= {"columns": dict(columns) if columns else None, "label_type": label_type}
    with lock_run(output) if is_main_process() else nullcontext():
        resume = resume or continues_job(output)  # torchrun has started this process again
        arguments = recall_task_arguments(output, "finetune", arguments, resume)
        return _finetune(arguments, nest_settings(settings, more_settings), output, resume)


def _find_output(out: PathLike | None, resume: bool) -> Path:
    """Return the run's directory; raise SettingsError if it has to be given."""
    if out is None and resume:
        raise SettingsError("resume needs the directory of the run; give it as out")
    if out is None and count_processes() > 1:
        raise SettingsError("several processes need a directory that all of them know; give it as out")
    return Path(out or free_directory("finetuned"))


def _finetune(arguments: Tree, changes: Tree, output: Path, resume: bool) -> FinetuningResult:
    """Train, predict the official test parts and write the report."""
    check_not_input(output, [Path(arguments["model"])])
    check_changes(FinetuningSettings, changes)
    recorded = read_settings(output / SETTINGS_FILE) if resume else {}
    # Report an existing run, a wrong setting or model before reading the data.
    if not resume:
        check_new_run(RunDirectory(output))
    chosen = resolve(FinetuningSettings, recorded, changes, source="settings").resolved()
    start = InitialModel.load(Path(arguments["model"]))
    check_frozen_layers(chosen, start.config)
    if "max_seq_length" in changes:  # the default depends on the task
        check_length(chosen.max_seq_length, start.config)
    examples = read_arguments(arguments)
    if not examples.dev and is_main_process():
        print("no dev examples: the model of the last epoch is kept, without scores", file=sys.stderr)
    defaults = examples.task.defaults
    if chosen.contrastive_pairs:
        defaults = merge(defaults, CONTRASTIVE_DEFAULTS)
    layers = (defaults, recorded, changes)
    resolved = resolve(FinetuningSettings, *layers, source="settings").resolved()
    with join_ranks(torch.device(resolved.device).type) as ranks:
        result = finetuning.finetune(
            examples.task,
            start,
            examples.training,
            examples.dev,
            resolved,
            output,
            resume=resume,
            ranks=ranks,
            arguments=record_arguments(arguments),
            sources=describe_sources(start, examples),
        )
    metrics = read_metrics(output / "metrics.jsonl", {"train": ["seconds", "examples"]})
    baselines = majority_baselines(examples.task, examples.training, examples.dev)
    if ranks.is_main:
        _write_results(start, examples, result, metrics, baselines, output, resolved)
    return FinetuningResult(
        output, Metrics(metrics), result.scores, result.predictions, baselines, result.calibration
    )


def _write_results(
    start: InitialModel,
    examples: TaskData,
    result: Evaluation,
    metrics: list[dict[str, Any]],
    baselines: Mapping[str, Scores],
    output: Path,
    settings: FinetuningSettings,
) -> None:
    """Write the dev rows, the predictions on the test parts, and the report."""
    write_dev_rows(examples, output)
    write_test_predictions(examples, output, settings.device)
    warnings = find_failures(result.task, examples.dev, result.predictions, result.scores)
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    # Runs of earlier versions have no weights.
    class_weights = read_json_object(output / SCORES_FILE).get("class_weights", {})
    write_report(
        output / "report.html",
        f"{examples.task.name}, fine-tuned",
        metrics,
        result.scores,
        {
            part: result.task.analyze_errors(gold, result.predictions[part], result.confidence[part])
            for part, gold in examples.dev.items()
        },
        (output / "settings.toml").read_text(encoding="utf-8"),
        calibration=result.calibration,
        main_metric=result.task.main_metric,
        baselines=baselines,
        warnings=warnings,
        facts=describe_run(start, examples, output, metrics)
        | describe_contrastive(len(examples.training), settings)
        | describe_decisions(result.task, class_weights),
    )
