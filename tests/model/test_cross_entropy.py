"""The loss, gradient and count of correct predictions of cross_entropy."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from bertie.model.cross_entropy import cross_entropy
from bertie.model.objectives import IGNORE_INDEX


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 1e-2)]
)
@given(
    n=st.integers(1, 20),
    classes=st.integers(1, 300),
    scale=st.sampled_from([0.1, 3.0, 1e4]),
    seed=st.integers(0),
)
@settings(max_examples=40)
def test_loss_and_gradient_equal_torch_cross_entropy(dtype, tolerance, n, classes, scale, seed):
    generator = torch.Generator().manual_seed(seed % 2**63)
    logits = (scale * torch.randn(n, classes, generator=generator)).to(dtype).requires_grad_()
    labels = torch.randint(classes, (n,), generator=generator)
    labels[torch.rand(n, generator=generator) < 0.3] = IGNORE_INDEX
    exact = logits.detach().clone().double().requires_grad_()
    loss_sum, correct = cross_entropy(logits, labels)
    (3.0 * loss_sum).backward()
    expected = F.cross_entropy(exact, labels, reduction="sum")
    (3.0 * expected).backward()
    torch.testing.assert_close(loss_sum.double(), expected, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(logits.grad.double(), exact.grad, atol=3 * tolerance, rtol=tolerance)
    assert logits.grad.dtype == dtype
    assert correct == (exact.argmax(1) == labels).sum()


@pytest.mark.parametrize("all_targets", [False, True])
def test_chunks_give_the_result_of_the_whole(monkeypatch, all_targets):
    monkeypatch.setattr("bertie.model.cross_entropy.CHUNK", 12)  # two rows of five
    logits = torch.randn(7, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    labels = logits.argmax(1)
    labels[[1, 6]] = (labels[[1, 6]] + 1) % 5
    if not all_targets:
        labels[[0, 5]] = IGNORE_INDEX
    expected, actual = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    expected_loss = F.cross_entropy(expected, labels, reduction="sum")
    loss_sum, correct = cross_entropy(actual, labels, all_targets)
    torch.testing.assert_close(loss_sum, expected_loss)
    assert correct == (5 if all_targets else 3)
    expected_loss.backward()
    loss_sum.backward()
    torch.testing.assert_close(actual.grad, expected.grad)


def test_logits_are_overwritten_only_if_they_need_a_gradient():
    logits, labels = torch.randn(3, 5), torch.tensor([0, 4, IGNORE_INDEX])
    before = logits.clone()
    loss_sum, _ = cross_entropy(logits, labels)
    assert torch.equal(logits, before)
    with_gradient = logits.requires_grad_() * 1
    same_loss, _ = cross_entropy(with_gradient, labels)
    assert torch.equal(loss_sum, same_loss)
    expected = before.softmax(1) - F.one_hot(torch.tensor([0, 4, 0]), 5)
    torch.testing.assert_close(with_gradient[:2].detach(), expected[:2])
    assert (with_gradient[2] == 0).all()


def test_without_targets_loss_and_gradient_are_zero():
    logits = torch.randn(3, 5, requires_grad=True)
    loss_sum, correct = cross_entropy(logits, torch.full((3,), IGNORE_INDEX))
    loss_sum.backward()
    assert (loss_sum, correct, logits.grad.abs().max()) == (0, 0, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_no_rows_have_no_loss(dtype):
    loss_sum, correct = cross_entropy(torch.empty(0, 5, dtype=dtype), torch.empty(0, dtype=torch.int64))
    assert (loss_sum, correct) == (0, 0)


def test_second_backward_pass_raises():
    logits = torch.randn(3, 5, requires_grad=True)
    loss_sum, _ = cross_entropy(logits, torch.tensor([0, 1, 2]))
    loss_sum.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss_sum.backward()
