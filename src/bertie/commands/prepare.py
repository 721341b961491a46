"""`bertie prepare`: turn text into a corpus for pre-training."""

from pathlib import Path
from typing import Annotated

import typer

from bertie.commands.options import (
    Column,
    Force,
    Format,
    Inputs,
    LanguageColumn,
    Languages,
    NoVerify,
    OnError,
    Scheduler,
    Workers,
    exit_on_interrupt,
    parse_languages,
)


def prepare(
    inputs: Inputs,
    tokenizer: Annotated[Path, typer.Option(help="A tokenizer directory, such as `bertie vocab` writes.")],
    out: Annotated[Path, typer.Option(help="The corpus directory to write.")],
    held_out: Annotated[
        float, typer.Option(help="The fraction of the documents kept for evaluation.")
    ] = 0.005,
    format: Format = None,
    column: Column = "text",
    language: Languages = None,
    language_column: LanguageColumn = None,
    on_error: OnError = "stop",
    workers: Workers = None,
    scheduler: Scheduler = None,
    force: Force = False,
    no_verify: NoVerify = False,
) -> None:
    """Turn text into a corpus of WordPiece tokens for pre-training.

    The same command resumes a run that was stopped or killed.
    """
    with exit_on_interrupt(lambda: _describe_progress(out)):
        import bertie

        bertie.prepare(
            inputs,
            tokenizer=tokenizer,
            out=out,
            held_out=held_out,
            format=format,
            column=column,
            language=parse_languages(language),
            language_column=language_column,
            on_error=on_error,
            workers=workers,
            scheduler=scheduler,
            force=force,
        )
    print(out)


def _describe_progress(out: Path) -> str:
    if (out / "parts").is_dir():
        return f"finished parts are kept in {out}; run the same command again to resume"
    return f"nothing is in {out} yet; run the command again"
