"""How a global batch is cut."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bertie.training.loop import share_evenly


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=60),
    st.integers(1, 200),
    st.integers(1, 5),
)
def test_shares_are_whole_in_order_and_nearly_even(lengths, micro_batch_tokens, multiple):
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    shares = share_evenly(bounds, micro_batch_tokens, multiple)
    assert shares[0][0] == 0
    assert shares[-1][1] == len(lengths)
    assert all(a[1] == b[0] for a, b in pairwise(shares))
    assert all(first < last for first, last in shares)
    for first, last in shares:
        assert bounds[last] - bounds[first] <= micro_batch_tokens + max(lengths)
    if min(lengths) == max(lengths) and len(lengths) % multiple == 0 and micro_batch_tokens >= bounds[-1]:
        assert len(shares) == multiple
