"""Confidence intervals of mean scores over seeds and dev examples.

A row's score varies for two reasons: another seed would give another model, and another dev set
other examples. All seeds are scored on the same examples, so averaging over seeds removes only the
first kind of variation. The error of the mean over n seeds is therefore modelled as

    s / √n · T + e · Z

where s is the standard deviation of the scores of single seeds, T has Student's t distribution with
n - 1 degrees of freedom or more, Z is a standard normal variable, and e² is the variance that the seeds
share: the mean covariance, between two seeds, of the examples' contributions to the scores,
divided by the number of examples. The two terms do not count anything twice, because the noise that
differs between seeds is in s only. Without scores of examples, e is 0, and this is the t interval.

A plain bootstrap that resamples seeds and examples is too narrow with few seeds: see
docs/decisions/verdicts.md for the coverage of both.

With few seeds, s is uncertain itself. The differences of a table have similar spreads, so s² can be averaged
with a prior variance that follows from all of them, which then counts as one more degree of freedom (the
moderated t statistic; Smyth, 2004, doi:10.2202/1544-6115.1027, Sections 3 and 6).
"""

import math
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from bertie.base.arrays import Float64s

LEVEL = 0.05  # of all tests; intervals have the confidence 1 - LEVEL
# Scores in percent differ by rounding errors below this; real differences are larger.
ROUNDING_ERROR = 1e-9
# Integration over the normal variable: at this step, p-values are exact to five digits.
NORMAL_GRID = np.linspace(-8.0, 8.0, 801)
NORMAL_WEIGHTS = np.exp(-(NORMAL_GRID**2) / 2) / np.exp(-(NORMAL_GRID**2) / 2).sum()
BISECTIONS = 30


# Smyth estimates these degrees of freedom, too. With so few seeds and orderings, this gave too many false
# verdicts (docs/decisions/verdicts.md).
PRIOR_DEGREES = 1
MIN_SEEDS = 3  # of a difference to which the prior variance applies; two gave even more false verdicts
MIN_DIFFERENCES = 3  # from which a prior variance can be estimated


class ConfidenceInterval(NamedTuple):
    """The mean over n seeds and its 95 % confidence interval, mean ± half_width.

    Attributes:
        mean: the mean over the seeds.
        half_width: half of the interval's width; infinite for one seed.
        n: the number of seeds.
        p_value: two-sided, of the hypothesis that the true mean is 0.
    """

    mean: float
    half_width: float
    n: int
    p_value: float


def prior_variance(samples: Sequence[Sequence[float]]) -> float | None:
    """Estimate the prior variance of the differences of a table.

    The method is in Smyth, 2004, Section 6.2. The true variances are taken as draws from a scaled inverse
    chi-square distribution with PRIOR_DEGREES degrees of freedom. Its scale follows from the mean of the
    logarithms of the observed variances.

    Args:
        samples: the differences, each with its values by seed.

    Returns:
        The prior variance; None if too few differences have enough seeds.
    """
    found = [
        (len(values) - 1, statistics.variance(values))
        for values in samples
        if len(values) >= MIN_SEEDS and statistics.stdev(values) / math.sqrt(len(values)) >= ROUNDING_ERROR
    ]
    if len(found) < MIN_DIFFERENCES:
        return None
    halves = torch.tensor([PRIOR_DEGREES / 2] + [degrees / 2 for degrees, _ in found], dtype=torch.float64)
    # The expected logarithm of a mean of so many squared normal variables.
    bias = halves.digamma() - halves.log()
    logs = torch.tensor([variance for _, variance in found], dtype=torch.float64).log()
    return math.exp((logs - bias[1:]).mean() + bias[0])


def confidence_interval(
    values: Sequence[float], deviations: Float64s | None = None, prior: float | None = None
) -> ConfidenceInterval:
    """Return the 95 % interval of the mean over seeds.

    Args:
        values: the score, or the difference of two scores, of each of n seeds.
        deviations: float64 (n, examples), the contribution of each example to each value; see
            `example_scores.deviations`. None if only seeds vary.
        prior: the prior variance of the differences of the table, which applies to MIN_SEEDS values or more.
    """
    n, mean = len(values), statistics.fmean(values)
    if n == 1:
        return ConfidenceInterval(mean, math.inf, n, 1.0)
    own = statistics.variance(values)
    if math.sqrt(own / n) < ROUNDING_ERROR:
        # Models that predict one class for every example have equal scores; that is no evidence.
        return ConfidenceInterval(mean, 0.0, n, 1.0)
    degrees, variance = n - 1, own
    if prior is not None and n >= MIN_SEEDS:
        degrees = n - 1 + PRIOR_DEGREES
        variance = ((n - 1) * own + PRIOR_DEGREES * prior) / degrees
    seed_error = math.sqrt(variance / n)
    # In units of the seed error from here on.
    example_error = shared_error(deviations) / seed_error if deviations is not None else 0.0
    high = 1.0
    while _two_sided_p(high, example_error, degrees) > LEVEL:
        high *= 2
    low = 0.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if _two_sided_p(middle, example_error, degrees) > LEVEL:
            low = middle
        else:
            high = middle
    p_value = _two_sided_p(abs(mean) / seed_error, example_error, degrees)
    return ConfidenceInterval(mean, high * seed_error, n, p_value)


def shared_error(deviations: Float64s) -> float:
    """Return the standard error that seeds share because they have the same examples.

    Args:
        deviations: float64 (seeds, examples), for two seeds or more.
    """
    n, num_examples = deviations.shape
    if num_examples < 2:
        return 0.0
    of_mean = deviations.mean(axis=0).var(ddof=1)
    of_seeds = deviations.var(axis=1, ddof=1).mean()
    covariance = (n * of_mean - of_seeds) / (n - 1)  # mean over pairs of different seeds
    return math.sqrt(max(float(covariance), 0.0) / num_examples)


def adjust_p_values(p_values: Sequence[float]) -> list[float]:
    """Return Holm's adjusted p-values.

    With a level of 5 %, the probability of any false rejection is at most 5 %.
    """
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = highest
    return adjusted


def student_t_cdf(t: npt.ArrayLike, degrees: int) -> Float64s:
    """Return the distribution function of Student's t.

    See Abramowitz and Stegun, 26.7.3 and 26.7.4.
    """
    angle = np.arctan(np.asarray(t, np.float64) / math.sqrt(degrees))
    sine, cosine = np.sin(angle), np.cos(angle)
    odd = degrees % 2
    term = cosine if odd else np.ones_like(cosine)
    series = term if degrees > 1 else np.zeros_like(cosine)
    for i in range(2 + odd, degrees - 1, 2):
        term = term * (i - 1) / i * cosine**2
        series = series + term
    within: Any = 2 / math.pi * (angle + sine * series) if odd else sine * series
    return np.asarray((1 + within) / 2)


def _two_sided_p(distance: float, example_error: float, degrees: int) -> float:
    """Return the probability that |T + example_error · Z| is above `distance`."""
    tail = student_t_cdf(-distance - example_error * NORMAL_GRID, degrees)
    return min(1.0, 2.0 * float(NORMAL_WEIGHTS @ tail))
