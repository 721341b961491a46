"""Check JSON files that other programs wrote against schemas.

Each file is checked once, where it is read.
"""

import reprlib
from pathlib import Path
from typing import Any, TypeVar

import pydantic

from bertie.base.errors import ModelError
from bertie.base.files import read_json_object

F = TypeVar("F")

# Parts of pydantic's messages, and what bertie writes instead.
_EXPECTED = {
    "a valid integer": "an integer",
    "a valid boolean": "true or false",
    "a valid tuple": "a list",
    "a valid ": "a ",
    "greater than": "a number greater than",
    "less than": "a number less than",
}
MAX_SHOWN = 60  # characters of a wrong value that a message shows


class Foreign(pydantic.BaseModel):
    """Base class of the schemas. Other keys are ignored, and instances are immutable."""

    model_config = pydantic.ConfigDict(extra="ignore", frozen=True, protected_namespaces=())


def read_foreign(schema: type[F], path: Path, only: str = "") -> F:
    """Read a JSON object that another program may have written.

    Args:
        schema: a `Foreign` class, or a type of mappings. A file that does not exist is an empty object.
        path: the file.
        only: the end of the message about a value that is none of the schema's literals.

    Raises:
        DataError: the file is a directory or not JSON.
        ModelError: a value does not fit the schema. The message names the file and the key.
    """
    values: F = check_foreign(schema, read_json_object(path), path, only)
    return values


def check_foreign(schema: Any, values: Any, path: Path, only: str = "") -> Any:
    """Return the values of a JSON file as a schema; see `read_foreign`."""
    try:
        return pydantic.TypeAdapter(schema).validate_python(values)
    except pydantic.ValidationError as failure:
        error = failure.errors()[0]
        key = _name_key(error["loc"], values) or "the content"
        if error["type"] == "missing":
            raise ModelError(f"{path}: {key} is missing; download the file again") from None
        shown = shorten(error["input"])
        if error["type"] == "literal_error":
            expected = error["ctx"]["expected"]
            raise ModelError(f"{path}: {key} is {shown}, not {expected}; {only}") from None
        problem = describe_problem(error["msg"])
        raise ModelError(f"{path}: {key} is {shown}: {problem}; download the file again") from None


def describe_problem(message: str) -> str:
    """Return a message of pydantic in bertie's words.

    Example:
        >>> describe_problem("Input should be a valid integer, unable to parse string as an integer")
        'expected an integer'
    """
    message = message.removeprefix("Value error, ")
    expected = message.removeprefix("Input should be ")
    if expected == message:
        return message[0].lower() + message[1:]
    expected = expected.partition(", unable to ")[0]
    for theirs, ours in _EXPECTED.items():
        expected = expected.replace(theirs, ours)
    return f"expected {expected}"


def visible(text: str) -> str:
    r"""Return a text whose invisible characters are escaped, such as a zero-width space as \u200b."""
    return text if text.isprintable() else repr(text)[1:-1]


def shorten(value: Any) -> str:
    """Return the representation of a value, on one line and not too long."""
    text = " ".join(reprlib.repr(value).split())
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def _name_key(location: tuple[int | str, ...], values: Any) -> str:
    """Return the path of a key in a JSON file.

    Unlike in pydantic's locations, members of unions are left out.
    """
    parts = []
    for i, part in enumerate(location):
        if isinstance(values, dict) and (part in values or str(part) in values):
            values = values.get(part, values.get(str(part)))
        elif isinstance(values, list) and isinstance(part, int) and part < len(values):
            values = values[part]
        elif not isinstance(values, dict) or i + 1 < len(location):  # a missing key comes last
            continue
        parts.append(str(part))
    return repr(".".join(parts))[1:-1][:MAX_SHOWN]
