"""Measure how well probabilities of predictions agree with their accuracy.

Guo et al., "On Calibration of Modern Neural Networks" (arXiv:1706.04599).
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bertie.base.arrays import Float64s, Int64s
from bertie.tasks.metrics import percent
from bertie.tasks.probabilities import blocks, chosen_softmax, sigmoid, softmax

NUM_BINS = 15
LOWEST_TEMPERATURE, HIGHEST_TEMPERATURE = 0.05, 20.0  # a perfect dev part has no finite best temperature
STEPS = 40  # of the bisection, which halves the logarithm's range of 6


class Reliability(NamedTuple):
    """Confidence and accuracy of predictions in bins of confidence of equal width.

    Of the NUM_BINS bins, those without predictions are left out.

    confidences  float64 (B,)  mean probability of the predictions in each bin
    accuracies   float64 (B,)  fraction of them that is correct
    counts       int64 (B,)    their number
    """

    confidences: Float64s
    accuracies: Float64s
    counts: Int64s

    @property
    def error(self) -> float:
        """The expected calibration error (ECE), in percent."""
        gaps = np.abs(self.accuracies - self.confidences)
        return percent(float((self.counts * gaps).sum() / self.counts.sum()))


class Calibration(NamedTuple):
    """The calibration of a model on one part, before and after temperature scaling.

    temperature  the number that logits are divided by, fitted on the first dev part
    raw          without it
    scaled       with it
    """

    temperature: float
    raw: Reliability
    scaled: Reliability

    def as_json(self) -> dict[str, float]:
        """Return the temperature and the errors in percent."""
        return {"temperature": self.temperature, "ece": self.raw.error, "ece_scaled": self.scaled.error}


def measure_calibration(logits: npt.NDArray[Any], gold: Int64s, temperature: float) -> Calibration:
    """Compare the probability of the likeliest class with its accuracy, in bins.

    Args:
        logits: (n, classes).
        gold: class indices, int64 (n,).
        temperature: see `Calibration`.
    """
    return Calibration(temperature, _reliability(logits, gold), _reliability(logits, gold, temperature))


def fit_temperature(logits: npt.NDArray[Any], gold: Int64s) -> float:
    """Return the temperature that minimizes the cross-entropy of logits / temperature.

    The cross-entropy is convex in the inverse of the temperature, so the zero of its derivative is found
    by bisection.

    Args:
        logits: (n, classes).
        gold: class indices, int64 (n,).
    """
    gold_sum = logits[np.arange(len(gold)), gold].astype(np.float64).sum()
    low, high = np.log(LOWEST_TEMPERATURE), np.log(HIGHEST_TEMPERATURE)
    for _ in range(STEPS):
        middle = (low + high) / 2
        expected = sum(_sum_expected_logits(block, np.exp(middle)) for _, block in blocks(logits))
        # More than the gold classes' sum: the model is too confident.
        low, high = (middle, high) if expected > gold_sum else (low, middle)
    return float(np.exp((low + high) / 2))


def _sum_expected_logits(logits: Float64s, temperature: float) -> float:
    """Return the sum over all rows of the expected logit.

    It is weighted by the softmax of logits / temperature.
    """
    if logits.shape[1] == 2:  # 20 times as fast as `softmax`: numpy is slow at sums of two columns
        differences = logits[:, 1] - logits[:, 0]
        return float(logits[:, 0].sum() + differences @ sigmoid(differences / temperature))
    return float((softmax(logits / temperature) * logits).sum())


def describe_limit(temperature: float) -> str | None:
    """Return a warning about a fitted temperature at a limit of its range.

    Return None about others.
    """
    if np.isclose(temperature, HIGHEST_TEMPERATURE):
        return (
            f"calibrate: the temperature {temperature:g} is the upper limit of its range, so the labels of a "
            f"text have nearly equal probabilities; the logits do not fit the first dev set, as after few "
            f"steps or with class weights; train longer or leave calibrate out"
        )
    if np.isclose(temperature, LOWEST_TEMPERATURE):
        return (
            f"calibrate: the temperature {temperature:g} is the lower limit of its range, so nearly all "
            f"probabilities are 0 or 1; the first dev set has too few mistakes to fit it, so use a larger "
            f"one or leave calibrate out"
        )
    return None


def _reliability(logits: npt.NDArray[Any], gold: Int64s, temperature: float = 1.0) -> Reliability:
    predicted = logits.argmax(axis=1)
    confidence, is_correct = chosen_softmax(logits, predicted, temperature), predicted == gold
    # The bins are (0, 1/15], (1/15, 2/15], …, as in the paper.
    bins = np.ceil(confidence * NUM_BINS).astype(np.int64) - 1
    counts = np.bincount(bins, minlength=NUM_BINS)
    filled = counts > 0
    sums = (np.bincount(bins, weights, NUM_BINS)[filled] for weights in (confidence, is_correct))
    confidences, accuracies = (total / counts[filled] for total in sums)
    return Reliability(confidences, accuracies, counts[filled])
