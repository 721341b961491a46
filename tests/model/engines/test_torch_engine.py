"""How torch computes: the order of the weights in memory, and which tokens."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from tests.inference.small_models import CONFIG, save_small
from tests.model.formats.test_onnx import random_sequences

from bertie.model.bert import add_bilstm, initialize
from bertie.model.cpu_inference import linear_and_activation
from bertie.model.engines import torch_engine
from bertie.model.engines.embeddings import embed
from bertie.model.engines.hardware import Hardware
from bertie.model.engines.torch_engine import TorchEngine, load_torch_engine
from bertie.model.formats.sentence_transformers import EmbeddingConfig
from bertie.model.formats.weights import load_model
from bertie.model.heads import EncoderModel

FLOAT32 = Hardware(device="cpu", precision="float32")


def linear_layers(engine: TorchEngine) -> list[torch.nn.Linear]:
    return [module for module in engine.model.modules() if isinstance(module, torch.nn.Linear)]


@pytest.fixture
def unpacked(monkeypatch):
    """Load as on a processor where packed weights are not the fastest."""
    monkeypatch.setattr(torch_engine, "can_pack_weights", lambda dtype: False)


@pytest.mark.usefixtures("unpacked")
@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="torch multiplies without MKL")
@pytest.mark.parametrize("kind", ["classifier", "pre-training", "tagger"])
def test_columns_of_weights_are_contiguous_and_nothing_else_changes(tmp_path, kind):
    path = save_small(tmp_path, kind)
    engine, _ = load_torch_engine(path, FLOAT32)
    model, _ = load_model(path)
    assert len(linear_layers(engine)) > 4
    assert all(module.weight.stride(0) == 1 for module in linear_layers(engine))
    for (name, weight), (_, expected) in zip(
        engine.model.named_parameters(), model.named_parameters(), strict=True
    ):
        assert torch.equal(weight, expected), name
    for lengths in ([3], [5, 17, 9], [30] * 10):
        batch = random_sequences(lengths)
        expected = TorchEngine(model, FLOAT32).logits(batch)
        np.testing.assert_allclose(engine.logits(batch), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("unpacked")
@pytest.mark.parametrize("kind", ["classifier", "pre-training", "tagger", "encoder"])
def test_weights_are_rounded_to_bfloat16_once(tmp_path, kind):
    path, bfloat16 = save_small(tmp_path, kind), Hardware(device="cpu", precision="bfloat16")
    engine, _ = load_torch_engine(path, bfloat16)
    kept = engine.model.bert.layers[-1].qkv
    for layer in linear_layers(engine):
        assert layer.weight.is_contiguous()
        assert (layer.weight.dtype == torch.float32) == (layer is kept)
        assert layer.bias.dtype == torch.float32
    in_float32 = TorchEngine(load_model(path)[0], bfloat16)  # whose weights autocast rounds
    for lengths in ([3], [5, 17, 9], [30] * 10):
        batch = random_sequences(lengths)
        results = [
            engine.cls_vectors(batch) if kind == "encoder" else engine.logits(batch)
            for engine in (engine, in_float32)
        ]
        assert np.array_equal(*results)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("is_decoder", [False, True], ids=["encoder", "causal"])
@pytest.mark.parametrize("bilstm", [False, True], ids=["", "BiLSTM"])
def test_cls_vectors_are_the_first_of_the_last_layer(precision, is_decoder, bilstm):
    config = CONFIG.model_copy(update={"is_decoder": is_decoder})
    model = EncoderModel(config)
    initialize(model, config)
    if bilstm:
        add_bilstm(model.bert, config)
    engine = TorchEngine(model, Hardware(device="cpu", precision=precision))
    batch = random_sequences([5, 17, 1, 9, 100])
    (hidden,) = engine.hidden_states(batch, [config.num_hidden_layers])
    tolerance = {"float32": 1e-5, "bfloat16": 0.05}[precision]
    np.testing.assert_allclose(
        engine.cls_vectors(batch), hidden[batch.bounds[:-1]], atol=tolerance, rtol=1e-4
    )


def test_the_last_layer_computes_only_cls(monkeypatch):
    engine = TorchEngine(EncoderModel(CONFIG), FLOAT32)
    rows = []
    last = engine.model.bert.layers[-1].intermediate
    monkeypatch.setattr(
        "bertie.model.bert.linear_and_activation",
        lambda inputs, linear, activation: (
            rows.append(len(inputs)) if linear is last else None,
            linear_and_activation(inputs, linear, activation),
        )[1],
    )
    monkeypatch.setattr("torch.get_num_threads", lambda: 1)
    vectors = embed(engine, random_sequences([5, 17, 9]), EmbeddingConfig("cls"))
    assert vectors.shape == (3, CONFIG.hidden_size)
    assert rows == [3]


def test_forked_processes_compute(tmp_path):
    """Where the process that was forked has computed in several threads."""
    code = """
import os, sys, faulthandler, bertie
model = bertie.load(sys.argv[1], "cpu")
texts = ["the cat sat on the mat " * 5] * 64
vectors = model.embed(texts)
if os.fork() == 0:
    faulthandler.dump_traceback_later(20, exit=True)
    os._exit(int(abs(model.embed(texts) - vectors).max() > 1e-5))
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    command = [sys.executable, "-c", code, save_small(tmp_path, "encoder")]
    subprocess.run(command, check=True, timeout=120, env=os.environ | {"OMP_NUM_THREADS": "2"})


def test_a_text_that_comes_again_compiles_nothing_in_a_server(tmp_path):
    script = f"""
from bertie.base.environment import limit_free_memory
limit_free_memory()
import bertie
for precision in ("float32", "bfloat16"):
    model = bertie.load({str(save_small(tmp_path, "classifier"))!r}, precision=precision)
    for _ in range(3):
        model.classify("the cat sat on the mat")
        print("answered", flush=True)
"""
    environment = {**os.environ, "ONEDNN_VERBOSE": "2"}
    environment.pop("ONEDNN_PRIMITIVE_CACHE_CAPACITY", None)
    command = [sys.executable, "-c", script]
    output = subprocess.run(command, env=environment, capture_output=True, check=True, text=True).stdout
    times = output.split("answered")
    for third_time in (times[2], times[5]):
        assert "create:cache_miss" not in third_time
