"""Checks of the texts passed to a `Predictor`."""

import pytest

from bertie.base.errors import DataError
from bertie.inference.inputs import list_endings, list_pairs, list_sentences, list_texts


def test_one_text_becomes_a_list_of_one():
    assert list_texts("cat") == ["cat"]
    assert list_texts(("cat", "mat")) == list_texts(iter(["cat", "mat"])) == ["cat", "mat"]
    assert list_texts([]) == []
    assert list_pairs("cat", "mat") == (["cat"], ["mat"])
    assert list_pairs(["a", "b"], ["c", "d"]) == (["a", "b"], ["c", "d"])
    assert list_endings("a", ["b", "c"]) == (["a"], [["b", "c"]])
    assert list_endings(["a", "b"], [["c"], []]) == (["a", "b"], [["c"], []])
    assert list_sentences(["a text", ["two", "words"]]) == ["a text", ["two", "words"]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: list_texts(7), "texts: expected a string or a list of strings, got int"),
        (lambda: list_texts(None), "texts: expected a string or a list of strings, got None"),
        (lambda: list_texts(["a", float("nan")]), r"texts\[1\]: expected a string, got float; leave missing"),
        (
            lambda: list_pairs("a", ["b"]),
            "texts and pairs: got a string and a list; give two strings",
        ),
        (lambda: list_pairs(["a"], "b"), "texts and pairs: got a list and a string"),
        (lambda: list_pairs("a", None, ("questions", "contexts")), "contexts: got a string and None"),
        (lambda: list_pairs(["a", "b"], ["c"]), "texts and pairs: got lists of 2 and 1 items"),
        (lambda: list_pairs(["a"], [1]), r"pairs\[0\]: expected a string, got int"),
        (lambda: list_endings("a", "bc"), "endings: expected a list of strings, got a string"),
        (lambda: list_endings("a", [["b"]]), r"endings\[0\]: expected a string, got list"),
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
