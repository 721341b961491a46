"""`bertie pretrain`: pre-train a model on a prepared corpus."""

from pathlib import Path
from typing import Annotated

import typer

from bertie.commands.options import (
    NoVerify,
    assignments_option,
    exit_when_stopped,
    how_to_resume,
    local_path_option,
    path_option,
)

Assignments = Annotated[list[str] | None, assignments_option("batch_size=64 or optimizer.learning_rate=1e-3")]


def pretrain(
    out: Annotated[Path, path_option("The run's directory; the model will be in OUT/model.")],
    recipe: Annotated[
        str | None,
        typer.Argument(help="The name of a recipe below, or the path of a .toml file.", show_default=False),
    ] = None,
    corpus: Annotated[
        Path | None,
        path_option("A corpus directory, such as `bertie prepare` writes, or its URL."),
    ] = None,
    init: Annotated[
        Path | None,
        local_path_option("A model directory to start from, with any head; its sizes replace the recipe's."),
    ] = None,
    assignments: Assignments = None,
    device: Annotated[
        str, typer.Option(help="Where to compute: auto, cpu, cuda, cuda:1, …; by default as in the recipe.")
    ] = "",
    shard: Annotated[
        bool,
        typer.Option(
            "--shard", help="Divide weights, gradients and moments among the processes of torchrun (FSDP2)."
        ),
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume the run in OUT; nothing else is needed.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only estimate time and memory; write nothing.")
    ] = False,
    no_verify: NoVerify = False,
) -> None:
    """Pre-train a BERT on masked tokens and next sentences.

    Ctrl-C saves the run; `bertie pretrain --resume --out OUT` continues it.
    --resume resumes a run that was stopped or killed.
    """
    import bertie
    from bertie.base.settings import parse_assignments

    options = [*([f"device={device}"] if device else []), *(["shard=true"] if shard else [])]
    settings = parse_assignments([*(assignments or []), *options])
    if dry_run:
        from bertie.api.pretraining import plan_pretraining

        print(plan_pretraining(recipe, corpus=corpus, out=out, init=init, resume=resume, settings=settings))
        return
    with exit_when_stopped(lambda: how_to_resume("pretrain", out)):
        run = bertie.pretrain(recipe, corpus=corpus, out=out, init=init, resume=resume, settings=settings)
    from bertie.training.distributed import is_main_process  # late, since it imports torch

    if is_main_process():
        print(run.model_directory)
