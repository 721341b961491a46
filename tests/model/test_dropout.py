"""Our dropout is torch's but for the numbers it draws."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats

from bertie.model.attention import packed_attention
from bertie.model.batch import pack
from bertie.model.dropout import Dropout, dropout


def kept(shape: tuple[int, ...], probability: float, seed: int = 0) -> torch.Tensor:
    torch.manual_seed(seed)
    return dropout(torch.ones(shape), probability) > 0


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.013])
def test_so_many_are_dropped_each_apart_from_its_neighbours(probability):
    mask = kept((1000, 999), probability).double().flatten()
    assert stats.binomtest(int((mask == 0).sum()), mask.numel(), probability).pvalue > 1e-4
    for distance in (1, 2, 3, 4, 5, 999):  # four share a drawn number
        correlation = np.corrcoef(mask[:-distance], mask[distance:])[0, 1]
        assert abs(correlation) < 4.5 / len(mask) ** 0.5


def test_nearly_all_may_be_dropped():
    assert torch.isfinite(dropout(torch.ones(9), 0.999999)).all()


def test_what_is_kept_makes_up_for_the_rest():
    values = torch.randn(37, 11)
    torch.manual_seed(1)
    dropped = dropout(values, 0.25)
    mask = dropped != 0
    torch.testing.assert_close(dropped[mask], values[mask] / 0.75)


def test_in_bfloat16_a_product_is_rounded_and_not_the_scale():
    """On average, then, nothing is lost: 1.1094 instead of 1.1111 would be 0.16 %."""
    values = torch.linspace(1, 2, 100_001)
    torch.manual_seed(1)
    dropped = dropout(values.bfloat16(), 0.1).double()
    mask = dropped != 0
    ratios = dropped[mask] / values.bfloat16()[mask].double()
    assert ratios.mean().item() == pytest.approx(1 / 0.9, rel=3e-4)


def test_the_gradient_takes_the_same_mask():
    values = torch.randn(33, 7, requires_grad=True)
    torch.manual_seed(2)
    dropped = dropout(values, 0.3)
    dropped.backward(torch.ones_like(dropped))
    torch.testing.assert_close(values.grad, dropped.detach() / values.detach())


def test_the_seed_decides():
    assert torch.equal(kept((50, 3), 0.5, seed=3), kept((50, 3), 0.5, seed=3))
    assert not torch.equal(kept((50, 3), 0.5, seed=3), kept((50, 3), 0.5, seed=4))


def test_nothing_is_dropped_in_evaluation_or_where_the_probability_is_zero():
    values = torch.randn(5, 5)
    assert Dropout(0.5).eval()(values) is values
    assert dropout(values, 0.0) is values


@pytest.mark.parametrize("lengths", [[7, 7], [9, 8, 3]])
def test_attention_with_dropout_is_torchs_with_the_same_mask(lengths, monkeypatch):
    total = sum(lengths)
    batch = pack(np.ones(total, np.int32), np.zeros(total, np.int32), np.cumsum([0, *lengths]))
    qkv = torch.randn(total, 3 * 16, dtype=torch.float64)
    scales = {}

    def remember(values: torch.Tensor, probability: float) -> torch.Tensor:
        scales[values.shape] = 1 / (1 - probability)
        return values * scales[values.shape]  # nothing dropped, all scaled

    monkeypatch.setattr("bertie.model.attention.drop", remember)
    with_dropout = packed_attention(qkv, batch, 4, 0.2)
    torch.testing.assert_close(with_dropout, packed_attention(qkv, batch, 4, 0.0) / 0.8)
    assert scales


def test_the_mean_over_many_masks_is_no_dropout():
    values = torch.linspace(-1, 1, 64)
    torch.manual_seed(5)
    mean = torch.stack([dropout(values, 0.1) for _ in range(4000)]).mean(0)
    torch.testing.assert_close(mean, values, atol=0.03, rtol=0)
    theirs = torch.stack([F.dropout(values, 0.1) for _ in range(4000)]).mean(0)
    torch.testing.assert_close(theirs, values, atol=0.03, rtol=0)
