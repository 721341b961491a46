"""Fine-tune over a grid of settings (Appendix A.3)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertie.api.arguments import PathLike, nest_settings
from bertie.api.task_data import Kind, TaskData, custom_task, read_task_data, write_test_predictions
from bertie.base.errors import SettingsError
from bertie.base.settings import merge, resolve
from bertie.recipes import read_recipe
from bertie.reports.finetuning import write_search_report
from bertie.training import search as training_search
from bertie.training.finetuning import InitialModel
from bertie.training.search import GRID, Search, SearchSettings
from bertie.training.signals import Stopped


def search(
    model: PathLike,
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
    recipe: PathLike = "search",
    settings: Mapping[str, Any] | None = None,
) -> tuple[TaskData, Search]:
    """Fine-tune over a grid of settings with restarts; keep the best model on dev.

    The same call resumes a search that was stopped or killed.

    Args:
        model, train, dev, task, data, kind, text, pair, label, separator, columns: as in `finetune`.
        out: the directory of the search; the best model will be in `out`/model.
        recipe: the grid: a recipe that comes with bertie, or a .toml file.
        settings: changes to the recipe; its section `finetuning` has the settings of fine-tuning.

    Returns:
        The task with its examples, and all trials with the chosen one.

    Raises:
        SettingsError: there is no dev set, a setting is unknown, or `finetuning` sets what the grid varies.
        DataError: the data cannot be read.
        ModelError: the model cannot be read.
        Stopped: SIGINT or SIGTERM came; the search is saved and can be resumed.
    """
    changes, grid = nest_settings(settings), read_recipe(str(recipe), "grid")
    # Report a wrong setting or model before reading the data.
    resolve(SearchSettings, grid, changes, source=str(recipe))
    _check_grid(merge(grid, changes).get("finetuning", {}))
    start = InitialModel.load(Path(model))
    custom = custom_task(kind, text, pair, label, separator, columns)
    examples = read_task_data(task, None if data is None else Path(data), train, dev, custom)
    if not examples.dev:
        raise SettingsError("a search chooses the best model on dev examples; give some as dev")
    layers = ({"finetuning": examples.task.defaults}, grid, changes)
    resolved = resolve(SearchSettings, *layers, source=str(recipe))
    try:
        result = training_search.search(
            examples.task, start, examples.training, examples.dev, resolved, Path(out)
        )
    except Stopped as stopped:  # in the run of a trial
        raise Stopped(stopped.number, Path(out), "the same call continues it") from None
    write_test_predictions(examples, Path(out), resolved.finetuning.resolved().device)
    title = f"{examples.task.name}: a search over {len(result.trials)} settings"
    write_search_report(Path(out) / "report.html", title, examples.task.main_metric, result)
    return examples, result


def _check_grid(finetuning: Mapping[str, Any]) -> None:
    """Raise SettingsError if a setting of fine-tuning is one that the grid varies."""
    keys = {*finetuning, *(f"optimizer.{key}" for key in finetuning.get("optimizer", {}))}
    for key, name in GRID.items():
        if key in keys:
            raise SettingsError(f"finetuning.{key} is varied by the grid; set {name} instead")
