"""A BiLSTM over packed sequences is torch's over each of them."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bertie.model.batch import PackedBatch, pack
from bertie.model.bilstm import BiLSTM, FeatureTagger, ScalarMix


def batch_of(lengths: list[int]) -> PackedBatch:
    ids = np.zeros(sum(lengths), np.int32)
    return pack(ids, ids, np.array([0, *itertools.accumulate(lengths)]))


@given(st.lists(st.integers(1, 12), min_size=1, max_size=6), st.integers(1, 2))
@settings(max_examples=25)
def test_packed_is_as_one_by_one(lengths, num_layers):
    torch.manual_seed(0)
    bilstm = BiLSTM(5, 3, num_layers, dropout=0.0)
    tokens = torch.randn(sum(lengths), 5, requires_grad=True)
    weights = torch.randn(sum(lengths), 6)
    packed = bilstm(tokens, batch_of(lengths))
    alone = torch.cat([bilstm.lstm(sequence)[0] for sequence in tokens.split(lengths)])
    torch.testing.assert_close(packed, alone)
    learnt = (tokens, *bilstm.parameters())
    ours, theirs = (torch.autograd.grad((y * weights).sum(), learnt) for y in (packed, alone))
    torch.testing.assert_close(ours, theirs)


def test_dropout_stands_between_the_layers():
    torch.manual_seed(0)
    bilstm, batch, tokens = BiLSTM(5, 3, 2, dropout=0.5), batch_of([4, 2]), torch.randn(6, 5)
    assert not torch.equal(bilstm(tokens, batch), bilstm(tokens, batch))
    bilstm.eval()
    assert torch.equal(bilstm(tokens, batch), bilstm(tokens, batch))


def test_the_recurrence_is_in_float32_whatever_goes_in():
    torch.manual_seed(0)
    bilstm, batch, tokens = BiLSTM(5, 3, 1, dropout=0.0), batch_of([4, 2]), torch.randn(6, 5).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        found = bilstm(tokens, batch)
    torch.testing.assert_close(found, bilstm(tokens.float(), batch), rtol=0, atol=0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA here")
def test_cudnn_does_not_round_its_products():
    torch.manual_seed(0)
    lengths = [40, 21, 3]
    bilstm, batch, tokens = BiLSTM(32, 32, 2, dropout=0.0), batch_of(lengths), torch.randn(sum(lengths), 32)
    expected = bilstm(tokens, batch)  # in our own steps
    found = bilstm.to("cuda")(tokens.to("cuda"), batch.to(torch.device("cuda")))
    torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=1e-5)  # TF32 keeps three digits


def test_a_scalar_mix_begins_with_the_mean_and_is_elmos():
    torch.manual_seed(0)
    mix, layers = ScalarMix(3), torch.randn(3, 4, 5)
    torch.testing.assert_close(mix(layers), layers.mean(0))
    with torch.no_grad():
        mix.scores.copy_(torch.tensor([1.0, 2.0, 4.0]).log())
        mix.scale.fill_(14)
    torch.testing.assert_close(mix(layers), 2 * layers[0] + 4 * layers[1] + 8 * layers[2])


def test_a_tagger_learns_its_mix():
    torch.manual_seed(0)
    options = {"hidden_size": 4, "num_layers": 2, "dropout": 0.1}
    tagger, batch = FeatureTagger(3, 5, 2, **options), batch_of([4, 2])
    logits = tagger(torch.randn(3, 6, 5), batch)
    assert logits.shape == (6, 2)
    logits[:, 0].sum().backward()
    assert tagger.mix.scores.grad.abs().sum() > 0
    assert FeatureTagger(1, 5, 2, **options).mix is None
