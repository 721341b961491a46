"""Labels of custom data: their names, order and problem type."""

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from enum import Enum
from typing import Any
from unicodedata import normalize

from bertie.base.errors import DataError
from bertie.base.memory import is_missing
from bertie.model.config import ProblemType

# Other names of nan: the default na_values of pandas.read_csv, in lower case.
_MISSING = {"#n/a", "#n/a n/a", "#na", "<na>", "n/a", "na", "none", "null"}
_MISSING |= {"1.#ind", "-1.#ind", "1.#qnan", "-1.#qnan"}


def label_name(value: Any) -> str:
    """Return the name of a label in a table, "" for a missing value.

    White space becomes single spaces. A member of an Enum counts as its value. A whole float is
    written as an integer, since pandas turns the integers of a column with gaps to floats.
    """
    if is_missing(value):
        return ""
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    name = " ".join(str(value).split())
    return name.encode("utf-8", "backslashreplace").decode()  # a lone surrogate cannot be written to a file


def unify_labels(names: Collection[str], known: Collection[str] = ()) -> dict[str, str]:
    """Return the known label that each label equals.

    1 and 1.0 are the same label, and so are é in one and in two code points (NFC and NFD). Other labels stay
    as they are. Without known labels, 1.0 becomes 1 if all labels are numbers, as in `label_name`: a float
    column of a csv file gets the same classes as in another format.
    """
    by_form = {normalize("NFC", name): name for name in sorted(known or names)}
    by_form |= {name: name for name in known}
    unified = {name: by_form.get(name) or by_form.get(normalize("NFC", name), name) for name in names}
    numbers = parse_numbers(known or names)
    by_number: dict[float, str] = {}
    if known:
        by_number = dict(zip(numbers, known, strict=False))
    else:
        known = [name for name in names if "." not in name]  # 007 stays so
        by_number = {number: label_name(number) for number in numbers if number.is_integer()}
    for name in unified.keys() - set(known):
        for number in parse_numbers([name]):
            unified[name] = by_number.get(number, unified[name])
    return unified


def as_label_sets(labels: Sequence[Any]) -> list[tuple[str, ...]]:
    """Return each example's labels as a tuple, even a single one."""
    return [label if isinstance(label, tuple) else (label,) for label in labels]


def infer_problem_type(labels: Sequence[Any], location: Callable[[int], str]) -> ProblemType:
    """Infer the problem type from the labels of training examples.

    Tuples mean multi-label. Numbers mean a regression, unless all are whole: whole numbers, like
    other labels, are names of classes.

    Args:
        labels: the label of each example.
        location: returns the file and line of an example, for an error message.

    Raises:
        DataError: the labels are numbers, except for one that is nan or infinite or, if there are fractions,
            a name of a missing value, such as N/A.
    """
    if all(isinstance(label, tuple) for label in labels):
        return "multi_label_classification"
    not_finite = [i for i, label in enumerate(labels) if _is_not_finite(label)]
    numbers = parse_numbers([label for label in labels if not _is_not_finite(label)])
    is_regression = not all(map(float.is_integer, numbers))
    if not is_regression:  # N/A may be the name of a class
        not_finite = [i for i in not_finite if numbers and str(labels[i]).lower() not in _MISSING]
    if not_finite:
        i = not_finite[0]
        others = "numbers with fractions, as in a regression" if is_regression else "whole numbers"
        raise DataError(
            f"{location(i)}: label {labels[i]!r} is not a number, but the other labels are {others}; write a "
            f"number or delete the row; if the labels are names of classes, rename it or fine-tune with "
            f"--label-type classes (label_type='classes')"
        )
    return "regression" if is_regression else "single_label_classification"


def _is_not_finite(label: Any) -> bool:
    """Return whether a label is nan, infinite or a name of a missing value."""
    if isinstance(label, str) and label.lower() in _MISSING:
        return True
    try:
        return not math.isfinite(float(label))
    except (TypeError, ValueError):
        return False


def sort_labels(names: Iterable[str]) -> tuple[str, ...]:
    """Sort labels by value if all are numbers, otherwise alphabetically."""
    names = sorted(names)
    numbers = parse_numbers(names)
    if numbers:
        names.sort(key=dict(zip(names, numbers, strict=True)).__getitem__)
    return tuple(names)


def with_decimal_point(labels: Iterable[Any]) -> str | None:
    """Return an example with a point, if labels are numbers with a decimal comma.

    All labels are numbers, and some have the comma.
    """
    names = list(map(str, labels))
    commas = [name for name in names if "," in name]
    is_number = bool(parse_numbers(name.replace(",", ".") for name in names))
    return commas[0].replace(",", ".") if commas and is_number else None


def parse_numbers(labels: Iterable[Any]) -> list[float]:
    """Return the labels as numbers; an empty list unless all are finite numbers."""
    try:
        numbers = [float(label) for label in labels]
    except (TypeError, ValueError):
        return []
    return numbers if all(map(math.isfinite, numbers)) else []
