"""The sentence pairs equal the oracle's, which draws from the same stream."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, chisquare
from tests.corpus.google_oracle import CLS, SEP, Document, document_pairs

from bertie.base.arrays import UInt64s
from bertie.base.random import random_below, random_unit
from bertie.corpus.sentence_pairs import (
    IS_NEXT,
    NO_LIMIT,
    NOT_NEXT,
    PAIR,
    Pairs,
    cut_documents,
    pair_length,
    pair_sentences,
    write_pair,
)

# Documents as the lengths of their sentences.
document_lengths = st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=12), min_size=2, max_size=6)
seeds = st.integers(0, 2**64 - 1)


class StreamRandom:
    """The package's random stream, with the methods that the oracle calls."""

    def __init__(self, stream: UInt64s) -> None:
        self.stream = stream

    def random(self) -> float:
        return float(random_unit(self.stream))

    def randint(self, first: int, last: int) -> int:
        return first + int(random_below(self.stream, last - first + 1))


def ends_of(lengths: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Return the `sentence_ends` and `document_ends` of documents."""
    sentence_ends = np.cumsum([length for document in lengths for length in document])
    return sentence_ends, np.cumsum([len(document) for document in lengths])


def numbered_documents(lengths: list[list[int]]) -> list[Document]:
    """Make documents in which every token is its own position in the corpus."""
    position = 0
    documents = []
    for document in lengths:
        documents.append([])
        for length in document:
            documents[-1].append(list(range(position, position + length)))
            position += length
    return documents


def make_pairs(
    lengths: list[list[int]],
    max_tokens: int,
    short_probability: float,
    seed: int,
    kind: str = "random",
    near_distance: int = 5,
) -> Pairs:
    sentence_ends, document_ends = ends_of(lengths)
    pairs = np.empty(sentence_ends[-1], dtype=PAIR)
    stream = np.array([seed], dtype=np.uint64)
    arguments = (stream, sentence_ends, document_ends, 0, len(lengths), max_tokens, short_probability)
    if kind == "none":
        return pairs[: cut_documents(*arguments, pairs)]
    return pairs[: pair_sentences(*arguments, kind, near_distance, pairs)]


def count_tokens(pairs: Pairs) -> np.ndarray:
    return pairs["a_end"] - pairs["a_start"] + pairs["b_end"] - pairs["b_start"]


@pytest.mark.parametrize(
    ("kind", "near_distance"), [("random", 5), ("order", 5), ("near", 2), ("near", 3), ("near", NO_LIMIT)]
)
@given(document_lengths, st.integers(2, 60), st.sampled_from([0.0, 0.5, 1.0]), seeds)
def test_pairs_equal_the_oracle(kind, near_distance, lengths, max_tokens, short_probability, seed):
    documents = numbered_documents(lengths)
    rng = StreamRandom(np.array([seed], dtype=np.uint64))
    expected = [
        (pair.a, pair.b, NOT_NEXT if pair.is_random_next else IS_NEXT)
        for index in range(len(documents))
        for pair in document_pairs(documents, index, max_tokens, short_probability, rng, kind, near_distance)
    ]
    pairs = [
        (
            list(range(pair["a_start"], pair["a_end"])),
            list(range(pair["b_start"], pair["b_end"])),
            pair["label"],
        )
        for pair in make_pairs(lengths, max_tokens, short_probability, seed, kind, near_distance)
    ]
    assert pairs == expected


@pytest.mark.parametrize("kind", ["random", "near", "order"])
@given(document_lengths, st.integers(2, 60), seeds)
def test_each_segment_lies_in_one_document(kind, lengths, max_tokens, seed):
    sentence_ends, document_ends = ends_of(lengths)
    pairs = make_pairs(lengths, max_tokens, 0.1, seed, kind)
    token_ends = sentence_ends[document_ends - 1]
    for start, end in (("a_start", "a_end"), ("b_start", "b_end")):
        assert (pairs[start] < pairs[end]).all()
        first_document = np.searchsorted(token_ends, pairs[start], side="right")
        assert (first_document == np.searchsorted(token_ends, pairs[end] - 1, side="right")).all()
    tokens = count_tokens(pairs)
    assert (tokens <= max_tokens).all()

    is_next = pairs["label"] == IS_NEXT
    gap = pairs["b_start"][is_next] - pairs["a_end"][is_next]
    assert (gap >= 0).all()
    assert (gap[tokens[is_next] < max_tokens] == 0).all(), "a pair below the maximum was not truncated"


def test_chunks_of_single_sentences_give_random_pairs_only():
    pairs = make_pairs([[50] * 20, [50] * 20], 40, 0.0, seed=1)
    assert (pairs["label"] == NOT_NEXT).all()


def test_random_segments_come_from_other_documents():
    rng = random.Random(3)
    lengths = [[rng.randint(5, 30) for _ in range(20)] for _ in range(8)]
    sentence_ends, document_ends = ends_of(lengths)
    token_ends = sentence_ends[document_ends - 1]
    pairs = np.concatenate([make_pairs(lengths, 125, 0.1, seed) for seed in range(50)])
    pairs = pairs[pairs["label"] == NOT_NEXT]
    a_document = np.searchsorted(token_ends, pairs["a_start"], side="right")
    b_document = np.searchsorted(token_ends, pairs["b_start"], side="right")
    assert (a_document != b_document).all(), "ten draws out of eight documents fail once in 10⁹"
    assert set(b_document) == set(range(8))


def locate_segments(lengths: list[list[int]], pairs: Pairs) -> dict[str, np.ndarray]:
    """Return the first sentence, the last sentence and the document of each segment."""
    sentence_ends, document_ends = ends_of(lengths)
    located = {}
    for name in ("a", "b"):
        located[f"{name}_first"] = np.searchsorted(sentence_ends, pairs[f"{name}_start"], side="right")
        located[f"{name}_last"] = np.searchsorted(sentence_ends, pairs[f"{name}_end"] - 1, side="right")
        located[name] = np.searchsorted(document_ends, located[f"{name}_first"], side="right")
    return located


@given(document_lengths, st.integers(2, 60), st.sampled_from([2, 5, NO_LIMIT]), seeds)
def test_near_segments_neither_overlap_nor_touch_a(lengths, max_tokens, near_distance, seed):
    lengths = lengths + [[5]] * 40  # so that ten draws of another document never give the same one
    pairs = make_pairs(lengths, max_tokens, 0.1, seed, "near", near_distance)
    pairs = pairs[pairs["label"] == NOT_NEXT]
    located = locate_segments(lengths, pairs)
    is_near = located["a"] == located["b"]
    between = np.maximum(located["b_first"] - located["a_last"], located["a_first"] - located["b_last"])
    assert (between[is_near] >= 2).all()
    is_complete = count_tokens(pairs) < max_tokens
    distance = np.maximum(located["b_first"] - located["a_last"], located["a_first"] - located["b_first"])
    assert (distance[is_near & is_complete] <= near_distance).all()
    # B comes from another document only if no sentence is far enough from A. This can be checked only
    # in pairs that were not truncated, because a truncated A may have lost whole sentences.
    _, document_ends = ends_of(lengths)
    starts = np.concatenate([[0], document_ends])
    candidates = np.maximum(located["a_first"] - 1 - starts[located["a"]], 0)
    candidates += np.maximum(starts[located["a"] + 1] - located["a_last"] - 2, 0)
    assert (is_near == (candidates > 0))[is_complete].all()


def pairs_of_even_sentences(kind: str, near_distance: int = 5) -> tuple[Pairs, dict[str, np.ndarray]]:
    """Make pairs of documents of six sentences, and locate their segments.

    Four sentences make a chunk. Sentences are counted from the start of each document.
    """
    lengths = [[10] * 6] * 300
    pairs = np.concatenate([make_pairs(lengths, 40, 0.0, seed, kind, near_distance) for seed in range(20)])
    return pairs, {name: values % 6 for name, values in locate_segments(lengths, pairs).items()}


@pytest.mark.parametrize(
    ("a", "near_distance", "candidates"),
    [(0, 5, [2, 3, 4, 5]), (3, 5, [0, 1, 5]), (0, 3, [2, 3]), (3, 2, [1, 5]), (0, NO_LIMIT, [2, 3, 4, 5])],
)
def test_near_segments_begin_at_every_candidate_equally_often(a, near_distance, candidates):
    pairs, located = pairs_of_even_sentences("near", near_distance)
    selected = (pairs["label"] == NOT_NEXT) & (located["a_first"] == a) & (located["a_last"] == a)
    counts = np.bincount(located["b_first"][selected], minlength=6)
    assert counts.sum() == counts[candidates].sum() > 300
    assert chisquare(counts[candidates]).pvalue > 0.001


def test_documents_without_a_near_sentence_give_random_segments():
    """Two sentences: both are A, or B would be a neighbour of A."""
    lengths = [[10, 10]] * 50
    pairs = make_pairs(lengths, 20, 0.0, 1, "near")
    located = locate_segments(lengths, pairs)
    is_negative = pairs["label"] == NOT_NEXT
    assert is_negative.sum() > 10
    assert (located["a"] != located["b"])[is_negative].all()


@given(document_lengths, st.integers(2, 60), seeds)
def test_order_swaps_consecutive_segments(lengths, max_tokens, seed):
    """Of two documents, ten draws of another one find the same in one of 1,024 cases, so there are more."""
    lengths = [*lengths, *[[1]] * 50]
    pairs = make_pairs(lengths, max_tokens, 0.1, seed, "order")
    pairs = pairs[pairs["label"] == NOT_NEXT]
    located = locate_segments(lengths, pairs)
    gap = pairs["a_start"] - pairs["b_end"]
    is_swapped = located["a"] == located["b"]
    assert (gap[is_swapped] >= 0).all()
    assert (gap[is_swapped & (count_tokens(pairs) < max_tokens)] == 0).all()
    is_single_sentence = located["a_first"] == located["a_last"]
    assert is_single_sentence[~is_swapped].all(), "only such a chunk has no second segment to swap with"


@pytest.mark.parametrize("kind", ["random", "near", "order"])
def test_half_of_the_chunks_lose_their_next_sentence(kind):
    pairs, located = pairs_of_even_sentences(kind)
    first = located["a_first"]
    if kind == "order":
        first = np.minimum(first, located["b_first"])
    labels = pairs["label"][first == 0]  # the first chunk of each document has four sentences
    assert len(labels) == 6000
    assert binomtest(int(labels.sum()), len(labels)).pvalue > 0.001


@given(document_lengths, st.integers(2, 60), st.sampled_from([0.0, 0.5]), seeds)
def test_kind_none_cuts_documents_into_single_segments(lengths, max_tokens, short_probability, seed):
    sentence_ends, document_ends = ends_of(lengths)
    pairs = make_pairs(lengths, max_tokens, short_probability, seed, "none")
    assert (pairs["b_start"] == pairs["b_end"]).all()
    assert (pairs["label"] == IS_NEXT).all()
    assert pairs["a_start"].tolist() == [0, *pairs["a_end"][:-1]]
    assert set(sentence_ends[document_ends - 1]) <= set(pairs["a_end"])
    segment_lengths = pairs["a_end"] - pairs["a_start"]
    assert (segment_lengths <= max_tokens).all()
    if short_probability == 0:
        ends_document = np.isin(pairs["a_end"], sentence_ends[document_ends - 1])
        assert (segment_lengths[~ends_document] == max_tokens).all()


def write(pair: tuple[int, int, int, int, int]) -> tuple[list[int], list[int], int]:
    """Write a pair; return its tokens, its token types and the first [SEP]."""
    tokens = np.arange(100, 120, dtype=np.uint16)
    record = np.array([pair], dtype=PAIR)[0]
    input_ids = np.full(pair_length(record), -1, dtype=np.int32)
    token_type_ids = np.full(pair_length(record), -1, dtype=np.int32)
    first_sep = write_pair(tokens, record, CLS, SEP, input_ids, token_type_ids)
    return input_ids.tolist(), token_type_ids.tolist(), first_sep


def test_pair_is_written_with_special_tokens():
    assert write((3, 5, 10, 13, NOT_NEXT)) == (
        [CLS, 103, 104, SEP, 110, 111, 112, SEP],
        [0, 0, 0, 0, 1, 1, 1, 1],
        3,
    )


def test_pair_without_b_is_written_with_one_separator():
    assert write((3, 5, 5, 5, IS_NEXT)) == ([CLS, 103, 104, SEP], [0, 0, 0, 0], 3)
