"""Dropout is equivalent to torch's except for the random bits that it draws."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats

from bertie.model.dropout import Dropout, dropout


def kept_mask(shape: tuple[int, ...], probability: float, seed: int = 0) -> torch.Tensor:
    """Return which elements dropout keeps: bool, of `shape`."""
    torch.manual_seed(seed)
    return dropout(torch.ones(shape), probability) > 0


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.013])
def test_elements_are_dropped_independently_at_the_given_rate(probability):
    mask = kept_mask((1000, 999), probability).double().flatten()
    assert stats.binomtest(int((mask == 0).sum()), mask.numel(), probability).pvalue > 1e-4
    for distance in (1, 2, 3, 4, 5, 999, len(mask) // 2):  # two elements half the length apart share a hash
        correlation = np.corrcoef(mask[:-distance], mask[distance:])[0, 1]
        assert abs(correlation) < 4.5 / (len(mask) - distance) ** 0.5


def test_masks_of_two_calls_are_independent():
    masks = [kept_mask((100_000,), 0.1, seed).double().numpy() for seed in range(40)]
    correlations = np.corrcoef(masks)[np.triu_indices(40, 1)]
    assert stats.kstest(correlations * 100_000**0.5, "norm").pvalue > 1e-4


def test_several_threads_draw_the_mask_of_one(monkeypatch):
    masks = []
    for threads in (1, 3):
        monkeypatch.setattr("torch.get_num_threads", lambda threads=threads: threads)
        masks.append(kept_mask((600_001,), 0.3))
    assert torch.equal(*masks)


def test_probability_close_to_one_gives_finite_values():
    assert torch.isfinite(dropout(torch.ones(9), 0.999999)).all()


def test_kept_elements_are_scaled_up():
    values = torch.randn(37, 11)
    torch.manual_seed(1)
    dropped = dropout(values, 0.25)
    mask = dropped != 0
    torch.testing.assert_close(dropped[mask], values[mask] / 0.75)


def test_bfloat16_does_not_round_the_scale():
    """With a scale of 1.1094 instead of 1.1111, the mean would be 0.16 % too low."""
    values = torch.linspace(1, 2, 100_001)
    torch.manual_seed(1)
    dropped = dropout(values.bfloat16(), 0.1).double()
    mask = dropped != 0
    ratios = dropped[mask] / values.bfloat16()[mask].double()
    assert ratios.mean().item() == pytest.approx(1 / 0.9, rel=3e-4)


def test_gradient_has_the_mask_of_the_forward_pass():
    values = torch.randn(33, 7, requires_grad=True)
    torch.manual_seed(2)
    dropped = dropout(values, 0.3)
    dropped.backward(torch.ones_like(dropped))
    torch.testing.assert_close(values.grad, dropped.detach() / values.detach())


def test_mask_depends_on_the_seed():
    assert torch.equal(kept_mask((50, 3), 0.5, seed=3), kept_mask((50, 3), 0.5, seed=3))
    assert not torch.equal(kept_mask((50, 3), 0.5, seed=3), kept_mask((50, 3), 0.5, seed=4))


def test_evaluation_and_probability_zero_return_the_values():
    values = torch.randn(5, 5)
    assert Dropout(0.5).eval()(values) is values
    assert dropout(values, 0.0) is values


def test_mean_over_many_masks_is_the_input():
    values = torch.linspace(-1, 1, 64)
    torch.manual_seed(5)
    mean = torch.stack([dropout(values, 0.1) for _ in range(4000)]).mean(0)
    torch.testing.assert_close(mean, values, atol=0.03, rtol=0)
    torch_mean = torch.stack([F.dropout(values, 0.1) for _ in range(4000)]).mean(0)
    torch.testing.assert_close(torch_mean, values, atol=0.03, rtol=0)
