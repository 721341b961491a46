"""The table of names is a bijection, for every head, with Hugging Face's names and with TensorFlow's."""

from typing import get_args

import pytest
import torch
import transformers
from tests.parity.transformers_peer import SHAPE

from bertie.model.config import BertConfig
from bertie.model.formats.weight_names import NAMES, TENSORFLOW_NAMES, tensorflow_names, their_names
from bertie.model.heads import EncoderModel, Model

CONFIG = BertConfig(**SHAPE)
KINDS = pytest.mark.parametrize("kind", get_args(Model | EncoderModel), ids=lambda kind: kind.architecture)

# By hand from google-research/bert: modeling.py, run_pretraining.py, run_classifier.py, run_squad.py.
LAYER = [
    *(f"attention/self/{part}/{kind}" for part in ("query", "key", "value") for kind in ("kernel", "bias")),
    "attention/output/dense/kernel",
    "attention/output/dense/bias",
    "attention/output/LayerNorm/gamma",
    "attention/output/LayerNorm/beta",
    "intermediate/dense/kernel",
    "intermediate/dense/bias",
    "output/dense/kernel",
    "output/dense/bias",
    "output/LayerNorm/gamma",
    "output/LayerNorm/beta",
]
ENCODER = {
    "bert/embeddings/word_embeddings",
    "bert/embeddings/position_embeddings",
    "bert/embeddings/token_type_embeddings",
    "bert/embeddings/LayerNorm/gamma",
    "bert/embeddings/LayerNorm/beta",
    *(f"bert/encoder/layer_{n}/{name}" for n in range(CONFIG.num_hidden_layers) for name in LAYER),
}
POOLER = {"bert/pooler/dense/kernel", "bert/pooler/dense/bias"}
MASKED_LM = {
    "cls/predictions/transform/dense/kernel",
    "cls/predictions/transform/dense/bias",
    "cls/predictions/transform/LayerNorm/gamma",
    "cls/predictions/transform/LayerNorm/beta",
    "cls/predictions/output_bias",
}
NEXT_SENTENCE = {"cls/seq_relationship/output_weights", "cls/seq_relationship/output_bias"}
CLASSIFIER = {"output_weights", "output_bias"}
GOOGLE = {
    "BertModel": POOLER,
    "BertForPreTraining": POOLER | MASKED_LM | NEXT_SENTENCE,
    "BertForMaskedLM": MASKED_LM,
    "BertLMHeadModel": MASKED_LM,
    "BertForNextSentencePrediction": POOLER | NEXT_SENTENCE,
    "BertForSequenceClassification": POOLER | CLASSIFIER,
    "BertForMultipleChoice": POOLER | CLASSIFIER,
    "BertForTokenClassification": CLASSIFIER,
    "BertForQuestionAnswering": {"cls/squad/output_weights", "cls/squad/output_bias"},
}


def ours(kind):
    with torch.device("meta"):
        return kind(CONFIG, **labels_of(kind)).state_dict()


def labels_of(kind):
    return {"num_labels": 3} if "Classification" in kind.architecture else {}


@KINDS
def test_every_weight_of_theirs_is_one_of_ours(kind):
    with torch.device("meta"):
        config = transformers.BertConfig(**SHAPE, **labels_of(kind))
        theirs = getattr(transformers, kind.architecture)(config)
    prefix = "bert." if kind is EncoderModel else ""
    # The tied decoder is not a weight of its own.
    expected = {prefix + name: weight.shape for name, weight in theirs.named_parameters()}
    found = {}
    for name, weight in ours(kind).items():
        for their_name, part in zip(their_names(name), weight.chunk(len(their_names(name))), strict=True):
            assert their_name not in found
            found[their_name] = part.shape
    assert found == expected


@KINDS
def test_every_tensor_of_googles_is_one_of_ours(kind):
    found = [their_name for name in ours(kind) for their_name in tensorflow_names(name)]
    assert sorted(found) == sorted(ENCODER | GOOGLE[kind.architecture])


@pytest.mark.parametrize("table", [NAMES, TENSORFLOW_NAMES])
def test_no_two_of_ours_have_a_name_of_theirs_in_common(table):
    theirs = [name for names in table.values() for name in names]
    assert len(theirs) == len(set(theirs))


def test_what_we_stack_is_in_the_same_order_in_both():
    assert their_names("bert.layers.11.qkv.weight") == tuple(
        f"bert.encoder.layer.11.attention.self.{part}.weight" for part in ("query", "key", "value")
    )
    assert tensorflow_names("bert.layers.11.qkv.bias") == tuple(
        f"bert/encoder/layer_11/attention/self/{part}/bias" for part in ("query", "key", "value")
    )
