"""Layers in int8: exact products, rounded as in an export, with the results of float32 but for rounding."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.inference.small_models import CONFIG, save_small
from tests.model.formats.test_onnx import random_sequences, round_rows
from tests.model.test_packed_weights import assert_equal_results
from torch import nn

import bertie
from bertie.base.errors import SettingsError
from bertie.inference.export import export
from bertie.model import bert, cpu_int8
from bertie.model.bert import add_bilstm, initialize
from bertie.model.cpu_int8 import LARGEST_WEIGHT, ROWS, Int8Layer, Int8Linear, round_weight, round_weights
from bertie.model.cpu_vectors import PANEL
from bertie.model.engines.hardware import Hardware
from bertie.model.engines.loading import load_engine
from bertie.model.engines.torch_engine import TorchEngine
from bertie.model.formats.onnx import Quantization
from bertie.model.formats.weights import load_model
from bertie.model.heads import EncoderModel

HARDWARE = Hardware(device="cpu", precision="float32")
SHAPES = st.tuples(st.integers(0, ROWS + 20), st.integers(1, 70), st.integers(1, 2 * PANEL + 9))
CONFIGS = {
    "head of 8": {},
    "head of 32": {"hidden_size": 64, "intermediate_size": 200},
    "tanh": {"hidden_act": "gelu_new"},
    "causal": {"hidden_size": 64, "is_decoder": True},
}


def integers(rng, largest, shape):
    """Return a random float32 matrix of integers.

    Each row has one of the largest magnitude, so that its scale is 1.
    """
    values = rng.integers(-largest, largest, shape, endpoint=True).astype(np.float32)
    values[:, 0] = largest * rng.choice([-1, 1], len(values))
    return values


def linear_of(weight):
    linear = nn.Linear(*reversed(weight.shape))
    linear.weight.data = torch.from_numpy(weight)
    return linear


@torch.inference_mode()
@given(shape=SHAPES, seed=st.integers(0, 9), threads=st.integers(1, 3))
def test_products_of_integers_are_exact(shape, seed, threads):
    rows, size_in, size_out = shape
    rng = np.random.default_rng(seed)
    inputs, weight = integers(rng, 127, (rows, size_in)), integers(rng, LARGEST_WEIGHT, (size_out, size_in))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_int8, "PRODUCTS_PER_THREAD", 1)
        patch.setattr("torch.get_num_threads", lambda: threads)
        result = Int8Linear(linear_of(weight)).without_bias(torch.from_numpy(inputs))
    np.testing.assert_array_equal(result, inputs @ weight.T)


def test_the_largest_products_do_not_overflow():
    weight = np.full((PANEL, 4096), LARGEST_WEIGHT, np.float32)
    for value in (127, -127):
        result = Int8Linear(linear_of(weight)).without_bias(torch.full((3, 4096), float(value)))
        assert (result == value * LARGEST_WEIGHT * 4096).all()


@pytest.mark.slow  # compiles the kernels again
@pytest.mark.parametrize("features", ["+avx2,+fma", "+avx2,+fma,+avx512f,+avx512bw,+avx512vl,+avx512dq"])
def test_processors_without_vnni(tmp_path, features):
    """The tests of products pass in a process whose kernels have no such instructions."""
    environment = os.environ | {
        "NUMBA_CPU_NAME": "generic",
        "NUMBA_CPU_FEATURES": "+sse4.2,+avx," + features,
        "BERTIE_CACHE": str(tmp_path),
    }
    tests = [
        f"{__file__}::{test}"
        for test in (
            "test_products_of_integers_are_exact",
            "test_the_largest_products_do_not_overflow",
        )
    ]
    command = [sys.executable, "-m", "pytest", "-q", "--import-mode=importlib", "-o", "addopts=", *tests]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout


@given(size_in=st.integers(1, 70), size_out=st.integers(1, 2 * PANEL))
def test_a_weight_is_off_by_half_a_step_at_most(size_in, size_out):
    weight = np.random.default_rng(size_in).normal(size=(size_out, size_in)).astype(np.float32)
    weight[0] = 0
    rounded = round_weight(weight)
    codes = rounded.codes.view(np.int8).reshape(*rounded.codes.shape, 4)  # (panels, in / 4, PANEL, 4)
    restored = codes.transpose(0, 2, 1, 3).reshape(-1, codes.shape[1] * 4) * rounded.scales.reshape(-1, 1)
    assert np.abs(codes).max() == LARGEST_WEIGHT or size_out == 1
    step = np.abs(weight).max(1, keepdims=True) / LARGEST_WEIGHT
    assert (np.abs(restored[:size_out, :size_in] - weight) <= 0.51 * step).all()
    assert not restored[size_out:].any()
    assert not restored[:, size_in:].any()


@torch.inference_mode()
def test_nan_and_zeros_stay_in_their_rows():
    inputs = torch.randn(9, 24)
    inputs[3, 5] = torch.nan
    inputs[4] = 0
    layer = Int8Linear(nn.Linear(24, 40))
    result = layer(inputs)
    assert result.isnan().all(1).nonzero().tolist() == [[3]]
    assert result.isnan().any(1).nonzero().tolist() == [[3]]
    assert torch.equal(result[4], layer.bias)


def rounding_model(model):
    """Let a model in float32 round weights and inputs as in int8."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and "layers" in name:
            module.weight.data = round_rows(module.weight.data, LARGEST_WEIGHT)
            module.register_forward_pre_hook(lambda _, inputs: (round_rows(inputs[0], 127),))
    return model


