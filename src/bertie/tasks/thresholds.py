"""Tune decision thresholds on dev.

A label is predicted if its probability is above its threshold.
"""

from collections.abc import Callable

import numpy as np

from bertie.base.arrays import Bools, Float64s

DEFAULT_THRESHOLD = 0.5
MAX_CANDIDATES = 100  # thresholds tried for a label; each is scored on all examples


def tune_thresholds(probabilities: Float64s, score: Callable[[Bools], float]) -> tuple[float, ...]:
    """Return the threshold of each label that gives the best score.

    The labels are tuned in order, each one with the thresholds before it tuned and those after it at
    0.5. Of equally good thresholds, the one nearest to 0.5 is taken.

    Args:
        probabilities: of each label, float64 (n, L).
        score: returns the score of decisions, bool (n, L); higher is better.
    """
    thresholds = np.full(probabilities.shape[1], DEFAULT_THRESHOLD)
    decisions = probabilities > thresholds
    for label, column in enumerate(probabilities.T):
        candidates = _candidates(column)
        scores = []
        for threshold in candidates:
            decisions[:, label] = column > threshold
            scores.append(score(decisions))
        thresholds[label] = candidates[int(np.argmax(scores))]
        decisions[:, label] = column > thresholds[label]
    return tuple(thresholds.tolist())


def _candidates(probabilities: Float64s) -> Float64s:
    """Return 0.5 and thresholds between neighbouring probabilities.

    The nearest to 0.5 are first. If there are more than MAX_CANDIDATES, they are as far apart in rank.
    """
    distinct = np.unique(probabilities)
    between = (distinct[1:] + distinct[:-1]) / 2
    if len(between) > MAX_CANDIDATES:
        between = between[np.linspace(0, len(between) - 1, MAX_CANDIDATES).round().astype(np.int64)]
    candidates = np.append(DEFAULT_THRESHOLD, between)
    return candidates[np.argsort(np.abs(candidates - DEFAULT_THRESHOLD), kind="stable")]
