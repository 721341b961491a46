"""The same weights give the same numbers in `transformers` and here."""

import numpy as np
import pytest
import torch
from transformers import BertConfig as TheirConfig
from transformers import BertForPreTraining, BertForSequenceClassification

from bertie.model.batch import PackedBatch, pack
from bertie.model.config import BertConfig
from bertie.model.heads import ClassificationModel, PreTrainingModel
from bertie.model.weight_names import their_names
from bertie.model.weights import load_weights, save_weights

# Wider initial weights than the paper's, so that attention is not nearly uniform.
SHAPE = {
    "vocab_size": 211,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 192,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
LENGTHS = np.array([64, 3, 17, 49, 64, 1, 30])


def ragged_batch(seed: int = 0) -> PackedBatch:
    random = np.random.default_rng(seed)
    bounds = np.concatenate([[0], LENGTHS.cumsum()])
    total = bounds[-1]
    return pack(
        # From 1 on: theirs gives the embedding of id 0, its padding, no gradient.
        random.integers(1, SHAPE["vocab_size"], total).astype(np.int32),
        np.concatenate([np.arange(length) >= length // 2 for length in LENGTHS]).astype(np.int32),
        bounds,
        masked_positions=np.sort(random.choice(total, 40, replace=False)),
        masked_labels=random.integers(0, SHAPE["vocab_size"], 40),
        next_sentence_labels=random.integers(0, 2, len(LENGTHS)),
        labels=random.integers(0, 3, len(LENGTHS)),
    )


def padded(batch: PackedBatch) -> dict[str, torch.Tensor]:
    """The same batch in `transformers`' layout."""
    shape = (len(batch), batch.max_seqlen)
    mask = torch.arange(batch.max_seqlen) < torch.diff(batch.cu_seqlens)[:, None]
    inputs = {"attention_mask": mask.long()}
    for name in ("input_ids", "token_type_ids"):
        inputs[name] = torch.zeros(shape, dtype=torch.long)
        inputs[name][mask] = getattr(batch, name).long()
    labels = torch.full((batch.num_tokens,), -100)
    labels[batch.masked_positions] = batch.masked_labels
    inputs["labels"] = torch.full(shape, -100)
    inputs["labels"][mask] = labels
    return inputs


def assert_same_gradients(ours: torch.nn.Module, theirs: torch.nn.Module) -> None:
    gradients = {name: p.grad for name, p in theirs.named_parameters()}
    for name, parameter in ours.named_parameters():
        expected = torch.cat([gradients[n] for n in their_names(name)])
        # A bias of the keys moves all scores of a row alike: its gradient is zero but for rounding.
        if name.endswith("qkv.bias"):
            keep = torch.cat([torch.ones(48), torch.zeros(48), torch.ones(48)]).bool()
            expected, actual = expected[keep], parameter.grad[keep]
        else:
            actual = parameter.grad
        assert (actual - expected).norm() <= 1e-5 * expected.norm(), name


@pytest.mark.parametrize("hidden_act", ["gelu", "gelu_new"])
def test_pre_training_logits_loss_and_gradients(tmp_path, hidden_act):
    torch.manual_seed(0)
    theirs = BertForPreTraining(TheirConfig(**SHAPE, hidden_act=hidden_act))
    theirs.save_pretrained(tmp_path)
    ours = PreTrainingModel(BertConfig.load(tmp_path / "config.json"))
    load_weights(tmp_path / "model.safetensors", ours)

    batch = ragged_batch()
    expected = theirs(**padded(batch), next_sentence_label=batch.next_sentence_labels)
    real = padded(batch)["attention_mask"].bool()
    masked_lm, next_sentence = ours(batch)
    torch.testing.assert_close(
        masked_lm, expected.prediction_logits[real][batch.masked_positions], atol=1e-5, rtol=1e-5
    )
    torch.testing.assert_close(next_sentence, expected.seq_relationship_logits, atol=1e-5, rtol=1e-5)

    losses = ours.losses(batch)
    loss = sum(objective.loss_sum / objective.targets for objective in losses.values())
    torch.testing.assert_close(loss, expected.loss, atol=1e-5, rtol=1e-5)
    expected.loss.backward()
    loss.backward()
    assert_same_gradients(ours, theirs)


def test_our_weights_load_there(tmp_path):
    torch.manual_seed(1)
    ours = PreTrainingModel(BertConfig(**SHAPE)).eval()
    save_weights(tmp_path / "model.safetensors", ours)
    TheirConfig(**SHAPE).save_pretrained(tmp_path)
    theirs, info = BertForPreTraining.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    batch = ragged_batch(1)
    inputs = padded(batch)
    del inputs["labels"]
    expected = theirs.eval()(**inputs)
    _, next_sentence = ours(batch)
    torch.testing.assert_close(next_sentence, expected.seq_relationship_logits, atol=1e-5, rtol=1e-5)


def test_classifier_logits_loss_and_gradients(tmp_path):
    torch.manual_seed(2)
    theirs = BertForSequenceClassification(TheirConfig(**SHAPE, num_labels=3))
    theirs.save_pretrained(tmp_path)
    ours = ClassificationModel(BertConfig(**SHAPE), num_labels=3)
    load_weights(tmp_path / "model.safetensors", ours)
    batch = ragged_batch(2)
    inputs = {**padded(batch), "labels": batch.labels}
    expected = theirs(**inputs)
    torch.testing.assert_close(ours(batch), expected.logits, atol=1e-5, rtol=1e-5)
    objective = ours.losses(batch)["classification"]
    (objective.loss_sum / objective.targets).backward()
    expected.loss.backward()
    assert_same_gradients(ours, theirs)
