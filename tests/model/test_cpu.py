"""Parts of the encoder with code of their own on a CPU: equal to autograd, in less memory."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bertie.model.batch import PackedBatch, pack
from bertie.model.bert import BertModel
from bertie.model.config import BertConfig
from bertie.model.cpu import embed_and_tie

HIDDEN = 16


def batch_of(lengths: list[int]) -> PackedBatch:
    total = sum(lengths)
    return pack(np.ones(total, np.int32), np.zeros(total, np.int32), np.cumsum([0, *lengths]))


def test_training_does_not_keep_the_output_of_the_activation():
    config = BertConfig(
        vocab_size=30,
        hidden_size=HIDDEN,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=50,
        max_position_embeddings=16,
        hidden_act="gelu_new",  # which is not fused with what follows (test_cpu_training.py)
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
