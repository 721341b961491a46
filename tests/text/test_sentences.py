"""Sentence boundaries: line breaks, languages, long lines; no text is lost."""

import sys
import unicodedata

import pytest
import sentencex
from hypothesis import example, given
from hypothesis import strategies as st

from bertie.text.sentences import split_sentences

TEXTS = st.text(
    st.one_of(
        st.characters(exclude_categories=["Cs"]), st.sampled_from("aB \u00a0\u2003.!?\n\r\u2028。\"'()")
    )
)


@given(TEXTS)
@example("J.\u00a0R.\u3000. J\u00a0.")
@example("One.\r\nTwo. \u3000 Three\x85four\x1c five")
def test_only_white_space_is_lost(text: str) -> None:
    sentences = split_sentences(text)
    assert "".join("".join(sentences).split()) == "".join(text.split())
    assert all(sentence.strip() for sentence in sentences)


def test_abbreviations_do_not_end_sentences() -> None:
    text = "Dr. Smith came at 4 p.m. on Monday. He left!  Why? Nobody knows."
    assert [sentence.strip() for sentence in split_sentences(text)] == [
        "Dr. Smith came at 4 p.m. on Monday.",
        "He left!",
        "Why?",
        "Nobody knows.",
    ]


def test_a_line_break_ends_a_sentence() -> None:
    assert split_sentences("Biography\nborn in\r\nUlm\n\n \n") == ["Biography", "born in", "Ulm"]


def test_rules_depend_on_the_language() -> None:
    text = "Er kam am 3. Mai nach Ulm."
    assert len(split_sentences(text, "de")) == 1
    assert len(split_sentences(text, "en")) == 2


def test_wide_spaces_become_plain_ones() -> None:
    spaces = [c for c in map(chr, range(sys.maxunicode)) if unicodedata.category(c) == "Zs"]
    assert len(spaces) == 17
    for space in spaces:
        assert split_sentences(f"He met A{space}. Then he{space}left.") == split_sentences(
            "He met A . Then he left."
        )


@pytest.mark.parametrize(
    "sentence",
    [
        *("他说:“你好。”", "她走了。", "真的吗？", "太好了！", "He “left!” ", "He left. ", "Why? "),
        *("क्या हुआ। ", "ماذا حدث؟ "),
    ],
)
def test_long_lines_are_cut_at_full_stops(sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """sentencex takes quadratic time, so it gets lines of about 10,000 characters."""
    lengths = []
    segment = sentencex.segment
    monkeypatch.setattr(sentencex, "segment", lambda *a: (lengths.append(len(a[1])), segment(*a))[1])
    assert split_sentences(sentence * 3000) == [sentence] * 3000
    assert len(lengths) > 1
    assert max(lengths) < 10_020
    del lengths[:]
    split_sentences(sentence * 500)
    assert lengths == [500 * len(sentence)]


def test_blank_text_has_no_sentences() -> None:
    assert split_sentences("") == split_sentences(" \n\u3000") == []