@pytest.fixture
def without_fused_layers(monkeypatch):
    """Let models in float32 call all their linear layers, whose inputs `rounding_model` rounds."""
    monkeypatch.setattr(bert, "can_fuse_inference", lambda values: False)


@pytest.mark.usefixtures("without_fused_layers")
@pytest.mark.parametrize("bilstm", [False, True])
@pytest.mark.parametrize("changes", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("threads", [1, 3])
def test_a_model_computes_with_rounded_weights_and_inputs(monkeypatch, changes, bilstm, threads):
    monkeypatch.setattr(cpu_int8, "PRODUCTS_PER_THREAD", 1)
    monkeypatch.setattr("torch.get_num_threads", lambda: threads)
    config = CONFIG.model_copy(update=changes)
    models = [EncoderModel(config), EncoderModel(config)]
    initialize(models[0], config)
    if bilstm:
        for model in models:
            add_bilstm(model.bert, config)
    models[1].load_state_dict(models[0].state_dict())
    round_weights(models[1].bert)
    expected, rounded = TorchEngine(rounding_model(models[0]), HARDWARE), TorchEngine(models[1], HARDWARE)
    batch = random_sequences([5, 117, 9, 1, 30])
    for actual, exact in zip(*(e.hidden_states(batch, [1, 2]) for e in (rounded, expected)), strict=True):
        # A value halfway between two steps may be rounded either way.
        assert np.quantile(np.abs(actual - exact), 0.9) < 1e-2 * np.abs(exact).max()
        assert np.linalg.norm(actual - exact) < 0.05 * np.linalg.norm(exact)


@pytest.mark.parametrize(
    "kind", ["classifier", "mean classifier", "pre-training", "tagger", "encoder", "choices"]
)
def test_all_heads_agree_with_float32(tmp_path, kind):
    path = save_small(tmp_path, kind)
    rounded, _ = load_engine(path, precision="int8")
    assert all(isinstance(layer, Int8Layer) for layer in rounded.model.bert.layers)
    exact = TorchEngine(load_model(path)[0], HARDWARE)
    tolerance = 0.1 if LARGEST_WEIGHT == 127 else 0.15  # weights of 8 or 7 bits
    for lengths in ([3], [5, 17, 9], [30] * 10):
        assert_equal_results(rounded, exact, random_sequences(lengths), tolerance)


def test_results_do_not_depend_on_the_batch(tmp_path):
    engine, _ = load_engine(save_small(tmp_path, "classifier"), precision="int8")
    batch = random_sequences([5, 40, 2, 17])
    together = engine.logits(batch)
    for i in range(4):
        np.testing.assert_allclose(engine.logits(batch.select(np.array([i])))[0], together[i], atol=1e-5)


@pytest.mark.usefixtures("without_fused_layers")
def test_an_export_rounds_in_the_same_way(tmp_path):
    path = save_small(tmp_path, "encoder")
    export(path, tmp_path / "onnx", Quantization(layers=True, weight_bits=8 if LARGEST_WEIGHT == 127 else 7))
    exported, rounded = (bertie.load(p, precision="int8") for p in (tmp_path / "onnx", path))
    texts = ["the cat sat on the mat", "paris", "a long text, the cat sat on it " * 3]
    exact = bertie.load(path).embed(texts)
    error = np.linalg.norm(exported.embed(texts) - exact)
    assert np.linalg.norm(exported.embed(texts) - rounded.embed(texts)) < 0.3 * error


def test_a_rounded_weight_takes_no_more_memory(tmp_path):
    """Only the queries, keys and values of the last layer are also in memory in float32."""
    engine, _ = load_engine(save_small(tmp_path, "classifier"), precision="int8")
    names = {name for name, _ in engine.model.bert.layers.named_parameters() if name.endswith("weight")}
    assert {name for name in names if "norm" not in name} == {"1.qkv.weight"}


def test_other_processors_and_devices_are_refused(tmp_path, monkeypatch):
    path = save_small(tmp_path, "encoder")
    with pytest.raises(
        SettingsError, match=r"^device = 'cuda': int8 runs on the CPU; omit device or precision$"
    ):
        load_engine(path, "cuda", "int8")
    monkeypatch.setattr(cpu_int8, "CAN_MULTIPLY_CODES", False)
    with pytest.raises(
        SettingsError, match=r"^precision = 'int8': this needs a processor with AVX2; export the"
    ):
        load_engine(path, precision="int8")


@pytest.mark.parametrize("device", ["cpu:0", torch.device("cpu")], ids=str)
def test_other_names_of_the_cpu(tmp_path, device):
    path = save_small(tmp_path, "encoder")
    export(path, tmp_path / "onnx", Quantization())
    engine, _ = load_engine(path, device, "int8")
    assert isinstance(engine.model.bert.layers[0], Int8Layer)
    assert load_engine(tmp_path / "onnx", device).metadata.config == CONFIG


def test_an_export_in_float32_is_refused(tmp_path):
    export(save_small(tmp_path, "encoder"), tmp_path / "onnx", Quantization())
    with pytest.raises(
        SettingsError, match="onnx: exported in float32; export the model with --int8, or omit"
    ):
        load_engine(tmp_path / "onnx", precision="int8")
