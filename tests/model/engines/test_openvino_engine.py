"""Exported models in OpenVINO: the same results as in torch, in bfloat16, from several threads."""

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tests.inference.small_models import CONFIG, MODELS, save_small
from tests.inference.test_export import TEXTS, predict
from tests.inference.test_predictor import assert_same_results
from tests.model.formats.test_onnx import random_sequences

import bertie
from bertie.base.errors import ModelError, SettingsError
from bertie.inference.export import export
from bertie.model.engines import openvino_engine
from bertie.model.engines.openvino_engine import OpenVinoEngine
from bertie.model.formats.onnx import Quantization


@pytest.fixture
def load_exported(tmp_path):
    """Export a small model; return the original and the exported one, in OpenVINO."""
    pytest.importorskip("openvino")

    def load(kind="encoder", quantization=Quantization()):  # noqa: B008
        source = save_small(tmp_path, kind)
        export(source, tmp_path / "out", quantization)
        return bertie.load(source), bertie.load(tmp_path / "out", precision="bfloat16")

    return load


@pytest.mark.parametrize("kind", MODELS)
def test_every_head_predicts_as_in_torch(load_exported, monkeypatch, kind):
    monkeypatch.setattr(openvino_engine, "PRECISION", "f32")
    model, exported = load_exported(kind)
    assert isinstance(exported.engine, OpenVinoEngine)
    assert_same_results(predict(exported, kind), predict(model, kind))


def test_bfloat16_is_close_to_float32(load_exported):
    model, exported = load_exported()
    before, after = (one.embed(TEXTS, normalize=True) for one in (model, exported))
    assert (before * after).sum(1).min() > 0.99


@pytest.mark.parametrize("length", [1, 9, CONFIG.max_position_embeddings - 1, CONFIG.max_position_embeddings])
def test_rounded_lengths_stay_within_the_positions(load_exported, length):
    model, exported = load_exported()
    batch = random_sequences([length, 1])
    (before,), (after,) = (one.engine.hidden_states(batch, [2]) for one in (model, exported))
    assert after.shape == before.shape
    np.testing.assert_allclose(after, before, atol=0.3)


def test_threads_share_a_model(load_exported):
    _, exported = load_exported()
    lists = [[text] * number for number, text in enumerate(TEXTS, start=1)]
    expected = [exported.embed(texts) for texts in lists]
    with ThreadPoolExecutor(4) as pool:
        for found, vectors in zip(pool.map(exported.embed, lists * 8), expected * 8, strict=True):
            np.testing.assert_array_equal(found, vectors)


@pytest.mark.parametrize("parts", [{"layers": True}, {"embeddings": True}], ids=str)
def test_exports_in_int8_are_rejected(load_exported, parts):
    with pytest.raises(SettingsError, match="exported in int8; omit precision"):
        load_exported("masked LM", Quantization(**parts))


def test_a_damaged_file_is_named(load_exported, tmp_path):
    load_exported()
    file = tmp_path / "out" / "model.onnx"
    content = file.read_bytes()
    for damaged in (content[:1000], content.replace(b"last_hidden_state", b"last_hidden_stat\xff")):
        file.write_bytes(damaged)
        with pytest.raises(
            ModelError, match=f"{file}: OpenVINO cannot read it .*; export it again"
        ) as caught:
            bertie.load(tmp_path / "out", precision="bfloat16", verify=False)
        assert "\n" not in str(caught.value)


def test_missing_openvino_names_the_extra(tmp_path, monkeypatch):
    export(save_small(tmp_path, "encoder"), tmp_path / "out", Quantization())
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(ModelError, match="in bfloat16 needs OpenVINO: pip install 'openvino>="):
        bertie.load(tmp_path / "out", precision="bfloat16")
