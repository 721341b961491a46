"""Check the texts that a caller passes: one text, or a list of texts."""

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

from bertie.base.errors import DataError
from bertie.base.memory import is_missing


class TextError(DataError):
    """Raised for a text that the model cannot process, such as one without a [MASK].

    Attributes:
        index: index of the text in the list of texts, from 0.
        reason: the problem and the remedy.
        argument: name of the list of texts.
    """

    def __init__(self, index: int, reason: str, argument: str = "texts") -> None:
        super().__init__(f"{argument}[{index}]: {reason}")
        self.index = index
        self.reason = reason
        self.argument = argument

    def __reduce__(self) -> tuple[type["TextError"], tuple[int, str, str]]:  # for pools of processes
        return TextError, (self.index, self.reason, self.argument)


def is_blank(text: str) -> bool:
    """Return whether a text has only characters that BERT's tokenizer drops.

    These characters are white space, control and format characters, such as U+200B and U+FEFF, and U+FFFD.
    """
    return all(c.isspace() or c == "\ufffd" or unicodedata.category(c) in ("Cc", "Cf") for c in text)


def list_texts(texts: str | Iterable[str], name: str = "texts") -> list[str]:
    """Return one text or several as a list of strings.

    Args:
        texts: a string; or strings in a list, a tuple, an iterator, a numpy array, a pandas or
            polars Series or a pyarrow array.
        name: name of the argument, for error messages.

    Raises:
        DataError: `texts` is something else, or one of its items is not a string.
    """
    if isinstance(texts, str):
        return [str(texts)]
    listed = list_items(texts, name, "a string or a list of strings")
    if set(map(type, listed)) == {str}:  # several times as fast as a check of each text
        return listed
    return [
        text if type(text) is str else check_text(text, f"{name}[{i}]", _remedy(text))
        for i, text in enumerate(listed)
    ]


def _remedy(item: Any) -> str:
    """Return what to do about an item of a list of texts that is not a string."""
    if isinstance(item, Mapping):  # a `datasets.Dataset` has them, too
        return "pass the text of each row, such as row['text']"
    if isinstance(item, bytes | bytearray):
        return "decode it to a string"
    if isinstance(item, Iterable):
        return "pass one list of strings; the second texts of pairs are another list"
    return "leave missing texts out" if is_missing(item) else "convert it with str()"


def list_pairs(
    texts: str | Iterable[str],
    pairs: str | Iterable[str],
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
    if isinstance(texts, str) != isinstance(pairs, str):
        raise DataError(
            f"{names[0]} and {names[1]}: got {_kind(texts)} and {_kind(pairs)}; give two strings, or two "
            f"lists of equal length"
        )
    first, second = list_texts(texts, names[0]), list_texts(pairs, names[1])
    reject_unequal(first, second, names)
    return first, second


def check_text(text: Any, name: str, remedy: str) -> str:
    """Return a text as a plain string; raise DataError if it is not a string."""
    if not isinstance(text, str):
        value = f" {text!r}" if isinstance(text, bytes | int | float) else ""
        raise DataError(f"{name}: expected a string, got {_kind(text)}{value}; {remedy}")
    return str(text)  # a numpy.str_ would appear in results


def list_items(values: Any, name: str, expected: str) -> list[Any]:
    """Return the items of a list or of a similar object.

    Raises:
        DataError: `values` is not like a list: a string, bytes, a number, a set (which has no
            order), a mapping or a data frame (whose items are names).
    """
    if type(values) is list:  # the usual case, before tests of abstract classes, which are slow
        return list(values)
    if isinstance(values, bytes | bytearray):
        raise DataError(f"{name}: expected {expected}, got {_kind(values)}; decode them to a string")
    if is_table(values):
        remedy = "pass a list" if isinstance(values, Mapping) else "pass one of its columns"
        raise DataError(f"{name}: expected {expected}, got {_kind(values)}; {remedy}")
    if isinstance(values, str | Set) or not isinstance(values, Iterable) or getattr(values, "ndim", 1) == 0:
        raise DataError(f"{name}: expected {expected}, got {_kind(values)}")
    return list(values.to_pylist() if hasattr(values, "to_pylist") else values)  # pyarrow's arrays


def is_table(value: Any) -> bool:
    """Return whether a value is a mapping or a data frame."""
    return isinstance(value, Mapping) or hasattr(type(value), "columns")


def reject_unequal(first: Sequence[Any], second: Sequence[Any], names: tuple[str, str]) -> None:
    """Raise DataError if two lists differ in length."""
    if len(first) != len(second):
        raise DataError(
            f"{names[0]} and {names[1]}: got lists of {len(first):,} and {len(second):,} items; give two "
            f"lists of equal length"
        )


def _kind(value: Any) -> str:
    return {str: "a string", list: "a list", type(None): "None"}.get(type(value), type(value).__name__)


def count_noun(number: int, noun: str) -> str:
    """Return a number with its noun, which has the plural in -s.

    Example:
        >>> count_noun(1, "field"), count_noun(2000, "field")
        ('1 field', '2,000 fields')
    """
    return f"{number:,} {noun}{'s' * (number != 1)}"


def escape_markdown(text: str) -> str:
    """Return a text so that a model card shows it without markup, on one line.

    Underscores stay, because inside a word they are no markup.

    Example:
        >>> escape_markdown("<b>a|b</b> my_file.csv")
        '\\<b\\>a\\|b\\</b\\> my_file.csv'
    """
    return re.sub(r"([\\`*\[\]<>|&])", r"\\\1", " ".join(text.split()))
