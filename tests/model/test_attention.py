"""Attention from one token of each sequence: equal to attention of all tokens, in fewer operations."""

import numpy as np
import pytest
import torch
from torch import nn

from bertie.model.attention import pooling_attention
from bertie.model.batch import pack
from bertie.model.dropout import dropout

H, A = 16, 4


@pytest.mark.parametrize("lengths", [[20, 20], [20, 17, 13, 16], [9, 31, 1, 30, 2], [1]])
@pytest.mark.parametrize("dropout_p", [0.0, 0.3])
@pytest.mark.parametrize("added_rows", [0, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_query_equals_attention_with_keys_and_values(lengths, dropout_p, added_rows, dtype):
    torch.manual_seed(0)
    bounds = np.cumsum([0, *lengths])
    T = bounds[-1]
    batch = pack(np.ones(T, np.int32), np.zeros(T, np.int32), bounds)
    positions = torch.from_numpy(np.random.default_rng(0).integers(bounds[:-1], bounds[1:]))
    hidden = torch.randn(T + added_rows, H).to(dtype).requires_grad_()
    qkv = nn.Linear(H, 3 * H)

    def plain() -> torch.Tensor:
        attended: list[torch.Tensor] = [torch.empty(0)] * len(lengths)
        for tokens, mask in zip(batch.buckets.tokens(), _masks(batch), strict=True):
            sequences = batch.sequence_ids[tokens[:, 0]]
            q, k, v = qkv(hidden.float()).view(-1, 3, A, H // A).unbind(1)  # (T, A, D) each
            scores = torch.einsum("nad,nsad->nas", q[positions[sequences]], k[tokens]) / (H // A) ** 0.5
            weights = dropout(scores.masked_fill(~mask[:, None], -torch.inf).softmax(-1), dropout_p)
            for i, rows in zip(sequences, torch.einsum("nas,nsad->nad", weights, v[tokens]), strict=True):
                attended[i] = rows.flatten()
        return torch.stack(attended)

    def results(function) -> list[torch.Tensor]:
        torch.manual_seed(1)  # the same dropout
        attended = function()
        return [attended, *torch.autograd.grad(attended.sin().sum(), [hidden, *qkv.parameters()])]

    expected = results(plain)
    actual = results(lambda: pooling_attention(hidden, positions, qkv, batch, A, dropout_p))
    for ours, wanted in zip(actual, expected, strict=True):
        assert ours.dtype == wanted.dtype
        torch.testing.assert_close(
            ours, wanted, atol=1e-5 if ours.dtype == torch.float32 else 0.03, rtol=1e-4
        )


def _masks(batch) -> list[torch.Tensor]:
    shapes = batch.buckets.shapes
    return [
        torch.ones(shape, dtype=torch.bool) if mask is None else mask
        for shape, mask in zip(shapes, batch.buckets.masks(), strict=True)
    ]
