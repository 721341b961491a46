"""Tagged words, and the entities that they form."""

from collections.abc import Sequence

import numpy as np

from bertie.base.arrays import Float64s
from bertie.inference.inputs import list_document_bounds
from bertie.inference.results import Entity, Results, TaggedWord
from bertie.tasks.conll import TaggedSentences, Tags
from bertie.tasks.entities import find_entities
from bertie.text.words import Span


def untagged_sentences(
    sentences: Sequence[Sequence[str]], document_bounds: Sequence[int] | None
) -> TaggedSentences:
    """Return sentences of words as examples.

    `document_bounds` is as in `Predictor.tag_words`.
    """
    if document_bounds is None:
        document_bounds = range(len(sentences) + 1)
    bounds = list_document_bounds(document_bounds, len(sentences))
    return TaggedSentences(sentences, None, np.array(bounds, dtype=np.int64))


def tagged_words(examples: TaggedSentences, tags: Tags, probabilities: Float64s) -> list[Results[TaggedWord]]:
    """Return the words of each sentence with their tags.

    Args:
        examples: the sentences.
        tags: the tags of each sentence.
        probabilities: the probability of the tag of each word, for all sentences.
    """
    scores = iter(probabilities.tolist())
    return [
        Results(TaggedWord(word, tag, next(scores)) for word, tag in zip(*sentence, strict=True))
        for sentence in zip(examples.words, tags, strict=True)
    ]


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
