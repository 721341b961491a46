"""Sentence boundaries: rules and abbreviations by sentencex, line by line."""

import re

import sentencex

# Unicode's Zs beyond ASCII. Before a full stop, sentencex 1.0.32 takes white space for one byte, and panics.
_WIDE_SPACE = re.compile("[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]")


def split_sentences(text: str, language: str = "en") -> list[str]:
    """The sentences of `text`, in order; no character but white space is lost.

    A line break (as `str.splitlines` knows them) always ends a sentence. White space inside and around a
    sentence is left to the tokenizer, but for a wide space, such as U+00A0, which becomes a plain one. A
    sentence of nothing else is dropped. `language` is an ISO 639-1 code; one that sentencex has no rules
    for is split as English.

    Raises:
        UnicodeEncodeError: the text holds a lone surrogate; the readers let none through.
    """
    return [
        sentence
        for line in _WIDE_SPACE.sub(" ", text).splitlines()
        for sentence in sentencex.segment(language, line)
        if not sentence.isspace()
    ]
