"""Analyze the errors of tagged words.

The analysis has scores by entity type or by tag, and sentences with mistakes.
"""

from collections.abc import Sequence
from itertools import chain

import numpy as np

from bertie.base.arrays import Float64s
from bertie.tasks.conll import TaggedSentences, Tags
from bertie.tasks.entities import EntitySpan, count_entities, find_entities
from bertie.tasks.error_analysis import (
    ErrorAnalysis,
    LabelScores,
    Mistake,
    analyze_classes,
    join_names,
    largest_errors,
    probability_at,
    sample_confusions,
    shorten,
)


def analyze_plain_tags(
    examples: TaggedSentences, gold_tags: Tags, predictions: Tags, confidence: Float64s | None
) -> ErrorAnalysis:
    """Treat each word as an example with one class."""
    tags = [*chain.from_iterable(gold_tags), *chain.from_iterable(predictions)]
    distinct, indices = np.unique(tags, return_inverse=True)
    labels: list[str] = distinct.tolist()
    gold, predicted = np.split(indices, 2)
    words = list(chain.from_iterable(examples.words))
    sentence_of_word = np.repeat(np.arange(len(examples)), np.diff(examples.bounds))
    mistakes = [
        Mistake(
            shorten(f"{words[i]} ‖ {' '.join(examples.words[sentence_of_word[i]])}"),
            labels[gold[i]],
            labels[predicted[i]],
            probability_at(confidence, i),
        )
        for i in sample_confusions(gold, predicted, confidence)
    ]
    return analyze_classes(labels, gold, predicted, mistakes)


def analyze_entities(
    examples: TaggedSentences, gold_tags: Tags, predictions: Tags, confidence: Float64s | None
) -> ErrorAnalysis:
    """Compare entities; they are the same in every scheme, so no tags are converted.

    The probability of a sentence with mistakes is the probability of its least certain word in a wrong
    or a missed entity.
    """
    by_type = {
        name: LabelScores(counts.precision, counts.recall, counts.f1, counts.gold)
        for name, counts in count_entities(gold_tags, predictions).items()
    }
    entities = [
        (set(find_entities(gold)), set(find_entities(predicted)))
        for gold, predicted in zip(gold_tags, predictions, strict=True)
    ]

    certainty = None
    if confidence is not None:
        certainty = np.ones(len(examples))
        for i, (gold, predicted) in enumerate(entities):
            wrong = [w for _, first, end in gold ^ predicted for w in range(first, end)]
            if wrong:
                certainty[i] = confidence[examples.bounds[i] + np.array(wrong)].min()

    def describe(words: Sequence[str], spans: set[EntitySpan]) -> str:
        in_order = sorted(spans, key=lambda entity: entity.first)
        return join_names(f"{' '.join(words[first:end])} ({name})" for name, first, end in in_order)

    mistakes = [
        Mistake(
            shorten(" ".join(examples.words[i])),
            describe(examples.words[i], entities[i][0]),
            describe(examples.words[i], entities[i][1]),
            probability_at(certainty, i),
        )
        for i in largest_errors(np.array([len(gold ^ predicted) for gold, predicted in entities]), certainty)
    ]
    return ErrorAnalysis(by_type, mistakes=mistakes)
