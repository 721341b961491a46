"""`bertie pretrain`"""

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
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in OUT.")] = False,
) -> None:
    """Pre-train a BERT on a prepared corpus: masked words and next sentences."""
    from bertie.base.settings import read_assignments, resolve
    from bertie.recipes import read_recipe
    from bertie.training.pretraining import PretrainingSettings
    from bertie.training.pretraining import pretrain as run
    from bertie.training.signals import Stopped

    changes = read_assignments(assignments or [])
    settings = resolve(PretrainingSettings, read_recipe(recipe), changes, source=recipe)
    try:
        run(settings, corpus, out, init=init, resume=resume)
    except Stopped as stopped:
        print(f"bertie: stopped and saved in {out}; go on with --resume", file=sys.stderr)
        sys.exit(128 + stopped.number)
    print(out / "model")
