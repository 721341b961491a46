"""Scores against scikit-learn's definitions, written out."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bertie.tasks.metrics import accuracy, confusion_matrix

answers = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1)


@given(answers)
def test_confusion_matrix_counts_each_answer_once(pairs):
    gold, predicted = np.array(pairs, dtype=np.int64).T
    matrix = confusion_matrix(gold, predicted, classes=4)
    for truth in range(4):
        for guess in range(4):
            assert matrix[truth, guess] == pairs.count((truth, guess))
    assert accuracy(gold, predicted) == matrix.trace() / len(pairs)
