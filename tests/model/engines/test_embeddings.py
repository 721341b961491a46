"""Vectors of texts are normalized as in torch."""

import numpy as np
import torch

from bertie.model.engines.embeddings import normalize


def test_a_vector_of_zeros_stays_as_it_is():
    vectors = np.array([[3, -4], [0, 0], [1e-20, 0]], dtype=np.float32)
    expected = torch.nn.functional.normalize(torch.from_numpy(vectors)).numpy()
    np.testing.assert_allclose(normalize(vectors), expected, atol=1e-7)
    assert (normalize(vectors)[1] == 0).all()
