"""Attention for training on a CPU by kernels: equal to autograd, and without matrices of weights."""

from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.model.attention_cases import MODELS, make_batch
from tests.parity.transformers_peer import SHAPE, ragged_batch
from torch import Tensor

from bertie.model import attention
from bertie.model.attention import packed_attention
from bertie.model.bert import BertModel, initialize
from bertie.model.config import BertConfig
from bertie.model.cpu_attention_kernels import divide_attention
from bertie.model.cpu_training_attention import training_attention
from bertie.model.cpu_vectors import WIDTH

HEADS = 3
LENGTHS = [2 * WIDTH + 5, 1, 17, WIDTH, 40]


def attend(qkv: Tensor, lengths: list[int], dropout_p: float, is_causal: bool) -> Tensor:
    torch.manual_seed(4)
    return training_attention(qkv, make_batch(lengths).cu_seqlens, HEADS, dropout_p, is_causal)


def find_factors(lengths: list[int], head_size: int, dropout_p: float) -> list[Tensor]:
    """Return the factors of dropout of each sequence, (A, S, S), as attention itself applies them.

    Without scores, all weights are 1 / S. If the value of key j has its only 1 in column d, then column d of
    the result has its factors.
    """
    factors = [torch.zeros(HEADS, S, S) for S in lengths]
    for offset in range(0, max(lengths), head_size):
        qkv = torch.zeros(sum(lengths), 3, HEADS, head_size)
        start = 0
        for S in lengths:
            for j in range(offset, min(offset + head_size, S)):
                qkv[start + j, 2, :, j - offset] = 1
            start += S
        attended = attend(qkv.flatten(1), lengths, dropout_p, False).view(-1, HEADS, head_size)
        for S, of_sequence, values in zip(lengths, factors, attended.split(lengths), strict=True):
            keys = of_sequence[:, :, offset : offset + head_size]
            keys[:] = S * values.transpose(0, 1)[:, :, : keys.shape[2]]
    return factors


def plain_attention(qkv: Tensor, lengths: list[int], factors: list[Tensor], is_causal: bool) -> Tensor:
    """Attention as autograd sees it."""
    attended = []
    for rows, of_sequence in zip(qkv.split(lengths), factors, strict=True):
        S = len(rows)
        q, k, v = rows.view(S, 3, HEADS, -1).permute(1, 2, 0, 3)  # (A, S, D) each
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if is_causal:
            scores = scores.masked_fill(torch.ones(S, S, dtype=torch.bool).triu(1), float("-inf"))
        attended.append(((scores.softmax(-1) * of_sequence) @ v).transpose(0, 1).reshape(S, -1))
    return torch.cat(attended)


