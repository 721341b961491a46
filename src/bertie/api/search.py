"""Fine-tune over a grid of settings (Appendix A.3)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertie.api.arguments import PathLike, nest_settings, record_arguments
from bertie.api.task_data import (
    Kind,
    TaskData,
    read_arguments,
    recall_task_arguments,
    write_test_predictions,
)
from bertie.base.errors import SettingsError
from bertie.base.settings import SETTINGS_FILE, Tree, merge, read_toml, resolve
from bertie.recipes import read_recipe
from bertie.reports.finetuning import write_search_report
from bertie.training import search as training_search
from bertie.training.finetuning import InitialModel
from bertie.training.search import GRID, Search, SearchSettings
from bertie.training.signals import Stopped


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
    recipe: PathLike | None = None,
    resume: bool = False,
    settings: Mapping[str, Any] | None = None,
) -> tuple[TaskData, Search]:
    """Fine-tune over a grid of settings with restarts; keep the best model on dev.

    The same call resumes a search that was stopped or killed; with `resume`, the directory is enough.

    Args:
        model, train, dev, task, data, kind, text, pair, label, separator, columns: as in `finetune`.
        out: the directory of the search; the best model will be in `out`/model.
        recipe: the grid: a recipe that comes with bertie ("search" by default), or a .toml file.
        resume: continue the search in `out` with the arguments and the settings that it recorded; only
            data in memory are needed again.
        settings: changes to the recipe; its section `finetuning` has the settings of fine-tuning.

    Returns:
        The task with its examples, and all trials with the chosen one.

    Raises:
        SettingsError: there is no dev set, a setting is unknown, or `finetuning` sets what the grid varies.
        DataError: the data cannot be read.
        ModelError: the model cannot be read.
        Stopped: SIGINT or SIGTERM came; the search is saved and can be resumed.
    """
    output = Path(out)
    given = {
        "model": model,
        "train": train,
        "dev": dev,
        "task": task,
        "data": data,
        "kind": kind,
        "text": text,
        "pair": pair,
        "label": label,
        "separator": separator,
        "columns": None if columns is None else dict(columns),
    }
    arguments = recall_task_arguments(output, given, resume)
    return _search(arguments, recipe, nest_settings(settings), output, resume)


def _search(
    arguments: Tree, recipe: PathLike | None, changes: Tree, output: Path, resume: bool
) -> tuple[TaskData, Search]:
    """Run the trials, predict the official test parts and write the report."""
    recorded = read_toml(output / SETTINGS_FILE) if resume else {}
    grid = {} if resume and recipe is None else read_recipe(str(recipe or "search"), "grid")
    source = str(recipe or "settings")
    # Report a wrong setting or model before reading the data.
    resolve(SearchSettings, recorded, grid, changes, source=source)
    _check_grid(merge(grid, changes).get("finetuning", {}))
    start = InitialModel.load(Path(arguments["model"]))
    examples = read_arguments(arguments)
    if not examples.dev:
        raise SettingsError("a search chooses the best model on dev examples; give some as dev")
    layers = ({"finetuning": examples.task.defaults}, recorded, grid, changes)
    resolved = resolve(SearchSettings, *layers, source=source)
    try:
        result = training_search.search(
            examples.task,
            start,
            examples.training,
            examples.dev,
            resolved,
            output,
            arguments=record_arguments(arguments),
        )
    except Stopped as stopped:  # in the run of a trial
        raise Stopped(stopped.number, output, "the same call continues it") from None
    write_test_predictions(examples, output, resolved.finetuning.resolved().device)
    title = f"{examples.task.name}: a search over {len(result.trials)} settings"
    write_search_report(output / "report.html", title, examples.task.main_metric, result)
    return examples, result


def _check_grid(finetuning: Mapping[str, Any]) -> None:
    """Raise SettingsError if a setting of fine-tuning is one that the grid varies."""
    keys = {*finetuning, *(f"optimizer.{key}" for key in finetuning.get("optimizer", {}))}
    for key, name in GRID.items():
        if key in keys:
            raise SettingsError(f"finetuning.{key} is varied by the grid; set {name} instead")
