"""Results of a model that has diverged are an error, and not a score."""

from dataclasses import replace

import numpy as np
import pytest
from tests.inference.small_models import save_small
from tests.tasks.test_classification import REGRESSION, SINGLE, examples

from bertie.base.errors import ModelError, SettingsError
from bertie.model.formats.directory import LongTexts
from bertie.model.formats.sentence_transformers import EmbeddingConfig
from bertie.tasks import evaluation
from bertie.tasks.custom.choices import CustomMultipleChoice
from bertie.tasks.custom.classification import CustomClassification
from bertie.tasks.evaluation import (
    EncodedExamples,
    compute_logits,
    evaluate,
    find_constant_answers,
    load_for_task,
    report_shared,
)
from bertie.tasks.long_texts import TextWindows
from bertie.tasks.ner import WordWindows
from bertie.tasks.pairs import CustomPairs
from bertie.tasks.registry import find_task
from bertie.tasks.squad.windows import ContextWindows
from bertie.tasks.task import Inputs


class Diverged:
    """An engine whose last result is `value`."""

    architecture = "BertForSequenceClassification"
    max_batch_tokens = 100
    num_hidden_layers = 1
    hidden_size = 2

    def __init__(self, value):
        self.value = value

    def logits(self, batch):
        return self.results(len(batch.bounds) - 1)

    def hidden_states(self, batch, layers):
        return [self.results(len(batch.input_ids)) for _ in layers]

    def results(self, count):
        results = np.zeros((count, 2), np.float32)
        results[-1, 1] = self.value
        return results


@pytest.mark.parametrize("embedding", [None, EmbeddingConfig("mean")])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_results_that_are_not_finite_are_an_error(value, embedding):
    ids = np.zeros(6, np.int32)
    inputs = Inputs(ids, ids, np.array([0, 3, 6]), labels=None)
    assert np.isfinite(compute_logits(Diverged(1.0), inputs, embedding)).all()
    with pytest.raises(ModelError, match=r"not finite .* lower optimizer.learning_rate"):
        compute_logits(Diverged(value), inputs, embedding)


def test_inputs_that_training_has_too_are_counted(capsys):
    def inputs(*sequences, group=1):
        bounds = np.cumsum([0, *map(len, sequences)])
        ids = np.array([number for sequence in sequences for number in sequence], np.int32)
        return Inputs(ids, np.zeros_like(ids), bounds, labels=None, group=group)

    training = [2, 7, 3], [2, 8, 8, 3], [2, 9, 3], [2, 7, 3]
    report_shared("dev", inputs([2, 7, 3], [2, 8, 3], [2, 8, 8, 3], [2, 7, 3]), inputs(*training))
    report_shared("new", inputs([2, 8, 3], [2, 7, 7, 3]), inputs(*training))
    # Two choices each: a question is the same only if all its choices are.
    report_shared("choices", inputs(*training[:2], *training[1:3], group=2), inputs(*training, group=2))
    # Two texts of two windows and one of one.
    windows = TextWindows(
        **vars(inputs([2, 7, 3], [2, 8, 3], [2, 7, 3], [2, 9, 3], [2, 7, 3])),
        text_bounds=np.array([0, 2, 4, 5]),
        long_texts=LongTexts(method="windows"),
    )
    report_shared("windows", windows, inputs(*training))
    # Two questions of two windows and one of one.
    ids, types, bounds = (vars(windows)[key] for key in ("input_ids", "token_type_ids", "bounds"))
    questions = ContextWindows(
        ids,
        types,
        bounds,
        labels=None,
        window_bounds=np.array([0, 2, 4, 5]),
        offsets=np.zeros((len(ids), 2), np.int32),
        max_context=np.ones(len(ids), np.bool_),
    )
    report_shared("questions", questions, questions)
    words = WordWindows(ids, types, bounds, labels=None, word_positions=ids[:0], num_sentences=9)
    report_shared("words", words, words)
    assert [line.partition("; ")[0] for line in capsys.readouterr().err.splitlines()] == [
        "dev: 3 of 4 inputs are also training inputs",
        "choices: 1 of 2 inputs are also training inputs",
        "windows: 1 of 3 inputs are also training inputs",
        "questions: 3 of 3 questions are also training questions",
        "words: 5 of 5 windows are also training windows",
    ]


