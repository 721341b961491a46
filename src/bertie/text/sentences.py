"""Sentence boundaries, by the rules and abbreviations of sentencex."""

import re
from collections.abc import Iterator

import sentencex

# Unicode's Zs beyond ASCII. sentencex 1.0.32 panics if one of these precedes a full stop, because it
# assumes that white space is one byte long.
_WIDE_SPACE = re.compile("[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]")

# The time of sentencex is quadratic in the length of a line. Cutting lines at 10,000 characters, more than
# almost any paragraph has, makes 80,000 characters of Chinese 7 times as fast, and 400,000 40 times.
_MAX_LINE = 10_000
_CUT = re.compile(r"""[。！？]["'”’」』）]*|[.!?।؟]["'”’)]*\s+""")


def split_sentences(text: str, language: str = "en") -> list[str]:
    """Split a text into sentences, losing nothing but white space.

    A line break, as in `str.splitlines`, always ends a sentence. White space inside and around a
    sentence is kept, except that wide spaces such as U+00A0 become plain ones. Sentences that
    consist of white space are dropped. A line of more than 10,000 characters is first cut at full
    stops, even if a full stop belongs to an abbreviation.

    Args:
        text: the text.
        language: an ISO 639-1 code. For a language without rules, sentencex uses the rules of a
            related language or of English.

    Returns:
        The sentences, in order.

    Raises:
        UnicodeEncodeError: the text contains a lone surrogate, which bertie's readers reject.
    """
    return [
        sentence
        for line in _WIDE_SPACE.sub(" ", text).splitlines()
        for part in _cut_line(line)
        for sentence in sentencex.segment(language, part)
        if not sentence.isspace()
    ]


def _cut_line(line: str) -> Iterator[str]:
    """Cut a line at the first full stop after each `_MAX_LINE` characters."""
    start = 0
    while match := _CUT.search(line, start + _MAX_LINE):
        yield line[start : match.end()]
        start = match.end()
    yield line[start:]
