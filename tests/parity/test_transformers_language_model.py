"""Left-to-right models have the logits, losses and gradients of `transformers`."""

import numpy as np
import pytest
import torch
from tests.parity.transformers_peer import (
    SHAPE,
    assert_same_gradients,
    copy_weights,
    padded_inputs,
    padded_labels,
    ragged_batch,
    token_mask,
)
from transformers import AutoModelForCausalLM, BertForTokenClassification, BertLMHeadModel
from transformers import BertConfig as TransformersConfig

from bertie.model.config import BertConfig
from bertie.model.dropout import DropoutMask
from bertie.model.formats.directory import ModelMetadata
from bertie.model.formats.weights import load_model, save_model
from bertie.model.heads import LanguageModel, TokenClassificationModel
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary

DECODER = {**SHAPE, "is_decoder": True}
VOCABULARY = Vocabulary([*SPECIAL_TOKENS, *(f"w{i}" for i in range(SHAPE["vocab_size"] - 5))])


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("plain_products", [False, True])
def test_language_model_equals_bert_lm_head_model(plain_products, monkeypatch):
    """With the fused attention kernel, and with the plain products that dropout needs."""
    reference = BertLMHeadModel(TransformersConfig(**DECODER))
    model = LanguageModel(BertConfig(**DECODER))
    copy_weights(reference, model)
    if plain_products:  # a dropout probability above 0, but nothing is dropped
        nothing_dropped = DropoutMask(np.zeros(2, np.uint32), dropped_levels=0)
        monkeypatch.setattr("bertie.model.cpu_attention.DropoutMask.draw", lambda _: nothing_dropped)
        for layer in model.bert.layers:
            layer.attention_dropout = 0.1
    batch = ragged_batch()
    expected = reference(**padded_inputs(batch), labels=padded_labels(batch, batch.input_ids.long()))
    logits = expected.logits[token_mask(batch)]
    assert (model(batch) - logits).norm() <= 1e-5 * logits.norm()
    (objective,) = model.compute_losses(batch).values()
    assert model.count_targets(batch) == {"language_model": objective.num_targets}
    loss = objective.loss_sum / objective.num_targets
    torch.testing.assert_close(loss, expected.loss, atol=0, rtol=1e-5)
    last_tokens = batch.cu_seqlens[1:].long() - 1
    has_next = torch.ones(batch.num_tokens, dtype=torch.bool).index_fill(0, last_tokens, False)
    is_correct = logits.argmax(-1)[has_next] == batch.input_ids.roll(-1)[has_next]
    assert objective.num_correct == is_correct.sum()
    expected.loss.backward()
    loss.backward()
    assert_same_gradients(model, reference)


def test_language_models_load_in_both_directions(tmp_path):
    reference = BertLMHeadModel(TransformersConfig(**DECODER)).eval()
    reference.save_pretrained(tmp_path / "transformers")
    Tokenizer(VOCABULARY).save(tmp_path / "transformers", 64)
    model, metadata = load_model(tmp_path / "transformers")
    assert metadata.config.is_decoder
    batch = ragged_batch()
    torch.testing.assert_close(
        model(batch), reference(**padded_inputs(batch)).logits[token_mask(batch)], atol=1e-5, rtol=1e-5
    )
    save_model(tmp_path / "bertie", model, metadata, "card")
    reloaded, info = AutoModelForCausalLM.from_pretrained(tmp_path / "bertie", output_loading_info=True)
    assert isinstance(reloaded, BertLMHeadModel)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert torch.equal(reloaded(**padded_inputs(batch)).logits, reference(**padded_inputs(batch)).logits)


def test_causal_token_classifier_loads_in_transformers(tmp_path):
    config = BertConfig(**DECODER)
    model = TokenClassificationModel(config, 2).eval()
    metadata = ModelMetadata(config, model.architecture, ("a", "b"), Tokenizer(VOCABULARY))
    save_model(tmp_path / "model", model, metadata, "card")
    reference = BertForTokenClassification.from_pretrained(tmp_path / "model")
    batch = ragged_batch()
    torch.testing.assert_close(
        model(batch), reference(**padded_inputs(batch)).logits[token_mask(batch)], atol=1e-5, rtol=1e-5
    )
