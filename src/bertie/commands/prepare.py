"""`bertie prepare`: turn text into a corpus for pre-training."""

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from bertie.base.errors import SettingsError
from bertie.base.storage import cache_directory, is_remote
from bertie.commands.options import (
    Column,
    Force,
    Format,
    LanguageColumn,
    Languages,
    NoVerify,
    OnError,
    OptionalInputs,
    Scheduler,
    Workers,
    exit_on_interrupt,
    given_options,
    parse_languages,
    path_option,
)

Part = Annotated[
    str | None,
    typer.Option(
        metavar="I/N",
        help="Prepare only part I of N, from 1/N to N/N, for an array of jobs that share a file system; "
        "then join the parts with --join.",
    ),
]
Join = Annotated[
    bool,
    typer.Option("--join", help="Join the parts in OUT; needs neither the inputs nor the other options."),
]

Out = Annotated[Path, path_option("The corpus directory to write, or its URL.")]

TokenizerPath = Annotated[
    Path | None,
    path_option(
        "A tokenizer directory, such as `bertie vocab` writes, or its URL. Required, except with --join."
    ),
]


def prepare(
    context: typer.Context,
    out: Out,
    inputs: OptionalInputs = None,
    tokenizer: TokenizerPath = None,
    held_out: Annotated[
        float, typer.Option(help="The fraction of the documents kept for evaluation.")
    ] = 0.005,
    format: Format = None,
    column: Column = "text",
    language: Languages = None,
    language_column: LanguageColumn = None,
    part: Part = None,
    join: Join = False,
    on_error: OnError = "stop",
    workers: Workers = None,
    scheduler: Scheduler = None,
    force: Force = False,
    no_verify: NoVerify = False,
) -> None:
    """Turn text into a corpus of WordPiece tokens for pre-training.

    The same command resumes a run that was stopped or killed.
    """
    _check_options(context, inputs, part)
    with exit_on_interrupt(lambda: _describe_progress(out)):
        import bertie

        if join:
            bertie.join_parts(out, workers=workers)
        else:
            assert inputs  # _check_options
            assert tokenizer
            reading: dict[str, Any] = {
                "held_out": held_out,
                "format": format,
                "column": column,
                "language": parse_languages(language),
                "language_column": language_column,
                "on_error": on_error,
                "workers": workers,
            }
            if part:
                bertie.prepare_part(inputs, *_parse_part(part), tokenizer=tokenizer, out=out, **reading)
            else:
                bertie.prepare(
                    inputs, tokenizer=tokenizer, out=out, scheduler=scheduler, force=force, **reading
                )
    print(out)


def _check_options(context: typer.Context, inputs: list[Path] | None, part: str | None) -> None:
    """Check that the options go together.

    Raises:
        SettingsError: an option is missing, or has no effect beside another one.
    """
    given = given_options(context)
    if "--join" in given:
        useless = sorted(given - {"--join", "--out", "--workers"})
        if inputs or useless:
            name = useless[0] if useless else str(inputs and inputs[0])
            raise SettingsError(f"--join: joins the parts as they are; leave {name} out")
    elif not inputs or "--tokenizer" not in given:
        missing = "--tokenizer DIR" if inputs else "the files or folders of text"
        raise SettingsError(f"nothing to prepare; pass {missing}")
    if part and "--scheduler" in given:
        raise SettingsError("--scheduler: its workers share the whole work; leave --part out")
    if part and "--force" in given:
        raise SettingsError(
            "--force: would remove the parts of the other jobs; remove the corpus directory first, and leave "
            "--force out"
        )


def _parse_part(option: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)/(\d+)", option)
    if not match:
        raise SettingsError(f"--part {option}: expected I/N, such as 1/8")
    return int(match[1]), int(match[2])


def _describe_progress(out: Path) -> str:
    if is_remote(out):
        return f"finished parts are kept in {cache_directory(out)}; run the same command again to resume"
    if (out / "parts").is_dir():
        return f"finished parts are kept in {out}; run the same command again to resume"
    return f"nothing is in {out} yet; run the command again"
