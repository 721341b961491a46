"""Names, problem types and order of the labels in a table."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertie.tasks.label_types import infer_problem_type, label_name, parse_numbers, sort_labels


@pytest.mark.parametrize(
    ("value", "name"),
    [(" a\n b ", "a b"), (3, "3"), (3.0, "3"), (3.5, "3.5"), (True, "True"), (None, ""), (float("nan"), "")],
)
def test_label_names_are_normalized(value, name):
    assert label_name(value) == name


@pytest.mark.parametrize(
    ("labels", "problem_type"),
    [
        (["1", "2.0"], "single_label_classification"),
        (["1", "2.5"], "regression"),
        (["1", "2.5", "nan"], "single_label_classification"),
        (["True", "False"], "single_label_classification"),
        ([("1.5",), ()], "multi_label_classification"),
        ([("1.5",), "1.5"], "single_label_classification"),  # the task rejects the mixture
    ],
)
def test_problem_type_is_inferred_from_the_labels(labels, problem_type):
    assert infer_problem_type(labels) == problem_type


@given(st.sets(st.integers().map(str) | st.text(min_size=1)))
def test_labels_are_sorted_by_value_or_alphabetically(names):
    ordered = sort_labels(names)
    assert set(ordered) == names
    keys = parse_numbers(ordered) or list(ordered)
    assert keys == sorted(keys)
