"""Masking: exact properties by hypothesis, shares and uniformity by chi-square at fixed seeds."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2_contingency, chisquare
from tests.corpus.google_oracle import CLS, MASK, SEP, choose, words_of

from bertie.corpus.masking import continuation_mask, count_masks, mask_tokens, mask_words
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary

VOCABULARY_SIZE = 50
FIRST_CONTINUATION = 30  # this and all greater ids
IS_CONTINUATION = np.arange(VOCABULARY_SIZE) >= FIRST_CONTINUATION


def masked(
    input_ids: np.ndarray,
    separator: int,
    count: int,
    seed: int,
    mask_probability: float = 0.8,
    keep_probability: float = 0.1,
    whole_words: bool = False,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The tokens after masking, the places chosen and the labels."""
    after = input_ids.copy()
    positions, labels = np.full(count, -1), np.full(count, -1)
    stream = np.array([seed], dtype=np.uint64)
    how = (mask_probability, keep_probability, MASK, VOCABULARY_SIZE)
    if whole_words:
        masks = mask_words(stream, after, separator, IS_CONTINUATION, *how, positions, labels)
        return after, positions[:masks], labels[:masks]
    mask_tokens(stream, after, separator, *how, positions, labels)
    return after, positions, labels


def example(a: int, b: int) -> np.ndarray:
    """`[CLS] A [SEP] B [SEP]`, or `[CLS] A [SEP]`, of so many ordinary tokens."""
    ids = np.arange(5, 5 + a + b) % 45 + 5
    segments = [[CLS], ids[:a], [SEP], ids[a:], [SEP]] if b else [[CLS], ids, [SEP]]
    return np.concatenate(segments).astype(np.int32)


@given(
    st.integers(1, 40),
    st.integers(0, 40),
    st.floats(0.01, 1),
    st.integers(1, 90),
    st.integers(0, 2**64 - 1),
)
def test_masking_is_undone_by_its_labels(a, b, masking_rate, max_predictions, seed):
    before = example(a, b)
    count = count_masks(len(before), a + b, masking_rate, max_predictions)
    after, positions, labels = masked(before, a + 1, count, seed)
    assert (np.diff(positions) > 0).all()
    assert not np.isin(labels, (CLS, SEP)).any()
    assert (after != before).sum() <= count
    after[positions] = labels
    assert (after == before).all()


@pytest.mark.parametrize("max_predictions", [20, 77])
def test_the_count_of_masks_is_that_of_the_original_release(max_predictions):
    for length in range(5, 513):
        expected = min(max_predictions, max(1, round(length * 0.15)))
        assert count_masks(length, length - 3, 0.15, max_predictions) == min(expected, length - 3)


def test_halves_round_to_the_even_number():
    assert [count_masks(length, length, 0.25, 99) for length in (6, 10, 14)] == [2, 2, 4]


def test_every_choice_of_places_is_equally_likely():
    before = example(3, 2)
    choices: dict[tuple[int, ...], int] = {}
    for seed in range(20_000):
        positions = tuple(masked(before, 4, 2, seed)[1].tolist())
        choices[positions] = choices.get(positions, 0) + 1
    assert len(choices) == 10, "two of five"
    assert chisquare(list(choices.values())).pvalue > 0.001


@pytest.mark.parametrize("whole_words", [False, True])
@pytest.mark.parametrize("shares", [(0.8, 0.1), (1.0, 0.0), (0.8, 0.0), (0.8, 0.2), (0.0, 0.2), (0.0, 0.0)])
def test_the_shares_of_mask_same_and_random(shares, whole_words):
    mask_probability, keep_probability = shares  # the rows of Table 8
    before = example(200, 200)
    seen = np.zeros(3)
    for seed in range(60):
        after, positions, labels = masked(
            before, 201, 60, seed, mask_probability, keep_probability, whole_words
        )
        replaced = after[positions]
        seen += [(replaced == MASK).sum(), (replaced == labels).sum(), 0]
        seen[2] += ((replaced != MASK) & (replaced != labels)).sum()
    random_share = 1 - mask_probability - keep_probability
    by_chance = random_share / VOCABULARY_SIZE  # a random token may be [MASK], or the one that stood there
    expected = (
        np.array([mask_probability + by_chance, keep_probability + by_chance, random_share - 2 * by_chance])
        * seen.sum()
    )
    possible = expected > 1e-6
    assert (seen[~possible] == 0).all()
    if possible.sum() > 1:
        assert chisquare(seen[possible], expected[possible]).pvalue > 0.001


