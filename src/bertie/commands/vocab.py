"""`bertie vocab`"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from bertie.commands.options import CPUS, Inputs, Workers


def vocab(
    inputs: Inputs,
    out: Annotated[Path, typer.Option(help="The tokenizer directory to write.")],
    size: Annotated[int, typer.Option(min=100, help="Entries, special tokens included.")] = 30522,
    cased: Annotated[
        bool, typer.Option("--cased/--uncased", help="Keep case and accents, or drop both.")
    ] = False,
    workers: Workers = CPUS,
) -> None:
    """Learn a WordPiece vocabulary from text."""
    from bertie.corpus.readers import list_inputs
    from bertie.corpus.word_counts import count_words
    from bertie.text.learning import learn_vocabulary
    from bertie.text.tokenizer import Tokenizer
    from bertie.text.vocabulary import Vocabulary

    words, counts = count_words(list_inputs(inputs), not cased, workers)
    tokens = learn_vocabulary(words, counts, size)
    Tokenizer(Vocabulary(tokens), lowercase=not cased).save(out)
    print(f"{counts.sum():,} words, {len(words):,} different: {len(tokens):,} entries", file=sys.stderr)
    if len(tokens) < size:
        print("fewer than asked for: the text has no more pairs to merge", file=sys.stderr)
    print(out)
