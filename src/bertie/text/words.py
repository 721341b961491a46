"""Split texts into words, as BERT's basic tokenizer does."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from bertie.text.encoding import Encoding, word_token_ranges
from bertie.text.tokenizer import Tokenizer

Span = tuple[int, int]


def word_spans(texts: Sequence[str], tokenizer: Tokenizer) -> list[list[Span]]:
    """Return the (start, end) character offsets of each word of each text.

    BERT's basic tokenizer splits a text into words; punctuation marks are words too.
    """
    return encoded_word_spans(tokenizer.encode_batch(texts, add_special_tokens=False))


def encoded_word_spans(encoding: Encoding) -> list[list[Span]]:
    """Return the spans of `word_spans` for encoded texts.

    They are encoded without special tokens.
    """
    first, end = word_token_ranges(encoding)
    ends = encoding.offsets[end - 1, 1].tolist()
    spans = list(zip(encoding.offsets[first, 0].tolist(), ends, strict=True))
    bounds = np.searchsorted(first, encoding.bounds).tolist()
    return [spans[start:stop] for start, stop in pairwise(bounds)]


def split_words(sentences: Sequence[str | list[str]], tokenizer: Tokenizer) -> list[list[str]]:
    """Split texts into words like `word_spans`; leave lists of words unchanged."""
    spans = iter(word_spans([text for text in sentences if isinstance(text, str)], tokenizer))
    return [
        slice_words(sentence, next(spans)) if isinstance(sentence, str) else sentence
        for sentence in sentences
    ]


def slice_words(text: str, spans: Sequence[Span]) -> list[str]:
    """Return the words of a text at these offsets."""
    return [text[start:end] for start, end in spans]
