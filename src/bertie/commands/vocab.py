"""`bertie vocab`: learn a WordPiece vocabulary, or extend one."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from bertie.base.errors import SettingsError
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
    given_options,
    local_path_option,
    parse_languages,
    path_option,
)

NEW_VOCABULARY_OPTIONS = {
    "--size",
    "--cased",
    "--uncased",
    "--merges",
    "--alphabet",
    "--language",
    "--language-column",
    "--smoothing",
}

Cased = Annotated[
    bool | None,
    typer.Option(
        "--cased/--uncased",
        help="Keep case and accents, or remove both; by default cased if removing accents would change "
        "more than 2 % of the words, or if most words have no case.",
    ),
]
Merges = Annotated[
    Literal["frequency", "likelihood"],
    typer.Option(help="Merge the most frequent pair, or the pair with the largest gain in likelihood."),
]
Alphabet = Annotated[
    int,
    typer.Option(
        min=1,
        help="Keep at most this number of characters, the most frequent ones; words with other characters "
        "become [UNK]. Chinese and Japanese need more. Characters take at most half of the entries.",
    ),
]
Extend = Annotated[
    Path | None,
    local_path_option(
        "A tokenizer or model directory to extend: its entries keep their ids, and casing and other "
        "options stay the same. Without it, a new vocabulary is learnt."
    ),
]
FillUnused = Annotated[
    bool,
    typer.Option(
        "--fill-unused",
        help="With --extend: replace [unusedN] entries, so that the vocabulary keeps its size.",
    ),
]
Smoothing = Annotated[
    float,
    typer.Option(
        min=0.01,
        max=1.0,
        help="For several languages: the exponent S. A language with the fraction p of all words gets a "
        "fraction proportional to p^S. Multilingual BERT has 0.7.",
    ),
]

Out = Annotated[Path, path_option("The tokenizer directory to write, or its URL.")]


def vocab(
    context: typer.Context,
    inputs: Inputs,
    out: Out,
    size: Annotated[int, typer.Option(help="The number of entries, special tokens included.")] = 30522,
    cased: Cased = None,
    merges: Merges = "frequency",
    alphabet: Alphabet = 1000,
    extend: Extend = None,
    add: Annotated[
        int | None, typer.Option(min=1, help="With --extend: the number of entries to learn.")
    ] = None,
    fill_unused: FillUnused = False,
    format: Format = None,
    column: Column = "text",
    language: Languages = None,
    language_column: LanguageColumn = None,
    smoothing: Smoothing = 1.0,
    on_error: OnError = "stop",
    workers: Workers = None,
    scheduler: Scheduler = None,
    force: Force = False,
    no_verify: NoVerify = False,
) -> None:
    """Learn a WordPiece vocabulary from text, or extend one.

    The output appears whole or not at all, even if the command is killed.
    """
    _check_options(context)
    with exit_on_interrupt(lambda: f"nothing is in {out} yet; run the command again"):
        import bertie

        reading: dict[str, Any] = {
            "format": format,
            "column": column,
            "on_error": on_error,
            "workers": workers,
            "scheduler": scheduler,
            "force": force,
        }
        if extend is not None and add is not None:
            bertie.extend_tokenizer(extend, inputs, out, add=add, fill_unused=fill_unused, **reading)
        else:
            bertie.learn_vocabulary(
                inputs,
                out,
                size=size,
                cased=cased,
                merges=merges,
                alphabet=alphabet,
                language=parse_languages(language),
                language_column=language_column,
                smoothing=smoothing,
                **reading,
            )
    print(out)


def _check_options(context: typer.Context) -> None:
    """Check that the options are all for a new vocabulary, or all for extending one.

    Raises:
        SettingsError: an option would have no effect, or --extend lacks --add.
    """
    given = given_options(context)
    if "--extend" in given:
        if useless := sorted(given & NEW_VOCABULARY_OPTIONS):
            raise SettingsError(f"{useless[0]}: for a new vocabulary only; leave it out with --extend")
        if "--add" not in given:
            raise SettingsError("--extend needs the number of entries to learn; pass --add N")
    elif given & {"--add", "--fill-unused"}:
        raise SettingsError("--add and --fill-unused need a tokenizer to extend; pass --extend DIR")
