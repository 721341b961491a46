"""The labels in a person's own table: their names, of what type they are, in which order they come."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from bertie.model.config import ProblemType


def label_name(value: Any) -> str:
    """A label in one line of text. pandas has floats where a column of whole numbers has gaps."""
    if value is None or value != value:
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return " ".join(str(value).split())


def names_of_each(labels: Sequence[Any]) -> list[tuple[str, ...]]:
    """The labels of each text, where it has one or several."""
    return [label if isinstance(label, tuple) else (label,) for label in labels]


def detect_type(labels: Sequence[Any]) -> ProblemType:
    """Of tuples several labels; of numbers, not all of which are whole, a regression; else classes."""
    if all(isinstance(label, tuple) for label in labels):
        return "multi_label_classification"
    numbers = numbers_of(labels)
    if numbers and not all(map(float.is_integer, numbers)):
        return "regression"
    return "single_label_classification"


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """By size where all are numbers, otherwise by the alphabet."""
    names = sorted(names)
    numbers = numbers_of(names)
    if numbers:
        names.sort(key=dict(zip(names, numbers, strict=True)).__getitem__)
    return tuple(names)


def numbers_of(labels: Sequence[Any]) -> list[float]:
    """The labels as finite numbers; empty where one is something else."""
    try:
        numbers = [float(label) for label in labels]
    except (TypeError, ValueError):
        return []
    return numbers if all(map(math.isfinite, numbers)) else []
