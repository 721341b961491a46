"""Decision thresholds give dev predictions the best score."""

from dataclasses import replace

import numpy as np
import pytest
import sklearn.metrics
from tests.tasks.test_classification import MULTILABEL, REGRESSION, SINGLE, examples

from bertie.base.errors import SettingsError
from bertie.inference.labels import rank_labels
from bertie.model.formats.directory import ModelMetadata
from bertie.tasks.probabilities import label_probabilities
from bertie.tasks.registry import find_task
from bertie.tasks.thresholds import DEFAULT_THRESHOLD, MAX_CANDIDATES, tune_thresholds

TWO = replace(SINGLE, labels=("no", "yes"), main_metric="f1_macro")


def draw(count: int, fraction: float) -> tuple[np.ndarray, np.ndarray]:
    """Logits (count, 2) of an underconfident model, and gold classes, of which a fraction is 1."""
    random = np.random.default_rng(0)
    gold = (random.random(count) < fraction).astype(np.int64)
    logits = np.stack([np.zeros(count), random.normal(2 * gold - 3, 1)], axis=1)
    return logits.astype(np.float32), gold


def test_a_threshold_takes_the_labels_before_into_account():
    probabilities = np.array([[0.3, 0.1], [0.4, 0.4], [0.1, 0.1]])
    gold = np.array([[True, False], [True, True], [False, False]])
    exact_matches = lambda decisions: (decisions == gold).all(axis=1).sum()  # noqa: E731
    assert tune_thresholds(probabilities, exact_matches) == pytest.approx((0.2, 0.25))


def test_the_nearest_of_equally_good_thresholds_is_taken():
    probabilities = np.array([[0.1], [0.2], [0.6], [0.9]])  # thresholds are 0.15, 0.4, 0.5 and 0.75
    assert tune_thresholds(probabilities, lambda decisions: 0.0) == (0.5,)
    few = lambda decisions: float(decisions.sum() in (1, 3))  # noqa: E731
    assert tune_thresholds(probabilities, few) == pytest.approx((0.75,))


def test_no_other_threshold_of_two_classes_is_better():
    logits, gold = draw(80, 0.2)
    dev = examples([TWO.labels[i] for i in gold])
    task = TWO.with_thresholds().tuned(dev, None, logits)
    predictions = task.decode(dev, None, logits)
    probabilities = 1 / (1 + np.exp(-logits[:, 1].astype(float)))
    best = max(
        sklearn.metrics.f1_score(gold, probabilities > limit, average="macro")
        for limit in np.concatenate([probabilities, [0]])
    )
    assert TWO.score(dev, predictions)["f1_macro"] == pytest.approx(100 * best)
    assert TWO.score(dev, predictions) != TWO.score(dev, TWO.decode(dev, None, logits))
    (limit,) = task.decision_thresholds
    assert (predictions == (probabilities > limit)).all()
    confidence = task.confidence(dev, None, logits)
    assert confidence == pytest.approx(np.where(predictions, probabilities, 1 - probabilities))
    assert (confidence < 0.5).any()


def test_thresholds_maximize_the_main_metric():
    logits, gold = draw(300, 0.1)
    dev = examples([TWO.labels[i] for i in gold])
    limits = {}
    for metric in ("accuracy", "f1_macro"):
        task = replace(TWO, main_metric=metric).with_thresholds().tuned(dev, None, logits)
        limits[metric] = task.decision_thresholds
        scores = TWO.score(dev, task.decode(dev, None, logits))
        assert scores[metric] >= TWO.score(dev, TWO.decode(dev, None, logits))[metric]
    assert limits["accuracy"] != limits["f1_macro"]


