"""Packed weights in inference on a CPU: equal to other weights, and packed where that is faster."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.inference.small_models import CONFIG, save_small
from tests.model.formats.test_onnx import random_sequences
from torch import nn

from bertie.model import packed_weights, products
from bertie.model.batch import pack
from bertie.model.bert import add_bilstm, initialize
from bertie.model.engines import torch_engine
from bertie.model.engines.hardware import Hardware
from bertie.model.engines.torch_engine import (
    TorchEngine,
    evaluation_engine,
    load_torch_engine,
    prepare_weights,
)
from bertie.model.formats.weights import load_model
from bertie.model.heads import EncoderModel
from bertie.model.packed_weights import PackedLinear, can_pack_weights

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch lacks oneDNN")

HAS_BFLOAT16 = torch.cpu._is_avx512_bf16_supported()
PRECISIONS = [
    "float32",
    pytest.param("bfloat16", marks=pytest.mark.skipif(not HAS_BFLOAT16, reason="no bfloat16")),
]
TOLERANCE = {"float32": 1e-5, "bfloat16": 5e-2}  # relative


@pytest.fixture
def packed(monkeypatch):
    """Load as on a processor where packed weights are the fastest."""
    monkeypatch.setattr(torch_engine, "can_pack_weights", lambda dtype: True)


@torch.inference_mode()
@given(shape=st.tuples(st.integers(0, 70), st.integers(1, 70), st.integers(1, 70)), transposed=st.booleans())
def test_a_packed_layer_is_equal_to_the_layer(shape, transposed):
    count, size_in, size_out = shape
    linear = nn.Linear(size_in, size_out)
    inputs = torch.randn(size_in, count).t() if transposed else torch.randn(count, size_in)
    layer, expected = PackedLinear(linear, torch.float32), linear(inputs)
    for actual, exact in (
        (layer(inputs), expected),
        (layer.without_bias(inputs), expected - linear.bias),
        (layer.with_gelu(inputs), nn.functional.gelu(expected)),
    ):
        torch.testing.assert_close(actual, exact, atol=1e-5, rtol=1e-5)


@torch.inference_mode()
@pytest.mark.skipif(not HAS_BFLOAT16, reason="no bfloat16")
def test_in_bfloat16_only_factors_and_results_are_rounded():
    linear, inputs = nn.Linear(384, 1000), torch.randn(50, 384)
    product = inputs.bfloat16().double() @ linear.weight.bfloat16().double().t()
    layer = PackedLinear(linear, torch.bfloat16)
    for actual, exact in (
        (layer(inputs), product + linear.bias.double()),
        (layer.without_bias(inputs), product),
        (layer.with_gelu(inputs), nn.functional.gelu(product + linear.bias.double())),
    ):
        assert actual.dtype == torch.bfloat16
        assert (actual - exact).norm() < 1.05 * (exact.bfloat16() - exact).norm()


@torch.inference_mode()
def test_gelu_is_almost_as_accurate_as_torch():
    linear = nn.Linear(1, 1000)
    nn.init.ones_(linear.weight)
    inputs = torch.linspace(-12, 12, 1001)[:, None]
    exact = nn.functional.gelu(inputs.double() + linear.bias.double())
    error = (nn.functional.gelu(linear(inputs)) - exact).abs().max()
    assert (PackedLinear(linear, torch.float32).with_gelu(inputs) - exact).abs().max() < 3 * error


@torch.inference_mode()
def test_nan_stays_in_its_row():
    inputs = torch.randn(9, 24)
    inputs[3, 5] = torch.nan
    result = PackedLinear(nn.Linear(24, 40), torch.float32).with_gelu(inputs)
    assert result.isnan().any(1).nonzero().tolist() == [[3]]


@pytest.mark.usefixtures("packed")
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("kind", ["classifier", "mean classifier", "pre-training", "tagger", "encoder"])
def test_a_model_with_packed_weights_computes_the_same(tmp_path, monkeypatch, kind, precision, threads):
    monkeypatch.setattr("torch.get_num_threads", lambda: threads)
    path, hardware = save_small(tmp_path, kind), Hardware(device="cpu", precision=precision)
    packed, _ = load_torch_engine(path, hardware)
    unpacked = TorchEngine(load_model(path)[0], Hardware(device="cpu", precision="float32"))
    for lengths in ([3], [5, 17, 9], [30] * 10):
        assert_equal_results(packed, unpacked, random_sequences(lengths), TOLERANCE[precision])


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("hidden_act", ["gelu_new", "relu"])
@pytest.mark.parametrize("is_decoder", [False, True])
@pytest.mark.parametrize("bilstm", [False, True])
def test_other_encoders_with_packed_weights(monkeypatch, precision, hidden_act, is_decoder, bilstm):
    config = CONFIG.model_copy(update={"hidden_act": hidden_act, "is_decoder": is_decoder})
    models = [EncoderModel(config), EncoderModel(config)]
    initialize(models[0], config)
    if bilstm:
        for model in models:
            add_bilstm(model.bert, config)
    models[1].load_state_dict(models[0].state_dict())
    monkeypatch.setattr(torch_engine, "can_pack_weights", lambda dtype: True)
    prepare_weights(models[1], getattr(torch, precision))
    unpacked = TorchEngine(models[0], Hardware(device="cpu", precision="float32"))
    packed = TorchEngine(models[1], Hardware(device="cpu", precision=precision))
    assert_equal_results(packed, unpacked, random_sequences([5, 17, 9]), TOLERANCE[precision])


def assert_equal_results(packed, unpacked, batch, tolerance):
    def compute(engine):
        yield from engine.hidden_states(batch, [0, 1, 2])
        yield engine.cls_vectors(batch)
        if not isinstance(engine.model, EncoderModel):
            yield engine.logits(batch)

    for actual, expected in zip(compute(packed), compute(unpacked), strict=True):
        assert np.linalg.norm(actual - expected) <= tolerance * np.linalg.norm(expected)


@pytest.mark.usefixtures("packed")
def test_a_packed_weight_takes_no_more_memory(tmp_path):
    """Only the queries, keys and values of the last layer are in memory twice."""
    model = load_torch_engine(save_small(tmp_path, "classifier"), Hardware(device="cpu"))[0].model
    names = {name for name, _ in model.bert.layers.named_parameters() if name.endswith("weight")}
    assert {name for name in names if "norm" not in name} == {"1.qkv.weight"}


@pytest.mark.parametrize(
    ("avx512", "bfloat16", "vendor", "expected"),
    [
        (True, True, "AuthenticAMD", (True, True)),
        (True, False, "AuthenticAMD", (True, False)),
        (True, True, "GenuineIntel", (False, True)),
        (False, False, "AuthenticAMD", (False, False)),
    ],
)
def test_where_weights_are_packed(monkeypatch, avx512, bfloat16, vendor, expected):
    monkeypatch.setattr(torch.cpu, "_is_avx512_supported", lambda: avx512)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: bfloat16)
    monkeypatch.setattr(products, "processor_vendor", lambda: vendor)
    monkeypatch.setattr(packed_weights, "mkl_lacks_avx512", products.mkl_lacks_avx512.__wrapped__)
    assert tuple(map(can_pack_weights, (torch.float32, torch.bfloat16))) == expected


@pytest.mark.usefixtures("packed")
def test_evaluation_between_epochs_packs_weights_and_restores_the_layers(tmp_path):
    path, hardware = save_small(tmp_path, "classifier"), Hardware(device="cpu", precision="float32")
    model, _ = load_model(path)
    saved, _ = load_torch_engine(path, hardware)
    parameters, batch = dict(model.named_parameters()), random_sequences([5, 17, 9])
    with evaluation_engine(model, hardware) as engine:
        assert_equal_results(engine, saved, batch, 1e-5)
        assert any(isinstance(module, PackedLinear) for module in model.modules())
    restored = dict(model.named_parameters())
    assert [*restored] == [*parameters]
    assert all(restored[name] is weight for name, weight in parameters.items())
    model.train()(pack(*batch)).sum().backward()
    assert all(weight.grad is not None for name, weight in parameters.items() if "qkv" in name)
