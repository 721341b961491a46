"""`bertie.convert` and `bertie.export` write models that `bertie.load` reads."""

import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.inference.small_models import save_small

import bertie

TEXTS = ["the cat sat", "paris"]


def test_convert_reads_a_pickle_only_if_allowed(tmp_path):
    source = save_small(tmp_path, "classifier")
    expected = bertie.load(source).classifier_logits(TEXTS)
    torch.save(load_file(source / "model.safetensors"), source / "pytorch_model.bin")
    for name in ("model.safetensors", "SHA256SUMS"):
        (source / name).unlink()
    out = tmp_path / "converted"
    with pytest.raises(bertie.ModelError, match=r"pytorch_model\.bin: a pickle"):
        bertie.convert(source, out=out, to="bertie")
    assert bertie.convert(source, out=out, to="bertie", allow_pickle=True) == out
    np.testing.assert_array_equal(bertie.load(out).classifier_logits(TEXTS), expected)
    with pytest.raises(bertie.SettingsError, match=r"exists already.*\(force=True\)"):
        bertie.convert(source, out=out, to="bertie", allow_pickle=True)
    bertie.convert(source, out=out, to="bertie", allow_pickle=True, cased=True, force=True)
    assert not bertie.load(out).tokenizer.lowercase


def test_convert_rejects_an_unknown_layout(tmp_path):
    with pytest.raises(bertie.SettingsError, match="to = 'onnx': expected 'bertie', 'huggingface'"):
        bertie.convert(save_small(tmp_path, "classifier"), out=tmp_path / "out", to="onnx")


def test_exported_model_has_the_logits_of_its_source(tmp_path):
    source = save_small(tmp_path, "classifier")
    out = bertie.export(source, out=tmp_path / "exported")
    expected = bertie.load(source).classifier_logits(TEXTS)
    np.testing.assert_allclose(bertie.load(out).classifier_logits(TEXTS), expected, atol=1e-5)
    bertie.export(source, out=out, int8=True, int8_embeddings=True, force=True)
    assert "int8 in the layers and the embeddings" in (out / "README.md").read_text()
    with pytest.raises(bertie.SettingsError, match=r"weight_bits = 8: .*\(int8=True\)"):
        bertie.export(source, out=tmp_path / "other", weight_bits=8)


def test_export_says_what_to_install(tmp_path, monkeypatch):
    for name in ("bertie.inference.export", "bertie.model.formats.onnx"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(bertie.ModelError, match="model: an export needs onnx: pip install "):
        bertie.export("model", out=tmp_path / "out")
