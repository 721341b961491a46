"""Attention in inference on a CPU: equal to torch's."""

from unittest.mock import Mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.model.attention_cases import MODELS, make_batch
from tests.parity.transformers_peer import SHAPE, ragged_batch
from torch import nn

from bertie.model import bert
from bertie.model.attention import packed_attention
from bertie.model.bert import BertModel, initialize
from bertie.model.config import BertConfig
from bertie.model.cpu_inference_attention import inference_attention
from bertie.model.cpu_vectors import WIDTH

HEADS = 3


def make_layer(head_size):
    torch.manual_seed(0)
    return nn.Linear(HEADS * head_size, 3 * HEADS * head_size)


@torch.inference_mode()
def attend(lengths, head_size, scale=1.0, nan_in=None):
    """Return what the kernel computes for random sequences of these lengths."""
    qkv = make_layer(head_size)
    hidden = scale * torch.randn(sum(lengths), qkv.in_features)
    if nan_in is not None:
        hidden[nan_in] = torch.nan
    return inference_attention(hidden, qkv, make_batch(lengths), HEADS)


@torch.inference_mode()
def expect(lengths, head_size, scale=1.0, dtype=torch.float32):
    """Return what torch computes for the same sequences."""
    qkv = make_layer(head_size)
    hidden = scale * torch.randn(sum(lengths), qkv.in_features)
    return packed_attention(qkv.to(dtype)(hidden.to(dtype)), make_batch(lengths), HEADS, 0.0)


@given(
    lengths=st.lists(st.integers(1, 4 * WIDTH + 3), min_size=1, max_size=6),
    size=st.sampled_from([16, 32, 64]),
)
def test_equal_to_packed_attention(lengths, size):
    torch.testing.assert_close(attend(lengths, size), expect(lengths, size), atol=2e-6, rtol=1e-5)


def test_sequences_may_be_longer_than_512_tokens():
    torch.testing.assert_close(attend((1500, 9), 32), expect((1500, 9), 32), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("scale", [1e-3, 1, 10, 1000])
def test_as_accurate_as_torch(library, scale):
    """Weights are nearly equal at the smallest scale; at the largest, one key has all the weight."""
    lengths, size = (40, 3, 17, 90, 60, 70, 512), 32
    exact = expect(lengths, size, scale, torch.float64)
    error = (attend(lengths, size, scale) - exact).norm()
    assert error <= 1.2 * (expect(lengths, size, scale) - exact).norm()


@pytest.mark.parametrize("threads", [2, 3, 4, 7, 50])
def test_threads_share_heads_and_sequences(library, monkeypatch, threads):
    expected = attend((40, 3, 17, 1, 9), 32)
    monkeypatch.setattr("bertie.model.cpu.MIN_ELEMENTS_PER_THREAD", 1)
    monkeypatch.setattr("torch.get_num_threads", lambda: threads)
    actual = attend((40, 3, 17, 1, 9), 32)
    assert torch.equal(actual, expected)


@pytest.mark.parametrize("length", [7, 8, 9, 15, 16, 17])
def test_nan_stays_in_its_sequence(length):
    actual = attend((length, length, length), 32, nan_in=length)  # in the second sequence
    is_nan = actual.isnan().any(1)
    assert is_nan[length : 2 * length].all()
    assert is_nan.sum() == length


def test_result_does_not_depend_on_the_other_sequences():
    first, other = attend((13, 40), 32)[:13], attend((13, 100), 32)[:13]
    torch.testing.assert_close(first, other, atol=1e-6, rtol=1e-5)  # the products may differ by rounding


@MODELS
def test_model(heads, is_decoder, uses_kernel, monkeypatch):
    """In inference, the encoder uses the kernel where it can, and returns the same vectors."""
    monkeypatch.setattr("torch.get_num_threads", lambda: 2)
    config = BertConfig(**SHAPE | {"num_attention_heads": heads}, is_decoder=is_decoder)
    model = BertModel(config).eval()
    initialize(model, config)
    kernel = Mock(side_effect=inference_attention)
    monkeypatch.setattr(bert, "inference_attention", kernel)
    batch = ragged_batch(lengths=(40, 3, 17))
    with torch.no_grad():
        expected = model(batch)[0]
    assert not kernel.called
    with torch.inference_mode():
        actual = model(batch)[0]
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-4)
    assert kernel.call_count == uses_kernel * config.num_hidden_layers
