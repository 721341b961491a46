"""Check the names and types of arguments of the public functions."""

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import wraps
from inspect import signature
from numbers import Integral
from os import PathLike, fspath
from os.path import expanduser
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from bertie.base.errors import SettingsError

P = ParamSpec("P")
R = TypeVar("R")


# Names in transformers, datasets and sentence-transformers.
_NAMES_ELSEWHERE = {
    "eval_dataset": "dev",
    "output_dir": "out",
    "output_path": "out",
    "resume_from_checkpoint": "resume",
    "train_dataset": "train",
    "validation": "dev",
}


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Check a function's arguments by their annotations.

    Numbers, flags, strings, paths, dicts and words of a `Literal` are checked. Numbers and flags of other
    types are converted, such as numpy's, or "200". In a path, a leading `~` is replaced by the home folder.
    Arguments with other annotations are not checked.

    Raises:
        SettingsError: an argument has a value that its annotation does not allow, or the name that another
            library gives it.
    """

    @wraps(function)
    def check(*args: P.args, **kwargs: P.kwargs) -> R:
        expected = signature(function)
        _check_names(kwargs, expected.parameters)
        try:
            bound = expected.bind(*args, **kwargs)
        except TypeError:  # whose message lacks the function's name; Python's has it
            return function(*args, **kwargs)
        for name, annotation in get_type_hints(function).items():
            if name in bound.arguments:
                bound.arguments[name] = _check(name, bound.arguments[name], annotation)
        return function(*bound.args, **bound.kwargs)

    return check


def _check_names(given: Iterable[str], parameters: Collection[str]) -> None:
    """Raise SettingsError for an argument that has the name of another library."""
    for name in given:
        if name not in parameters and _NAMES_ELSEWHERE.get(name) in parameters:
            raise SettingsError(f"unknown argument {name!r}; did you mean {_NAMES_ELSEWHERE[name]!r}?")


def _check(name: str, value: Any, annotation: Any) -> Any:
    """Return the value, converted if necessary."""
    members = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    if name == "device" and type(value).__name__ == "device":  # torch's; importing torch takes a second
        return str(value)
    if {*members} <= {str, Path, NoneType}:
        if Path in members and isinstance(value, str) and not value:  # which is the current folder for `Path`
            raise SettingsError(f"{name}: expected a path, got an empty string")
        if Path in members and isinstance(value, str | Path) and "\0" in str(value):
            raise SettingsError(f"{name}: expected a path, got a string with a null character")
        if isinstance(value, str) and Path in members:
            return expanduser(value)
        if isinstance(value, members):
            return value
        if Path in members and isinstance(value, PathLike):
            return fspath(value)
        kind = "a path" if Path in members else "a string"
        is_gpu = name == "device" and isinstance(value, Integral)  # as in pipelines of `transformers`
        advice = f"; write 'cuda:{value}'" if is_gpu else advise(value)
        raise SettingsError(f"{name}: expected {kind}, got {type(value).__name__}{advice}")
    if {get_origin(member) or member for member in members} <= {Mapping, NoneType}:
        if isinstance(value, Mapping | None):
            return value
        raise SettingsError(f"{name}: expected a dict, got {type(value).__name__}")
    if all(member in (int, float, bool, NoneType) or get_origin(member) is Literal for member in members):
        from pydantic import TypeAdapter, ValidationError  # takes 0.1 s

        from bertie.base.schemas import describe_problem, shorten

        if isinstance(value, bool) and {int, float} & {*members} and bool not in members:
            raise SettingsError(f"{name} = {value}: expected a number, not a flag")
        try:
            return TypeAdapter(annotation).validate_python(value)
        except ValidationError as error:
            message = describe_problem(error.errors()[0]["msg"])
            raise SettingsError(f"{name} = {shorten(value)}: {message}") from None
    return value


def check_flag(name: str, value: Any) -> None:
    """Check that an argument is True or False.

    Methods call it, because `checked` would slow them down.

    Raises:
        SettingsError: it is something else, such as an array, whose truth is ambiguous.
    """
    if not isinstance(value, Integral | np.bool_) or value not in (True, False):
        from bertie.base.schemas import shorten  # imports pydantic, which takes 0.1 s

        raise SettingsError(f"{name}={shorten(value)}: expected True or False")


def check_integer(
    name: str, value: Any, minimum: int = 1, maximum: int | None = None, alternative: str = ""
) -> int:
    """Return an argument that is an integer, also one of numpy's, as an int.

    Methods call it, as they call `check_flag`.

    Args:
        name: the name of the argument.
        value: the argument.
        minimum, maximum: the smallest and the largest allowed value; without `maximum` there is no largest.
        alternative: what else is allowed, for the error message.

    Raises:
        SettingsError: it is something else, such as a flag, or is too small or too large.
    """
    is_integer = isinstance(value, Integral) and not isinstance(value, bool)
    if not is_integer or value < minimum or (maximum is not None and value > maximum):
        from bertie.base.schemas import shorten  # imports pydantic, which takes 0.1 s

        limit = "" if maximum is None else f" and at most {maximum:,}"
        raise SettingsError(
            f"{name}={shorten(value)}: expected an integer of at least {minimum}{limit}{alternative}"
        )
    return int(value)


def advise(value: Any) -> str:
    """Return advice on what to pass instead of a value of a wrong type."""
    if isinstance(value, Integral) and not isinstance(value, bool):
        return f"; write {str(value)!r}"
    attributes = ("model_directory", "path")  # of a finished run; of a predictor or a corpus
    saved = "; pass the directory that it is saved in" if hasattr(value, "save") else ""  # a tokenizer
    return next((f"; pass its {name}" for name in attributes if hasattr(value, name)), saved)
