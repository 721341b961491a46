"""Windows over documents: their size, overlap and context."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bertie.tasks.windows import place_windows, split_into_windows
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary

VOCABULARY = Vocabulary([*SPECIAL_TOKENS, *"abcdefgh"])
DOCUMENT_SIZES = st.lists(st.integers(0, 60), max_size=6)


@given(DOCUMENT_SIZES, st.integers(1, 20))
def test_each_token_belongs_to_the_window_with_most_context(sizes, window_size):
    bounds = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    start, end, best_start = place_windows(bounds, window_size)
    best_end = np.append(best_start[1:], bounds[-1])
    assert (end - start <= window_size).all()
    assert (best_start >= start).all()
    assert (best_end <= end).all()
    assert len(np.unique(best_start)) == len(best_start)
    document_of = np.searchsorted(bounds, start, side="right") - 1
    for document, (first, last) in enumerate(pairwise(bounds)):
        windows = [
            (start[i], end[i], best_start[i], best_end[i]) for i in np.flatnonzero(document_of == document)
        ]
        for token in range(first, last):
            context = [
                min(
                    np.inf if left == first else token - left,
                    np.inf if right == last else right - 1 - token,
                )
                if left <= token < right
                else -1
                for left, right, _, _ in windows
            ]
            (best,) = [i for i, (_, _, low, high) in enumerate(windows) if low <= token < high]
            assert context[best] == max(context)
            assert context[best] >= (window_size - 1) // 4 or window_size < 4


@given(DOCUMENT_SIZES, st.integers(3, 20))
def test_windows_have_special_tokens_and_every_document_token(sizes, max_seq_length):
    bounds = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    token_ids = (np.arange(bounds[-1]) % 8 + len(SPECIAL_TOKENS)).astype(np.int32)
    windows = split_into_windows(token_ids, bounds, VOCABULARY, max_seq_length)
    assert (np.diff(windows.bounds) <= max_seq_length).all()
    assert (windows.input_ids[windows.bounds[:-1]] == VOCABULARY.cls_id).all()
    assert (windows.input_ids[windows.bounds[1:] - 1] == VOCABULARY.sep_id).all()
    assert len(np.unique(windows.positions)) == len(token_ids)
    assert (windows.input_ids[windows.positions] == token_ids).all()
