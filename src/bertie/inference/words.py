"""Split texts into words, and join tagged words into entities."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from bertie.inference.results import Entity, Results, TaggedWord
from bertie.tasks.entities import find_entities
from bertie.tasks.ner import word_token_ranges
from bertie.text.tokenizer import Tokenizer

Span = tuple[int, int]


def word_spans(texts: Sequence[str], tokenizer: Tokenizer) -> list[list[Span]]:
    """Return the (start, end) character offsets of each word of each text.

    A word is what BERT's basic tokenizer splits a text into, so punctuation marks are words.
    """
    encoding = tokenizer.encode_batch(texts, add_special_tokens=False)
    first, end = word_token_ranges(encoding)
    ends = encoding.offsets[end - 1, 1].tolist()
    spans = list(zip(encoding.offsets[first, 0].tolist(), ends, strict=True))
    bounds = np.searchsorted(first, encoding.bounds).tolist()
    return [spans[start:stop] for start, stop in pairwise(bounds)]


def entities_of(text: str, spans: Sequence[Span], words: Sequence[TaggedWord]) -> Results[Entity]:
    """Join the tagged words of a text into entities.

    Args:
        text: the text.
        spans: the offsets of each word, from `word_spans`.
        words: the words with their tags.
    """
    entities = []
    for label, first, last in find_entities([word.tag for word in words]):
        start, end = spans[first][0], spans[last - 1][1]
        score = float(np.mean([word.score for word in words[first:last]]))
        entities.append(Entity(label, text[start:end], start, end, score))
    return Results(entities)


def split_words(sentences: Sequence[str | list[str]], tokenizer: Tokenizer) -> list[list[str]]:
    """Split texts into words like `word_spans`; leave lists of words unchanged."""
    spans = iter(word_spans([text for text in sentences if isinstance(text, str)], tokenizer))
    return [
        [sentence[start:end] for start, end in next(spans)] if isinstance(sentence, str) else sentence
        for sentence in sentences
    ]
