"""Masking: exact properties by hypothesis, shares and uniformity by chi-square at fixed seeds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare
from tests.corpus.google_oracle import CLS, MASK, SEP

from bertie.corpus.masking import count_masks, mask_tokens

VOCABULARY_SIZE = 50


def masked(
    input_ids: np.ndarray,
    separator: int,
    count: int,
    seed: int,
    mask_share: float = 0.8,
    keep_share: float = 0.1,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The tokens after masking, the places chosen and the labels."""
    after = input_ids.copy()
    positions, labels = np.full(count, -1), np.full(count, -1)
    stream = np.array([seed], dtype=np.uint64)
    mask_tokens(stream, after, separator, mask_share, keep_share, MASK, VOCABULARY_SIZE, positions, labels)
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


@pytest.mark.parametrize("shares", [(0.8, 0.1), (1.0, 0.0), (0.8, 0.0), (0.8, 0.2), (0.0, 0.2), (0.0, 0.0)])
def test_the_shares_of_mask_same_and_random(shares):
    mask_share, keep_share = shares  # the rows of Table 8
    before = example(200, 200)
    seen = np.zeros(3)
    for seed in range(60):
        after, positions, labels = masked(before, 201, 60, seed, mask_share, keep_share)
        replaced = after[positions]
        seen += [(replaced == MASK).sum(), (replaced == labels).sum(), 0]
        seen[2] += ((replaced != MASK) & (replaced != labels)).sum()
    random_share = 1 - mask_share - keep_share
    by_chance = random_share / VOCABULARY_SIZE  # a random token may be [MASK], or the one that stood there
    expected = (
        np.array([mask_share + by_chance, keep_share + by_chance, random_share - 2 * by_chance]) * seen.sum()
    )
    possible = expected > 1e-6
    assert (seen[~possible] == 0).all()
    if possible.sum() > 1:
        assert chisquare(seen[possible], expected[possible]).pvalue > 0.001


def test_a_random_token_comes_from_the_whole_vocabulary():
    counts = np.zeros(VOCABULARY_SIZE)
    before = example(200, 200)
    for seed in range(100):
        after, positions, _ = masked(before, 201, 100, seed, mask_share=0.0, keep_share=0.0)
        counts += np.bincount(after[positions], minlength=VOCABULARY_SIZE)
    assert chisquare(counts).pvalue > 0.001
