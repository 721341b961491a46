"""Batches hold each sequence once, whole and under its number."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bertie.model.sequences import Sequences


@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.integers(1, 3), st.integers(1, 60))
def test_batches_hold_each_sequence_once(lengths, group, max_tokens):
    lengths = np.repeat(lengths, group)
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    owners = np.repeat(np.arange(len(lengths)), lengths).astype(np.int32)
    places = np.arange(bounds[-1], dtype=np.int32)
    seen = []
    for chosen, batch in Sequences(owners, places, bounds).batches(max_tokens, group):
        assert batch.bounds[-1] == len(batch.input_ids) <= max(max_tokens, batch.bounds[group])
        for number, first, last in zip(chosen, batch.bounds[:-1], batch.bounds[1:], strict=True):
            assert (batch.input_ids[first:last] == number).all()
            assert (batch.token_type_ids[first:last] == places[bounds[number] : bounds[number + 1]]).all()
        assert (chosen.reshape(-1, group) == chosen[::group, None] + np.arange(group)).all()
        seen += chosen.tolist()
    assert sorted(seen) == list(range(len(lengths)))
