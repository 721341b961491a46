"""Fused linear layers for inference on a CPU: equal to torch's operations, and used only there."""

import pytest
import torch
from tests.parity.transformers_peer import SHAPE, ragged_batch
from torch import nn

from bertie.model import bert
from bertie.model.bert import BertModel, build_activation, initialize
from bertie.model.config import BertConfig
from bertie.model.cpu_inference import linear_and_activation, linear_and_norm
from bertie.model.engines.torch_engine import transpose_weights

CONFIG = BertConfig(**SHAPE)
ROWS, IN, OUT = 37, 24, 40


@pytest.fixture(params=[1, 3], ids=["one thread", "three threads"])
def threads(request, monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr("bertie.model.cpu.MIN_ELEMENTS_PER_THREAD", 1)
    monkeypatch.setattr("torch.get_num_threads", lambda: request.param)


def make_linear(transposed: bool) -> nn.Linear:
    linear = nn.Linear(IN, OUT)
    if transposed:
        transpose_weights(linear)
    return linear


@torch.inference_mode()
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("scale", [1, 30, 1e4])
@pytest.mark.parametrize("hidden_act", ["gelu", "gelu_new", "relu", "tanh", "linear"])
def test_activation(library, threads, hidden_act, scale, transposed):
    linear, activation = (
        make_linear(transposed),
        build_activation(CONFIG.model_copy(update={"hidden_act": hidden_act})),
    )
    inputs = scale * torch.randn(ROWS, IN)
    actual = linear_and_activation(inputs, linear, activation)
    atol = 3e-6 + 1e-7 * scale  # libraries add in another order
    torch.testing.assert_close(actual, activation(linear(inputs)), atol=atol, rtol=1e-5)


@torch.inference_mode()
def test_gelu_is_as_accurate_as_torch(threads):
    linear = nn.Linear(1, 1000)
    nn.init.ones_(linear.weight)
    inputs = torch.linspace(-12, 12, 1001)[:, None]
    actual = linear_and_activation(inputs, linear, nn.GELU())
    exact = nn.functional.gelu(inputs.double() + linear.bias.double())
    error = (nn.functional.gelu(inputs + linear.bias) - exact).abs().max()
    assert (actual - exact).abs().max() < 2 * error


@torch.inference_mode()
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("shift", [0, 100])
def test_norm(library, threads, transposed, shift):
    linear, norm = make_linear(transposed), nn.LayerNorm(OUT, eps=1e-12)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    inputs, residual = torch.randn(ROWS, IN), torch.randn(ROWS, OUT) + shift
    kept = residual.clone()
    actual = linear_and_norm(inputs, linear, residual, norm)
    torch.testing.assert_close(actual, norm(residual + linear(inputs)), atol=1e-6 * (1 + shift), rtol=1e-5)
    assert torch.equal(residual, kept)


@torch.inference_mode()
def test_nan_stays_in_its_row(threads):
    linear, norm = make_linear(False), nn.LayerNorm(OUT)
    inputs, residual = torch.randn(ROWS, IN), torch.randn(ROWS, OUT)
    inputs[3, 5] = torch.nan
    for result in (
        linear_and_activation(inputs, linear, nn.GELU()),
        linear_and_norm(inputs, linear, residual, norm),
    ):
        assert result.isnan().any(1).nonzero().tolist() == [[3]]


@torch.inference_mode()
def test_embeddings(threads):
    embeddings, batch = BertModel(CONFIG).eval().embeddings, ragged_batch()
    nn.init.normal_(embeddings.norm.weight)
    nn.init.normal_(embeddings.norm.bias)
    words = embeddings.word_embeddings(batch.input_ids)  # with them, torch computes the rest
    torch.testing.assert_close(embeddings(batch), embeddings(batch, words), atol=2e-6, rtol=1e-5)


@torch.inference_mode()
def test_tokens_without_an_embedding_are_refused():
    embeddings = BertModel(CONFIG).eval().embeddings
    too_many = CONFIG.max_position_embeddings + 1
    for batch in (ragged_batch(lengths=(3, too_many)), ragged_batch(vocab_size=100 * CONFIG.vocab_size)):
        with pytest.raises(IndexError, match="a token has no embedding; use the tokenizer and the maximum"):
            embeddings(batch)


@pytest.mark.parametrize("is_decoder", [False, True])
@pytest.mark.parametrize("hidden_act", ["gelu", "gelu_new"])
def test_bfloat16_is_as_accurate_as_without_fused_layers(monkeypatch, is_decoder, hidden_act):
    monkeypatch.setattr("torch.get_num_threads", lambda: 1)
    config = CONFIG.model_copy(update={"is_decoder": is_decoder, "hidden_act": hidden_act})
    model = BertModel(config).eval()
    initialize(model, config)
    exact = encode(model)
    actual, expected = (encode(model, inference, autocast=True) for inference in (True, False))
    assert actual.dtype == torch.float32
    assert 0 < (actual - exact).norm() <= 1.1 * (expected - exact).norm()


@torch.inference_mode()
def test_rows_after_the_tokens_change_nothing(monkeypatch):
    """In bfloat16, rows are padded to a multiple of 32."""
    monkeypatch.setattr("torch.get_num_threads", lambda: 1)
    layer = BertModel(CONFIG).eval().layers[0]
    batch = ragged_batch(lengths=(40, 3, 17))
    hidden = torch.randn(64, CONFIG.hidden_size)
    before = layer(hidden, batch)
    assert before.isfinite().all()
    hidden[60:] = 7
    assert torch.equal(layer(hidden, batch)[:60], before[:60])


def encode(model, inference=True, autocast=False):
    with (
        torch.inference_mode(inference),
        torch.no_grad(),
        torch.autocast("cpu", torch.bfloat16, enabled=autocast),
    ):
        return model(ragged_batch(lengths=(40, 3, 17)))[0]


def test_only_inference_is_fused(monkeypatch):
    model = BertModel(CONFIG)
    initialize(model, CONFIG)
    fused = []
    monkeypatch.setattr(bert, "linear_and_norm", lambda *args: (fused.append(1), linear_and_norm(*args))[1])
    expected = encode(model.eval(), inference=False)
    assert not fused
    torch.testing.assert_close(encode(model), expected, atol=1e-5, rtol=1e-4)
    assert len(fused) == 2 * CONFIG.num_hidden_layers
    encode(model, inference=False, autocast=True)
    encode(model.train())
    assert len(fused) == 2 * CONFIG.num_hidden_layers
