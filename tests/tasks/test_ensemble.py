"""Ensembles: averages of probabilities, of scores and of n-best answers."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.special
from safetensors.numpy import load_file, save_file
from tests.inference.small_models import CONFIG, LABELS, MODELS, TAGS, TOKENIZER, save_small

from bertie.base.errors import ModelError
from bertie.model.heads import ClassificationModel
from bertie.tasks.classification import LabelledTexts
from bertie.tasks.conll import TaggedSentences
from bertie.tasks.custom.classification import CustomClassification
from bertie.tasks.custom.questions import CustomQuestionAnswering
from bertie.tasks.ensemble import load_ensemble, predict_ensemble
from bertie.tasks.evaluation import compute_logits
from bertie.tasks.ner import NER
from bertie.tasks.registry import find_task
from bertie.tasks.squad.averaging import average_answers
from bertie.tasks.squad.decoding import NO_SPAN_NULL_ODDS, NBest, SpanPredictions
from bertie.tasks.squad.questions import Questions
from bertie.tasks.swag import Choices
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import Vocabulary

TEXTS = LabelledTexts(
    [f"the {word} sat on paris {i}" for i in range(6) for word in ("cat", "mat")], None, None
)
SENTENCES = TaggedSentences([["the", "cat"], ["paris", "sat", "on"]], None, np.array([0, 2]))
QUESTIONS = Questions(["a", "b"], ["the cat?", "on?"], ["the cat sat on the mat. paris"], np.array([0, 0]))
CHOICES = Choices(["the cat", "paris"], ["", ""], [["sat", "on", "a", "b"]] * 2, None, ["0", "1"])
TASKS = {
    "classifier": (CustomClassification(), TEXTS),
    "multi-label": (CustomClassification().with_problem_type("multi_label_classification"), TEXTS),
    "regression": (CustomClassification().with_problem_type("regression"), TEXTS),
    "tagger": (NER, SENTENCES),
    "squad-v1": (find_task("squad-v1"), QUESTIONS),
    "squad-v2": (find_task("squad-v2"), QUESTIONS),
    "choices": (find_task("swag"), CHOICES),
}


def save_other(folder: Path, kind: str, **metadata: object) -> Path:
    """Save one of the small models with other weights."""
    path = save_small(folder, kind, **metadata)
    random = np.random.default_rng(1)
    weights = load_file(path / "model.safetensors")
    changed = {name: x + random.normal(0, 0.3, x.shape).astype(x.dtype) for name, x in weights.items()}
    save_file(changed, path / "model.safetensors", metadata={"format": "pt"})
    return path


@pytest.mark.parametrize("kind", TASKS)
def test_a_model_twice_predicts_the_same(kind, tmp_path):
    task, examples = TASKS[kind]
    (model,) = load_ensemble(task, [save_small(tmp_path, kind)], "cpu")
    one, two = model.predict(examples), predict_ensemble([model, model], examples)
    if isinstance(one, SpanPredictions):
        assert one.answers == two.answers
        assert one.null_threshold == two.null_threshold
        assert np.array_equal(one.n_best.offsets, two.n_best.offsets)
        np.testing.assert_allclose(two.n_best.probabilities, one.n_best.probabilities, atol=1e-6)
        if kind == "squad-v2":
            np.testing.assert_allclose(two.null_odds, one.null_odds, atol=1e-5)
    elif kind == "regression":
        np.testing.assert_allclose(two, one, atol=1e-6)
    else:
        assert np.array_equal(task.flatten_predictions(two), task.flatten_predictions(one))


@pytest.mark.usefixtures("unverified")
def test_probabilities_are_averaged_by_the_names_of_labels(tmp_path):
    """The second model has the labels in another order."""
    paths = [
        save_small(tmp_path / "one", "classifier"),
        save_other(tmp_path / "two", "classifier", labels=LABELS[::-1]),
    ]
    models = load_ensemble(CustomClassification(), paths, "cpu")
    probabilities = []
    for model in models:
        inputs = model.task.encode(TEXTS, model.tokenizer, 128)
        logits = compute_logits(model.engine, inputs).astype(float)
        probabilities.append(np.exp(logits) / np.exp(logits).sum(1, keepdims=True))
    mean = (probabilities[0] + probabilities[1][:, ::-1]) / 2
    predicted = predict_ensemble(models, TEXTS)
    assert predicted.tolist() == mean.argmax(axis=1).tolist()
    assert predicted.tolist() != models[0].predict(TEXTS).tolist()


@pytest.mark.parametrize(("kind", "label_count"), [("regression", 1), ("multi-label", 3)])
@pytest.mark.usefixtures("unverified")
def test_scores_and_labels_are_averaged(kind, label_count, tmp_path):
    task, examples = TASKS[kind]
    paths = [save_small(tmp_path / "one", kind), save_other(tmp_path / "two", kind)]
    models = load_ensemble(task, paths, "cpu")
    logits = [
        compute_logits(model.engine, model.task.encode(examples, model.tokenizer, 128)).astype(float)
        for model in models
    ]
    predicted = predict_ensemble(models, examples)
    if kind == "regression":
        np.testing.assert_allclose(predicted, np.mean(logits, axis=0)[:, 0], atol=1e-5)
    else:
        mean = np.mean([1 / (1 + np.exp(-x)) for x in logits], axis=0)
        assert np.array_equal(predicted, mean > 0.5)
    assert logits[0].shape[1] == label_count


@pytest.mark.parametrize("kind", ["classifier", "tagger"])
def test_tokenizers_may_differ(kind, tmp_path):
    """The second model does not have the word "paris" in its vocabulary."""
    tokens = ["zzz" if token == "paris" else token for token in TOKENIZER.vocabulary.tokens]
    other = Tokenizer(Vocabulary(tokens))
    task, examples = TASKS[kind]
    paths = [save_small(tmp_path / "one", kind), save_small(tmp_path / "two", kind, tokenizer=other)]
    models = load_ensemble(task, paths, "cpu")
    lengths = [len(m.task.encode(examples, m.tokenizer, 128).input_ids) for m in models]
    assert lengths[0] < lengths[1]
    assert len(predict_ensemble(models, examples)) == len(examples)


@pytest.mark.usefixtures("unverified")
def test_tags_have_the_mean_probabilities_of_each_word(tmp_path):
    """The second model splits "paris" into other tokens, and has the labels in another order."""
    sentences = TaggedSentences([["paris", *"abcdefgh"], ["the", "cat"]], None, np.array([0, 1, 2]))
    tokens = ["zzz" if token == "paris" else token for token in TOKENIZER.vocabulary.tokens]
    order = [0, 3, 4, 1, 2]
    other = {"tokenizer": Tokenizer(Vocabulary(tokens)), "labels": tuple(TAGS[i] for i in order)}
    paths = [save_small(tmp_path / "one", "tagger"), save_other(tmp_path / "two", "tagger", **other)]
    models = load_ensemble(NER, paths, "cpu")
    inputs = [model.task.encode(sentences, model.tokenizer, 128) for model in models]
    one, two = (
        scipy.special.softmax(compute_logits(model.engine, encoded)[encoded.word_positions], axis=1)
        for model, encoded in zip(models, inputs, strict=True)
    )
    mean = (one + two[:, order]) / 2  # the permutation is its own inverse
    predicted = NER.flatten_predictions(predict_ensemble(models, sentences))
    assert predicted == [TAGS[i] for i in mean.argmax(axis=1)]
    for model in models:
        assert predicted != NER.flatten_predictions(model.predict(sentences))


def test_texts_that_a_model_truncates_are_reported(tmp_path, capsys):
    paths = [save_small(tmp_path / str(i), "classifier", max_seq_length=i) for i in (5, 6)]
    predict_ensemble(load_ensemble(CustomClassification(), paths, "cpu"), TEXTS)
    assert [line.partition(",")[0] for line in capsys.readouterr().err.splitlines()] == [
        "data: texts longer than 5 tokens",
        "data: texts longer than 6 tokens",
    ]
    given = load_ensemble(CustomClassification(), paths, "cpu", max_seq_length=4)
    assert [model.max_seq_length for model in given] == [4, 4]


def test_models_of_another_problem_type_are_an_error(tmp_path):
    paths = [save_small(tmp_path, "classifier"), save_small(tmp_path, "multi-label")]
    with pytest.raises(ModelError) as error:
        load_ensemble(CustomClassification(), paths, "cpu")
    assert str(error.value) == (
        f"{paths[1]}: the model was fine-tuned for multi label classification, but {paths[0]} for single "
        f"label classification; give models that were fine-tuned on the same task"
    )


def test_models_with_and_without_a_null_threshold_are_an_error(tmp_path):
    """The result depended on their order."""
    paths = [save_small(tmp_path, kind) for kind in ("squad-v1", "squad-v2")]
    for first, second in (paths, paths[::-1]):
        message = f"^{second}: only one of this model and {first} was fine-tuned on questions without an"
        with pytest.raises(ModelError, match=message):
            load_ensemble(CustomQuestionAnswering(), [first, second], "cpu")
    for task in (find_task("squad-v1"), find_task("squad-v2")):  # decides whether questions have no answer
        assert len(load_ensemble(task, paths, "cpu")) == 2


def test_models_with_other_labels_are_an_error(tmp_path):
    paths = [
        save_small(tmp_path / "one", "tagger"),
        save_small(tmp_path / "two", "tagger", labels=(*TAGS[:3], "B-ORG", "I-ORG")),
    ]
    with pytest.raises(ModelError) as error:
        load_ensemble(NER, paths, "cpu")
    assert str(error.value) == (
        f"{paths[1]}: its labels are O, B-LOC, I-LOC, B-ORG, I-ORG, but {paths[0]} has O, B-LOC, I-LOC, "
        f"B-PER, I-PER; give models that were fine-tuned on the same task"
    )


def n_best(spans: list[tuple[int, int]], probabilities: list[float], threshold: float) -> SpanPredictions:
    """Return the predictions of one model for one question."""
    logits = np.log(np.array([[[p, 1.0] for p in probabilities]])).astype(np.float32)
    found = NBest(np.array([len(spans)]), np.array([spans]), logits, np.array([probabilities]))
    return SpanPredictions(["?"], np.zeros(1), threshold, found)


def test_answers_are_averaged_over_the_lists():
    """Each model prefers another answer; both have the same second best."""
    questions = Questions(["q"], ["who?"], ["Ada met Bob"], np.array([0]))
    first = n_best([(0, 3), (8, 11), (0, 0)], [0.5, 0.4, 0.1], 1.0)
    second = n_best([(4, 7), (8, 11), (0, 0)], [0.5, 0.3, 0.2], 2.0)
    averaged = average_answers(questions, [first, second])
    assert averaged.answers == ["Bob"]
    assert averaged.n_best.offsets[0, 0].tolist() == [8, 11]
    np.testing.assert_allclose(averaged.n_best.probabilities[0], [0.35, 0.25, 0.25], atol=1e-6)
    np.testing.assert_allclose(averaged.n_best.logits[0, 0], [np.log(0.4 * 0.3) / 2, 0], atol=1e-6)
    assert averaged.null_odds[0] == pytest.approx(np.log(0.15 / 0.35))
    assert averaged.null_threshold == 1.5


def test_averaged_lists_are_as_long_as_the_longest():
    questions = Questions(["q"], ["who?"], ["Eve", "Ada met Bob"], np.array([1]))
    first = n_best([(0, 3), (8, 11), (0, 0)], [0.5, 0.4, 0.1], 0.0)
    averaged = average_answers(questions, [first, n_best([(4, 7)], [1.0], 0.0)])
    assert averaged.answers == ["met"]
    assert averaged.n_best.counts.tolist() == [3]
    assert averaged.n_best.offsets[0].tolist() == [[4, 7], [0, 3], [8, 11]]
    np.testing.assert_allclose(averaged.n_best.probabilities[0], [0.5, 0.25, 0.2], atol=1e-6)


def test_a_question_without_any_span_has_no_answer_in_the_average():
    questions = Questions(["q"], ["who?"], [" "], np.array([0]))
    averaged = average_answers(questions, [n_best([(0, 0)], [1.0], 0.5)] * 2)
    assert (averaged.answers, averaged.null_odds.tolist()) == ([""], [NO_SPAN_NULL_ODDS])


@pytest.mark.usefixtures("unverified")
def test_temperatures_and_thresholds_count(tmp_path):
    """Each model's probabilities are scaled by its temperature; thresholds are averaged by label."""
    task, examples = TASKS["multi-label"]
    paths = [
        save_small(tmp_path / "one", "multi-label", temperature=2.0, decision_thresholds=(0.3, 0.5, 0.7)),
        save_other(
            tmp_path / "two",
            "multi-label",
            labels=LABELS[::-1],
            temperature=0.5,
            decision_thresholds=(0.1, 0.5, 0.5),
        ),
    ]
    models = load_ensemble(task, paths, "cpu")
    one, two = (
        compute_logits(model.engine, model.task.encode(examples, model.tokenizer, 128)).astype(float)
        for model in models
    )
    mean = (1 / (1 + np.exp(-one / 2)) + 1 / (1 + np.exp(-two[:, ::-1] / 0.5))) / 2
    assert np.array_equal(predict_ensemble(models, examples), mean > [0.4, 0.5, 0.4])