def differentiate(function, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the result of a function of rows and the gradient of the sum of its squares."""
    qkv = rows.clone().requires_grad_()
    result = function(qkv)
    return result.detach(), *torch.autograd.grad(result.square().sum(), [qkv])


def assert_close(actual: Tensor, expected: Tensor) -> None:
    assert (actual - expected).norm() <= 2e-6 * expected.norm()


@settings(max_examples=20)
@given(
    lengths=st.lists(st.integers(1, 3 * WIDTH + 3), min_size=1, max_size=4),
    head_size=st.sampled_from([16, 32, 48, 64]),
    dropout_p=st.sampled_from([0.0, 0.3]),
    is_causal=st.booleans(),
)
def test_attention_and_its_gradient_equal_those_of_autograd(lengths, head_size, dropout_p, is_causal):
    torch.manual_seed(len(lengths))
    rows = torch.randn(sum(lengths), 3 * HEADS * head_size)
    factors = find_factors(lengths, head_size, dropout_p)
    actual = differentiate(lambda qkv: attend(qkv, lengths, dropout_p, is_causal), rows)
    expected = differentiate(
        lambda qkv: plain_attention(qkv.double(), lengths, [f.double() for f in factors], is_causal).float(),
        rows,
    )
    for values, expected_values in zip(actual, expected, strict=True):
        assert_close(values, expected_values)


def test_dropout_is_as_likely_as_it_should_be_and_differs_between_heads_and_sequences():
    factors = find_factors([100] * 4, 32, 0.3)
    dropped = torch.stack([of_sequence == 0 for of_sequence in factors])  # (N, A, S, S)
    assert dropped.float().mean().item() == pytest.approx(0.3, abs=0.005)
    kept = torch.stack(factors)[~dropped]
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / 0.7), atol=1e-4, rtol=0)
    masks = dropped.flatten(0, 1).flatten(1).float()  # one for each sequence and head
    correlations = torch.corrcoef(masks) - torch.eye(len(masks))
    assert correlations.abs().max() < 0.05


@pytest.mark.parametrize("threads", [2, 3, 4, 7, 50])
def test_threads_share_heads_and_sequences(monkeypatch, threads):
    rows = torch.randn(sum(LENGTHS), 3 * HEADS * 32)
    expected = differentiate(lambda qkv: attend(qkv, LENGTHS, 0.1, False), rows)
    monkeypatch.setattr("bertie.model.cpu.MIN_ELEMENTS_PER_THREAD", 1)
    monkeypatch.setattr("torch.get_num_threads", lambda: threads)
    actual = differentiate(lambda qkv: attend(qkv, LENGTHS, 0.1, False), rows)
    assert all(map(torch.equal, actual, expected))


@given(
    st.lists(st.integers(1, 300), min_size=1, max_size=20).map(lambda lengths: np.cumsum([0, *lengths])),
    st.integers(1, 16),
    st.integers(1, 20),
)
def test_every_head_of_every_sequence_is_in_one_part(bounds, num_heads, threads):
    counts = np.zeros((len(bounds) - 1, num_heads), np.int64)

    def count(first_sequence, last_sequence, first_head, last_head):
        counts[first_sequence:last_sequence, first_head:last_head] += 1

    divide_attention(count, bounds, num_heads, threads)
    assert (counts == 1).all()


def test_threads_have_equally_many_heads_of_equally_many_tokens():
    parts = []
    divide_attention(lambda *part: parts.append(part), np.arange(0, 330, 10), num_heads=4, threads=8)
    assert sorted(parts) == [(16 * i, 16 * i + 16, head, head + 1) for i in range(2) for head in range(4)]


def test_rows_after_the_tokens_change_nothing():
    rows = torch.randn(sum(LENGTHS) + 7, 3 * HEADS * 32)
    longer = differentiate(lambda qkv: attend(qkv, LENGTHS, 0.1, False), rows)
    expected = differentiate(lambda qkv: attend(qkv, LENGTHS, 0.1, False), rows[:-7])
    for values, expected_values in zip(longer, expected, strict=True):
        assert torch.equal(values[:-7], expected_values)
        assert (values[-7:] == 0).all()


@pytest.mark.parametrize("is_causal", [False, True])
def test_nan_stays_in_its_sequence(is_causal):
    lengths = [9, 17, 40]
    rows = torch.randn(sum(lengths), 3 * HEADS * 32)
    rows[12] = torch.nan
    for values in differentiate(lambda qkv: attend(qkv, lengths, 0.1, is_causal), rows):
        assert values.isnan().any(1).nonzero().flatten().tolist() in ([*range(9, 26)], [*range(12, 26)])


def test_the_gradient_of_the_result_may_have_any_strides():
    qkv = torch.randn(40, 3 * HEADS * 32, requires_grad=True)
    weight = torch.randn(HEADS * 32, 40).t()
    results = [
        torch.autograd.grad(attend(qkv, [40], 0.1, False), [qkv], grad)[0]
        for grad in (weight, weight.contiguous())
    ]
    assert torch.equal(*results)


def test_no_matrix_of_weights_is_kept_for_the_backward_pass():
    qkv = torch.randn(400, 3 * HEADS * 32, requires_grad=True)
    storages: dict[int, int] = {}

    def record(tensor: Tensor) -> Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
        packed_attention(qkv, make_batch([400]), HEADS, 0.1)
    assert sum(storages.values()) == qkv.numel() + 400 * HEADS * 32 + 400 * HEADS


@MODELS
def test_model(heads, is_decoder, uses_kernel, monkeypatch):
    """In training, the kernels are used where they can be, and the gradients are the same."""
    monkeypatch.setattr("torch.get_num_threads", lambda: 2)
    config = BertConfig(**SHAPE | {"num_attention_heads": heads, "is_decoder": is_decoder})  # without dropout
    model = BertModel(config).train()
    initialize(model, config)
    batch = ragged_batch(lengths=(40, 3, 17))
    weight = torch.randn(batch.num_tokens, config.hidden_size)
    kernel = Mock(side_effect=training_attention)
    monkeypatch.setattr(attention, "training_attention", kernel)
    results = []
    for can_attend in (attention.can_attend, lambda head_size: False):
        monkeypatch.setattr(attention, "can_attend", can_attend)
        model.zero_grad()
        (model(batch)[0] * weight).sum().backward()
        results.append([parameter.grad for parameter in model.parameters() if parameter.grad is not None])
        assert kernel.call_count == uses_kernel * config.num_hidden_layers
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)
