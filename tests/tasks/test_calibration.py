"""ECE and temperature against their definitions."""

import tracemalloc

import numpy as np
import pytest
import scipy.optimize
import scipy.special
from tests.tasks.test_classification import MULTILABEL, REGRESSION, SINGLE, examples

from bertie.base.errors import SettingsError
from bertie.tasks import probabilities
from bertie.tasks.calibration import describe_limit, fit_temperature, measure_calibration


def draw(count: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Logits whose softmax is the true distribution of the gold classes."""
    random = np.random.default_rng(0)
    logits = random.normal(0, 1.5, (count, classes))
    cumulative = scipy.special.softmax(logits, axis=1).cumsum(axis=1)
    gold = (random.random((count, 1)) > cumulative).sum(axis=1)
    return logits.astype(np.float32), np.minimum(gold, classes - 1)


def reference_ece(probabilities: np.ndarray, gold: np.ndarray) -> float:
    """Equation 3 of Guo et al., bin by bin."""
    confidence, correct = probabilities.max(axis=1), probabilities.argmax(axis=1) == gold
    error = 0.0
    for m in range(15):
        inside = (confidence > m / 15) & (confidence <= (m + 1) / 15)
        if inside.any():
            error += inside.mean() * abs(correct[inside].mean() - confidence[inside].mean())
    return 100 * error


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("factor", [0.5, 1, 4])
def test_ece_is_that_of_the_definition(classes, factor):
    logits, gold = draw(500, classes)
    logits = factor * logits.astype(np.float64)
    measured = measure_calibration(logits, gold, 2.0)
    assert measured.raw.error == pytest.approx(reference_ece(scipy.special.softmax(logits, 1), gold))
    assert measured.scaled.error == pytest.approx(reference_ece(scipy.special.softmax(logits / 2, 1), gold))
    assert measured.raw.counts.sum() == 500
    assert len(measured.raw.counts) <= 15
    errors = {"temperature": 2.0, "ece": measured.raw.error, "ece_scaled": measured.scaled.error}
    assert measured.as_json() == errors


def test_bins_have_mean_confidences_and_accuracies():
    """Two predictions with a probability of 0.9, of which one is right, and a right one with 0.6."""
    logits = np.log(np.array([[0.9, 0.1], [0.1, 0.9], [0.4, 0.6]]))
    bins = measure_calibration(logits, np.array([0, 0, 1]), 1.0).raw
    assert bins.confidences == pytest.approx([0.6, 0.9])
    assert bins.accuracies.tolist() == [1, 0.5]
    assert bins.counts.tolist() == [1, 2]


@pytest.mark.parametrize("factor", [0.5, 1, 4])
def test_temperature_minimizes_the_cross_entropy(factor):
    logits, gold = draw(2000, 3)
    logits = factor * logits

    def cross_entropy(temperature: float) -> float:
        return -scipy.special.log_softmax(logits / temperature, axis=1)[np.arange(2000), gold].mean()

    expected = scipy.optimize.minimize_scalar(cross_entropy, bounds=(0.1, 10), method="bounded")
    assert fit_temperature(logits, gold) == pytest.approx(expected.x, rel=1e-3)
    assert fit_temperature(logits, gold) == pytest.approx(factor, rel=0.1)


@pytest.mark.parametrize("factor", [0.2, 1, 5])
def test_two_classes_have_the_temperature_of_three_of_which_one_is_impossible(factor):
    """Two classes are computed in another way."""
    logits, gold = draw(2000, 2)
    logits = factor * logits
    three = np.pad(logits, [(0, 0), (0, 1)], constant_values=-1e6)
    assert fit_temperature(logits, gold) == pytest.approx(fit_temperature(three, gold), rel=1e-10)


def test_thousands_of_classes_need_little_memory(monkeypatch):
    logits, gold = draw(400, 2000)
    expected = fit_temperature(logits, gold), measure_calibration(logits, gold, 2.0)
    monkeypatch.setattr(probabilities, "BLOCK_LOGITS", 20_000)
    tracemalloc.start()
    assert fit_temperature(logits, gold) == pytest.approx(expected[0], rel=1e-9)
    measured = measure_calibration(logits, gold, 2.0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (measured.raw.error, measured.scaled.error) == (expected[1].raw.error, expected[1].scaled.error)
    assert peak < logits.nbytes / 4


def test_temperature_of_a_perfect_model_is_finite():
    logits, gold = np.array([[3.0, 0], [0, 2]], np.float32), np.array([0, 1])
    assert fit_temperature(logits, gold) == pytest.approx(0.05)
    assert fit_temperature(logits, 1 - gold) == pytest.approx(20)
    assert measure_calibration(1e6 * logits, gold, 0.05).scaled.error == 0


def test_only_a_temperature_at_a_limit_is_reported():
    logits, gold = np.array([[3.0, 0], [0, 2]], np.float32), np.array([0, 1])
    lowest, highest = fit_temperature(logits, gold), fit_temperature(logits, 1 - gold)
    assert "the temperature 0.05 is the lower limit of its range, so nearly all" in describe_limit(lowest)
    assert "the temperature 20 is the upper limit of its range, so the labels" in describe_limit(highest)
    assert describe_limit(0.06) is describe_limit(1) is describe_limit(19) is None


def test_calibration_changes_probabilities_and_no_prediction():
    logits, gold = draw(400, 3)
    logits = 3 * logits
    dev = examples([SINGLE.labels[i] for i in gold])
    tuned = SINGLE.with_calibration().tuned(dev, None, logits)
    assert tuned.applied_temperature == pytest.approx(3, rel=0.2)
    assert (tuned.decode(dev, None, logits) == SINGLE.decode(dev, None, logits)).all()
    expected = scipy.special.softmax(logits / tuned.temperature, axis=1).max(axis=1)
    assert tuned.confidence(dev, None, logits) == pytest.approx(expected)
    measured = tuned.calibration(dev, None, logits)
    assert measured.as_json()["temperature"] == tuned.temperature
    assert measured.scaled.error < 8 < measured.raw.error
    without = SINGLE.tuned(dev, None, logits)
    assert without.applied_temperature is None
    assert (without.confidence(dev, None, logits) == SINGLE.confidence(dev, None, logits)).all()
    assert without.calibration(dev, None, logits).as_json() == measured.as_json()


def test_several_labels_are_decisions_about_each():
    random = np.random.default_rng(0)
    logits = random.normal(0, 2, (300, 3)).astype(np.float32)
    gold = random.random((300, 3)) < scipy.special.expit(logits)
    names = np.array(MULTILABEL.labels)
    dev = examples([tuple(names[row]) for row in gold])
    measured = MULTILABEL.tuned(dev, None, 2 * logits).calibration(dev, None, 2 * logits)
    assert measured.temperature == pytest.approx(2, rel=0.1)
    p = scipy.special.expit(2 * logits.ravel().astype(float))
    assert measured.raw.error == pytest.approx(reference_ece(np.stack([1 - p, p], 1), gold.ravel()), abs=1e-4)


def test_a_regression_has_no_calibration():
    dev = examples([1.0, 2.0])
    assert REGRESSION.calibration(dev, None, np.zeros((2, 1), np.float32)) is None
    assert REGRESSION.tuned(dev, None, np.zeros((2, 1), np.float32)) is REGRESSION
    with pytest.raises(SettingsError, match="calibrate: regression does not classify texts; leave it out"):
        REGRESSION.with_calibration()
