"""Check the texts passed to a `Predictor`: one text, or a list of texts."""

from collections.abc import Iterable, Sequence
from typing import Any

from bertie.base.errors import DataError


class TextError(DataError):
    """Raised for a text that the model cannot process, such as one without a [MASK].

    Attributes:
        index: index of the text in the list of texts, from 0.
        reason: the problem and the remedy.
    """

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(f"text {index + 1}: {reason}")
        self.index = index
        self.reason = reason


def list_texts(texts: str | Sequence[str], name: str = "texts") -> list[str]:
    """Return one text or several as a list of strings.

    Args:
        texts: a string or a list of strings.
        name: name of the argument, for error messages.

    Raises:
        DataError: `texts` is something else, or one of its items is not a string.
    """
    if isinstance(texts, str):
        return [texts]
    listed = _list(texts, name, "a string or a list of strings")
    for i, text in enumerate(listed):
        if not isinstance(text, str):
            kind = type(text).__name__
            raise DataError(f"{name}[{i}]: expected a string, got {kind}; leave missing texts out")
    return listed


def list_pairs(
    texts: str | Sequence[str],
    pairs: str | Sequence[str],
    names: tuple[str, str] = ("texts", "pairs"),
) -> tuple[list[str], list[str]]:
    """Return the first and the second texts of pairs as two lists of equal length.

    Args:
        texts: a string or a list of strings.
        pairs: the second texts, in the same form.
        names: names of the two arguments, for error messages.

    Raises:
        DataError: one is a string and the other a list, their lengths differ, or `list_texts`
            rejects one of them.
    """
    _reject_mixture(texts, pairs, names)
    first, second = list_texts(texts, names[0]), list_texts(pairs, names[1])
    _reject_unequal(first, second, names)
    return first, second


def list_sentences(sentences: Sequence[str | Sequence[str]]) -> list[str | list[str]]:
    """Return sentences as a list; each is a text or a list of words.

    Raises:
        DataError: `sentences` is not a list, or one of its items is neither a text nor a list of
            words.
    """
    return [
        sentence if isinstance(sentence, str) else list_texts(sentence, f"sentences[{i}]")
        for i, sentence in enumerate(_list(sentences, "sentences", "a string or a list"))
    ]


def list_endings(
    contexts: str | Sequence[str], endings: Sequence[str] | Sequence[Sequence[str]]
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
    listed: list[Any] = _list(endings, "endings", expected)
    if isinstance(contexts, str):
        return first, [list_texts(listed, "endings")]
    second = [
        list_texts(_list(row, f"endings[{i}]", "a list of strings"), f"endings[{i}]")
        for i, row in enumerate(listed)
    ]
    _reject_unequal(first, second, names)
    return first, second


def _list(values: Any, name: str, expected: str) -> list[Any]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise DataError(f"{name}: expected {expected}, got {_kind(values)}")
    return list(values)


def _reject_mixture(first: Any, second: Any, names: tuple[str, str]) -> None:
    if isinstance(first, str) != isinstance(second, str):
        raise DataError(
            f"{names[0]} and {names[1]}: got {_kind(first)} and {_kind(second)}; give two strings, or two "
            f"lists of equal length"
        )


def _reject_unequal(first: Sequence[Any], second: Sequence[Any], names: tuple[str, str]) -> None:
    if len(first) != len(second):
        raise DataError(
            f"{names[0]} and {names[1]}: got lists of {len(first):,} and {len(second):,} items; give two "
            f"lists of equal length"
        )


def _kind(value: Any) -> str:
    return {str: "a string", list: "a list", type(None): "None"}.get(type(value), type(value).__name__)
