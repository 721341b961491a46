"""Check the types of arguments of the public functions."""

from collections.abc import Callable
from functools import wraps
from inspect import signature
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from bertie.base.errors import SettingsError

P = ParamSpec("P")
R = TypeVar("R")


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Check the arguments of a function that are numbers, flags, strings, paths or words of a choice.

    Numbers and flags of other types are converted, such as numpy's, or "200". Arguments with other
    annotations are not checked.

    Raises:
        SettingsError: an argument has a value that its annotation does not allow.
    """

    @wraps(function)
    def check(*args: P.args, **kwargs: P.kwargs) -> R:
        bound = signature(function).bind(*args, **kwargs)
        for name, annotation in get_type_hints(function).items():
            if name in bound.arguments:
                bound.arguments[name] = _check(name, bound.arguments[name], annotation)
        return function(*bound.args, **bound.kwargs)

    return check


def _check(name: str, value: Any, annotation: Any) -> Any:
    """Return the value, converted if necessary."""
    members = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    if {*members} <= {str, Path, NoneType}:
        if isinstance(value, members):
            return value
        kind = "a path" if Path in members else "a string"
        advice = f"; write {str(value)!r}" if isinstance(value, int) else ""
        raise SettingsError(f"{name}: expected {kind}, got {type(value).__name__}{advice}")
    if all(member in (int, float, bool, NoneType) or get_origin(member) is Literal for member in members):
        from pydantic import TypeAdapter, ValidationError  # takes 0.1 s

        try:
            return TypeAdapter(annotation).validate_python(value)
        except ValidationError as error:
            message = error.errors()[0]["msg"].replace("Input should be", "expected")
            raise SettingsError(f"{name} = {value!r}: {message}") from None
    return value
