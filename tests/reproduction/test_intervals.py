"""Confidence intervals over seeds and examples, and p-values."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from bertie.reproduction.example_scores import deviations, score_of
from bertie.reproduction.intervals import (
    LEVEL,
    adjust_p_values,
    confidence_interval,
    prior_variance,
    shared_error,
    student_t_cdf,
)


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 9, 14])
def test_student_t_equals_scipy(degrees):
    t = np.linspace(-40, 40, 999)
    assert student_t_cdf(t, degrees) == pytest.approx(stats.t.cdf(t, degrees), abs=1e-12)


@settings(max_examples=40)
@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=9).filter(lambda values: np.std(values) > 1))
def test_interval_over_seeds_equals_scipy(values):
    interval = confidence_interval(values)
    low, high = stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))
    assert (interval.mean, interval.half_width) == pytest.approx(
        ((low + high) / 2, (high - low) / 2), rel=1e-5
    )
    assert interval.p_value == pytest.approx(stats.ttest_1samp(values, 0).pvalue, abs=1e-9)


def test_interval_over_examples_is_normal_where_seeds_agree():
    """The errors of seeds are tiny, so only the examples matter."""
    rng = np.random.default_rng(0)
    of_examples = rng.normal(0, 10, 2000)
    of_examples -= of_examples.mean()
    interval = confidence_interval([1.0, 1.001, 1.002], np.tile(of_examples, (3, 1)))
    assert interval.half_width == pytest.approx(1.96 * 10 / np.sqrt(2000), rel=0.03)
    assert interval.p_value == pytest.approx(2 * stats.norm.sf(1.001 / stats.sem(of_examples)), rel=0.15)


@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize(("seed_sd", "example_sd"), [(1.0, 0.0), (0.5, 15.0), (0.05, 30.0)])
def test_interval_covers_the_truth_in_95_percent(seeds, seed_sd, example_sd):
    """The noise of an example, 20, comes on top of what seeds and examples share."""
    rng = np.random.default_rng(seeds)
    covered = []
    for _ in range(200):
        scores = rng.normal(0, seed_sd, (seeds, 1)) + rng.normal(0, example_sd, 400)
        scores = scores + rng.normal(0, 20, (seeds, 400))
        values = scores.mean(axis=1)
        mean, half_width, _, _ = confidence_interval(values.tolist(), scores - values[:, None])
        covered.append(abs(mean) <= half_width)
    assert np.mean(covered) >= 0.91


def test_shared_error_of_independent_seeds_is_small():
    """Noise that differs between seeds is in the seeds' own part."""
    rng = np.random.default_rng(0)
    noise, shared = rng.normal(0, 10, (5, 4000)), rng.normal(0, 3, 4000)
    assert shared_error(noise) < 0.03
    assert shared_error(noise + shared) == pytest.approx(3 / np.sqrt(4000), rel=0.15)


@pytest.mark.parametrize("outcome", ["task/dev/accuracy", "ner/dev/f1"])
def test_deviations_give_the_error_of_a_bootstrap(outcome):
    rng = np.random.default_rng(0)
    gold = rng.poisson(1.5, 3000)
    matched = rng.binomial(gold, 0.6)
    scores = np.stack([matched, matched + rng.poisson(0.4, 3000), gold], axis=1)
    if outcome.endswith("accuracy"):
        scores = scores[:, :1] > 0
    resampled = [score_of(outcome, scores[rng.integers(0, 3000, 3000)]) for _ in range(400)]
    moved = deviations(outcome, scores)
    assert moved.mean() == pytest.approx(0, abs=1e-9)
    assert moved.std() / np.sqrt(3000) == pytest.approx(np.std(resampled), rel=0.2)


def test_holm_equals_a_hand_computed_example():
    # 4 · 0.005; 3 · 0.01; 2 · 0.03; then 0.04, which may not be below the one before it
    assert adjust_p_values([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert adjust_p_values([0.6, 0.7]) == [1.0, 1.0]
    assert adjust_p_values([]) == []


def test_holm_rejects_falsely_in_5_percent_of_tables():
    rng = np.random.default_rng(0)
    rejected = [min(adjust_p_values(rng.random(20).tolist())) <= 0.05 for _ in range(2000)]
    assert np.mean(rejected) == pytest.approx(0.05, abs=0.015)


def test_prior_variance_recovers_the_parameter():
    """The variances are drawn as in Smyth's model, with one degree of freedom."""
    random = np.random.default_rng(0)
    variances = 9 / random.chisquare(1, 8000)
    samples = random.normal(size=(8000, 3)) * np.sqrt(variances)[:, None]
    assert prior_variance(samples.tolist()) == pytest.approx(9, rel=0.05)


def test_too_few_differences_have_no_prior_variance():
    assert prior_variance([[1.0, 2.0, 3.0], [1.0, 3.0, 9.0]]) is None
    # Two seeds, and equal differences, say too little about the spread.
    assert prior_variance([[1.0, 2.0, 3.0], [1.0, 3.0, 9.0], [4.0, 5.0], [2.0, 2.0, 2.0]]) is None
    assert prior_variance([[1.0, 2.0, 3.0], [1.0, 3.0, 9.0], [4.0, 5.0, 6.0]]) is not None


def test_an_interval_with_a_prior_variance_is_a_moderated_t():
    values = [1.0, 2.0, 4.0]
    interval = confidence_interval(values, prior=9.0)
    error = np.sqrt((9 + 2 * np.var(values, ddof=1)) / 3 / 3)
    assert interval.p_value == pytest.approx(2 * stats.t.sf(np.mean(values) / error, 3), abs=1e-5)
    assert interval.half_width == pytest.approx(stats.t.ppf(0.975, 3) * error, rel=1e-4)


def test_two_seeds_are_judged_by_their_own_spread():
    assert confidence_interval([1.0, 2.0], prior=9.0) == confidence_interval([1.0, 2.0])


@pytest.mark.parametrize(
    "spreads", [[1] * 9, [2] * 3 + [0.3] * 6, [1] * 7 + [4] * 2], ids=["equal", "3 larger", "2 larger"]
)
@pytest.mark.parametrize("tables", [15, pytest.param(200, marks=pytest.mark.slow)])
def test_three_seeds_find_large_differences_and_few_false_ones(spreads, tables):
    """The true differences are 0 or 8 standard errors."""

    def adjusted(differences, prior):
        return np.array(
            adjust_p_values([confidence_interval(values, prior=prior).p_value for values in differences])
        )

    random = np.random.default_rng(0)
    false, found, found_alone = 0, [], []
    for _ in range(tables):
        samples = random.normal(size=(9, 3)) * np.array(spreads)[:, None]
        for shift in (0.0, 8.0):
            moved = (samples + shift * np.array(spreads)[:, None] / np.sqrt(3)).tolist()
            p_values = adjusted(moved, prior_variance(moved))
            if shift:
                found.append(np.mean(p_values <= LEVEL))
                found_alone.append(np.mean(adjusted(moved, None) <= LEVEL))
            else:
                false += min(p_values) <= LEVEL
    assert false <= 0.09 * tables
    assert np.mean(found) > 0.9
    assert np.mean(found_alone) < 0.6
