"""Attention probabilities of every layer and head, beside those of `transformers`."""

import numpy as np
import pytest
import transformers
from tests.inference.small_models import save_small

import bertie
from bertie.base.errors import DataError, ModelError
from bertie.inference.export import export
from bertie.model.formats.onnx import Quantization


@pytest.mark.parametrize("pair", [None, "it sat"])
def test_attention_equals_that_of_transformers(tmp_path, pair):
    path = save_small(tmp_path, "encoder")
    found = bertie.load(path).attention("the cat sat on a mat", pair)
    reference = transformers.AutoModel.from_pretrained(path, attn_implementation="eager").eval()
    inputs = transformers.AutoTokenizer.from_pretrained(path)(
        "the cat sat on a mat", pair, return_tensors="pt"
    )
    expected = reference(**inputs, output_attentions=True).attentions
    for layer, probabilities in zip(found.probabilities, expected, strict=True):
        np.testing.assert_allclose(layer, probabilities[0].detach(), atol=1e-5)
    assert found.token_type_ids == inputs["token_type_ids"][0].tolist()
    assert len(found.tokens) == len(found.token_type_ids) == found.probabilities.shape[-1]


@pytest.mark.parametrize(("texts", "name"), [((["the cat"],), "text"), (("the cat", ["sat"]), "pair")])
def test_attention_takes_one_text_or_one_pair(tmp_path, texts, name):
    model = bertie.load(save_small(tmp_path, "encoder"))
    with pytest.raises(DataError, match=f"{name}: expected a string, got a list; attention takes one text"):
        model.attention(*texts)


def test_attention_of_a_left_to_right_model_is_causal(tmp_path):
    model = bertie.load(save_small(tmp_path, "masked LM"))
    for layer in model.engine.model.bert.layers:
        layer.is_decoder = True
    probabilities = model.attention("the cat sat").probabilities
    assert not np.triu(probabilities, 1).any()
    np.testing.assert_allclose(probabilities.sum(-1), 1, rtol=1e-5)


def test_exported_models_have_no_attention(tmp_path):
    export(save_small(tmp_path, "encoder"), tmp_path / "exported", Quantization())
    with pytest.raises(ModelError, match="outputs no attention probabilities; use the model directory that"):
        bertie.load(tmp_path / "exported").attention("a cat")
