"""Options that several verbs share."""

import os
from pathlib import Path
from typing import Annotated

import typer

Inputs = Annotated[
    list[Path],
    typer.Argument(metavar="INPUT...", help="Files, folders or patterns of text; .gz, .bz2 and .xz too."),
]
Workers = Annotated[int, typer.Option(min=1, help="Processes to work with.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]

CPUS = len(os.sched_getaffinity(0))
