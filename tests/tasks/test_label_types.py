"""What the labels in a table are taken for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertie.tasks.label_types import detect_type, in_order, label_name, numbers_of


@pytest.mark.parametrize(
    ("value", "name"),
    [(" a\n b ", "a b"), (3, "3"), (3.0, "3"), (3.5, "3.5"), (True, "True"), (None, ""), (float("nan"), "")],
)
def test_names(value, name):
    assert label_name(value) == name


@pytest.mark.parametrize(
    ("labels", "problem_type"),
    [
        (["1", "2.0"], "single_label_classification"),
        (["1", "2.5"], "regression"),
        (["1", "2.5", "nan"], "single_label_classification"),
        (["True", "False"], "single_label_classification"),
        ([("1.5",), ()], "multi_label_classification"),
        ([("1.5",), "1.5"], "single_label_classification"),  # which the task then refuses
    ],
)
def test_types(labels, problem_type):
    assert detect_type(labels) == problem_type


@given(st.sets(st.integers().map(str) | st.text(min_size=1)))
def test_the_order_is_that_of_numbers_or_of_the_alphabet(names):
    ordered = in_order(names)
    assert set(ordered) == names
    keys = numbers_of(ordered) or list(ordered)
    assert keys == sorted(keys)
