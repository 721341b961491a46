"""`bertie vocab`"""

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from bertie.commands.options import CPUS, Column, Format, Inputs, OnError, Workers, print_skipped


def vocab(
    inputs: Inputs,
    out: Annotated[Path, typer.Option(help="The tokenizer directory to write.")],
    size: Annotated[int, typer.Option(min=100, help="Entries, special tokens included.")] = 30522,
    cased: Annotated[
        bool, typer.Option("--cased/--uncased", help="Keep case and accents, or drop both.")
    ] = False,
    merges: Annotated[
        Literal["frequency", "likelihood"],
        typer.Option(help="Merge the most frequent pair, or the one that the likelihood gains most by."),
    ] = "frequency",
    alphabet: Annotated[
        int,
        typer.Option(
            min=1,
            help="Characters at most, the most frequent ones; words with others become unknown. Chinese and "
            "Japanese need more. They take at most half of the entries.",
        ),
    ] = 1000,
    format: Format = None,
    column: Column = "text",
    on_error: OnError = "stop",
    workers: Workers = CPUS,
) -> None:
    """Learn a WordPiece vocabulary from text."""
    from bertie.base.errors import DataError
    from bertie.base.files import atomic_directory
    from bertie.corpus.documents import Problems
    from bertie.corpus.readers import list_inputs
    from bertie.corpus.word_counts import count_words
    from bertie.text.tokenizer import Tokenizer
    from bertie.text.vocabulary import Vocabulary
    from bertie.text.wordpiece_trainer import learn_vocabulary

    if not Tokenizer.may_replace(out):
        raise DataError(f"{out}: holds other files than a tokenizer that bertie wrote; name a new directory")
    problems = Problems(on_error)
    words, counts = count_words(list_inputs(inputs, [out]), not cased, workers, format, column, problems)
    print_skipped(problems.counts, problems.messages)
    tokens = learn_vocabulary(words, counts, size, merges, alphabet)
    with atomic_directory(out) as temporary:
        Tokenizer(Vocabulary(tokens), lowercase=not cased).save(temporary)
    print(f"{counts.sum():,} words, {len(words):,} different: {len(tokens):,} entries", file=sys.stderr)
    left_out = set("".join(words)) - {token.removeprefix("##") for token in tokens}
    if left_out:
        unknown = counts[[not left_out.isdisjoint(word) for word in words]].sum()
        share = f"{unknown / counts.sum():.2%} of the words"
        more = "a larger --alphabet or --size takes more"
        print(f"{len(left_out):,} rare characters left out, and so {share}; {more}", file=sys.stderr)
    if len(tokens) < size:
        print("fewer than asked for: there are no more pairs to merge", file=sys.stderr)
    print(out)
