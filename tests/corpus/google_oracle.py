"""Make examples as google-research/bert does, written from its description.

This is slow and literal Python on lists of tokens. It shares no code with the package, so the
kernels are tested against it. It draws random numbers with `random()` and `randint(first, last)`,
both bounds included, in the order of google's code.
"""

import random
from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

Sentence = list[int]
Document = list[Sentence]

CLS, SEP, MASK = 2, 3, 4


class RandomSource(Protocol):
    def random(self) -> float: ...
    def randint(self, first: int, last: int, /) -> int: ...


@dataclass
class Pair:
    a: list[int]
    b: list[int]
    is_random_next: bool


@dataclass
class Example:
    """`masked` is `original` with the tokens at `positions` replaced."""

    original: list[int]
    masked: list[int]
    positions: list[int]
    pair: Pair


def document_pairs(
    documents: list[Document],
    index: int,
    max_tokens: int,
    short_probability: float,
    rng: RandomSource,
    kind: str = "random",
    near_distance: int = 5,
) -> list[Pair]:
    """Make the pairs of document `index`.

    Random segments come from any of `documents`. The kind "order" follows ALBERT's
    create_pretraining_data.py. The kind "near" exists in bertie only.
    """
    target = max_tokens
    if rng.random() < short_probability:
        target = rng.randint(2, max_tokens)
    pairs = []
    remaining = list(documents[index])
    while remaining:
        chunk = []
        while remaining and sum(map(len, chunk)) < target:
            chunk.append(remaining.pop(0))
        a_sentences = 1 if len(chunk) == 1 else rng.randint(1, len(chunk) - 1)
        a, rest = flatten(chunk[:a_sentences]), chunk[a_sentences:]
        if not rest or rng.random() < 0.5:
            if kind == "order" and rest:
                pair = Pair(flatten(rest), a, True)
            else:
                remaining = rest + remaining
                a_end = len(documents[index]) - len(remaining)
                b = []
                if kind == "near":
                    a_range = range(a_end - a_sentences, a_end)
                    b = near_segment(documents[index], a_range, near_distance, target - len(a), rng)
                pair = Pair(a, b or random_segment(documents, index, target - len(a), rng), True)
        else:
            pair = Pair(a, flatten(rest), False)
        truncate(pair, max_tokens, rng)
        pairs.append(pair)
    return pairs


def flatten(sentences: list[Sentence]) -> list[int]:
    return [token for sentence in sentences for token in sentence]


def random_segment(documents: list[Document], index: int, target: int, rng: RandomSource) -> list[int]:
    """Draw a segment of another document than `index`, if ten draws find one."""
    other = index
    for _ in range(10):
        if other == index:
            other = rng.randint(0, len(documents) - 1)
    start = rng.randint(0, len(documents[other]) - 1)
    segment: list[int] = []
    for sentence in documents[other][start:]:
        segment += sentence
        if len(segment) >= target:
            break
    return segment


def near_segment(
    document: Document, a: range, near_distance: int, target: int, rng: RandomSource
) -> list[int]:
    """Draw a segment near A, at least one sentence away from it; empty if there is none."""
    distances = [max(a[0] - index, index - a[-1]) for index in range(len(document))]
    candidates = [index for index, distance in enumerate(distances) if 2 <= distance <= near_distance]
    if not candidates:
        return []
    index = candidates[rng.randint(0, len(candidates) - 1)]
    segment = list(document[index])
    while len(segment) < target and index + 1 < len(document) and distances[index + 1] >= 2:
        index += 1
        segment += document[index]
    return segment


def truncate(pair: Pair, max_tokens: int, rng: RandomSource) -> None:
    while len(pair.a) + len(pair.b) > max_tokens:
        longer = pair.a if len(pair.a) > len(pair.b) else pair.b
        longer.pop(0 if rng.random() < 0.5 else -1)


def group_words(tokens: list[int], continuation_ids: Collection[int]) -> list[list[int]]:
    """Group positions into words; without `continuation_ids`, each word is one token."""
    words: list[list[int]] = []
    for position, token in enumerate(tokens):
        if token in (CLS, SEP):
            continue
        if words and token in continuation_ids:
            words[-1].append(position)
        else:
            words.append([position])
    return words


def choose_positions(words: list[list[int]], count: int) -> list[int]:
    """Choose the positions to predict: words in order, unless they exceed the count."""
    chosen: list[int] = []
    for word in words:
        if len(chosen) + len(word) <= count:
            chosen += word
    return chosen


def mask(
    tokens: list[int],
    masking_rate: float,
    max_predictions: int,
    vocabulary_size: int,
    rng: random.Random,
    continuation_ids: Collection[int] = (),
) -> tuple[list[int], list[int]]:
    """Return the tokens after masking, and the chosen positions in ascending order."""
    words = group_words(tokens, continuation_ids)
    rng.shuffle(words)
    chosen = choose_positions(words, min(max_predictions, max(1, round(len(tokens) * masking_rate))))
    masked = list(tokens)
    for position in chosen:
        if rng.random() < 0.8:
            masked[position] = MASK
        elif rng.random() >= 0.5:
            masked[position] = rng.randint(0, vocabulary_size - 1)
    return masked, sorted(chosen)


def make_example(
    pair: Pair,
    max_predictions: int,
    vocabulary_size: int,
    rng: random.Random,
    continuation_ids: Collection[int] = (),
) -> Example:
    """Make the example of a pair, with the defaults of the original release."""
    original = [CLS, *pair.a, SEP, *pair.b, SEP]
    masked, positions = mask(original, 0.15, max_predictions, vocabulary_size, rng, continuation_ids)
    return Example(original, masked, positions, pair)
