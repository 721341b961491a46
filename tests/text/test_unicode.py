"""The tables agree with `unicodedata`, if the Unicode version is the same."""

import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertie.text.unicode import UNICODE_VERSION, code_points, is_final_sigma, sort_marks, unicode_tables

pytestmark = pytest.mark.skipif(
    unicodedata.unidata_version != UNICODE_VERSION, reason="the running Python has another Unicode version"
)

MARKS = [
    chr(code)
    for code in range(0x110000)
    if unicodedata.combining(chr(code)) and unicodedata.category(chr(code)) != "Mn"
]


def codes_of(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)


@settings(deadline=None)
@given(st.text(alphabet="aΑΣσ.'’\u0301ªⓐǅ1-\u00ad\x00ʰ中", max_size=12))
def test_final_sigma_agrees_with_str_lower(text: str) -> None:
    kept = [c for c in text if unicodedata.category(c) not in ("Cc", "Cf")]
    expected = [c == "ς" for c, source in zip("".join(kept).lower(), kept, strict=True) if source == "Σ"]
    codes = codes_of(text)
    actual = [
        is_final_sigma(unicode_tables(), codes, 0, len(codes), i) for i, c in enumerate(text) if c == "Σ"
    ]
    assert actual == expected


@settings(deadline=None)
@given(st.text(alphabet=["a", *MARKS], max_size=40))
def test_sort_marks_agrees_with_nfd(text: str) -> None:
    codes = codes_of(f"bc{text}").astype(np.int32)
    sort_marks(unicode_tables(), codes, 2, len(codes), np.empty_like(codes))
    assert "".join(map(chr, codes[2:])) == unicodedata.normalize("NFD", text)


@given(st.lists(st.text(st.characters(exclude_categories=()))))  # lone surrogates, too
def test_code_points_are_those_of_the_texts(texts: list[str]) -> None:
    codes, bounds = code_points(texts)
    assert codes.dtype == np.uint32
    assert codes.tolist() == [ord(character) for character in "".join(texts)]
    assert bounds.tolist() == [0, *np.cumsum([len(text) for text in texts], dtype=int)]
