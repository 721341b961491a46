"""Batches and models for the tests of attention by kernels."""

import numpy as np
import pytest

from bertie.model.batch import PackedBatch, pack

MODELS = pytest.mark.parametrize(
    ("heads", "is_decoder", "uses_kernel"),
    [
        pytest.param(3, False, True, id="encoder"),
        pytest.param(3, True, True, id="causal"),
        pytest.param(4, False, False, id="head size 12"),
    ],
)


def make_batch(lengths: list[int]) -> PackedBatch:
    """Return a batch of sequences of these lengths."""
    bounds = np.cumsum([0, *lengths])
    return pack(np.ones(bounds[-1], np.int32), np.zeros(bounds[-1], np.int32), bounds)
