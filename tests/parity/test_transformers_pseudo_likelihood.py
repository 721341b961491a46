"""Log-likelihoods of sentences equal those computed with `transformers`, one position at a time."""

import numpy as np
import pytest
import torch
from tests.inference.small_models import CONFIG, TOKENIZER, save_small
from transformers import BertForMaskedLM, BertLMHeadModel

from bertie.inference.likelihood import encode_sentences, log_likelihoods
from bertie.model.engines.loading import load_engine
from bertie.model.formats.directory import ModelMetadata
from bertie.model.formats.weights import save_model
from bertie.model.heads import LanguageModel

SENTENCES = [
    "The cat sat on the mat.",
    "The cat sits.",
    "Paris",
    "who did the cat hug on a mat?",
]


@pytest.mark.parametrize("kind", ["masked LM", "pre-training"])
def test_pseudo_log_likelihood_masks_one_token_at_a_time(kind, tmp_path):
    path = save_small(tmp_path, kind)
    engine, _ = load_engine(path, "cpu")
    engine.max_batch_tokens = 64  # so that copies of a sentence are in different batches
    sequences = encode_sentences(SENTENCES, TOKENIZER, CONFIG.max_position_embeddings)
    values = log_likelihoods(engine, sequences, TOKENIZER.vocabulary.mask_id)
    reference = BertForMaskedLM.from_pretrained(path).eval()
    for sentence, value in zip(SENTENCES, values, strict=True):
        ids = torch.from_numpy(TOKENIZER.encode(sentence).input_ids).long()
        expected = 0.0
        for position in range(1, len(ids) - 1):
            masked = ids.clone()
            masked[position] = TOKENIZER.vocabulary.mask_id
            with torch.inference_mode():
                logits = reference(masked[None]).logits[0, position]
            expected += logits.log_softmax(0)[ids[position]].item()
        assert value == pytest.approx(expected, abs=1e-4)


def test_causal_log_likelihood_leaves_out_the_special_tokens(tmp_path):
    torch.manual_seed(0)
    config = CONFIG.model_copy(update={"is_decoder": True})
    metadata = ModelMetadata(config, LanguageModel.architecture, (), TOKENIZER)
    save_model(tmp_path / "causal", LanguageModel(config), metadata, "card")
    engine, _ = load_engine(tmp_path / "causal", "cpu")
    sequences = encode_sentences(SENTENCES, TOKENIZER, CONFIG.max_position_embeddings)
    values = log_likelihoods(engine, sequences, TOKENIZER.vocabulary.mask_id)
    reference = BertLMHeadModel.from_pretrained(tmp_path / "causal").eval()
    expected = []
    for sentence in SENTENCES:
        ids = torch.from_numpy(TOKENIZER.encode(sentence).input_ids).long()
        with torch.inference_mode():
            predicted = reference(ids[None]).logits[0].log_softmax(1)
        targets = torch.arange(1, len(ids) - 1)
        expected.append(predicted[targets - 1, ids[targets]].sum().item())
    np.testing.assert_allclose(values, expected, atol=1e-4)
