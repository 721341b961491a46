"""How torch computes: the order of the weights in memory, and which tokens."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.inference.small_models import CONFIG, save_small
from tests.model.formats.test_onnx import random_sequences

from bertie.base.errors import ModelError
from bertie.model import batch as batches
from bertie.model.bert import add_bilstm, initialize
from bertie.model.cpu_inference import linear_and_activation
from bertie.model.engines import torch_engine
from bertie.model.engines.embeddings import embed
from bertie.model.engines.hardware import Hardware
from bertie.model.engines.torch_engine import TorchEngine, load_torch_engine
from bertie.model.formats.sentence_transformers import EmbeddingConfig
from bertie.model.formats.weights import load_model
from bertie.model.heads import EncoderModel
from bertie.model.sequences import Sequences, cumulative_bounds

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


@pytest.fixture
def four_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def all_outputs(engine: TorchEngine, batch: Sequences, masked_positions: np.ndarray) -> list[np.ndarray]:
    outputs = [*engine.hidden_states(batch, [2, 0]), engine.cls_vectors(batch)]
    if engine.architecture != "BertModel":
        outputs.append(engine.logits(batch))
    if engine.architecture in ("BertForPreTraining", "BertForMaskedLM"):
        outputs.append(engine.masked_lm_logits(batch, masked_positions))
    return outputs


@pytest.mark.usefixtures("four_threads")
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["classifier", "pre-training", "tagger", "encoder"])
def test_more_than_two_threads_compute_parts_of_a_batch(tmp_path, monkeypatch, kind, precision):
    engine, _ = load_torch_engine(save_small(tmp_path, kind), Hardware(device="cpu", precision=precision))
    batch = random_sequences([5, 70, 17, 64, 1, 3, 30, 29, 70])
    masked_positions = np.flatnonzero(np.arange(batch.bounds[-1]) % 7 == 3)
    parts, threads = [], []

    def pack(input_ids, *arguments, **named):
        parts.append(len(input_ids))
        threads.append(torch.get_num_threads())
        return batches.pack(input_ids, *arguments, **named)

    monkeypatch.setattr(torch_engine, "pack", pack)
    outputs = all_outputs(engine, batch, masked_positions)
    calls = len(outputs) - 1  # one for the hidden states of both layers
    assert len(parts) == 4 * calls
    assert sum(parts) == batch.bounds[-1] * calls
    assert {*threads} == {1}
    monkeypatch.setattr(torch_engine, "find_cuts", lambda bounds, threads: [0, len(bounds) - 1])
    tolerance = {"float32": 1e-6, "bfloat16": 0.02}[precision]
    for output, expected in zip(outputs, all_outputs(engine, batch, masked_positions), strict=True):
        assert output.shape == expected.shape
        assert np.linalg.norm(output - expected) <= tolerance * np.linalg.norm(expected)


@pytest.mark.usefixtures("four_threads")
def test_parts_do_not_change_the_threads_of_others():
    TorchEngine(EncoderModel(CONFIG), FLOAT32).cls_vectors(random_sequences([100] * 4))
    counts = []
    thread = threading.Thread(target=lambda: counts.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert [*counts, torch.get_num_threads()] == [4, 4]


@pytest.mark.usefixtures("four_threads")
def test_errors_of_a_part_are_those_of_the_batch():
    engine = TorchEngine(EncoderModel(CONFIG.model_copy(update={"type_vocab_size": 1})), FLOAT32)
    batch = random_sequences([100] * 4)
    batch.token_type_ids[-1] = 1
    with pytest.raises(ModelError, match="pass no pairs"):
        engine.cls_vectors(batch)


@given(st.lists(st.integers(1, 600), min_size=1, max_size=60), st.integers(3, 12))
def test_parts_have_all_sequences_and_masked_tokens(lengths, threads):
    batch = random_sequences(lengths)
    masked = np.flatnonzero(batch.input_ids % 3 == 0)
    cuts = torch_engine.find_cuts(batch.bounds, threads)
    assert len(cuts) in (2, threads + 1)
    parts, positions = zip(*torch_engine.divide(batch, masked, cuts), strict=True)
    assert np.array_equal(np.concatenate([part.input_ids for part in parts]), batch.input_ids)
    assert np.array_equal(np.concatenate([part.lengths for part in parts]), batch.lengths)
    ids = [part.input_ids[tokens] for part, tokens in zip(parts, positions, strict=True)]
    assert np.array_equal(np.concatenate(ids), batch.input_ids[masked])
    if len(parts) > 1:
        assert max(len(part.input_ids) for part in parts) <= 1.25 * sum(lengths) / threads


@pytest.mark.parametrize(
    ("lengths", "threads", "parts"),
    [
        ([64] * 4, 4, 4),
        ([63] * 4, 4, 1),  # too short
        ([100] * 5, 4, 1),  # one part would have twice the tokens of the others
        ([100] * 16 + [99], 4, 4),
        ([500], 4, 1),
        ([20] * 40, 8, 8),
    ],
)
def test_a_batch_is_divided_where_all_threads_have_enough_to_do(lengths, threads, parts):
    assert len(torch_engine.find_cuts(cumulative_bounds(np.array(lengths)), threads)) == parts + 1


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


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_text_that_comes_again_compiles_nothing_in_a_server(tmp_path, precision):
    script = f"""
from bertie.base.environment import limit_free_memory
limit_free_memory()
import bertie
model = bertie.load({str(save_small(tmp_path, "classifier"))!r}, precision={precision!r})
for _ in range(3):
    model.classify("the cat sat on the mat")
    print("answered", flush=True)
"""
    environment = {**os.environ, "ONEDNN_VERBOSE": "2"}
    environment.pop("ONEDNN_PRIMITIVE_CACHE_CAPACITY", None)
    command = [sys.executable, "-c", script]
    output = subprocess.run(command, env=environment, capture_output=True, check=True, text=True).stdout
    third_time = output.split("answered")[2]
    assert "create:cache_miss" not in third_time
