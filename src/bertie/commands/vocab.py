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
    format: Format = None,
    column: Column = "text",
    on_error: OnError = "stop",
    workers: Workers = CPUS,
) -> None:
    """Learn a WordPiece vocabulary from text."""
    from bertie.corpus.documents import Problems
    from bertie.corpus.readers import list_inputs
    from bertie.corpus.word_counts import count_words
    from bertie.text.learning import learn_vocabulary
    from bertie.text.tokenizer import Tokenizer
    from bertie.text.vocabulary import Vocabulary

    problems = Problems(on_error)
    words, counts = count_words(list_inputs(inputs), not cased, workers, format, column, problems)
    print_skipped(problems.counts, problems.messages)
    tokens = learn_vocabulary(words, counts, size, merges)
    Tokenizer(Vocabulary(tokens), lowercase=not cased).save(out)
    print(f"{counts.sum():,} words, {len(words):,} different: {len(tokens):,} entries", file=sys.stderr)
    if len(tokens) < size:
        print("fewer than asked for: the text has no more pairs to merge", file=sys.stderr)
    print(out)
