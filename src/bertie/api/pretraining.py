"""Pre-train a model on a prepared corpus."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertie.api.arguments import PathLike, nest_settings
from bertie.api.results import Metrics, PretrainingResult
from bertie.base.settings import resolve
from bertie.recipes import read_recipe
from bertie.reports.pretraining import write_report
from bertie.training import pretraining
from bertie.training.metrics_file import read_metrics
from bertie.training.planning import Plan
from bertie.training.planning import plan_pretraining as plan
from bertie.training.pretraining_settings import PretrainingSettings


def pretrain(
    recipe: PathLike | Mapping[str, Any],
    *,
    corpus: PathLike,
    out: PathLike,
    init: PathLike | None = None,
    resume: bool = False,
    settings: Mapping[str, Any] | None = None,
    **more_settings: Any,
) -> PretrainingResult:
    """Pre-train a BERT on a prepared corpus, like `bertie pretrain`.

    Args:
        recipe: the name of a recipe that comes with bertie ("tiny-laptop", "base", …), the path of a .toml
            file, or a dict of settings.
        corpus: a directory that `prepare` wrote.
        out: the run's directory; the model will be in `out`/model and the report in `out`/report.html.
        init: a model directory to start from; random weights if not given.
        resume: continue the run in `out` from its newest checkpoint.
        settings: changes to the recipe, such as `{"batch_size": 64, "optimizer.learning_rate": 1e-3}`.
        **more_settings: the same as keywords: `batch_size=64`, `optimizer={"learning_rate": 1e-3}`.

    Returns:
        The run, with its metrics as a table and `load()` for the model.

    Raises:
        SettingsError: a setting is unknown or does not fit the corpus, or `out` holds another run.
        DataError: the corpus is missing or damaged.
        ModelError: `init` does not fit the settings.
        Stopped: SIGINT or SIGTERM came; the run is saved and can be resumed.

    Example:
        >>> run = bertie.pretrain("recipe.toml", corpus="corpus", out="run", batch_size=8)
        >>> run.metrics["step"][-1]
        6
        >>> model = run.load()
    """
    resolved = resolve_recipe(recipe, nest_settings(settings, more_settings))
    output = Path(out)
    pretraining.pretrain(resolved, Path(corpus), output, init=_path(init), resume=resume)
    if int(os.environ.get("RANK", "0")) == 0:  # of the processes that torchrun started, only the main one
        settings_text = (output / "settings.toml").read_text(encoding="utf-8")
        write_report(output / "report.html", read_metrics(output / "metrics.jsonl"), settings_text)
    return PretrainingResult(output, Metrics(read_metrics(output / "metrics.jsonl")))


def plan_pretraining(
    recipe: PathLike | Mapping[str, Any],
    *,
    corpus: PathLike,
    out: PathLike,
    init: PathLike | None = None,
    resume: bool = False,
    settings: Mapping[str, Any] | None = None,
    **more_settings: Any,
) -> Plan:
    """Estimate time and memory of `pretrain` with the same arguments; write nothing."""
    resolved = resolve_recipe(recipe, nest_settings(settings, more_settings))
    return plan(resolved, Path(corpus), Path(out), init=_path(init), resume=resume)


def resolve_recipe(recipe: PathLike | Mapping[str, Any], changes: Mapping[str, Any]) -> PretrainingSettings:
    """Return the settings of a recipe with changes; raise SettingsError at a bad one."""
    if isinstance(recipe, Mapping):
        return resolve(PretrainingSettings, nest_settings(recipe), changes, source="recipe")
    return resolve(PretrainingSettings, read_recipe(str(recipe)), changes, source=str(recipe))


def _path(path: PathLike | None) -> Path | None:
    return None if path is None else Path(path)
