"""Ranking logits by their probability."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertie.tasks.probabilities import softmax, top_softmax


@given(st.integers(0, 4), st.integers(1, 30), st.integers(1, 40))
def test_top_softmax_is_the_head_of_the_sorted_softmax(rows, columns, count):
    logits = np.random.default_rng(columns).normal(scale=30, size=(rows, columns)).astype(np.float32)
    indices, probabilities = top_softmax(logits, count)
    order = np.argsort(-logits, axis=1)[:, :count]
    assert indices.tolist() == order.tolist()
    expected = np.take_along_axis(softmax(logits), order, 1) if rows else np.empty((0, min(count, columns)))
    assert probabilities == pytest.approx(expected, rel=1e-4, abs=1e-7)
