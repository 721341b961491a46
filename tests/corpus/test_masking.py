"""Masking: exact properties, and chi-square tests at fixed seeds."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2_contingency, chisquare
from tests.corpus.google_oracle import CLS, MASK, SEP, choose_positions, group_words

from bertie.corpus.masking import continuation_mask, count_masks, mask_tokens, mask_words
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary

VOCABULARY_SIZE = 50
FIRST_CONTINUATION = 30  # this id and all greater ones continue a word
CONTINUATION_IDS = range(FIRST_CONTINUATION, VOCABULARY_SIZE)
IS_CONTINUATION = np.arange(VOCABULARY_SIZE) >= FIRST_CONTINUATION


def apply_masking(
    input_ids: np.ndarray,
    first_sep: int,
    count: int,
    seed: int,
    mask_probability: float = 0.8,
    keep_probability: float = 0.1,
    whole_words: bool = False,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the tokens after masking, the chosen positions and the labels."""
    masked = input_ids.copy()
    positions, labels = np.full(count, -1), np.full(count, -1)
    stream = np.array([seed], dtype=np.uint64)
    replacement = (mask_probability, keep_probability, MASK, VOCABULARY_SIZE)
    if whole_words:
        masks = mask_words(stream, masked, first_sep, IS_CONTINUATION, *replacement, positions, labels)
        return masked, positions[:masks], labels[:masks]
    mask_tokens(stream, masked, first_sep, *replacement, positions, labels)
    return masked, positions, labels


def make_example(a: int, b: int) -> np.ndarray:
    """Make an example of `a` tokens in A and `b` tokens in B; without B if b is 0."""
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
def test_labels_restore_the_original_tokens(a, b, masking_rate, max_predictions, seed):
    original = make_example(a, b)
    count = count_masks(len(original), a + b, masking_rate, max_predictions)
    masked, positions, labels = apply_masking(original, a + 1, count, seed)
    assert (np.diff(positions) > 0).all()
    assert not np.isin(labels, (CLS, SEP)).any()
    assert (masked != original).sum() <= count
    masked[positions] = labels
    assert (masked == original).all()


@pytest.mark.parametrize("max_predictions", [20, 77])
def test_number_of_masks_equals_the_original_release(max_predictions):
    for length in range(5, 513):
        expected = min(max_predictions, max(1, round(length * 0.15)))
        assert count_masks(length, length - 3, 0.15, max_predictions) == min(expected, length - 3)


def test_number_of_masks_rounds_halves_to_even():
    assert [count_masks(length, length, 0.25, 99) for length in (6, 10, 14)] == [2, 2, 4]


def test_all_choices_of_positions_are_equally_likely():
    original = make_example(3, 2)
    choices: dict[tuple[int, ...], int] = {}
    for seed in range(20_000):
        positions = tuple(apply_masking(original, 4, 2, seed)[1].tolist())
        choices[positions] = choices.get(positions, 0) + 1
    assert len(choices) == 10, "two of five positions"
    assert chisquare(list(choices.values())).pvalue > 0.001


TABLE_8 = [(0.8, 0.1), (1.0, 0.0), (0.8, 0.0), (0.8, 0.2), (0.0, 0.2), (0.0, 0.0)]


@pytest.mark.parametrize("whole_words", [False, True])
@pytest.mark.parametrize("probabilities", TABLE_8)
def test_replacement_follows_the_probabilities(probabilities, whole_words):
    mask_probability, keep_probability = probabilities
    original = make_example(200, 200)
    counts = np.zeros(3)  # [MASK], the original token, another token
    for seed in range(60):
        masked, positions, labels = apply_masking(
            original, 201, 60, seed, mask_probability, keep_probability, whole_words
        )
        replaced = masked[positions]
        counts += [(replaced == MASK).sum(), (replaced == labels).sum(), 0]
        counts[2] += ((replaced != MASK) & (replaced != labels)).sum()
    random_probability = 1 - mask_probability - keep_probability
    by_chance = random_probability / VOCABULARY_SIZE  # a random token may be [MASK] or the original
    expected = counts.sum() * np.array(
        [mask_probability + by_chance, keep_probability + by_chance, random_probability - 2 * by_chance]
    )
    is_possible = expected > 1e-6
    assert (counts[~is_possible] == 0).all()
    if is_possible.sum() > 1:
        assert chisquare(counts[is_possible], expected[is_possible]).pvalue > 0.001


