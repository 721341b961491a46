"""Class weights: balanced as in scikit-learn, or given by label."""

import json
from dataclasses import replace

import numpy as np
import pytest
from sklearn.utils.class_weight import compute_class_weight
from tests.training.letters import LABELS, TASK, make_texts
from tests.training.runs import read_weights

from bertie.base.errors import SettingsError
from bertie.base.settings import parse_assignments, resolve
from bertie.tasks.classification import LabelledTexts
from bertie.tasks.conll import TaggedSentences
from bertie.tasks.ner import NER
from bertie.tasks.registry import find_task
from bertie.tasks.task import Inputs
from bertie.training.class_weights import check_class_weights, label_weights
from bertie.training.finetuning import finetune
from bertie.training.finetuning_settings import FinetuningSettings, training_indices

MULTILABEL = TASK.with_problem_type("multi_label_classification")


def settings(**changes: object) -> FinetuningSettings:
    return resolve(FinetuningSettings, {"epochs": 2, "max_seq_length": 32}, changes)


def inputs(labels: np.ndarray) -> Inputs:
    n = len(labels)
    return Inputs(np.zeros(n, np.int32), np.zeros(n, np.int32), np.arange(n + 1), labels)


@pytest.mark.parametrize("max_training_examples", [0, 60])
def test_balanced_weights_are_those_of_scikit_learn(max_training_examples):
    gold = np.random.default_rng(0).choice(3, 200, p=[0.7, 0.2, 0.1])
    chosen = settings(class_weights="balanced", max_training_examples=max_training_examples)
    weights = label_weights(TASK, inputs(gold), chosen)
    used = gold[training_indices(inputs(gold), chosen)]
    assert list(weights) == list(LABELS)
    expected = compute_class_weight("balanced", classes=np.arange(3), y=used)
    assert [*weights.values()] == pytest.approx(expected)
    assert np.mean([expected[i] for i in used]) == pytest.approx(1)  # so the scale of the loss stays


def test_a_label_without_examples_has_weight_1():
    weights = label_weights(TASK, inputs(np.array([0, 0, 0, 2])), settings(class_weights="balanced"))
    assert weights == {"a": pytest.approx(4 / 6), "b": 1, "c": 2}


def test_weights_may_be_numbers_of_numpy():
    chosen = settings(class_weights={"a": np.float32(2), "b": np.int64(3)})
    assert chosen.class_weights == {"a": 2.0, "b": 3.0}


def test_balanced_weights_of_several_labels_are_negatives_by_positives():
    gold = np.array([[1, 1, 0]] + [[0, 1, 0]] * 3, np.float32)
    weights = label_weights(MULTILABEL, inputs(gold), settings(class_weights="balanced"))
    assert weights == {"a": 3, "b": 1, "c": 1}
    weights = label_weights(MULTILABEL, inputs(1 - gold), settings(class_weights="balanced"))
    assert weights == {"a": pytest.approx(1 / 3), "b": 1, "c": 1}


def test_balanced_weights_of_tags_count_words(initial_model):
    sentences = TaggedSentences.from_tags(
        [["a1", "b2", "c3", "a4"]] * 25, [["B-X", "O", "O", "O"]] * 25, np.arange(26)
    )
    task = NER.fitted(sentences)
    encoded = task.encode(sentences, initial_model.tokenizer, 32)
    weights = label_weights(task, encoded, settings(class_weights="balanced"))
    assert weights == {"O": pytest.approx(100 / (2 * 75)), "B-X": pytest.approx(100 / (2 * 25))}


@pytest.mark.parametrize(
    "assignments",
    [["class_weights={a = 1, c = 2.5}"], ["class_weights.a=1", "class_weights.c=2.5"]],
)
def test_weights_are_given_by_label(assignments):
    chosen = settings(**parse_assignments(assignments))
    assert label_weights(TASK, inputs(np.array([0, 1, 2])), chosen) == {"a": 1.0, "b": 1.0, "c": 2.5}
    numbers = settings(class_weights={0: 1, 1.0: 3})  # as read from a data frame
    assert numbers.class_weights == {"0": 1.0, "1": 3.0}


@pytest.mark.parametrize("labels", [("0", "1", "2.5"), ("0.0", "1.0", "2.5")])
def test_equal_numbers_are_the_same_label(labels):
    task, chosen = replace(TASK, labels=labels), settings(class_weights={"0.0": 2, "1": 3, 2.5: 4})
    check_class_weights(task, chosen)
    expected = dict(zip(labels, (2.0, 3.0, 4.0), strict=True))
    assert label_weights(task, inputs(np.array([0, 1, 2])), chosen) == expected


@pytest.mark.parametrize("value", ["balancd", [1, 2], {"a": -1}, {"a": "x"}, {"a": float("inf")}])
def test_other_weights_are_refused(value):
    with pytest.raises(SettingsError, match=r"class_weights = .*use balanced, or a weight for each label"):
        settings(class_weights=value)


def test_a_label_has_a_weight():
    none = settings(class_weights={"a": 0, "b": 0, "c": 0})
    with pytest.raises(SettingsError, match="class_weights: all labels have the weight 0"):
        label_weights(TASK, inputs(np.array([0, 1, 2])), none)


def test_weights_must_fit_the_task(initial_model, tmp_path, monkeypatch):
    texts, wrong = make_texts(0, 9), settings(class_weights={"d": 2})
    monkeypatch.setattr("bertie.training.finetuning.encode_examples", None)  # nothing is encoded before
    with pytest.raises(SettingsError, match="letters has no label 'd'; its labels are a, b, c"):
        finetune(TASK, initial_model, texts, {}, wrong, tmp_path / "run")
    assert not (tmp_path / "run/settings.toml").exists()
    hidden = replace(TASK, labels=("d\u200f", *map(str, range(99))))
    with pytest.raises(SettingsError, match=r"no label 'd'; its labels are d\\u200f, 0, .*, …$"):
        check_class_weights(hidden, wrong)
    for name in ("sts-b", "squad-v1", "swag"):
        with pytest.raises(SettingsError, match="class_weights: this task has no classes; leave it out"):
            check_class_weights(find_task(name), settings(class_weights="balanced"))


@pytest.mark.parametrize("multilabel", [False, True])
def test_weights_move_predictions_to_the_heavy_label(initial_model, tmp_path, multilabel):
    """All texts are the same, so only the weights decide; a third of them has the label."""
    labels = ["a", "b", "b"] * 20
    task = MULTILABEL if multilabel else TASK
    texts = LabelledTexts(["c1"] * 60, labels=[(label,) for label in labels] if multilabel else labels)
    counts = {}
    for weight in (1, 5):
        optimizer = {"learning_rate": 1e-2}
        chosen = settings(epochs=5, keep_best=False, class_weights={"a": weight}, optimizer=optimizer)
        run = tmp_path / str(weight)
        predictions = finetune(task, initial_model, texts, {"dev": texts}, chosen, run).predictions["dev"]
        counts[weight] = int(predictions[:, 0].sum() if multilabel else (predictions == 0).sum())
        saved = json.loads((run / "scores.json").read_text())
        assert saved["class_weights"] == {"a": weight, "b": 1, "c": 1}
        assert f"- class weights: a: {weight}, b: 1, c: 1\n" in (run / "model/README.md").read_text()
        assert not any("class_weights" in name for name in read_weights(run))
    assert counts == {1: 0, 5: 60}
