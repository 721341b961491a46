"""Check the arguments of a `Predictor`'s methods; see also base/texts.py."""

from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any

import numpy as np

from bertie.base.arguments import check_integer
from bertie.base.arrays import Int64s
from bertie.base.errors import DataError
from bertie.base.texts import list_items, list_texts, reject_unequal

_SHOWN_CHARACTERS = 60  # of a text, in an error message


def list_sentences(sentences: Sequence[str | Sequence[str]]) -> list[str | list[str]]:
    """Return sentences as a list; each is a text or a list of words.

    Raises:
        DataError: `sentences` is not a list, or one of its items is neither a text nor a list of
            words.
    """
    return [
        sentence if isinstance(sentence, str) else list_texts(sentence, f"sentences[{i}]")
        for i, sentence in enumerate(list_items(sentences, "sentences", "a string or a list"))
    ]


def list_endings(
    contexts: str | Iterable[str], endings: Sequence[str] | Sequence[Sequence[str]]
) -> tuple[list[str], list[list[str]]]:
    """Return contexts and the endings of each as two lists of equal length.

    Args:
        contexts: a string or a list of strings.
        endings: a list of strings for one context, a list of such lists for a list of contexts.

    Raises:
        DataError: the endings have another form, or their number differs from the number of
            contexts.
    """
    names = ("contexts", "endings")
    first = list_texts(contexts, names[0])
    expected = "a list of strings" if isinstance(contexts, str) else "a list of lists of strings"
    listed: list[Any] = list_items(endings, "endings", expected)
    if isinstance(contexts, str):
        return first, [list_texts(listed, "endings")]
    second = [
        list_texts(list_items(row, f"endings[{i}]", "a list of strings"), f"endings[{i}]")
        for i, row in enumerate(listed)
    ]
    reject_unequal(first, second, names)
    return first, second


def find_too_long(texts: Sequence[str], lengths: Int64s, max_length: int) -> tuple[int, str] | None:
    """Find the first text that has more tokens than a model reads.

    Args:
        texts: the texts.
        lengths: their numbers of tokens, int64 (N,).
        max_length: the largest number of tokens that the model reads.

    Returns:
        The index of the text and the problem; None if the model reads all texts.
    """
    too_long = np.flatnonzero(lengths > max_length)
    if not too_long.size:
        return None
    i = int(too_long[0])
    return i, f"{lengths[i]:,} tokens in {quote(texts[i])}, but the model reads at most {max_length:,}"


def quote(text: str) -> str:
    """Return the beginning of a text for an error message."""
    return repr(text[:_SHOWN_CHARACTERS])


def check_top_k(top_k: int | None) -> int | None:
    """Return the number of results that a caller asks for, where None means all.

    Raises:
        SettingsError: `top_k` is not a positive integer.
    """
    return None if top_k is None else check_integer("top_k", top_k, alternative=", or None for all")


def list_document_bounds(bounds: Sequence[int], sentence_count: int) -> list[int]:
    """Return the `document_bounds` of `Predictor.tag_words` as a list.

    Raises:
        DataError: they are not integers that run from 0 to the number of sentences, in ascending order.
    """
    listed = list_items(bounds, "document_bounds", "a list of integers")
    for i, bound in enumerate(listed):
        if not isinstance(bound, Integral):
            raise DataError(f"document_bounds[{i}]: expected an integer, got {type(bound).__name__}")
    if listed[:1] != [0] or listed[-1] != sentence_count or sorted(listed) != listed:
        raise DataError(
            f"document_bounds: must begin with 0, ascend, and end with {sentence_count}, the number of "
            f"sentences"
        )
    return listed