@pytest.mark.parametrize(
    ("model", "task", "advice"),
    [
        ("squad-v1", CustomClassification(), "pass --kind questions (kind='questions')"),
        ("tagger", CustomClassification(), "pass --kind tags (kind='tags')"),
        ("choices", CustomClassification(), "pass --kind choices (kind='choices')"),
        ("classifier", CustomMultipleChoice(), "pass --kind texts (kind='texts')"),
        ("encoder", CustomClassification(), "fine-tune it on classification first"),
        ("pre-training", CustomClassification(), "fine-tune it on classification first"),
        ("squad-v1", find_task("mrpc"), "fine-tune it on mrpc first"),
    ],
)
def test_a_model_with_another_head_gets_advice(tmp_path, model, task, advice):
    path = save_small(tmp_path, model)
    with pytest.raises(ModelError) as error:
        load_for_task(task, path)
    assert str(error.value).startswith(f"{path}: the model is a Bert")
    assert str(error.value).endswith(f"; {advice}")


@pytest.mark.parametrize(
    ("kind", "columns"), [("pairs", {"text": "a"}), ("scored-pairs", {"text": "a", "label": "b"})]
)
def test_an_encoder_that_was_trained_on_pairs_gets_advice(tmp_path, kind, columns):
    path = save_small(tmp_path, "encoder", embedding=EmbeddingConfig("mean"), label_columns=columns)
    with pytest.raises(ModelError, match=rf"is a BertModel, .*; pass --kind {kind} \(kind='{kind}'\)$"):
        load_for_task(CustomClassification(), path)


def test_thresholds_are_tuned_on_the_first_part_only(monkeypatch):
    task = replace(SINGLE, labels=("no", "yes")).with_thresholds().with_calibration()
    random = np.random.default_rng(0)
    parts = {}
    for name, shift in (("first", 2), ("second", -2)):
        gold = random.integers(0, 2, 100)
        logits = np.stack([np.zeros(100), random.normal(3 * gold + shift, 1)], axis=1).astype(np.float32)
        parts[name] = EncodedExamples(examples([task.labels[i] for i in gold]), logits)
    monkeypatch.setattr(evaluation, "compute_logits", lambda engine, inputs, embedding: inputs)
    result = evaluate(task, None, parts)
    tuned, other = (task.tuned(gold, None, logits) for gold, logits in parts.values())
    assert result.task == tuned != other
    for name, (gold, logits) in parts.items():
        predictions = tuned.decode(gold, None, logits)
        assert (result.predictions[name] == predictions).all()
        assert result.scores[name] == tuned.score(gold, predictions)
        assert (result.confidence[name] == tuned.confidence(gold, None, logits)).all()
        assert result.calibration[name].temperature == tuned.temperature


def test_constant_answers_are_reported_unless_they_are_right():
    parts = {
        "dev": examples(["good", "bad"]),
        "varied": examples(["good", "bad"]),
        "right": examples(["good", "good"]),
        "one": examples(["bad"]),
    }
    answers = {name: [1] * len(part) for name, part in parts.items()} | {"varied": [0, 1]}
    predictions = {name: np.array(indices) for name, indices in answers.items()}
    scores = {name: SINGLE.score(part, predictions[name]) for name, part in parts.items()}
    assert find_constant_answers(SINGLE, parts, predictions, scores) == [
        "dev: the answer is 'good' for every example, so the model has learnt nothing; try another learning "
        "rate, more epochs or another seed"
    ]
    numbers = {"dev": examples([1.0, 9.0])}
    (warning,) = find_constant_answers(
        REGRESSION, numbers, {"dev": np.array([5.0, 5.0])}, {"dev": {"spearmanr": 0.0}}
    )
    assert warning.startswith("dev: the answer is close to 5 for every example")


def test_length_is_given_or_that_of_fine_tuning_or_the_default(tmp_path):
    recorded = save_small(tmp_path / "recorded", "classifier", max_seq_length=20)
    assert load_for_task(CustomClassification(), recorded).max_seq_length == 20
    assert load_for_task(CustomClassification(), recorded, max_seq_length=10).max_seq_length == 10
    assert load_for_task(CustomClassification(), recorded, max_seq_length=128).max_seq_length == 128
    with pytest.raises(SettingsError, match="max_seq_length 129 exceeds the model's 128 positions; use 128"):
        load_for_task(CustomClassification(), recorded, max_seq_length=129)
    # SQuAD's default is 384, but this model has 128 positions.
    assert load_for_task(find_task("squad-v1"), save_small(tmp_path, "squad-v1")).max_seq_length == 128
    encoder = save_small(tmp_path, "encoder", embedding=EmbeddingConfig("mean", max_seq_length=30))
    assert load_for_task(CustomPairs(), encoder).max_seq_length == 30
