"""The table of weight names is a bijection for every head, in both formats."""

from typing import get_args

import pytest
import torch
import transformers
from tests.parity.transformers_peer import SHAPE

from bertie.model.config import BertConfig
from bertie.model.formats.weight_names import (
    HUGGING_FACE_NAMES,
    TENSORFLOW_NAMES,
    hugging_face_names,
    tensorflow_names,
)
from bertie.model.heads import EmbeddingModel, EncoderModel, Model

CONFIG = BertConfig(**SHAPE)
ALL_MODELS = pytest.mark.parametrize(
    "model",
    [m for m in get_args(Model | EncoderModel) if m is not EmbeddingModel],  # an encoder with another loss
    ids=lambda model: model.architecture,
)

# By hand from google-research/bert: modeling.py, run_pretraining.py, run_classifier.py, run_squad.py.
LAYER = [
    *(
        f"attention/self/{module}/{parameter}"
        for module in ("query", "key", "value")
        for parameter in ("kernel", "bias")
    ),
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
TENSORS_AFTER_THE_ENCODER = {
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


def state_dict(model):
    with torch.device("meta"):
        return model(CONFIG, **num_labels_of(model)).state_dict()


def num_labels_of(model):
    return {"num_labels": 3} if "Classification" in model.architecture else {}


@ALL_MODELS
def test_names_equal_the_parameters_of_transformers(model):
    with torch.device("meta"):
        config = transformers.BertConfig(**SHAPE, **num_labels_of(model))
        reference = getattr(transformers, model.architecture)(config)
    prefix = "bert." if model is EncoderModel else ""
    # named_parameters has the tied decoder only once.
    expected = {prefix + name: weight.shape for name, weight in reference.named_parameters()}
    actual = {}
    for name, weight in state_dict(model).items():
        names = hugging_face_names(name)
        for stored_name, part in zip(names, weight.chunk(len(names)), strict=True):
            assert stored_name not in actual
            actual[stored_name] = part.shape
    assert actual == expected


@ALL_MODELS
def test_names_equal_the_tensors_of_google(model):
    actual = [tensor_name for name in state_dict(model) for tensor_name in tensorflow_names(name)]
    assert sorted(actual) == sorted(ENCODER | TENSORS_AFTER_THE_ENCODER[model.architecture])


@pytest.mark.parametrize("table", [HUGGING_FACE_NAMES, TENSORFLOW_NAMES])
def test_no_stored_name_occurs_twice(table):
    stored_names = [stored_name for names in table.values() for stored_name in names]
    assert len(stored_names) == len(set(stored_names))


def test_query_key_and_value_have_the_order_of_qkv():
    assert hugging_face_names("bert.layers.11.qkv.weight") == tuple(
        f"bert.encoder.layer.11.attention.self.{module}.weight" for module in ("query", "key", "value")
    )
    assert tensorflow_names("bert.layers.11.qkv.bias") == tuple(
        f"bert/encoder/layer_11/attention/self/{module}/bias" for module in ("query", "key", "value")
    )
