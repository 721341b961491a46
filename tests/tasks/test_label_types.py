"""Names, problem types and order of the labels in a table."""

from enum import Enum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertie.base.errors import DataError
from bertie.tasks.label_types import infer_problem_type, label_name, parse_numbers, sort_labels, unify_labels


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
        (["1", "2", "N/A"], "single_label_classification"),
        (["1", "2.5", "high", "nan"], "single_label_classification"),
        (["nan", "N/A"], "single_label_classification"),
        (["True", "False"], "single_label_classification"),
        ([("1.5",), ()], "multi_label_classification"),
        ([("1.5",), "1.5"], "single_label_classification"),  # the task rejects the mixture
    ],
)
def test_problem_type_is_inferred_from_the_labels(labels, problem_type):
    assert infer_problem_type(labels, "line {}".format) == problem_type


@pytest.mark.parametrize(
    "label", ["nan", "NaN", "inf", "-Infinity", "N/A", "NA", "null", "<NA>", "None", "1e999"]
)
@pytest.mark.parametrize("numbers", [["1.5", "2"], ["1.5", "1.5", "2.5", "2.5"]])
def test_missing_numbers_of_a_regression_are_reported(numbers, label):
    with pytest.raises(DataError) as caught:
        infer_problem_type([*numbers, label, "nan"], "train.csv, line {}".format)
    assert str(caught.value) == (
        f"train.csv, line {len(numbers)}: label {label!r} is not a number, but the other labels are numbers "
        f"with fractions, as in a regression; write a number or delete the row; if the labels are names of "
        f"classes, rename it or fine-tune with --label-type classes (label_type='classes')"
    )


@pytest.mark.parametrize("label", ["nan", "inf", "1e999"])
def test_nan_among_whole_numbers_is_not_a_class(label):
    message = rf"^train.csv, line 1: label '{label}' is not a number, but the other labels are whole numbers;"
    with pytest.raises(DataError, match=message):
        infer_problem_type(["1", label, "2", "N/A"], "train.csv, line {}".format)


def test_a_member_of_an_enum_is_named_by_its_value():
    assert label_name(Enum("color", {"RED": "red"}, type=str).RED) == "red"


@given(st.sets(st.integers().map(str) | st.text(min_size=1)))
def test_labels_are_sorted_by_value_or_alphabetically(names):
    ordered = sort_labels(names)
    assert set(ordered) == names
    keys = parse_numbers(ordered) or list(ordered)
    assert keys == sorted(keys)


@pytest.mark.parametrize(
    ("names", "known", "unified"),
    [
        (["0.0", "1.00", "2", "-0.0"], [], ["0", "1", "2", "0"]),
        (["007", "7.0", "12345678901234567891"], [], ["007", "7", "12345678901234567891"]),
        (["1.0", "2.5", "1.10", "3"], [], ["1", "2.5", "1.10", "3"]),
        (["1.0", "beta"], [], ["1.0", "beta"]),
        (["1.0", "1", "3.0", "x"], ["1", "2"], ["1", "1", "3.0", "x"]),
        (["1.0", "1", "2"], ["1.0", "2.0"], ["1.0", "1.0", "2.0"]),
        (["1.0", "1"], ["1", "1.0"], ["1.0", "1"]),  # of a model of an earlier version
        (["1", "beta"], ["1.0", "beta"], ["1", "beta"]),
        (["caf\u00e9", "cafe\u0301"], [], ["caf\u00e9", "caf\u00e9"]),
        (["cafe\u0301"], [], ["cafe\u0301"]),
        (["caf\u00e9", "tea"], ["cafe\u0301"], ["cafe\u0301", "tea"]),
        (["cafe\u0301"], ["caf\u00e9", "cafe\u0301"], ["cafe\u0301"]),  # of a model of an earlier version
    ],
)
def test_equal_labels_are_unified(names, known, unified):
    assert [unify_labels(names, known)[name] for name in names] == unified
