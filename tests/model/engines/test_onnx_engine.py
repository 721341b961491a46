"""What goes wrong with an exported model is said in one line."""

import sys

import pytest
from tests.inference.small_models import CONFIG, save_small
from tests.model.formats.test_onnx import sequences_of

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


@pytest.mark.parametrize("damage", ["cut", "overwritten", "empty", "another graph"])
def test_a_damaged_file_is_named(exported, damage):
    file = exported / ONNX_FILE
    whole = file.read_bytes()
    damaged = {
        "cut": whole[: len(whole) // 2],
        "overwritten": b"\0" * len(whole),
        "empty": b"",
        "another graph": whole.replace(b"Attention", b"Retention"),
    }
    file.write_bytes(damaged[damage])
    with pytest.raises(
        ModelError, match=f"{file}: ONNX Runtime cannot read it .*; export it again"
    ) as caught:
        OnnxEngine(exported, read_metadata(exported))
    assert "\n" not in str(caught.value)


def test_without_onnx_runtime_the_extra_is_named(exported, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ModelError, match=r"needs ONNX Runtime: pip install 'bertie\[onnx\]'"):
        OnnxEngine(exported, read_metadata(exported))


def test_layers_are_not_in_the_graph_of_a_head(exported):
    engine = OnnxEngine(exported, read_metadata(exported))
    with pytest.raises(ModelError, match="an exported BertForSequenceClassification gives logits alone"):
        engine.hidden_states(sequences_of([4]), [CONFIG.num_hidden_layers])
