"""Settings: typed sections, read in layers (defaults < recipe file < options), written beside the result."""

import difflib
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pydantic
import tomli_w

from bertie.base.errors import SettingsError
from bertie.base.files import write_text

Tree = dict[str, Any]
S = TypeVar("S", bound="Settings")


class Settings(pydantic.BaseModel):
    """Base class of all settings: unknown keys are errors, and instances are immutable.

    `renamed` maps former names of settings to the current ones, so that older recipes and runs still load.
    """

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)
    renamed: ClassVar[Mapping[str, str]] = {}


def read_toml(path: Path) -> Tree:
    """Read a TOML file.

    Raises:
        SettingsError: the file is missing or is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingsError(f"{path}: no such file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: not valid TOML: {error}") from None


def read_assignments(assignments: Iterable[str]) -> Tree:
    """A tree from `section.key=value` options; a value is read as TOML, and as a plain string otherwise.

    Raises:
        SettingsError: there is no `=`.
    """
    tree: Tree = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals or not key.strip():
            raise SettingsError(f"--set {assignment}: expected KEY=VALUE, for example --set seed=7")
        try:
            parsed = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            parsed = value.strip()
        *sections, name = key.strip().split(".")
        branch: Any = tree
        for section in sections:
            branch = branch.setdefault(section, {})
            if not isinstance(branch, dict):
                raise SettingsError(f"--set {assignment}: {section} was given a value of its own before")
        branch[name] = parsed
    return tree


def merge(*layers: Mapping[str, Any]) -> Tree:
    """One tree of all layers, the later ones first in rank; lists are replaced, not joined."""
    merged: Tree = {}
    for layer in layers:
        for key, value in layer.items():
            if isinstance(value, Mapping) and isinstance(merged.get(key), Mapping):
                merged[key] = merge(merged[key], value)
            else:
                merged[key] = merge(value) if isinstance(value, Mapping) else value
    return merged


def resolve(section: type[S], *layers: Mapping[str, Any], source: str = "settings") -> S:
    """The settings that `layers` make, checked.

    Raises:
        SettingsError: an unknown key (the message names the nearest known one) or a value of the wrong kind.
    """
    try:
        current = (_with_current_names(section, layer) for layer in layers)
        return section.model_validate(merge(_inner_defaults(section), *current))
    except pydantic.ValidationError as failure:
        error = failure.errors()[0]
        key = ".".join(str(part) for part in error["loc"])
        if error["type"] == "extra_forbidden":
            raise SettingsError(
                f"{source}: unknown setting {key!r}{_nearest(section, error['loc'])}"
            ) from None
        if error["type"] == "missing":
            raise SettingsError(f"{source}: {key!r} is missing") from None
        message = error["msg"].removeprefix("Value error, ")
        message = message[0].lower() + message[1:]
        if error["type"] == "tuple_type":
            message = f"several are expected; write [{error['input']!r}]"
        raise SettingsError(
            f"{source}: {key} = {error['input']!r}: {message}" if key else f"{source}: {message}"
        ) from None


def _with_current_names(section: type[Settings], layer: Mapping[str, Any]) -> Tree:
    """Return `layer` with every former name of a setting replaced, in inner sections too."""
    tree: Tree = {}
    for key, value in layer.items():
        name = section.renamed.get(key, key)
        field = section.model_fields.get(name)
        inner = _inner_section(field.annotation) if field else None
        if inner and isinstance(value, Mapping):
            value = _with_current_names(inner, value)
        elif inner and isinstance(value, list):
            value = [_with_current_names(inner, v) if isinstance(v, Mapping) else v for v in value]
        tree[name] = value
    return tree


def _inner_defaults(section: type[Settings]) -> Tree:
    """What a section gives those inside it by default; pydantic forgets it where a layer has another key."""
    return {
        name: merge(_inner_defaults(type(default)), default.model_dump(exclude_unset=True))
        for name, field in section.model_fields.items()
        if isinstance(default := field.default, Settings)
    }


def _nearest(section: type[Settings], location: tuple[int | str, ...]) -> str:
    """What to try in place of the unknown key at `location`: the nearest known one, or the list of them."""
    owner = section
    for part in location[:-1]:
        if isinstance(part, str):
            inner = _inner_section(owner.model_fields[part].annotation)
            assert inner is not None
            owner = inner
    known = sorted(owner.model_fields)
    near = difflib.get_close_matches(str(location[-1]), known, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; known here: {', '.join(known)}"


def _inner_section(annotation: Any) -> type[Settings] | None:
    """Return the section inside `Section`, `Section | None` or `list[Section]`; None for plain values."""
    if isinstance(annotation, type):
        return annotation if issubclass(annotation, Settings) else None
    arguments = (a for a in typing.get_args(annotation) if a not in (types.NoneType, Ellipsis))
    return next((section for a in arguments if (section := _inner_section(a))), None)


def write_toml(path: Path, settings: Settings) -> None:
    """Write resolved settings as TOML, atomically; a setting that is None is left out."""
    write_text(path, tomli_w.dumps(settings.model_dump(mode="json", exclude_none=True)))
