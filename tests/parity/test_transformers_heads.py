"""Task heads have the logits, losses and gradients of `transformers`."""

import numpy as np
import pytest
import torch
from tests.parity.transformers_peer import (
    LENGTHS,
    SHAPE,
    assert_same_gradients,
    copy_weights,
    padded_inputs,
    padded_labels,
    ragged_batch,
    token_mask,
)
from transformers import BertConfig as TransformersConfig
from transformers import (
    BertForMultipleChoice,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)

from bertie.model.config import BertConfig
from bertie.model.heads import (
    ClassificationModel,
    MultipleChoiceModel,
    QuestionAnsweringModel,
    TokenClassificationModel,
)
from bertie.model.objectives import IGNORE_INDEX

CONFIG = BertConfig(**SHAPE)
RANDOM = np.random.default_rng(0)
N, T = len(LENGTHS), sum(LENGTHS)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def assert_same_loss_and_gradients(model, reference, batch, expected_loss, zero=()):
    (objective,) = model.compute_losses(batch).values()
    assert [objective.num_targets] == list(model.count_targets(batch).values())
    loss = objective.loss_sum / objective.num_targets
    torch.testing.assert_close(loss, expected_loss, atol=1e-6, rtol=1e-5)
    loss.backward()
    expected_loss.backward()
    assert_same_gradients(model, reference, zero)
    return objective


@pytest.mark.parametrize(
    ("problem_type", "labels"),
    [
        ("single_label_classification", RANDOM.integers(0, 3, N)),
        ("multi_label_classification", RANDOM.integers(0, 2, (N, 3)).astype(np.float32)),
        ("regression", RANDOM.normal(size=N).astype(np.float32)),
    ],
)
def test_classification_equals_transformers(problem_type, labels):
    num_labels = 1 if problem_type == "regression" else 3
    reference = BertForSequenceClassification(
        TransformersConfig(**SHAPE, num_labels=num_labels, problem_type=problem_type)
    )
    model = ClassificationModel(CONFIG, num_labels, problem_type)
    copy_weights(reference, model)
    batch = ragged_batch(labels=labels)
    expected = reference(**padded_inputs(batch), labels=batch.labels)
    torch.testing.assert_close(model(batch), expected.logits, atol=1e-5, rtol=1e-5)
    objective = assert_same_loss_and_gradients(model, reference, batch, expected.loss)
    if problem_type == "regression":
        assert objective.num_correct is None
    elif problem_type == "multi_label_classification":
        is_correct = ((expected.logits.sigmoid() > 0.5) == (batch.labels == 1)).all(1)
        assert objective.num_correct == is_correct.sum()
    else:
        assert objective.num_correct == (expected.logits.argmax(1) == batch.labels).sum()


def test_token_classification_equals_transformers():
    reference = BertForTokenClassification(TransformersConfig(**SHAPE, num_labels=5))
    model = TokenClassificationModel(CONFIG, 5)
    copy_weights(reference, model)
    labels = np.where(RANDOM.random(T) < 0.3, IGNORE_INDEX, RANDOM.integers(0, 5, T))
    batch = ragged_batch(labels=labels)
    expected = reference(**padded_inputs(batch), labels=padded_labels(batch, batch.labels))
    logits = expected.logits[token_mask(batch)]
    torch.testing.assert_close(model(batch), logits, atol=1e-5, rtol=1e-5)
    objective = assert_same_loss_and_gradients(model, reference, batch, expected.loss)
    assert objective.num_targets == (labels != IGNORE_INDEX).sum()
    assert objective.num_correct == (logits.argmax(-1) == batch.labels).sum()


def test_question_answering_equals_transformers():
    """One sequence at a time in `transformers`, where padding is a class too."""
    reference = BertForQuestionAnswering(TransformersConfig(**SHAPE))
    model = QuestionAnsweringModel(CONFIG)
    copy_weights(reference, model)
    ends = RANDOM.integers(0, LENGTHS)
    batch = ragged_batch(labels=np.stack([RANDOM.integers(0, ends + 1), ends], axis=1))
    ids, segments = (padded_inputs(batch)[name] for name in ("input_ids", "token_type_ids"))
    losses, num_correct = [], 0
    for n, logits in enumerate(model(batch).split(LENGTHS)):
        start, end = batch.labels[n].tolist()
        sequence = slice(n, n + 1), slice(LENGTHS[n])
        expected = reference(
            input_ids=ids[sequence],
            token_type_ids=segments[sequence],
            start_positions=torch.tensor([start]),
            end_positions=torch.tensor([end]),
        )
        expected_logits = torch.stack([expected.start_logits[0], expected.end_logits[0]], dim=1)
        torch.testing.assert_close(logits, expected_logits, atol=1e-5, rtol=1e-5)
        losses.append(expected.loss)
        num_correct += expected_logits.argmax(0).tolist() == [start, end]
    objective = assert_same_loss_and_gradients(
        model,
        reference,
        batch,
        torch.stack(losses).mean(),
        zero=("qa_outputs.bias", "bert.layers.2.output_norm.bias"),
    )
    assert objective.num_correct == num_correct


def test_multiple_choice_equals_transformers():
    reference = BertForMultipleChoice(TransformersConfig(**SHAPE))
    model = MultipleChoiceModel(CONFIG)
    copy_weights(reference, model)
    examples, choices = 3, 4
    batch = ragged_batch(lengths=RANDOM.integers(1, 64, 12).tolist(), labels=RANDOM.integers(0, 4, examples))
    inputs = {name: values.view(examples, choices, -1) for name, values in padded_inputs(batch).items()}
    expected = reference(**inputs, labels=batch.labels)
    torch.testing.assert_close(model(batch).view(examples, choices), expected.logits, atol=1e-5, rtol=1e-5)
    objective = assert_same_loss_and_gradients(
        model, reference, batch, expected.loss, zero=("classifier.bias",)
    )
    assert objective.num_targets == examples
    assert objective.num_correct == (expected.logits.argmax(1) == batch.labels).sum()
