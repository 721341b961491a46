"""Scores against scikit-learn's and scipy's, and what they are where those say nothing."""

import warnings

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bertie.tasks import metrics

# Few examples and few classes: those that nobody has or predicts, and 0 / 0, come up often.
counts = st.integers(1, 12)
classes = counts.flatmap(lambda n: st.tuples(*[arrays(np.int64, n, elements=st.integers(0, 3))] * 2))
two_classes = counts.flatmap(lambda n: st.tuples(*[arrays(np.int64, n, elements=st.integers(0, 1))] * 2))
several = counts.flatmap(lambda n: st.tuples(*[arrays(np.bool_, (n, 3))] * 2))
# Hundredths: many ties, and no differences that vanish beside the numbers themselves.
numbers = st.integers(1, 40).flatmap(
    lambda n: st.tuples(*[arrays(np.int64, n, elements=st.integers(-500, 500))] * 2)
)


@given(classes)
def test_accuracy_and_macro_f1_of_one_label(answers):
    gold, predicted = answers
    assert metrics.accuracy(gold, predicted) == sklearn.metrics.accuracy_score(gold, predicted)
    expected = sklearn.metrics.f1_score(gold, predicted, average="macro", zero_division=0)
    assert metrics.f1_macro(gold, predicted) == pytest.approx(expected)


@given(two_classes)
def test_f1_of_a_class(answers):
    expected = sklearn.metrics.f1_score(*answers, zero_division=0)
    assert metrics.f1(*(numbers == 1 for numbers in answers)) == pytest.approx(expected)


@given(several)
def test_several_labels(answers):
    gold, predicted = answers
    assert metrics.accuracy(gold, predicted) == sklearn.metrics.accuracy_score(gold, predicted)
    for average, ours in (("micro", metrics.f1), ("macro", metrics.f1_macro)):
        expected = sklearn.metrics.f1_score(gold, predicted, average=average, zero_division=0)
        assert ours(gold, predicted) == pytest.approx(expected)


@given(st.one_of(classes, several))
def test_scores_by_label(answers):
    gold, predicted = answers
    labels = 4 if gold.ndim == 1 else 3
    expected = sklearn.metrics.precision_recall_fscore_support(
        gold, predicted, labels=range(labels), zero_division=0
    )
    for ours, theirs in zip(metrics.label_scores(gold, predicted, labels), expected, strict=True):
        np.testing.assert_allclose(ours, theirs)


@given(st.one_of(classes, two_classes))
def test_matthews_correlation(answers):
    gold, predicted = answers
    with warnings.catch_warnings(action="ignore"):  # of a single class
        expected = sklearn.metrics.matthews_corrcoef(gold, predicted)
    assert metrics.matthews_correlation(gold, predicted) == pytest.approx(expected, abs=1e-12)


def test_matthews_correlation_of_as_many_examples_as_qqp_has():
    random = np.random.default_rng(0)
    gold = random.integers(0, 2, 400_000)
    predicted = np.where(random.random(400_000) < 0.9, gold, 1 - gold)
    expected = sklearn.metrics.matthews_corrcoef(gold, predicted)
    assert metrics.matthews_correlation(gold, predicted) == pytest.approx(expected, rel=1e-12)


@given(numbers)
def test_correlations(answers):
    gold, predicted = (whole / 100 for whole in answers)
    if min(len(set(gold)), len(set(predicted))) < 2:
        assert metrics.pearson(gold, predicted) == metrics.spearman(gold, predicted) == 0
        return
    expected = scipy.stats.pearsonr(gold, predicted).statistic
    assert metrics.pearson(gold, predicted) == pytest.approx(expected, abs=1e-12)
    expected = scipy.stats.spearmanr(gold, predicted).statistic
    assert metrics.spearman(gold, predicted) == pytest.approx(expected, abs=1e-12)


def test_a_constant_correlates_with_nothing_though_its_mean_is_rounded():
    constant = np.full(3, 0.1)
    assert constant.mean() != 0.1
    assert metrics.pearson(constant, np.array([1.0, 2.0, 3.0])) == 0


@given(classes)
def test_confusion_matrix(answers):
    gold, predicted = answers
    expected = sklearn.metrics.confusion_matrix(gold, predicted, labels=range(4))
    assert (metrics.confusion_matrix(gold, predicted, classes=4) == expected).all()
