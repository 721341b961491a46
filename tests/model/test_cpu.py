"""Parts of the encoder with code of their own on a CPU: equal to autograd, in less memory."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bertie.model.attention import packed_attention
from bertie.model.batch import PackedBatch, pack
from bertie.model.bert import BertModel
from bertie.model.config import BertConfig
from bertie.model.cpu import cpu_attention, embed_and_tie
from bertie.model.dropout import dropout

HIDDEN = 16


def batch_of(lengths: list[int]) -> PackedBatch:
    total = sum(lengths)
    return pack(np.ones(total, np.int32), np.zeros(total, np.int32), np.cumsum([0, *lengths]))


def plain_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout_p: float, is_causal: bool
) -> Tensor:
    """Attention as autograd sees it, with the same dropout mask."""
    scores = q.float() @ k.float().mT / q.shape[-1] ** 0.5
    if is_causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return dropout(scores.softmax(-1).to(q.dtype), dropout_p) @ v


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("is_masked", "is_causal"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("dropout_p", [0.0, 0.3])
def test_attention_and_its_gradients_equal_those_of_plain_products(
    dtype, is_masked, is_causal, dropout_p, monkeypatch
):
    monkeypatch.setattr("bertie.model.cpu.SMALL_PRODUCT", 0)
    q, k, v = torch.randn(3, 2, 4, 20, 8).to(dtype).unbind()
    mask = (
        torch.arange(20).expand(2, 1, 1, 20) < torch.tensor([20, 13]).view(2, 1, 1, 1) if is_masked else None
    )
    results = []
    for function in (cpu_attention, plain_attention):
        inputs = [x.clone().requires_grad_() for x in (q, k, v)]
        torch.manual_seed(4)
        attended = function(*inputs, mask, dropout_p, is_causal)
        results.append([attended, *torch.autograd.grad(attended.float().square().sum(), inputs)])
    for actual, expected in zip(*results, strict=True):
        assert actual.dtype == dtype
        error = (actual.double() - expected.double()).norm() / expected.double().norm()
        assert error < (1e-5 if dtype == torch.float32 else 2e-2)


@pytest.mark.parametrize("lengths", [[7, 7], [9, 8, 3]])
def test_attention_keeps_queries_keys_and_values_once_for_the_backward_pass(lengths):
    batch, num_heads = batch_of(lengths), 4
    qkv = torch.randn(sum(lengths), 3 * HIDDEN, requires_grad=True)
    storages: dict[int, int] = {}

    def record(tensor: Tensor) -> Tensor:
        if tensor.is_floating_point():
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
        attended = packed_attention(qkv, batch, num_heads, 0.1)
    slots = sum(n * S for n, S in batch.buckets.shapes)
    weights = sum(n * num_heads * S * S for n, S in batch.buckets.shapes)
    assert sum(storages.values()) == 4 * (3 * HIDDEN * slots + weights)
    attended.sum().backward()  # also for a bucket that is a part of a storage
    assert qkv.grad is not None
    assert torch.isfinite(qkv.grad).all()


def test_training_does_not_keep_the_output_of_the_activation():
    config = BertConfig(
        vocab_size=30,
        hidden_size=HIDDEN,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=50,
        max_position_embeddings=16,
    )
    model, wide = BertModel(config, pooler=False).train(), []

    def record(tensor: Tensor) -> Tensor:
        if tensor.shape[-1] == 50 and tensor.shape[0] == 14:
            wide.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
        hidden, _ = model(batch_of([7, 7]))
    assert len({tensor.data_ptr() for tensor in wide}) == 3  # what goes into the activation, in each layer
    hidden.sum().backward()


def test_tied_embeddings_have_the_gradient_of_autograd_in_the_memory_of_the_decoders():
    ids = torch.tensor([3, 0, 3, 8, 3], dtype=torch.int32)
    hidden, targets = torch.randn(4, 6), torch.randn(4, 9)
    gradients = []
    for is_ours in (True, False):
        torch.manual_seed(0)
        weight = torch.randn(9, 6, requires_grad=True)
        words, decoder = embed_and_tie(weight, ids) if is_ours else (F.embedding(ids, weight), weight)
        addresses: list[int] = []
        if is_ours:
            assert torch.equal(words, weight[ids.long()])
            assert torch.equal(decoder, weight)
            decoder.register_hook(lambda grad, addresses=addresses: addresses.append(grad.data_ptr()))
        (F.linear(hidden, decoder) * targets).sum().add(words.square().sum()).backward()
        assert weight.grad is not None
        assert addresses in ([], [weight.grad.data_ptr()])
        gradients.append(weight.grad)
    torch.testing.assert_close(*gradients)


def test_tied_embeddings_whose_decoder_is_not_used_have_a_gradient():
    weight = torch.randn(9, 6, requires_grad=True)
    words, _ = embed_and_tie(weight, torch.tensor([1, 1, 2]))
    words.sum().backward()
    assert weight.grad is not None
    assert weight.grad.sum(1).tolist() == [0, 12, 6, 0, 0, 0, 0, 0, 0]
