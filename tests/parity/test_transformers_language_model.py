"""A left-to-right model has the logits, loss and gradients of `transformers`' BertLMHeadModel."""

import pytest
import torch
from tests.parity.transformers_peer import (
    SHAPE,
    assert_same_gradients,
    copy_weights,
    padded,
    padded_labels,
    ragged_batch,
    real,
)
from transformers import AutoModelForCausalLM, BertForTokenClassification, BertLMHeadModel
from transformers import BertConfig as TheirConfig

from bertie.model.config import BertConfig
from bertie.model.formats.directory import ModelMetadata
from bertie.model.formats.weights import load_model, save_model
from bertie.model.heads import LanguageModel, TokenClassificationModel
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary

DECODER = {**SHAPE, "is_decoder": True}
VOCABULARY = Vocabulary([*SPECIAL_TOKENS, *(f"w{number}" for number in range(SHAPE["vocab_size"] - 5))])


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("dropout_path", [False, True])
def test_logits_loss_and_gradients(dropout_path, monkeypatch):
    """Both with the fused kernel and with that which dropout needs."""
    theirs = BertLMHeadModel(TheirConfig(**DECODER))
    ours = LanguageModel(BertConfig(**DECODER))
    copy_weights(theirs, ours)
    if dropout_path:  # a probability that is not 0, but drops none
        monkeypatch.setattr("bertie.model.attention.drop", lambda values, _: values)
        for layer in ours.bert.layers:
            layer.attention_dropout = 0.1
    batch = ragged_batch()
    expected = theirs(**padded(batch), labels=padded_labels(batch, batch.input_ids.long()))
    logits = expected.logits[real(batch)]
    assert (ours(batch) - logits).norm() <= 1e-5 * logits.norm()
    (objective,) = ours.losses(batch).values()
    assert ours.target_counts(batch) == {"language_model": objective.targets}
    torch.testing.assert_close(objective.loss_sum / objective.targets, expected.loss, atol=0, rtol=1e-5)
    ends = batch.cu_seqlens[1:].long() - 1
    is_told = torch.ones(batch.num_tokens, dtype=torch.bool).index_fill(0, ends, False)
    right = logits.argmax(-1)[is_told] == batch.input_ids.roll(-1)[is_told]
    assert objective.correct == right.sum()
    expected.loss.backward()
    (objective.loss_sum / objective.targets).backward()
    assert_same_gradients(ours, theirs)


def test_their_directory_loads_here_and_ours_there(tmp_path):
    theirs = BertLMHeadModel(TheirConfig(**DECODER)).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    Tokenizer(VOCABULARY).save(tmp_path / "theirs", 64)
    ours, metadata = load_model(tmp_path / "theirs")
    assert metadata.config.is_decoder
    batch = ragged_batch()
    torch.testing.assert_close(ours(batch), theirs(**padded(batch)).logits[real(batch)], atol=1e-5, rtol=1e-5)
    save_model(tmp_path / "ours", ours, metadata, "card")
    again, info = AutoModelForCausalLM.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert isinstance(again, BertLMHeadModel)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert torch.equal(again(**padded(batch)).logits, theirs(**padded(batch)).logits)


def test_a_tagger_that_reads_from_left_to_right_is_theirs_too(tmp_path):
    config = BertConfig(**DECODER)
    ours = TokenClassificationModel(config, 2).eval()
    metadata = ModelMetadata(config, ours.architecture, ("a", "b"), Tokenizer(VOCABULARY))
    save_model(tmp_path / "model", ours, metadata, "card")
    theirs = BertForTokenClassification.from_pretrained(tmp_path / "model")
    batch = ragged_batch()
    torch.testing.assert_close(ours(batch), theirs(**padded(batch)).logits[real(batch)], atol=1e-5, rtol=1e-5)