def test_each_of_several_labels_has_a_threshold():
    random = np.random.default_rng(1)
    gold = random.random((200, 3)) < [0.5, 0.1, 0.02]
    logits = random.normal(2 * gold - np.array([1, 2, 4]), 1).astype(np.float32)
    names = np.array(MULTILABEL.labels)
    dev = examples([tuple(names[row]) for row in gold])
    task = MULTILABEL.with_thresholds()
    assert task.decision_thresholds == (0.5, 0.5, 0.5)
    assert (task.decode(dev, None, logits) == MULTILABEL.decode(dev, None, logits)).all()
    tuned = task.tuned(dev, None, logits)
    predictions = tuned.decode(dev, None, logits)
    assert (
        MULTILABEL.score(dev, predictions)["f1_micro"]
        > 1 + MULTILABEL.score(dev, MULTILABEL.decode(dev, None, logits))["f1_micro"]
    )
    probabilities = 1 / (1 + np.exp(-logits.astype(float)))
    assert (predictions == (probabilities > tuned.decision_thresholds)).all()
    assert tuned.decision_thresholds[2] < tuned.decision_thresholds[0]
    decided = np.where(predictions, probabilities, 1 - probabilities)
    assert tuned.confidence(dev, None, logits) == pytest.approx(decided.prod(axis=1))


def test_a_threshold_that_changes_nothing_stays():
    probabilities = np.array([[0.1], [0.2], [0.9]])
    gold = np.array([False, False, True])
    assert tune_thresholds(probabilities, lambda d: float((d[:, 0] == gold).mean())) == (DEFAULT_THRESHOLD,)
    calls = []
    many = np.linspace(0, 1, 5000)[:, None]
    tune_thresholds(many, lambda d: calls.append(d) or 0.0)
    assert len(calls) == MAX_CANDIDATES + 1


def test_a_probability_at_its_threshold_is_not_above_it():
    logits = np.zeros((1, 3), np.float32)  # probabilities of 0.5
    assert not MULTILABEL.with_thresholds().decode(None, None, logits).any()
    assert TWO.with_thresholds().decode(None, None, logits[:, :2]).tolist() == [0]


def test_thresholds_fit_the_probabilities_after_the_temperature():
    logits, gold = draw(200, 0.2)
    logits *= 4
    dev = examples([TWO.labels[i] for i in gold])
    task = TWO.with_thresholds().with_calibration().tuned(dev, None, logits)
    assert task.temperature > 2
    predicted = task.decode(dev, None, logits)
    assert (predicted == TWO.with_thresholds().tuned(dev, None, logits).decode(dev, None, logits)).all()
    assert (predicted != TWO.decode(dev, None, logits)).any()


def test_thresholds_are_only_tuned_when_asked():
    logits, gold = draw(80, 0.2)
    dev = examples([TWO.labels[i] for i in gold])
    assert TWO.tuned(dev, None, logits).decision_thresholds is None
    assert find_task("squad-v2").with_thresholds() == find_task("squad-v2")  # always tunes its own
    for task in (SINGLE, REGRESSION, find_task("squad-v1"), find_task("mnli"), find_task("swag")):
        with pytest.raises(SettingsError, match=f"tune_threshold: {task.name} decides without a threshold"):
            task.with_thresholds()


def test_a_task_takes_the_thresholds_of_its_model():
    metadata = ModelMetadata(None, "", ("yes", "no"), None, decision_thresholds=(0.75,), temperature=2.0)
    task = TWO.fitted_to_model(metadata)
    assert (task.labels, task.decision_thresholds) == (("yes", "no"), (0.75,))
    logits = 2 * np.log(np.array([[0.3, 0.7], [0.2, 0.8]], dtype=np.float32))  # before the temperature
    assert task.decode(examples(["yes"], 2), None, logits).tolist() == [0, 1]
    assert task.confidence(examples(["yes"], 2), None, logits) == pytest.approx([0.3, 0.8])


def test_evaluation_and_prediction_decide_alike():
    """Logits that are neighbours in float32 are often equal after a division in float32."""
    column = [np.float32(1)]
    for _ in range(20):
        column.append(np.nextafter(column[-1], np.float32(2)))
    logits = np.stack([np.zeros(len(column), np.float32), np.array(column)], axis=1)
    probabilities = label_probabilities(logits, False, 1.7)[:, 1]
    for limit in ((probabilities[1:] + probabilities[:-1]) / 2).tolist():
        task = replace(TWO, decision_thresholds=(limit,), temperature=1.7, is_calibrated=True)
        metadata = ModelMetadata(None, "", TWO.labels, None, decision_thresholds=(limit,), temperature=1.7)
        ranked = [labels[0].label for labels in rank_labels(logits, metadata, None)]
        assert ranked == [TWO.labels[i] for i in task.decode(None, None, logits)]
