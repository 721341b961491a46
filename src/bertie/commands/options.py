"""Options that several verbs share."""

import os
import sys
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal

import typer

from bertie.corpus.documents import OnError as OnErrorChoice
from bertie.corpus.formats import Format as FormatChoice

Inputs = Annotated[
    list[Path],
    typer.Argument(
        metavar="INPUT...", help="Files, folders or patterns of text; .gz, .bz2, .xz and .zst too."
    ),
]
Format = Annotated[
    FormatChoice | None, typer.Option(help="The format of every input; each one's own if not given.")
]
Column = Annotated[str, typer.Option(help="The key or column of the text, in jsonl, parquet and arrow.")]
OnError = Annotated[
    OnErrorChoice,
    typer.Option(
        help="At input that is binary, damaged or not of its format: stop, or skip the file, or the document "
        "alone where a file has many. Empty files are always skipped. What is skipped is named and counted."
    ),
]
Language = Annotated[str, typer.Option(help="What sentences are split as: an ISO 639-1 code.")]
Workers = Annotated[int, typer.Option(min=1, help="Processes to work with.")]
Device = Annotated[str, typer.Option(help="Where to compute: auto, cpu, cuda, cuda:1, …")]
PrecisionChoice = Literal["float32", "bfloat16"]
Precision = Annotated[
    PrecisionChoice,
    typer.Option(help="bfloat16 answers faster on hardware made for it, rounded to 3 digits."),
]
InputFile = Annotated[
    str | None,
    typer.Option(
        "--input",
        help="A file: .csv, .tsv, .jsonl, .parquet; .conll, which has words; any other is a text a line. - "
        "is standard input. Every row has an answer, a blank line an empty one.",
    ),
]
InputFormat = Annotated[
    Literal["text", "jsonl", "csv", "tsv", "parquet", "conll"] | None,
    typer.Option("--format", help="The format of the input, where its name does not say."),
]
AllowPickle = Annotated[
    bool,
    typer.Option(
        "--allow-pickle",
        help="Also read pytorch_model.bin, a pickle, which may run code as it is read. Only tensors are "
        "taken from it; still, allow it only for files of a source you trust.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]

CPUS = len(os.sched_getaffinity(0))
MAX_NAMED = 10  # inputs, on the terminal


def parse_columns(
    assignments: Iterable[str], asked: Iterable[str], more: Iterable[str] = ()
) -> dict[str, str]:
    """The column of each text that is asked for: its own name where no NAME=COLUMN says another.

    `more` may be named too. Raises SettingsError where something else is.
    """
    from bertie.base.errors import SettingsError

    names = {name: name for name in asked}
    known = [*names, *more]
    for assignment in assignments:
        name, _, column = assignment.partition("=")
        if name not in known or not column:
            raise SettingsError(f"--column {assignment}: give NAME=COLUMN with {', '.join(known)}")
        names[name] = column
    return names


def print_skipped(counts: Mapping[str, int], messages: Iterable[str]) -> None:
    """Name the first inputs that could not be read, and count all, on stderr."""
    for message in islice(messages, MAX_NAMED):
        print(message, file=sys.stderr)
    if sum(counts.values()) > MAX_NAMED:
        print("…", file=sys.stderr)
    if counts:
        reasons = (f"{count:,} {reason.replace('_', ' ')}" for reason, count in counts.items())
        print(f"skipped: {', '.join(reasons)}", file=sys.stderr)
