"""Metrics agree with scikit-learn and scipy, and are 0 where these are undefined."""

import warnings

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bertie.tasks import metrics

# Few examples of few classes, so that classes without gold or predicted examples, and 0 / 0, are common.
counts = st.integers(1, 12)
classes = counts.flatmap(lambda n: st.tuples(*[arrays(np.int64, n, elements=st.integers(0, 3))] * 2))
binary = counts.flatmap(lambda n: st.tuples(*[arrays(np.int64, n, elements=st.integers(0, 1))] * 2))
multilabel = counts.flatmap(lambda n: st.tuples(*[arrays(np.bool_, (n, 3))] * 2))
# Hundredths: many ties, and no differences that are lost to rounding.
hundredths = st.integers(1, 40).flatmap(
    lambda n: st.tuples(*[arrays(np.int64, n, elements=st.integers(-500, 500))] * 2)
)


@given(classes)
def test_accuracy_and_macro_f1_of_classes_match_sklearn(labels):
    gold, predicted = labels
    assert metrics.accuracy(gold, predicted) == sklearn.metrics.accuracy_score(gold, predicted)
    expected = sklearn.metrics.f1_score(gold, predicted, average="macro", zero_division=0)
    assert metrics.f1_macro(gold, predicted) == pytest.approx(expected)


@given(binary)
def test_f1_of_one_class_matches_sklearn(labels):
    expected = sklearn.metrics.f1_score(*labels, zero_division=0)
    assert metrics.f1(*(indices == 1 for indices in labels)) == pytest.approx(expected)


@given(multilabel)
def test_multilabel_metrics_match_sklearn(labels):
    gold, predicted = labels
    assert metrics.accuracy(gold, predicted) == sklearn.metrics.accuracy_score(gold, predicted)
    for average, ours in (("micro", metrics.f1), ("macro", metrics.f1_macro)):
        expected = sklearn.metrics.f1_score(gold, predicted, average=average, zero_division=0)
        assert ours(gold, predicted) == pytest.approx(expected)


@given(st.one_of(classes, multilabel))
def test_scores_by_label_match_sklearn(labels):
    gold, predicted = labels
    num_labels = 4 if gold.ndim == 1 else 3
    expected = sklearn.metrics.precision_recall_fscore_support(
        gold, predicted, labels=range(num_labels), zero_division=0
    )
    for ours, theirs in zip(metrics.label_scores(gold, predicted, num_labels), expected, strict=True):
        np.testing.assert_allclose(ours, theirs)


@given(st.one_of(classes, binary))
def test_matthews_correlation_matches_sklearn(labels):
    gold, predicted = labels
    with warnings.catch_warnings(action="ignore"):  # sklearn warns of a single class
        expected = sklearn.metrics.matthews_corrcoef(gold, predicted)
    assert metrics.matthews_correlation(gold, predicted) == pytest.approx(expected, abs=1e-12)


def test_matthews_correlation_does_not_overflow_on_qqp_size():
    random = np.random.default_rng(0)
    gold = random.integers(0, 2, 400_000)
    predicted = np.where(random.random(400_000) < 0.9, gold, 1 - gold)
    expected = sklearn.metrics.matthews_corrcoef(gold, predicted)
    assert metrics.matthews_correlation(gold, predicted) == pytest.approx(expected, rel=1e-12)


@given(hundredths)
def test_correlations_match_scipy(values):
    gold, predicted = (integers / 100 for integers in values)
    if min(len(set(gold)), len(set(predicted))) < 2:
        assert metrics.pearson(gold, predicted) == metrics.spearman(gold, predicted) == 0
        return
    expected = scipy.stats.pearsonr(gold, predicted).statistic
    assert metrics.pearson(gold, predicted) == pytest.approx(expected, abs=1e-12)
    expected = scipy.stats.spearmanr(gold, predicted).statistic
    assert metrics.spearman(gold, predicted) == pytest.approx(expected, abs=1e-12)


def test_pearson_is_0_for_a_constant_with_a_rounded_mean():
    constant = np.full(3, 0.1)
    assert constant.mean() != 0.1
    assert metrics.pearson(constant, np.array([1.0, 2.0, 3.0])) == 0


@given(classes)
def test_confusion_matrix_matches_sklearn(labels):
    gold, predicted = labels
    expected = sklearn.metrics.confusion_matrix(gold, predicted, labels=range(4))
    assert (metrics.confusion_matrix(gold, predicted, num_classes=4) == expected).all()
