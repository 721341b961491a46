"""Errors of exported models: one line, which names the file and the remedy."""

import json
import platform
import sys

import numpy as np
import pytest
from tests.inference.small_models import CONFIG, MODELS, save_small
from tests.model.formats.test_onnx import all_outputs, random_sequences

import bertie
from bertie.base.errors import ModelError
from bertie.model.engines.onnx_engine import ONNX_FILE, OnnxEngine, has_vnni
from bertie.model.formats.directory import read_metadata
from bertie.model.formats.onnx import Quantization, save_onnx
from bertie.model.formats.weights import load_model


@pytest.fixture
def exported(tmp_path):
    path = save_small(tmp_path, "classifier")
    model, metadata = load_model(path)
    save_onnx(path / ONNX_FILE, model, metadata.config, Quantization())
    return path


@pytest.mark.parametrize("damage", ["truncated", "zeros", "empty", "unknown operator"])
def test_damaged_file_is_named(exported, damage):
    file = exported / ONNX_FILE
    content = file.read_bytes()
    damaged = {
        "truncated": content[: len(content) // 2],
        "zeros": b"\0" * len(content),
        "empty": b"",
        "unknown operator": content.replace(b"Attention", b"Retention"),
    }
    file.write_bytes(damaged[damage])
    with pytest.raises(
        ModelError, match=f"{file}: ONNX Runtime cannot read it .*; export it again"
    ) as caught:
        OnnxEngine(exported, read_metadata(exported))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_config_of_another_model_is_refused(tmp_path, precision):
    path = bertie.export(save_small(tmp_path, "classifier"), out=tmp_path / "out")
    (path / "SHA256SUMS").unlink()
    config = json.loads((path / "config.json").read_text())
    two = {"id2label": {"0": "bad", "1": "good"}, "label2id": {"bad": 0, "good": 1}}
    for change, message in (
        (two, r"a BertForSequenceClassification with 2 labels, but .* the outputs logits \(3\); copy"),
        ({"architectures": ["BertForQuestionAnswering"]}, r"a BertForQuestionAnswering, but model\.onnx has"),
    ):
        (path / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(ModelError, match=f"{path}: config.json describes {message}"):
            bertie.load(path, precision=precision)


def test_missing_onnx_runtime_names_the_extra(exported, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ModelError, match="needs ONNX Runtime: pip install 'onnx>="):
        OnnxEngine(exported, read_metadata(exported))


def test_hidden_states_of_a_model_with_a_head_raise(exported):
    engine = OnnxEngine(exported, read_metadata(exported))
    with pytest.raises(ModelError, match="an exported BertForSequenceClassification outputs only logits"):
        engine.hidden_states(random_sequences([4]), [CONFIG.num_hidden_layers])
    with pytest.raises(ModelError, match="an exported BertForSequenceClassification outputs only logits"):
        engine.cls_vectors(random_sequences([4]))


@pytest.mark.parametrize("lengths", [[5], [5, 17, 1, 9]])
def test_cls_vectors_are_the_first_of_the_last_layer(tmp_path, lengths):
    path = save_small(tmp_path, "encoder")
    model, metadata = load_model(path)
    save_onnx(path / ONNX_FILE, model, metadata.config, Quantization())
    engine, batch = OnnxEngine(path, read_metadata(path)), random_sequences(lengths)
    (hidden,) = engine.hidden_states(batch, [CONFIG.num_hidden_layers])
    assert np.array_equal(engine.cls_vectors(batch), hidden[batch.bounds[:-1]])


@pytest.mark.parametrize(("variable", "threads"), [("3", 3), ("", 5), ("many", 5), ("0", 5)])
def test_threads_are_those_of_the_environment_or_the_cores(exported, monkeypatch, variable, threads):
    monkeypatch.setenv("OMP_NUM_THREADS", variable)
    monkeypatch.setattr("bertie.model.engines.onnx_engine.available_cores", lambda: 5)
    session = OnnxEngine(exported, read_metadata(exported))._session
    assert session.get_session_options().intra_op_num_threads == threads


@pytest.mark.parametrize("kind", MODELS)
def test_runs_at_a_time_give_the_results_of_one_after_the_other(tmp_path, monkeypatch, kind):
    """Also with more threads than sequences."""
    path = save_small(tmp_path, kind)
    model, metadata = load_model(path)
    save_onnx(path / ONNX_FILE, model, metadata.config, Quantization())
    batch = random_sequences([9, 4, 17, 1, 9, 30, 8])
    outputs = {}
    for threads in (1, 3, 16):
        monkeypatch.setenv("OMP_NUM_THREADS", str(threads))
        outputs[threads] = all_outputs(OnnxEngine(path, metadata), batch)
    for threads in (3, 16):
        for values, expected in zip(outputs[threads], outputs[1], strict=True):
            np.testing.assert_allclose(values, expected, atol=1e-5)


@pytest.mark.parametrize(("threads", "count"), [(1, 1), (2, 2), (3, 3), (16, 6)])
def test_a_batch_is_divided_among_the_threads(exported, monkeypatch, threads, count):
    monkeypatch.setenv("OMP_NUM_THREADS", str(threads))
    engine = OnnxEngine(exported, read_metadata(exported))
    infer, shapes = engine._infer, []

    def recording(outputs, inputs):
        shapes.append(inputs["input_ids"].shape)
        return infer(outputs, inputs)

    monkeypatch.setattr(engine, "_infer", recording)
    engine.logits(random_sequences([7] * 6))
    assert len(shapes) == count


def test_texts_of_unlike_lengths_are_not_padded_to_each_other(exported, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    model = bertie.load(exported)
    infer, shapes = model.engine._infer, []

    def recording(outputs, inputs):
        shapes.append(inputs["input_ids"].shape)
        return infer(outputs, inputs)

    monkeypatch.setattr(model.engine, "_infer", recording)
    model.classify([" ".join(["a"] * words) for words in (3, 30, 4, 31, 31)])
    assert shapes == [(3, 31 + 2), (2, 4 + 2)]


def test_weights_of_8_bits_need_vnni(exported, monkeypatch):
    model, metadata = load_model(exported)
    save_onnx(exported / ONNX_FILE, model, metadata.config, Quantization(layers=True, weight_bits=8))
    monkeypatch.setattr("bertie.model.engines.onnx_engine.has_vnni", lambda: True)
    OnnxEngine(exported, metadata)
    monkeypatch.setattr("bertie.model.engines.onnx_engine.has_vnni", lambda: False)
    with pytest.raises(ModelError, match="weights of 8 bits need a processor with VNNI; export it without"):
        OnnxEngine(exported, metadata)
    save_onnx(exported / ONNX_FILE, model, metadata.config, Quantization(layers=True))
    OnnxEngine(exported, metadata)


@pytest.mark.parametrize(
    ("machine", "flags", "expected"),
    [
        ("x86_64", "fma avx2", False),
        ("x86_64", "avx2 avx512f avx512_vnni", True),
        ("x86_64", "avx2 avx_vnni", True),
        ("aarch64", "asimd", True),
    ],
)
def test_vnni_is_found_in_the_flags_of_the_processor(tmp_path, monkeypatch, machine, flags, expected):
    monkeypatch.setattr(platform, "machine", lambda: machine)
    (tmp_path / "cpuinfo").write_text(f"processor : 0\nflags : {flags}\n")
    assert has_vnni(tmp_path / "cpuinfo") is expected
