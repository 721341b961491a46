"""Attention with its own backward pass for training on a CPU: equal to autograd, in less memory."""

import numpy as np
import pytest
import torch
from torch import Tensor

from bertie.model.attention import packed_attention
from bertie.model.batch import PackedBatch, pack
from bertie.model.cpu_attention import cpu_attention
from bertie.model.dropout import dropout
from bertie.model.memory import ALIGNMENT

HIDDEN, NUM_HEADS = 16, 4


def batch_of(lengths: list[int]) -> PackedBatch:
    total = sum(lengths)
    return pack(np.ones(total, np.int32), np.zeros(total, np.int32), np.cumsum([0, *lengths]))


def plain_attention(qkv: Tensor, batch: PackedBatch, dropout_p: float, is_causal: bool) -> Tensor:
    """Attention as autograd sees it, with the same dropout masks."""
    attended = []
    for bucket, mask in zip(batch.buckets.pad(qkv), batch.buckets.masks(), strict=True):
        n, S, _ = bucket.shape
        q, k, v = bucket.view(n, S, 3, NUM_HEADS, -1).permute(2, 0, 3, 1, 4)  # (n, A, S, D) each
        scores = q.float() @ k.float().mT / q.shape[-1] ** 0.5
        if is_causal:
            scores = scores.masked_fill(torch.ones(S, S, dtype=torch.bool).triu(1), float("-inf"))
        elif mask is not None:
            scores = scores.masked_fill(~mask[:, None, None], float("-inf"))
        values = dropout(scores.softmax(-1).to(q.dtype), dropout_p) @ v
        attended.append(values.transpose(1, 2).reshape(n * S, -1))
    return batch.buckets.unpad(attended, rows=len(qkv))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("lengths", [[20, 20], [20, 17, 13, 16], [9, 31, 1, 30, 2]])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("dropout_p", [0.0, 0.3])
@pytest.mark.parametrize("threads", [1, 3])
def test_attention_and_its_gradient_equal_those_of_plain_products(
    library, dtype, lengths, is_causal, dropout_p, threads, monkeypatch
):
    monkeypatch.setattr("bertie.model.cpu_attention.SMALL_PRODUCT", 0)
    monkeypatch.setattr("bertie.model.cpu.MIN_ELEMENTS_PER_THREAD", 1)
    monkeypatch.setattr("torch.get_num_threads", lambda: threads)
    batch, results = batch_of(lengths), []
    rows = torch.randn(sum(lengths), 3 * HIDDEN).to(dtype)
    for is_ours in (True, False):
        qkv = rows.clone().requires_grad_()
        torch.manual_seed(4)
        if is_ours:
            attended = cpu_attention(qkv, batch.buckets, NUM_HEADS, dropout_p, is_causal)
        else:
            attended = plain_attention(qkv, batch, dropout_p, is_causal)
        results.append([attended, *torch.autograd.grad(attended.float().square().sum(), [qkv])])
    for actual, expected in zip(*results, strict=True):
        assert actual.dtype == dtype
        error = (actual.double() - expected.double()).norm() / expected.double().norm()
        assert error < (1e-5 if dtype == torch.float32 else 2e-2)


@pytest.mark.parametrize("lengths", [[7, 7], [9, 8, 3]])
def test_attention_keeps_queries_keys_and_values_once_for_the_backward_pass(lengths):
    batch = batch_of(lengths)
    qkv = torch.randn(sum(lengths), 3 * HIDDEN, requires_grad=True)
    storages: dict[int, int] = {}

    def record(tensor: Tensor) -> Tensor:
        if tensor.is_floating_point():
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
        attended = packed_attention(qkv, batch, NUM_HEADS, 0.1)
    weights = sum(n * NUM_HEADS * S * S for n, S in batch.buckets.shapes)
    rest = ALIGNMENT * len(batch.buckets.shapes)
    assert sum(storages.values()) == 4 * (qkv.numel() + weights) + rest
    assert qkv.data_ptr() in storages
    attended.sum().backward()
    assert qkv.grad is not None
    assert torch.isfinite(qkv.grad).all()


def test_a_second_backward_pass_is_refused():
    qkv = torch.randn(20, 3 * HIDDEN, requires_grad=True)
    attended = packed_attention(qkv * 1.0, batch_of([9, 8, 3]), NUM_HEADS, 0.1).sum()
    attended.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        attended.backward()
