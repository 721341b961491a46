"""Sentence pairs, compared one by one with the oracle, which draws from the same stream."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, chisquare
from tests.corpus.google_oracle import CLS, SEP, Document, document_pairs

from bertie.base.random import UInt64s, random_below, random_unit
from bertie.corpus.sentence_pairs import (
    IS_NEXT,
    NOT_NEXT,
    PAIR,
    Pairs,
    cut_documents,
    pair_length,
    pair_sentences,
    write_pair,
)

documents_of_lengths = st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=12), min_size=2, max_size=6)


class CounterRandom:
    """The package's counter stream in the shape the oracle draws from."""

    def __init__(self, stream: UInt64s) -> None:
        self.stream = stream

    def random(self) -> float:
        return float(random_unit(self.stream))

    def randint(self, first: int, last: int) -> int:
        return first + int(random_below(self.stream, last - first + 1))


def ends_of(lengths: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """`sentence_ends` and `document_ends` of documents given as the lengths of their sentences."""
    return np.cumsum([length for document in lengths for length in document]), np.cumsum(
        [len(document) for document in lengths]
    )


def numbered(lengths: list[list[int]]) -> list[Document]:
    """Documents in which every token is its own place in the corpus."""
    place = 0
    documents = []
    for document in lengths:
        documents.append([])
        for length in document:
            documents[-1].append(list(range(place, place + length)))
            place += length
    return documents


def make_pairs(
    lengths: list[list[int]], max_tokens: int, short: float, seed: int, kind: str = "random"
) -> Pairs:
    sentence_ends, document_ends = ends_of(lengths)
    pairs = np.empty(sentence_ends[-1], dtype=PAIR)
    stream = np.array([seed], dtype=np.uint64)
    arguments = (stream, sentence_ends, document_ends, 0, len(lengths), max_tokens, short)
    if kind == "none":
        return pairs[: cut_documents(*arguments, pairs)]
    return pairs[: pair_sentences(*arguments, kind, pairs)]


@pytest.mark.parametrize("kind", ["random", "near", "order"])
@given(documents_of_lengths, st.integers(2, 60), st.sampled_from([0.0, 0.5, 1.0]), st.integers(0, 2**64 - 1))
def test_pairs_are_those_of_the_oracle(kind, lengths, max_tokens, short, seed):
    documents = numbered(lengths)
    rng = CounterRandom(np.array([seed], dtype=np.uint64))
    expected = [
        (pair.a, pair.b, NOT_NEXT if pair.is_random_next else IS_NEXT)
        for index in range(len(documents))
        for pair in document_pairs(documents, index, max_tokens, short, rng, kind)
    ]
    made = [
        (
            list(range(pair["a_start"], pair["a_end"])),
            list(range(pair["b_start"], pair["b_end"])),
            pair["label"],
        )
        for pair in make_pairs(lengths, max_tokens, short, seed, kind)
    ]
    assert made == expected


@pytest.mark.parametrize("kind", ["random", "near", "order"])
@given(documents_of_lengths, st.integers(2, 60), st.integers(0, 2**64 - 1))
def test_segments_are_runs_of_one_document(kind, lengths, max_tokens, seed):
    sentence_ends, document_ends = ends_of(lengths)
    pairs = make_pairs(lengths, max_tokens, 0.1, seed, kind)
    token_ends = sentence_ends[document_ends - 1]
    for start, end in (("a_start", "a_end"), ("b_start", "b_end")):
        assert (pairs[start] < pairs[end]).all()
        first_document = np.searchsorted(token_ends, pairs[start], side="right")
        assert (first_document == np.searchsorted(token_ends, pairs[end] - 1, side="right")).all()
    tokens = pairs["a_end"] - pairs["a_start"] + pairs["b_end"] - pairs["b_start"]
    assert (tokens <= max_tokens).all()

    following = pairs[pairs["label"] == IS_NEXT]
    gap = following["b_start"] - following["a_end"]
    assert (gap >= 0).all()
    uncut = tokens[pairs["label"] == IS_NEXT] < max_tokens
    assert (gap[uncut] == 0).all(), "a pair below the maximum was not truncated"


def test_a_document_of_single_sentence_chunks_has_random_pairs_only():
    pairs = make_pairs([[50] * 20, [50] * 20], 40, 0.0, seed=1)
    assert (pairs["label"] == NOT_NEXT).all()


def test_the_random_document_is_another_one():
    rng = random.Random(3)
    lengths = [[rng.randint(5, 30) for _ in range(20)] for _ in range(8)]
    sentence_ends, document_ends = ends_of(lengths)
    token_ends = sentence_ends[document_ends - 1]
    pairs = np.concatenate([make_pairs(lengths, 125, 0.1, seed) for seed in range(50)])
    pairs = pairs[pairs["label"] == NOT_NEXT]
    a_document = np.searchsorted(token_ends, pairs["a_start"], side="right")
    b_document = np.searchsorted(token_ends, pairs["b_start"], side="right")
    assert (a_document != b_document).all(), "ten draws of eight documents: one in 10⁹ fails"
    assert set(b_document) == set(range(8))


def places_of(lengths: list[list[int]], pairs: Pairs) -> dict[str, np.ndarray]:
    """The sentence in which each segment begins and ends, and the document of each."""
    sentence_ends, document_ends = ends_of(lengths)
    places = {}
    for name in ("a", "b"):
        places[f"{name}_first"] = np.searchsorted(sentence_ends, pairs[f"{name}_start"], side="right")
        places[f"{name}_last"] = np.searchsorted(sentence_ends, pairs[f"{name}_end"] - 1, side="right")
        places[name] = np.searchsorted(document_ends, places[f"{name}_first"], side="right")
    return places


@given(documents_of_lengths, st.integers(2, 60), st.integers(0, 2**64 - 1))
def test_a_near_passage_neither_overlaps_nor_touches(lengths, max_tokens, seed):
    lengths = lengths + [[5]] * 40  # so that ten draws of another document never give the same one
    pairs = make_pairs(lengths, max_tokens, 0.1, seed, "near")
    pairs = pairs[pairs["label"] == NOT_NEXT]
    place = places_of(lengths, pairs)
    near = place["a"] == place["b"]
    between = np.maximum(place["b_first"] - place["a_last"], place["a_first"] - place["b_last"]) - 1
    assert (between[near] >= 1).all()
    # Only where no sentence is far enough does the passage come from elsewhere. A truncated A may have had
    # more sentences than it shows, so that is certain only where it is whole.
    _, document_ends = ends_of(lengths)
    starts = np.concatenate([[0], document_ends])
    far = np.maximum(place["a_first"] - 1 - starts[place["a"]], 0)
    far += np.maximum(starts[place["a"] + 1] - place["a_last"] - 2, 0)
    tokens = pairs["a_end"] - pairs["a_start"] + pairs["b_end"] - pairs["b_start"]
    assert (near == (far > 0))[tokens < max_tokens].all()


def pairs_of_even_sentences(kind: str) -> tuple[Pairs, dict[str, np.ndarray]]:
    """The pairs of documents of six sentences, of which four make a chunk, and their places therein."""
    pairs = np.concatenate([make_pairs([[10] * 6] * 300, 40, 0.0, seed, kind) for seed in range(20)])
    place = places_of([[10] * 6] * 300, pairs)
    return pairs, {name: places % 6 for name, places in place.items()}


@pytest.mark.parametrize(("a", "far"), [(0, [2, 3, 4, 5]), (3, [0, 1, 5])])
def test_every_sentence_far_enough_is_equally_likely_to_begin_a_near_passage(a, far):
    pairs, place = pairs_of_even_sentences("near")
    chosen = (pairs["label"] == NOT_NEXT) & (place["a_first"] == a) & (place["a_last"] == a)
    counts = np.bincount(place["b_first"][chosen], minlength=6)
    assert counts.sum() == counts[far].sum() > 300
    assert chisquare(counts[far]).pvalue > 0.001


@given(documents_of_lengths, st.integers(2, 60), st.integers(0, 2**64 - 1))
def test_order_swaps_neighbours(lengths, max_tokens, seed):
    pairs = make_pairs(lengths, max_tokens, 0.1, seed, "order")
    pairs = pairs[pairs["label"] == NOT_NEXT]
    place = places_of(lengths, pairs)
    gap = pairs["a_start"] - pairs["b_end"]
    tokens = pairs["a_end"] - pairs["a_start"] + pairs["b_end"] - pairs["b_start"]
    swapped = place["a"] == place["b"]
    assert (gap[swapped] >= 0).all()
    assert (gap[swapped & (tokens < max_tokens)] == 0).all()
    assert (place["a_first"] == place["a_last"])[~swapped].all(), "a chunk of one sentence"


@pytest.mark.parametrize("kind", ["random", "near", "order"])
def test_half_of_the_chunks_make_no_next_sentence(kind):
    pairs, place = pairs_of_even_sentences(kind)
    first = np.minimum(place["a_first"], place["b_first"]) if kind == "order" else place["a_first"]
    labels = pairs["label"][first == 0]  # a document's first chunk, which has four sentences
    assert len(labels) == 6000
    assert binomtest(int(labels.sum()), len(labels)).pvalue > 0.001


@given(documents_of_lengths, st.integers(2, 60), st.sampled_from([0.0, 0.5]), st.integers(0, 2**64 - 1))
def test_without_next_sentences_a_document_is_cut_into_pieces(lengths, max_tokens, short, seed):
    sentence_ends, document_ends = ends_of(lengths)
    pairs = make_pairs(lengths, max_tokens, short, seed, "none")
    assert (pairs["b_start"] == pairs["b_end"]).all()
    assert (pairs["label"] == IS_NEXT).all()
    assert pairs["a_start"].tolist() == [0, *pairs["a_end"][:-1]]
    assert set(sentence_ends[document_ends - 1]) <= set(pairs["a_end"])
    pieces = pairs["a_end"] - pairs["a_start"]
    assert (pieces <= max_tokens).all()
    if short == 0:
        ends_document = np.isin(pairs["a_end"], sentence_ends[document_ends - 1])
        assert (pieces[~ends_document] == max_tokens).all()


def written(pair: tuple[int, int, int, int, int]) -> tuple[list[int], list[int], int]:
    tokens = np.arange(100, 120, dtype=np.uint16)
    record = np.array([pair], dtype=PAIR)[0]
    input_ids = np.full(pair_length(record), -1, dtype=np.int32)
    token_type_ids = np.full(pair_length(record), -1, dtype=np.int32)
    separator = write_pair(tokens, record, CLS, SEP, input_ids, token_type_ids)
    return input_ids.tolist(), token_type_ids.tolist(), separator


def test_a_pair_is_written_with_its_special_tokens():
    assert written((3, 5, 10, 13, NOT_NEXT)) == (
        [CLS, 103, 104, SEP, 110, 111, 112, SEP],
        [0, 0, 0, 0, 1, 1, 1, 1],
        3,
    )


def test_a_pair_without_b_has_one_separator():
    assert written((3, 5, 5, 5, IS_NEXT)) == ([CLS, 103, 104, SEP], [0, 0, 0, 0], 3)
