"""Errors of exported models: one line, which names the file and the remedy."""

import sys

import pytest
from tests.inference.small_models import CONFIG, save_small
from tests.model.formats.test_onnx import random_sequences

from bertie.base.errors import ModelError
from bertie.model.engines.onnx_engine import ONNX_FILE, OnnxEngine
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


def test_missing_onnx_runtime_names_the_extra(exported, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ModelError, match="needs ONNX Runtime: pip install 'onnx>="):
        OnnxEngine(exported, read_metadata(exported))


def test_hidden_states_of_a_model_with_a_head_raise(exported):
    engine = OnnxEngine(exported, read_metadata(exported))
    with pytest.raises(ModelError, match="an exported BertForSequenceClassification outputs only logits"):
        engine.hidden_states(random_sequences([4]), [CONFIG.num_hidden_layers])


@pytest.mark.parametrize(("variable", "threads"), [("3", 3), ("", 0), ("many", 0)])
def test_threads_are_those_of_the_environment(exported, monkeypatch, variable, threads):
    monkeypatch.setenv("OMP_NUM_THREADS", variable)
    session = OnnxEngine(exported, read_metadata(exported))._session
    assert session.get_session_options().intra_op_num_threads == threads
