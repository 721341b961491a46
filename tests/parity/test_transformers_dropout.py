"""Dropout is applied where `transformers` and google-research/bert apply it."""

import pytest
import torch
from tests.parity.transformers_peer import SHAPE, copy_weights, padded_inputs, ragged_batch, token_mask
from transformers import BertConfig as TransformersConfig
from transformers import (
    BertForMultipleChoice,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)

from bertie.model.config import BertConfig
from bertie.model.heads import (
    ClassificationModel,
    MultipleChoiceModel,
    PreTrainingModel,
    QuestionAnsweringModel,
    TokenClassificationModel,
)

WITH_DROPOUT = SHAPE | {"hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.2}
CONFIG = BertConfig(**WITH_DROPOUT)


def fake_dropout(values: torch.Tensor, probability: float) -> torch.Tensor:
    """Replace dropout by a deterministic function.

    It is not linear, so that the result depends on where it is applied.
    """
    return values + probability * values.square()


class FakeMask:
    """A mask that applies `fake_dropout` to the attention weights."""

    scale = 1.0

    def __init__(self, probability: float) -> None:
        self.probability = probability

    def zero(self, values: torch.Tensor) -> torch.Tensor:
        return fake_dropout(values, self.probability)


MODELS = {
    "pre-training": (BertForPreTraining, lambda: PreTrainingModel(CONFIG)),
    "classification": (BertForSequenceClassification, lambda: ClassificationModel(CONFIG, 2)),
    "multiple choice": (BertForMultipleChoice, lambda: MultipleChoiceModel(CONFIG)),
    "token classification": (BertForTokenClassification, lambda: TokenClassificationModel(CONFIG, 2)),
    "question answering": (BertForQuestionAnswering, lambda: QuestionAnsweringModel(CONFIG)),
}


@pytest.mark.parametrize("name", MODELS)
def test_dropout_is_applied_where_transformers_applies_it(name, monkeypatch):
    # tests/model/test_cpu_training.py compares fused layers with these.
    monkeypatch.setattr("bertie.model.bert.can_fuse", lambda values: False)
    monkeypatch.setattr("bertie.model.dropout._cpu_dropout", fake_dropout)
    monkeypatch.setattr("bertie.model.cpu_attention.DropoutMask.draw", FakeMask)
    monkeypatch.setattr(
        "torch.nn.functional.dropout",
        lambda values, p, training, inplace=False: fake_dropout(values, p) if training else values,
    )
    torch.manual_seed(0)
    reference_class, make_model = MODELS[name]
    reference = reference_class(TransformersConfig(**WITH_DROPOUT, attn_implementation="eager")).train()
    model = make_model().train()
    copy_weights(reference, model)
    batch = ragged_batch()
    inputs, tokens = padded_inputs(batch), token_mask(batch)
    if name == "multiple choice":
        inputs = {key: values[:, None] for key, values in inputs.items()}  # one choice per example
    expected, actual = reference(**inputs).to_tuple(), model(batch)
    match name:
        case "pre-training":
            masked_lm, next_sentence = expected
            expected = masked_lm[tokens][batch.masked_positions], next_sentence
        case "token classification":
            expected, actual = (expected[0][tokens],), (actual,)
        case "question answering":
            expected, actual = [logits[tokens] for logits in expected], actual.unbind(-1)
        case _:
            actual = (actual,)
    for expected_logits, actual_logits in zip(expected, actual, strict=True):
        assert (actual_logits - expected_logits).norm() <= 1e-5 * expected_logits.norm()
