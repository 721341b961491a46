"""Dropout stands where it does in `transformers`, which are google-research/bert's places."""

import pytest
import torch
from tests.parity.transformers_peer import SHAPE, copy_weights, padded, ragged_batch, real
from transformers import BertConfig as TheirConfig
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


def bent(values: torch.Tensor, probability: float) -> torch.Tensor:
    """In place of dropout: nothing drawn, and not linear, so that it matters what stands before and after."""
    return values + probability * values.square()


PRE_TRAINING, CHOICES = "pre-training", "choices"
MODELS = {
    PRE_TRAINING: (BertForPreTraining, lambda: PreTrainingModel(CONFIG)),
    "classification": (BertForSequenceClassification, lambda: ClassificationModel(CONFIG, 2)),
    CHOICES: (BertForMultipleChoice, lambda: MultipleChoiceModel(CONFIG)),
    "tokens": (BertForTokenClassification, lambda: TokenClassificationModel(CONFIG, 2)),
    "answers": (BertForQuestionAnswering, lambda: QuestionAnsweringModel(CONFIG)),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_places_of_dropout(name, monkeypatch):
    monkeypatch.setattr("bertie.model.dropout._masked", bent)
    monkeypatch.setattr(
        "torch.nn.functional.dropout",
        lambda values, p, training, inplace=False: bent(values, p) if training else values,
    )
    torch.manual_seed(0)
    their_class, make = MODELS[name]
    theirs = their_class(TheirConfig(**WITH_DROPOUT, attn_implementation="eager")).train()
    ours = make().train()
    copy_weights(theirs, ours)
    batch = ragged_batch()
    inputs, tokens = padded(batch), real(batch)
    if name == CHOICES:
        inputs = {key: values[:, None] for key, values in inputs.items()}  # one for each example
    expected, found = theirs(**inputs).to_tuple(), ours(batch)
    if name == PRE_TRAINING:
        masked_lm, next_sentence = expected
        expected = masked_lm[tokens][batch.masked_positions], next_sentence
    elif name == "tokens":
        expected, found = (expected[0][tokens],), (found,)
    elif name == "answers":
        expected, found = [logits[tokens] for logits in expected], found.unbind(-1)
    else:
        found = (found,)
    for their_logits, our_logits in zip(expected, found, strict=True):
        assert (our_logits - their_logits).norm() <= 1e-5 * their_logits.norm()
