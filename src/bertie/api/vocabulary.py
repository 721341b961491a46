"""Learn a WordPiece vocabulary from text files."""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from bertie.api.arguments import PathLike, as_paths, available_cpus, print_skipped
from bertie.base.errors import DataError
from bertie.base.files import atomic_directory
from bertie.corpus.documents import InputErrors, OnError
from bertie.corpus.formats import Format
from bertie.corpus.readers import list_inputs
from bertie.corpus.word_counts import count_words
from bertie.text import wordpiece_trainer
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import Vocabulary


def learn_vocabulary(
    inputs: PathLike | Iterable[PathLike],
    out: PathLike | None = None,
    *,
    size: int = 30522,
    cased: bool = False,
    merges: Literal["frequency", "likelihood"] = "frequency",
    alphabet: int = 1000,
    format: Format | None = None,
    column: str = "text",
    on_error: OnError = "stop",
    workers: int | None = None,
) -> Tokenizer:
    """Learn a WordPiece vocabulary from text, like `bertie vocab`.

    The result does not depend on the order of the files or the number of workers.

    Args:
        inputs: a file, folder or pattern of text, or several of them.
        out: the tokenizer directory to write; without it, nothing is written.
        size: the number of entries, special tokens included. There are fewer if no pairs are left to merge.
        cased: keep case and accents; otherwise text is lower-cased and accents are stripped.
        merges: merge the most frequent pair first, or the pair with the largest gain in likelihood.
        alphabet: the largest number of characters, the most frequent ones. Chinese and Japanese need more.
        format: the format of every input; detected file by file if not given.
        column: the key or column of the text in JSON lines, Parquet and Arrow files.
        on_error: "stop" at an unreadable input, or "skip" and count it.
        workers: processes to use; all available processors if not given.

    Returns:
        The tokenizer with the new vocabulary.

    Raises:
        DataError: an input cannot be read, there are no words, or `out` holds anything but a tokenizer that
            bertie wrote.

    Example:
        >>> tokenizer = bertie.learn_vocabulary("text/", out="tokenizer", size=150, workers=1)
        >>> tokenizer.convert_ids_to_tokens(tokenizer.encode("the cat").input_ids)[0]
        '[CLS]'
    """
    output = None if out is None else Path(out)
    if output is not None and not Tokenizer.can_overwrite(output):
        raise DataError(
            f"{output}: holds other files than a tokenizer that bertie wrote; name a new directory"
        )
    problems = InputErrors(on_error)
    files = list_inputs(as_paths(inputs), [output] if output else [])
    words, counts = count_words(files, not cased, workers or available_cpus(), format, column, problems)
    print_skipped(problems.counts, problems.messages)
    tokens = wordpiece_trainer.learn_vocabulary(words, counts, size, merges, alphabet)
    tokenizer = Tokenizer(Vocabulary(tokens), lowercase=not cased)
    if output is not None:
        with atomic_directory(output) as temporary:
            tokenizer.save(temporary)
    _print_summary(words, counts, tokens, size)
    return tokenizer


def _print_summary(
    words: Sequence[str], counts: npt.NDArray[np.int64], tokens: Sequence[str], size: int
) -> None:
    """Print the size of the vocabulary and the fraction of words it cannot spell."""
    print(f"{counts.sum():,} words, {len(words):,} unique; {len(tokens):,} entries", file=sys.stderr)
    missing = set("".join(words)) - {token.removeprefix("##") for token in tokens}
    if missing:
        unknown = counts[[not missing.isdisjoint(word) for word in words]].sum()
        print(
            f"{len(missing):,} rare characters are not in the vocabulary, so {unknown / counts.sum():.2%} of "
            f"the words become [UNK]; a larger alphabet or size includes them",
            file=sys.stderr,
        )
    if len(tokens) < size:
        print(f"fewer than {size:,} entries: there are no more pairs to merge", file=sys.stderr)
