"""Pre-training examples in plain Python, from the description of google-research/bert's algorithm.

Slow and literal, over lists of tokens, with nothing of the package: what the kernels are tested against.
The random numbers come from `random()` and `randint(first, last)`, both inclusive, in google's order.
"""

import random
from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

Sentence = list[int]
Document = list[Sentence]

CLS, SEP, MASK = 2, 3, 4


class Randomness(Protocol):
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
    rng: Randomness,
    kind: str = "random",
) -> list[Pair]:
    """The pairs of document `index`; random segments come from any of `documents`.

    Of the other kinds, "order" is that of ALBERT's create_pretraining_data.py; "near" is ours alone.
    """
    target = max_tokens
    if rng.random() < short_probability:
        target = rng.randint(2, max_tokens)
    pairs = []
    waiting = list(documents[index])
    while waiting:
        chunk = []
        while waiting and sum(map(len, chunk)) < target:
            chunk.append(waiting.pop(0))
        a_sentences = 1 if len(chunk) == 1 else rng.randint(1, len(chunk) - 1)
        a, rest = flat(chunk[:a_sentences]), chunk[a_sentences:]
        if not rest or rng.random() < 0.5:
            if kind == "order" and rest:
                pair = Pair(flat(rest), a, True)
            else:
                waiting = rest + waiting
                a_end = len(documents[index]) - len(waiting)
                b = []
                if kind == "near":
                    b = near_segment(documents[index], a_end - a_sentences, a_end, target - len(a), rng)
                pair = Pair(a, b or random_segment(documents, index, target - len(a), rng), True)
        else:
            pair = Pair(a, flat(rest), False)
        truncate(pair, max_tokens, rng)
        pairs.append(pair)
    return pairs


def flat(sentences: list[Sentence]) -> list[int]:
    return [token for sentence in sentences for token in sentence]


def random_segment(documents: list[Document], index: int, target: int, rng: Randomness) -> list[int]:
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


def near_segment(document: Document, a_start: int, a_end: int, target: int, rng: Randomness) -> list[int]:
    """A passage of the document with a sentence or more between it and A; empty where there is none."""
    far = [place for place in range(len(document)) if place < a_start - 1 or place > a_end]
    if not far:
        return []
    place = far[rng.randint(0, len(far) - 1)]
    segment = list(document[place])
    while len(segment) < target and place + 1 in far:
        place += 1
        segment += document[place]
    return segment


def truncate(pair: Pair, max_tokens: int, rng: Randomness) -> None:
    while len(pair.a) + len(pair.b) > max_tokens:
        longer = pair.a if len(pair.a) > len(pair.b) else pair.b
        longer.pop(0 if rng.random() < 0.5 else -1)


def words_of(tokens: list[int], continuation_mask: Collection[int]) -> list[list[int]]:
    """The places of each word: of one token, where there are no continuations."""
    words: list[list[int]] = []
    for place, token in enumerate(tokens):
        if token in (CLS, SEP):
            continue
        if words and token in continuation_mask:
            words[-1].append(place)
        else:
            words.append([place])
    return words


def choose(words: list[list[int]], count: int) -> list[int]:
    """The places to be predicted: the words as they come, less those that would be too much."""
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
    continuation_mask: Collection[int] = (),
) -> tuple[list[int], list[int]]:
    """The tokens after masking, and the places that were chosen, ascending."""
    words = words_of(tokens, continuation_mask)
    rng.shuffle(words)
    chosen = choose(words, min(max_predictions, max(1, round(len(tokens) * masking_rate))))
    masked = list(tokens)
    for place in chosen:
        if rng.random() < 0.8:
            masked[place] = MASK
        elif rng.random() >= 0.5:
            masked[place] = rng.randint(0, vocabulary_size - 1)
    return masked, sorted(chosen)


def document_examples(
    documents: list[Document],
    index: int,
    max_seq_length: int,
    max_predictions: int,
    vocabulary_size: int,
    rng: random.Random,
    continuation_mask: Collection[int] = (),
) -> list[Example]:
    """The examples of one document, with the defaults of the original release."""
    examples = []
    for pair in document_pairs(documents, index, max_seq_length - 3, 0.1, rng):
        original = [CLS, *pair.a, SEP, *pair.b, SEP]
        masked, positions = mask(original, 0.15, max_predictions, vocabulary_size, rng, continuation_mask)
        examples.append(Example(original, masked, positions, pair))
    return examples