def test_a_random_token_comes_from_the_whole_vocabulary():
    counts = np.zeros(VOCABULARY_SIZE)
    before = example(200, 200)
    for seed in range(100):
        after, positions, _ = masked(before, 201, 100, seed, mask_probability=0.0, keep_probability=0.0)
        counts += np.bincount(after[positions], minlength=VOCABULARY_SIZE)
    assert chisquare(counts).pvalue > 0.001


words = st.lists(st.integers(5, VOCABULARY_SIZE - 1), min_size=1, max_size=40)


@given(words, words, st.integers(1, 90), st.integers(0, 2**64 - 1))
def test_whole_words_are_masked_as_long_as_there_is_room(a, b, count, seed):
    before = np.array([CLS, *a, SEP, *b, SEP], dtype=np.int32)
    after, positions, labels = masked(before, len(a) + 1, count, seed, whole_words=True)
    assert (np.diff(positions) > 0).all()
    chosen = set(positions.tolist())
    left_out = []
    for word in words_of(before.tolist(), range(FIRST_CONTINUATION, VOCABULARY_SIZE)):
        assert chosen.issuperset(word) or chosen.isdisjoint(word)
        left_out += [] if chosen.issuperset(word) else [len(word)]
    # A word that was passed over would be too much even now: the skip was not a stop.
    assert len(chosen) <= count
    assert all(len(chosen) + size > count for size in left_out)
    after[positions] = labels
    assert (after == before).all()


@pytest.mark.parametrize("count", [1, 3, 4])
def test_choices_of_whole_words_are_as_likely_as_those_of_the_oracle(count):
    before = np.array([CLS, 5, 31, 6, 32, 33, SEP, 34, 7, 8, 35, SEP], dtype=np.int32)
    sizes = [len(word) for word in words_of(before.tolist(), range(30, 50))]
    assert sizes == [2, 4, 1, 2], "the first token of B goes on with the last word of A"
    orders = list(itertools.permutations(words_of(before.tolist(), range(30, 50))))
    expected: dict[tuple[int, ...], float] = {}
    for order in orders:
        places = tuple(sorted(choose(list(order), count)))
        expected[places] = expected.get(places, 0) + 4800 / len(orders)
    seen = dict.fromkeys(expected, 0)
    for seed in range(4800):
        seen[tuple(masked(before, 6, count, seed, whole_words=True)[1].tolist())] += 1
    assert chisquare(list(seen.values()), list(expected.values())).pvalue > 0.001 or len(seen) == 1


def test_each_token_of_a_word_is_replaced_on_its_own():
    before = np.array([CLS, *[6, 40] * 30, SEP], dtype=np.int32)
    table = np.zeros((3, 3))
    for seed in range(200):
        after, positions, labels = masked(before, 61, 60, seed, 0.4, 0.3, whole_words=True)
        kinds = np.where(after[positions] == MASK, 0, np.where(after[positions] == labels, 1, 2))
        np.add.at(table, (kinds[::2], kinds[1::2]), 1)
    assert table.sum() == 6000
    assert chi2_contingency(table).pvalue > 0.001


def test_continuations_are_the_tokens_within_words():
    vocabulary = Vocabulary([*SPECIAL_TOKENS, "##s", "#", "word", "##", "a##"])
    assert np.flatnonzero(continuation_mask(vocabulary)).tolist() == [5, 8]
