"""Sentence boundaries: rules and abbreviations by sentencex, line by line."""

import sentencex


def split_sentences(text: str, language: str = "en") -> list[str]:
    """The sentences of `text`, in order; no character but white space is lost.

    A line break (as `str.splitlines` knows them) always ends a sentence. White space inside and around a
    sentence is left to the tokenizer; a sentence of nothing else is dropped. `language` is an ISO 639-1
    code; one that sentencex has no rules for is split as English.

    Raises:
        UnicodeEncodeError: the text holds a lone surrogate; the readers let none through.
    """
    return [
        sentence
        for line in text.splitlines()
        for sentence in sentencex.segment(language, line)
        if not sentence.isspace()
    ]
