"""`bertie pretrain`"""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer


def pretrain(
    recipe: Annotated[str, typer.Argument(help="A recipe file (.toml), or the name of one that bertie has.")],
    corpus: Annotated[Path, typer.Option(help="What `bertie prepare` wrote.")],
    out: Annotated[Path, typer.Option(help="The run's folder; the model will be in OUT/model.")],
    init: Annotated[Path | None, typer.Option(help="A model directory to start from.")] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Change a setting, e.g. optimizer.learning_rate=1e-3."
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="Where to compute: auto, cpu, cuda, cuda:1, …")] = "",
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in OUT.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what the run would take; nothing is written.")
    ] = False,
) -> None:
    """Pre-train a BERT on a prepared corpus: masked words and next sentences."""
    from bertie.base.settings import read_assignments, resolve
    from bertie.recipes import read_recipe
    from bertie.reports.pretraining import write_report
    from bertie.training.pretraining import PretrainingSettings, plan
    from bertie.training.pretraining import pretrain as run
    from bertie.training.signals import Stopped

    changes = read_assignments([*(assignments or []), *([f"device={device}"] if device else [])])
    settings = resolve(PretrainingSettings, read_recipe(recipe), changes, source=recipe)
    if dry_run:
        print(plan(settings, corpus, out, init=init, resume=resume))
        return
    try:
        run(settings, corpus, out, init=init, resume=resume)
    except Stopped as stopped:
        print(f"bertie: stopped and saved in {out}; go on with --resume", file=sys.stderr)
        sys.exit(128 + stopped.number)
    if int(os.environ.get("RANK", "0")) == 0:  # of several processes that torchrun started, one
        settings_text = (out / "settings.toml").read_text(encoding="utf-8")
        write_report(out / "report.html", out / "metrics.jsonl", settings_text)
        print(out / "model")
