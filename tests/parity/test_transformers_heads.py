"""The same weights give the same task heads in `transformers` and here: logits, losses, gradients."""

import numpy as np
import pytest
import torch
from tests.parity.transformers_peer import (
    LENGTHS,
    SHAPE,
    assert_same_gradients,
    copy_weights,
    padded,
    padded_labels,
    ragged_batch,
    real,
)
from transformers import BertConfig as TheirConfig
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

CONFIG = BertConfig(**SHAPE)
RANDOM = np.random.default_rng(0)
N, T = len(LENGTHS), sum(LENGTHS)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def assert_same_loss_and_gradients(ours, theirs, batch, their_loss, zero=()):
    (objective,) = ours.losses(batch).values()
    assert [objective.targets] == list(ours.target_counts(batch).values())
    loss = objective.loss_sum / objective.targets
    torch.testing.assert_close(loss, their_loss, atol=1e-6, rtol=1e-5)
    loss.backward()
    their_loss.backward()
    assert_same_gradients(ours, theirs, zero)
    return objective


@pytest.mark.parametrize(
    ("problem_type", "labels"),
    [
        ("single_label_classification", RANDOM.integers(0, 3, N)),
        ("multi_label_classification", RANDOM.integers(0, 2, (N, 3)).astype(np.float32)),
        ("regression", RANDOM.normal(size=N).astype(np.float32)),
    ],
)
def test_classification(problem_type, labels):
    num_labels = 1 if problem_type == "regression" else 3
    theirs = BertForSequenceClassification(
        TheirConfig(**SHAPE, num_labels=num_labels, problem_type=problem_type)
    )
    ours = ClassificationModel(CONFIG, num_labels, problem_type)
    copy_weights(theirs, ours)
    batch = ragged_batch(labels=labels)
    expected = theirs(**padded(batch), labels=batch.labels)
    torch.testing.assert_close(ours(batch), expected.logits, atol=1e-5, rtol=1e-5)
    objective = assert_same_loss_and_gradients(ours, theirs, batch, expected.loss)
    if problem_type == "regression":
        assert objective.correct is None
    elif problem_type == "multi_label_classification":
        assert objective.correct == ((expected.logits.sigmoid() > 0.5) == (batch.labels == 1)).all(1).sum()
    else:
        assert objective.correct == (expected.logits.argmax(1) == batch.labels).sum()


def test_token_classification():
    theirs = BertForTokenClassification(TheirConfig(**SHAPE, num_labels=5))
    ours = TokenClassificationModel(CONFIG, 5)
    copy_weights(theirs, ours)
    labels = np.where(RANDOM.random(T) < 0.3, -100, RANDOM.integers(0, 5, T))
    batch = ragged_batch(labels=labels)
    expected = theirs(**padded(batch), labels=padded_labels(batch, batch.labels))
    logits = expected.logits[real(batch)]
    torch.testing.assert_close(ours(batch), logits, atol=1e-5, rtol=1e-5)
    objective = assert_same_loss_and_gradients(ours, theirs, batch, expected.loss)
    assert objective.targets == (labels != -100).sum()
    assert objective.correct == (logits.argmax(-1) == batch.labels).sum()


def test_question_answering():
    """Theirs one sequence at a time: in a padded batch their padding competes for the answer."""
    theirs = BertForQuestionAnswering(TheirConfig(**SHAPE))
    ours = QuestionAnsweringModel(CONFIG)
    copy_weights(theirs, ours)
    ends = RANDOM.integers(0, LENGTHS)
    batch = ragged_batch(labels=np.stack([RANDOM.integers(0, ends + 1), ends], axis=1))
    ids, segments = (padded(batch)[name] for name in ("input_ids", "token_type_ids"))
    losses, correct = [], 0
    for number, logits in enumerate(ours(batch).split(LENGTHS)):
        start, end = batch.labels[number].tolist()
        one = slice(number, number + 1), slice(LENGTHS[number])
        expected = theirs(
            input_ids=ids[one],
            token_type_ids=segments[one],
            start_positions=torch.tensor([start]),
            end_positions=torch.tensor([end]),
        )
        both = torch.stack([expected.start_logits[0], expected.end_logits[0]], dim=1)
        torch.testing.assert_close(logits, both, atol=1e-5, rtol=1e-5)
        losses.append(expected.loss)
        correct += both.argmax(0).tolist() == [start, end]
    objective = assert_same_loss_and_gradients(
        ours,
        theirs,
        batch,
        torch.stack(losses).mean(),
        zero=("qa_outputs.bias", "bert.layers.2.output_norm.bias"),
    )
    assert objective.correct == correct


def test_multiple_choice():
    theirs = BertForMultipleChoice(TheirConfig(**SHAPE))
    ours = MultipleChoiceModel(CONFIG)
    copy_weights(theirs, ours)
    examples, choices = 3, 4
    batch = ragged_batch(lengths=RANDOM.integers(1, 64, 12).tolist(), labels=RANDOM.integers(0, 4, examples))
    inputs = {name: values.view(examples, choices, -1) for name, values in padded(batch).items()}
    expected = theirs(**inputs, labels=batch.labels)
    torch.testing.assert_close(ours(batch).view(examples, choices), expected.logits, atol=1e-5, rtol=1e-5)
    objective = assert_same_loss_and_gradients(ours, theirs, batch, expected.loss, zero=("classifier.bias",))
    assert objective.targets == examples
    assert objective.correct == (expected.logits.argmax(1) == batch.labels).sum()
