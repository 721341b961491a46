"""A BiLSTM over packed sequences equals torch's LSTM over each sequence."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bertie.base.errors import SettingsError
from bertie.model.batch import PackedBatch, pack
from bertie.model.bert import BertModel, add_bilstm
from bertie.model.bilstm import BiLSTM, FeatureTagger, ScalarMix
from bertie.model.config import BertConfig


def batch_of(lengths: list[int]) -> PackedBatch:
    ids = np.zeros(sum(lengths), np.int32)
    return pack(ids, ids, np.array([0, *itertools.accumulate(lengths)]))


@given(st.lists(st.integers(1, 12), min_size=1, max_size=6), st.integers(1, 2))
@settings(max_examples=25)
def test_packed_bilstm_equals_one_sequence_at_a_time(lengths, num_layers):
    torch.manual_seed(0)
    bilstm = BiLSTM(5, 3, num_layers, dropout=0.0)
    tokens = torch.randn(sum(lengths), 5, requires_grad=True)
    weights = torch.randn(sum(lengths), 6)
    packed = bilstm(tokens, batch_of(lengths))
    expected = torch.cat([bilstm.lstm(sequence)[0] for sequence in tokens.split(lengths)])
    torch.testing.assert_close(packed, expected)
    leaves = (tokens, *bilstm.parameters())
    gradients, expected_gradients = (
        torch.autograd.grad((outputs * weights).sum(), leaves) for outputs in (packed, expected)
    )
    torch.testing.assert_close(gradients, expected_gradients)


def test_an_odd_hidden_size_is_rejected():
    config = BertConfig(vocab_size=8, hidden_size=15, num_attention_heads=3, num_hidden_layers=1)
    with pytest.raises(SettingsError, match="bilstm: the hidden size 15 is odd"):
        add_bilstm(BertModel(config), config)


def test_training_drops_elements_between_layers():
    torch.manual_seed(0)
    bilstm, batch, tokens = BiLSTM(5, 3, 2, dropout=0.5), batch_of([4, 2]), torch.randn(6, 5)
    assert not torch.equal(bilstm(tokens, batch), bilstm(tokens, batch))
    bilstm.eval()
    assert torch.equal(bilstm(tokens, batch), bilstm(tokens, batch))


def test_recurrence_is_computed_in_float32():
    torch.manual_seed(0)
    bilstm, batch, tokens = BiLSTM(5, 3, 1, dropout=0.0), batch_of([4, 2]), torch.randn(6, 5).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        output = bilstm(tokens, batch)
    torch.testing.assert_close(output, bilstm(tokens.float(), batch), rtol=0, atol=0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cudnn_computes_in_full_float32():
    torch.manual_seed(0)
    lengths = [40, 21, 3]
    bilstm, batch, tokens = BiLSTM(32, 32, 2, dropout=0.0), batch_of(lengths), torch.randn(sum(lengths), 32)
    expected = bilstm(tokens, batch)  # on the CPU
    output = bilstm.to("cuda")(tokens.to("cuda"), batch.to(torch.device("cuda")))
    torch.testing.assert_close(output.cpu(), expected, rtol=0, atol=1e-5)  # TF32 keeps three digits


def test_scalar_mix_starts_as_the_mean_and_applies_its_weights():
    torch.manual_seed(0)
    mix, layers = ScalarMix(3), torch.randn(3, 4, 5)
    torch.testing.assert_close(mix(layers), layers.mean(0))
    with torch.no_grad():
        mix.scores.copy_(torch.tensor([1.0, 2.0, 4.0]).log())
        mix.scale.fill_(14)
    torch.testing.assert_close(mix(layers), 2 * layers[0] + 4 * layers[1] + 8 * layers[2])


def test_tagger_learns_its_scalar_mix():
    torch.manual_seed(0)
    options = {"hidden_size": 4, "num_layers": 2, "dropout": 0.1}
    tagger, batch = FeatureTagger(3, 5, 2, **options), batch_of([4, 2])
    logits = tagger(torch.randn(3, 6, 5), batch)
    assert logits.shape == (6, 2)
    logits[:, 0].sum().backward()
    assert tagger.mix.scores.grad.abs().sum() > 0
    assert FeatureTagger(1, 5, 2, **options).mix is None