@pytest.mark.usefixtures("unverified")
@pytest.mark.parametrize("tuned", ["both", "first", "second"])
def test_thresholds_of_two_classes_are_averaged_by_class(tmp_path, monkeypatch, tuned):
    """The second model has the classes in the other order. Without a threshold, it is 0.5."""
    two_classes = (lambda: ClassificationModel(CONFIG, 2), ("bad", "good"), {})
    monkeypatch.setitem(MODELS, "two classes", two_classes)
    paths = [
        save_small(tmp_path / "one", "two classes", temperature=2.0),
        save_other(tmp_path / "two", "two classes", temperature=0.5, labels=("good", "bad")),
    ]
    models = load_ensemble(CustomClassification(), paths, "cpu")
    one, two = (
        scipy.special.softmax(
            compute_logits(model.engine, model.task.encode(TEXTS, model.tokenizer, 128)) / temperature, axis=1
        )
        for model, temperature in zip(models, (2.0, 0.5), strict=True)
    )
    is_good = (one[:, 1] + two[:, 0]) / 2
    limit = np.median(is_good)  # of an even number of texts
    rest = 2 * limit - 0.5
    thresholds = {"both": (limit - 0.1, limit + 0.1), "first": (rest, None), "second": (None, rest)}
    first, second = thresholds[tuned]  # of the class "good"
    for i, threshold in enumerate((first, second and 1 - second)):  # of each model's second class
        task = replace(models[i].task, decision_thresholds=None if threshold is None else (threshold,))
        models[i] = models[i]._replace(task=task)
    assert predict_ensemble(models, TEXTS).tolist() == (is_good > limit).astype(int).tolist()