def test_random_tokens_come_from_the_whole_vocabulary():
    counts = np.zeros(VOCABULARY_SIZE)
    original = make_example(200, 200)
    for seed in range(100):
        masked, positions, _ = apply_masking(original, 201, 100, seed, 0.0, 0.0)
        counts += np.bincount(masked[positions], minlength=VOCABULARY_SIZE)
    assert chisquare(counts).pvalue > 0.001


segments = st.lists(st.integers(5, VOCABULARY_SIZE - 1), min_size=1, max_size=40)


@given(segments, segments, st.integers(1, 90), st.integers(0, 2**64 - 1))
def test_words_that_do_not_fit_are_passed_over(a, b, count, seed):
    original = np.array([CLS, *a, SEP, *b, SEP], dtype=np.int32)
    masked, positions, labels = apply_masking(original, len(a) + 1, count, seed, whole_words=True)
    assert (np.diff(positions) > 0).all()
    chosen = set(positions.tolist())
    unchosen_sizes = []
    for word in group_words(original.tolist(), CONTINUATION_IDS):
        assert chosen.issuperset(word) or chosen.isdisjoint(word)
        unchosen_sizes += [] if chosen.issuperset(word) else [len(word)]
    # No unchosen word would fit, so masking did not stop at the first word that was too long.
    assert len(chosen) <= count
    assert all(len(chosen) + size > count for size in unchosen_sizes)
    masked[positions] = labels
    assert (masked == original).all()


@pytest.mark.parametrize("count", [1, 3, 4])
def test_choices_of_whole_words_are_as_likely_as_in_the_oracle(count):
    original = np.array([CLS, 5, 31, 6, 32, 33, SEP, 34, 7, 8, 35, SEP], dtype=np.int32)
    words = group_words(original.tolist(), CONTINUATION_IDS)
    assert [len(word) for word in words] == [2, 4, 1, 2], "B begins inside the last word of A"
    orders = list(itertools.permutations(words))
    expected: dict[tuple[int, ...], float] = {}
    for order in orders:
        positions = tuple(sorted(choose_positions(list(order), count)))
        expected[positions] = expected.get(positions, 0) + 4800 / len(orders)
    counts = dict.fromkeys(expected, 0)
    for seed in range(4800):
        counts[tuple(apply_masking(original, 6, count, seed, whole_words=True)[1].tolist())] += 1
    assert chisquare(list(counts.values()), list(expected.values())).pvalue > 0.001 or len(counts) == 1


def test_tokens_of_a_word_are_replaced_independently():
    original = np.array([CLS, *[6, 40] * 30, SEP], dtype=np.int32)
    table = np.zeros((3, 3))
    for seed in range(200):
        masked, positions, labels = apply_masking(original, 61, 60, seed, 0.4, 0.3, whole_words=True)
        kinds = np.where(masked[positions] == MASK, 0, np.where(masked[positions] == labels, 1, 2))
        np.add.at(table, (kinds[::2], kinds[1::2]), 1)
    assert table.sum() == 6000
    assert chi2_contingency(table).pvalue > 0.001


def test_continuation_mask_marks_tokens_with_the_prefix():
    vocabulary = Vocabulary([*SPECIAL_TOKENS, "##s", "#", "word", "##", "a##"])
    assert np.flatnonzero(continuation_mask(vocabulary)).tolist() == [5, 8]
