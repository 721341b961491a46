"""Labels of custom data: their names, order and problem type."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from bertie.model.config import ProblemType


def label_name(value: Any) -> str:
    """Return the name of a label in a table, "" for a missing value.

    White space becomes single spaces. A whole float is written as an integer, since pandas turns
    the integers of a column with gaps to floats.
    """
    if value is None or value != value:
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return " ".join(str(value).split())


def as_label_sets(labels: Sequence[Any]) -> list[tuple[str, ...]]:
    """Return each example's labels as a tuple, even a single one."""
    return [label if isinstance(label, tuple) else (label,) for label in labels]


def infer_problem_type(labels: Sequence[Any]) -> ProblemType:
    """Infer the problem type from the labels of training examples.

    Tuples mean multi-label. Numbers mean a regression, unless all are whole: whole numbers, like
    other labels, are names of classes.
    """
    if all(isinstance(label, tuple) for label in labels):
        return "multi_label_classification"
    numbers = parse_numbers(labels)
    if numbers and not all(map(float.is_integer, numbers)):
        return "regression"
    return "single_label_classification"


def sort_labels(names: Iterable[str]) -> tuple[str, ...]:
    """Sort labels by value if all are numbers, otherwise alphabetically."""
    names = sorted(names)
    numbers = parse_numbers(names)
    if numbers:
        names.sort(key=dict(zip(names, numbers, strict=True)).__getitem__)
    return tuple(names)


def parse_numbers(labels: Sequence[Any]) -> list[float]:
    """Return the labels as numbers; an empty list unless all are finite numbers."""
    try:
        numbers = [float(label) for label in labels]
    except (TypeError, ValueError):
        return []
    return numbers if all(map(math.isfinite, numbers)) else []
