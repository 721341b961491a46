"""Batches hold each sequence exactly once, whole and with its index."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bertie.model.sequences import Sequences


@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.integers(1, 3), st.integers(1, 60))
def test_batches_hold_each_sequence_once(lengths, group_size, max_tokens):
    lengths = np.repeat(lengths, group_size)
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    sequence_of_token = np.repeat(np.arange(len(lengths)), lengths).astype(np.int32)
    token_index = np.arange(bounds[-1], dtype=np.int32)
    sequences = Sequences(sequence_of_token, token_index, bounds)
    seen = []
    for indices, batch in sequences.batches(max_tokens, group_size=group_size):
        assert batch.bounds[-1] == len(batch.input_ids) <= max(max_tokens, batch.bounds[group_size])
        for index, first, last in zip(indices, batch.bounds[:-1], batch.bounds[1:], strict=True):
            assert (batch.input_ids[first:last] == index).all()
            assert (batch.token_type_ids[first:last] == token_index[bounds[index] : bounds[index + 1]]).all()
        groups = indices.reshape(-1, group_size)
        assert (groups == groups[:, :1] + np.arange(group_size)).all()
        seen += indices.tolist()
    assert sorted(seen) == list(range(len(lengths)))
