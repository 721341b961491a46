"""Compare `bertie embed` with sentence-transformers on ragged paragraphs, in float32.

The texts are paragraphs of Wikipedia, titles and headings included, in the order of the file. Both sides
turn a list of strings into an array with all-MiniLM-L6-v2 (6 x 384, at most 256 tokens), bertie as the
command does without its files, sentence-transformers with its default batch of 32.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from sentence_transformers import SentenceTransformer

import bertie
from measure import Row, checkpoint, chunks, compare, paragraphs, take_turns, version

TEXTS = 128


def rows(rounds: int) -> Iterator[Row]:
    """Compare the vectors of other texts in every round."""
    sides: dict[str, Callable[[list[str]], Any]] = {
        "bertie": bertie.load(checkpoint(), "cpu").embed,
        "sentence-transformers": SentenceTransformer(str(checkpoint()), device="cpu").encode,
    }
    vectors: dict[str, list[np.ndarray]] = {name: [] for name in sides}

    def make_work(name: str) -> Callable[[], None]:
        parts = iter(chunks(paragraphs(TEXTS * (rounds + 1)), TEXTS))
        return lambda: vectors[name].append(np.asarray(sides[name](list(next(parts)))))

    seconds = take_turns({name: make_work(name) for name in sides}, rounds)
    pairs = zip(*vectors.values(), strict=True)
    lowest = min(float((one * other).sum(1).min()) for one, other in pairs)
    yield compare(
        "embed-paragraphs",
        "embed ragged paragraphs, 6 × 384, float32",
        version("sentence-transformers"),
        "texts/s",
        TEXTS,
        seconds["bertie"],
        seconds["sentence-transformers"],
        1.6,
        f"The lowest cosine between the vectors of both is {lowest:.6f}.",
    )
