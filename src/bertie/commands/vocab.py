"""`bertie vocab`: learn a WordPiece vocabulary."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from bertie.commands.options import (
    CPUS,
    Column,
    Force,
    Format,
    Inputs,
    OnError,
    Workers,
    exit_on_interrupt,
)


def vocab(
    inputs: Inputs,
    out: Annotated[Path, typer.Option(help="The tokenizer directory to write.")],
    size: Annotated[
        int, typer.Option(min=100, help="The number of entries, special tokens included.")
    ] = 30522,
    cased: Annotated[
        bool | None,
        typer.Option(
            "--cased/--uncased",
            help="Keep case and accents, or remove both; by default cased if removing accents would change "
            "more than 2 % of the words, or if most words have no case.",
        ),
    ] = None,
    merges: Annotated[
        Literal["frequency", "likelihood"],
        typer.Option(help="Merge the most frequent pair, or the pair with the largest gain in likelihood."),
    ] = "frequency",
    alphabet: Annotated[
        int,
        typer.Option(
            min=1,
            help="The largest number of characters in the vocabulary, the most frequent ones; words with "
            "other characters become [UNK]. Chinese and Japanese need more. Characters take at most half of "
            "the entries.",
        ),
    ] = 1000,
    format: Format = None,
    column: Column = "text",
    on_error: OnError = "stop",
    workers: Workers = CPUS,
    force: Force = False,
) -> None:
    """Learn a WordPiece vocabulary from text."""
    with exit_on_interrupt(lambda: f"nothing is in {out} yet; run the command again"):
        import bertie

        bertie.learn_vocabulary(
            inputs,
            out,
            size=size,
            cased=cased,
            merges=merges,
            alphabet=alphabet,
            format=format,
            column=column,
            on_error=on_error,
            workers=workers,
            force=force,
        )
    print(out)
