"""Fine-tune over a grid of settings (Appendix A.3)."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertie.api.arguments import PathLike, nest_settings, record_arguments
from bertie.api.results import SearchResult
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
from bertie.base.locks import lock_directory
from bertie.base.outputs import check_not_input
from bertie.base.settings import SETTINGS_FILE, Tree, merge, read_settings, resolve
from bertie.model.formats.directory import read_metadata
from bertie.recipes import read_recipe
from bertie.reports.finetuning import write_search_report
from bertie.tasks.evaluation import find_failures, majority_baselines
from bertie.tasks.task import Scores
from bertie.training import search as training_search
from bertie.training.contrastive import describe_contrastive
from bertie.training.distributed import require_one_process
from bertie.training.finetuning import InitialModel, apply_settings
from bertie.training.finetuning_settings import FinetuningSettings
from bertie.training.metrics_file import read_metrics
from bertie.training.resuming import check_changes
from bertie.training.search import GRID, RESULT_FILE, Search, SearchSettings
from bertie.training.signals import Stopped


@checked
def search(
    model: PathLike | None = None,
    *,
    train: Any = None,
    dev: Any = None,
    task: str | None = None,
    data: PathLike | None = None,
    out: PathLike,
    kind: Kind = "texts",
    text: str = "text",
    pair: str | None = None,
    label: str = "label",
    separator: str | None = None,
    columns: Mapping[str, Any] | None = None,
    on_error: OnError = "stop",
    label_type: LabelType | None = None,
    recipe: PathLike | None = None,
    resume: bool = False,
    settings: Mapping[str, Any] | None = None,
    **more_settings: Any,
) -> SearchResult:
    """Fine-tune over a grid of settings with restarts, like `bertie search`.

    The best model on dev is kept. The same call resumes a search that was stopped or killed; with `resume`,
    the directory is enough.

    Args:
        model: the model directory to start from.
        train, task, data, kind, text, pair, label, separator, columns: your data, as in `finetune`.
        dev: examples that choose the best model, or a fraction of the training examples; as in `finetune`.
        out: the directory of the search; the best model will be in `out`/model.
        on_error, label_type: as in `finetune`.
        recipe: the grid: a recipe that comes with bertie ("search" by default), or a .toml file.
        resume: continue the search in `out` with the arguments and the settings that it recorded; only
            data in memory are needed again.
        settings: changes to the recipe; its section `finetuning` has the settings of fine-tuning.
        **more_settings: the same as keywords, such as `restarts=3` or `finetuning={"max_seq_length": 64}`.

    Raises:
        SettingsError: there is no dev set, a setting is unknown, or `finetuning` sets what the grid varies.
        DataError, ModelError: the data or the model cannot be read.
        Stopped: SIGINT, SIGTERM or SIGHUP came; the search is saved and can be resumed.

    Example:
        >>> rows = [{"review": "good film", "stars": "5"}, {"review": "bad film", "stars": "1"}] * 8
        >>> options = {"train": rows, "dev": rows, "text": "review", "label": "stars", "out": "search"}
        >>> options |= {"batch_sizes": [8], "learning_rates": [1e-4, 3e-4], "epochs": [1]}
        >>> result = bertie.search("run/model", **options)
        >>> result.table["learning_rate"]
        [0.0001, 0.0003]
        >>> model = result.load()
    """
    output = Path(out)
    given: Tree = {"model": model, "train": train, "dev": dev, "task": task, "data": data, "kind": kind}
    given |= {"text": text, "pair": pair, "label": label, "separator": separator, "label_type": label_type}
    given |= {"columns": dict(columns) if columns else None, "on_error": on_error}
    with lock_directory(output):
        require_one_process("search")
        arguments = recall_task_arguments(output, "search", given, resume)
        return _search(arguments, recipe, nest_settings(settings, more_settings), output, resume)


def _search(
    arguments: Tree, recipe: PathLike | None, changes: Tree, output: Path, resume: bool
) -> SearchResult:
    """Run the trials, predict the official test parts and write the report."""
    check_not_input(output, [Path(arguments["model"])])
    recorded = read_settings(output / SETTINGS_FILE) if resume else {}
    grid = {} if resume and recipe is None else read_recipe(str(recipe or "search"), "grid")
    source = str(recipe or "settings")
    # Report a wrong setting or model before reading the data.
    _check_grid(changes)
    resolve(SearchSettings, recorded, grid, changes, source=source)
    check_changes(SearchSettings, changes)
    check_changes(FinetuningSettings, changes.get("finetuning", {}))
    _check_grid(merge(grid, changes).get("finetuning", {}), "finetuning.")
    start = InitialModel.load(Path(arguments["model"]))
    if arguments["task"] is None and arguments["dev"] is None:
        raise SettingsError(
            "a search needs dev examples to choose the best model; pass --dev FILE or --dev 0.1 (dev=…)"
        )
    examples = read_arguments(arguments)
    layers = ({"finetuning": examples.task.defaults}, recorded, grid, changes)
    resolved = resolve(SearchSettings, *layers, source=source)
    task = apply_settings(examples.task, resolved.finetuning, examples.dev)
    examples = examples._replace(task=task)
    try:
        found = training_search.search(
            task,
            start,
            examples.training,
            examples.dev,
            resolved,
            output,
            arguments=record_arguments(arguments),
            sources=describe_sources(start, examples),
        )
    except Stopped as stopped:  # in the run of a trial
        raise Stopped(stopped.number, output, "the same call continues it") from None
    write_dev_rows(examples, output)
    write_test_predictions(examples, output, resolved.finetuning.resolved().device)
    baselines = majority_baselines(task, examples.training, examples.dev)
    _write_report(output, start, examples, found, baselines, resolved.finetuning)
    part = next(iter(examples.dev))
    return SearchResult(output, part, task.main_metric, found.trials, found.chosen, baselines)


def _write_report(
    out: Path,
    start: InitialModel,
    examples: TaskData,
    result: Search,
    baselines: Mapping[str, Scores],
    settings: FinetuningSettings,
) -> None:
    """Write the report.

    Warn if the search has learnt nothing, and about the best model.
    """
    task, first_part = examples.task, next(iter(examples.dev))
    baseline = baselines[first_part][task.main_metric] if first_part in baselines else None
    warnings = [*_find_equal_trials(result, baseline), *_find_failures(examples, result, out / "model")]
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    run = result.chosen.runs[0]
    facts = describe_run(start, examples, run, read_metrics(run / "metrics.jsonl", {"train": ["seconds"]}))
    chosen = settings.model_copy(update={"epochs": result.chosen.epochs})
    facts |= describe_contrastive(len(examples.training), chosen)
    facts |= {"run": str(out), "training time": f"{facts['training time']}, a run of the chosen trial"}
    write_search_report(
        out / "report.html",
        f"{task.name}: a search over {len(result.trials)} settings",
        task.main_metric,
        result,
        baseline=baseline,
        warnings=warnings,
        facts=facts,
    )


def _find_failures(examples: TaskData, result: Search, model: Path) -> list[str]:
    """Return the warnings of fine-tuning about the best model."""
    task, run = examples.task.fitted_to_model(read_metadata(model)), result.chosen.best_run
    predictions = {
        part: task.read_predictions(dev, run / "predictions" / part / task.predictions_file)
        for part, dev in examples.dev.items()
    }
    return find_failures(task, examples.dev, predictions, read_json_object(run / RESULT_FILE))


def _find_equal_trials(result: Search, baseline: float | None) -> list[str]:
    """Return a warning if all runs have the same score, and it is not perfect."""
    scores = {score for trial in result.trials for score in trial.scores}
    runs = sum(len(trial.runs) for trial in result.trials)
    if runs == 1 or len(scores) > 1 or max(scores) == 100:
        return []
    (score,) = scores
    as_majority = " as the majority baseline" if score == baseline else ""
    return [
        f"all {runs} runs have the same score{as_majority}, {score:.2f}, so none of them has learnt "
        f"anything; try higher learning rates or more epochs"
    ]


def _check_grid(settings: Mapping[str, Any], prefix: str = "") -> None:
    """Raise SettingsError if fine-tuning sets a setting that the grid varies."""
    optimizer = settings.get("optimizer")
    keys = {*settings, *(f"optimizer.{key}" for key in optimizer or () if isinstance(optimizer, Mapping))}
    for key, name in GRID.items():
        if key in keys and prefix + key != name:
            raise SettingsError(f"{prefix}{key} is varied by the grid; set {name} instead")
