"""Checks of the arguments of a `Predictor`'s methods."""

import numpy as np
import pytest

from bertie.base.errors import DataError, SettingsError
from bertie.inference.inputs import check_top_k, list_document_bounds, list_endings, list_sentences


def test_one_text_becomes_a_list_of_one():
    assert list_endings("a", ["b", "c"]) == (["a"], [["b", "c"]])
    assert list_endings(["a", "b"], [["c"], []]) == (["a", "b"], [["c"], []])
    assert list_sentences(["a text", ["two", "words"]]) == ["a text", ["two", "words"]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: list_endings("a", "bc"), "endings: expected a list of strings, got a string"),
        (lambda: list_endings("a", [["b"]]), r"endings\[0\]: expected a string, got a list;"),
        (lambda: list_endings(["a"], ["bc"]), r"endings\[0\]: expected a list of strings, got a string"),
        (lambda: list_endings(["a"], "bc"), "endings: expected a list of lists of strings, got a string"),
        (lambda: list_endings(["a"], [["b"], ["c"]]), "contexts and endings: got lists of 1 and 2 items"),
        (lambda: list_sentences(5), "sentences: expected a string or a list, got int"),
        (lambda: list_sentences([5]), r"sentences\[0\]: expected a string or a list of strings, got int"),
    ],
)
def test_other_inputs_are_rejected(call, message):
    with pytest.raises(DataError, match=message):
        call()


@pytest.mark.parametrize("top_k", [0, -1, 2.5, "3", float("nan"), True])
def test_top_k_is_a_positive_integer(top_k):
    with pytest.raises(
        SettingsError, match=f"top_k={top_k!r}: expected an integer of at least 1, or None for all"
    ):
        check_top_k(top_k)
    assert type(check_top_k(np.uint64(3))) is int
    assert check_top_k(None) is None


@pytest.mark.parametrize("bounds", [[], [0, 1], [1, 2], [0, 2, 1, 2]])
def test_document_bounds_ascend_from_0_to_the_end(bounds):
    with pytest.raises(DataError, match="document_bounds: must begin with 0, ascend, and end with 2"):
        list_document_bounds(bounds, 2)
    for ascending in (np.array([0, 1, 2]), iter([0, 1, 2])):
        assert list_document_bounds(ascending, 2) == [0, 1, 2]


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        (2, "document_bounds: expected a list of integers, got int"),
        ([0, None, 2], r"document_bounds\[1\]: expected an integer, got NoneType"),
        (["0", "2"], r"document_bounds\[0\]: expected an integer, got str"),
        (np.array([[0, 2]]), r"document_bounds\[0\]: expected an integer, got ndarray"),
    ],
)
def test_document_bounds_are_a_list_of_integers(bounds, message):
    with pytest.raises(DataError, match=message):
        list_document_bounds(bounds, 2)
