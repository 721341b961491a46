"""Attention of short sequences in inference on a CPU: equal to torch's, and used only where it is faster."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.parity.transformers_peer import SHAPE, ragged_batch
from torch import nn

from bertie.model import bert
from bertie.model.attention import packed_attention
from bertie.model.batch import pack
from bertie.model.bert import BertModel, initialize
from bertie.model.config import BertConfig
from bertie.model.cpu_short_attention import MAX_NUMBERS, TILE, has_short_sequences, short_attention

HEADS = 3


def make_batch(lengths):
    bounds = np.cumsum([0, *lengths])
    return pack(np.ones(bounds[-1], np.int32), np.zeros(bounds[-1], np.int32), bounds)


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
    return short_attention(hidden, qkv, make_batch(lengths), HEADS)


@torch.inference_mode()
def expect(lengths, head_size, scale=1.0, dtype=torch.float32):
    """Return what torch computes for the same sequences."""
    qkv = make_layer(head_size)
    hidden = scale * torch.randn(sum(lengths), qkv.in_features)
    return packed_attention(qkv.to(dtype)(hidden.to(dtype)), make_batch(lengths), HEADS, 0.0)


@given(
    lengths=st.lists(st.integers(1, 2 * TILE + 3), min_size=1, max_size=6), size=st.sampled_from([8, 32, 64])
)
def test_equal_to_packed_attention(lengths, size):
    torch.testing.assert_close(attend(lengths, size), expect(lengths, size), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("scale", [1e-3, 1, 10, 1000])
def test_as_accurate_as_torch(scale):
    """Weights are nearly equal at the smallest scale; at the largest, one key has all the weight."""
    lengths, size = (40, 3, 17, 90, 60, 70), 32
    exact = expect(lengths, size, scale, torch.float64)
    error = (attend(lengths, size, scale) - exact).norm()
    assert error <= 1.2 * (expect(lengths, size, scale) - exact).norm()


def test_threads_share_the_heads(monkeypatch):
    expected = attend((40, 3, 17, 1, 9), 32)
    monkeypatch.setattr("bertie.model.cpu.MIN_ELEMENTS_PER_THREAD", 1)
    monkeypatch.setattr("torch.get_num_threads", lambda: 3)
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


def test_long_sequences_and_odd_heads_are_left_to_torch():
    longest = MAX_NUMBERS // 32
    assert has_short_sequences(make_batch([longest]), 32)
    assert not has_short_sequences(make_batch([longest + 1]), 32)
    assert has_short_sequences(make_batch([200] + [10] * 400), 32)  # on average
    assert not has_short_sequences(make_batch([longest]), 64)
    assert not has_short_sequences(make_batch([10]), 12)


@pytest.mark.parametrize("is_decoder", [False, True])
def test_model(is_decoder, monkeypatch):
    """The encoder uses the kernel in inference, without causal attention, and returns the same vectors."""
    monkeypatch.setattr("torch.get_num_threads", lambda: 2)
    config = BertConfig(**SHAPE | {"num_attention_heads": 6}, is_decoder=is_decoder)
    model = BertModel(config).eval()
    initialize(model, config)
    calls = []
    monkeypatch.setattr(bert, "short_attention", lambda *args: (calls.append(1), short_attention(*args))[1])
    batch = ragged_batch(lengths=(40, 3, 17))
    with torch.no_grad():
        expected = model(batch)[0]
    assert not calls
    with torch.inference_mode():
        actual = model(batch)[0]
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-4)
    assert len(calls) == (0 if is_decoder else config.num_hidden_layers)
