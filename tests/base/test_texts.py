"""A string is one text; other arguments are lists of texts, or are rejected by name."""

import pickle
import sys
import unicodedata
from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from bertie.base.errors import DataError
from bertie.base.texts import TextError, is_blank, list_pairs, list_texts
from bertie.text.tokenizer import Tokenizer
from bertie.text.unicode import UNICODE_VERSION
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary


def test_a_string_is_one_text():
    assert list_texts("the cat") == list_texts(np.str_("the cat")) == ["the cat"]
    assert list_texts("") == [""]
    assert list_texts([]) == []
    assert list_pairs("cat", "mat") == (["cat"], ["mat"])


@pytest.mark.parametrize(
    "texts",
    [
        ("cat", "mat"),
        iter(["cat", "mat"]),
        np.array(["cat", "mat"]),
        np.array(["cat", "mat"], dtype=object),
        pd.Series(["cat", "mat"], index=[7, 5]),
        pl.Series(["cat", "mat"]),
        pa.array(["cat", "mat"]),
        pa.chunked_array([["cat"], ["mat"]]),
    ],
    ids=lambda texts: type(texts).__name__,
)
def test_arrays_of_every_library_are_lists(texts):
    listed = list_texts(texts)
    assert listed == ["cat", "mat"]
    assert {type(text) for text in listed} == {str}


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (None, "texts: expected a string or a list of strings, got None"),
        (7, "texts: expected a string or a list of strings, got int"),
        (float("nan"), "texts: expected a string or a list of strings, got float"),
        (Path("a.txt"), "texts: expected a string or a list of strings, got PosixPath"),
        (b"cat", "got bytes; decode them to a string"),
        (bytearray(b"cat"), "got bytearray; decode them to a string"),
        ({"cat", "mat"}, "got set$"),
        ({"text": "cat"}, "got dict; pass a list"),
        (pd.DataFrame({"text": ["cat"]}), "got DataFrame; pass one of its columns"),
        (pl.DataFrame({"text": ["cat"]}), "got DataFrame; pass one of its columns"),
        (pl.LazyFrame({"text": ["cat"]}), "got LazyFrame; pass one of its columns"),
        (np.array("cat"), "got ndarray$"),
        (["cat", None], r"texts\[1\]: expected a string, got None; leave missing texts out"),
        (["cat", float("nan")], r"texts\[1\]: expected a string, got float nan; leave missing texts out"),
        (["cat", pd.NA], r"texts\[1\]: expected a string, got NAType; leave missing texts out"),
        (["cat", 7], r"texts\[1\]: expected a string, got int 7; convert it with str\(\)"),
        (["cat", b"mat"], r"texts\[1\]: expected a string, got bytes b'mat'; decode it to a string"),
        ([["cat"]], r"texts\[0\]: expected a string, got a list; pass one list of strings; the second"),
        (np.array([["cat"]]), r"texts\[0\]: expected a string, got ndarray; pass one list of strings; the"),
        ([{"text": "cat"}], r"texts\[0\]: expected a string, got dict; pass the text of each row, such as r"),
        (datasets.Dataset.from_dict({"text": ["cat"]}), r"texts\[0\]: expected a string, got dict; pass the"),
        (pa.array(["cat", None]), r"texts\[1\]: expected a string, got None;"),
        (pd.Series(["cat", None]), r"texts\[1\]: expected a string, got (None|float nan);"),
    ],
)
def test_other_arguments_are_rejected_by_name(texts, message):
    with pytest.raises(DataError, match=message) as error:
        list_texts(texts)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("texts", "pairs", "message"),
    [
        ("a", ["b"], "texts and pairs: got a string and a list; give two strings, or two lists of equal"),
        (["a"], "b", "texts and pairs: got a list and a string"),
        ("a", None, "texts and pairs: got a string and None"),
        (["a", "b"], ["c"], "texts and pairs: got lists of 2 and 1 items; give two lists of equal length"),
        (["a"], [1], r"pairs\[0\]: expected a string, got int 1"),
    ],
)
def test_pairs_have_the_same_form_and_length(texts, pairs, message):
    with pytest.raises(DataError, match=message):
        list_pairs(texts, pairs)


def test_text_errors_can_be_sent_between_processes():
    error = pickle.loads(pickle.dumps(TextError(2, "no [MASK]")))
    assert (error.index, error.reason, str(error)) == (2, "no [MASK]", "texts[2]: no [MASK]")
    error = pickle.loads(pickle.dumps(TextError(2, "too long", "questions")))
    assert str(error) == "questions[2]: too long"


@pytest.mark.skipif(unicodedata.unidata_version != UNICODE_VERSION, reason="another Unicode version")
def test_a_text_is_blank_if_the_tokenizer_finds_no_token():
    tokenizer = Tokenizer(Vocabulary(SPECIAL_TOKENS), lowercase=False)
    # Planes 4 to 13 have no characters, 15 and 16 are private.
    codes = [*range(0xD800), *range(0xE000, 0x40000), *range(0xE0000, 0xE1000), sys.maxunicode]
    characters = list(map(chr, codes))
    bounds = tokenizer.encode_batch(characters, add_special_tokens=False).bounds
    assert [is_blank(character) for character in characters] == (np.diff(bounds) == 0).tolist()
    assert is_blank("")
    assert is_blank("\u200b \ufeff")
    assert not is_blank("\u200b a")
