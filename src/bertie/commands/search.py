"""`bertie search`"""

import json
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
    read_data,
    write_submissions,
)


def search(
    model: Annotated[Path, typer.Option(help="The model directory to start from.")],
    out: Annotated[Path, typer.Option(help="The search's folder; the chosen model will be in OUT/model.")],
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
    recipe: Annotated[str, typer.Option(help="The grid: a recipe of bertie's, or a .toml file.")] = "search",
    assignments: Assignments = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Fine-tune over a grid of settings, with restarts, and keep the best model by dev (Appendix A.3).

    The same command given again goes on with a search that was stopped or killed.
    """
    from bertie.base.errors import SettingsError
    from bertie.base.settings import merge, read_assignments, resolve
    from bertie.recipes import read_recipe
    from bertie.reports.finetuning import write_search_report
    from bertie.training.finetuning import InitialModel
    from bertie.training.search import GRID, SearchSettings
    from bertie.training.search import search as run
    from bertie.training.signals import Stopped

    # What is wrong with these is told before the data are read.
    changes = read_assignments([*(assignments or []), f"finetuning.device={device}"])
    grid = read_recipe(recipe)
    resolve(SearchSettings, grid, changes, source=recipe)
    given = merge(grid, changes).get("finetuning", {})
    given = {*given, *(f"optimizer.{key}" for key in given.get("optimizer", {}))}
    if of_grid := [key for key in GRID if key in given]:
        raise SettingsError(f"finetuning.{of_grid[0]} is the grid's to set: give {GRID[of_grid[0]]}")
    start = InitialModel.load(model)
    found = read_data(task, data, train, dev, custom_task(kind, text, pair, label, separator, columns))
    if not found.dev:
        raise SettingsError("a search chooses by dev: give --dev FILE")
    layers = ({"finetuning": found.task.defaults}, grid, changes)
    settings = resolve(SearchSettings, *layers, source=recipe)
    try:
        result = run(found.task, start, found.training, found.dev, settings, out)
    except Stopped as stopped:
        print(f"bertie: stopped and saved in {out}; the same command goes on", file=sys.stderr)
        sys.exit(128 + stopped.number)
    write_submissions(found, out, settings.finetuning.resolved())
    title = f"{found.task.name}: a search over {len(result.cells)} settings"
    write_search_report(out / "report.html", title, found.task.main_metric, result)
    if as_json:
        rows = [
            {
                "batch_size": cell.batch_size,
                "learning_rate": cell.learning_rate,
                "epochs": cell.epochs,
                "scores": cell.scores,
                "mean": cell.mean,
                "std": cell.std,
                "chosen": cell is result.chosen,
            }
            for cell in result.cells
        ]
        print(json.dumps(rows))
        return
    print(f"batch  rate     epochs  {found.task.main_metric} on {next(iter(found.dev))}")
    for cell in result.cells:
        chosen = "  chosen" if cell is result.chosen else ""
        print(
            f"{cell.batch_size:<6} {cell.learning_rate:<8g} {cell.epochs:<7} "
            f"{cell.mean:.2f} ± {cell.std:.2f}{chosen}"
        )
    print(out / "model")
