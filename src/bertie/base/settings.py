"""Typed settings, resolved from layers: defaults < recipe file < options."""

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
    """Base class of all settings.

    Unknown keys are errors, and instances are immutable.

    `renamed` maps former names of settings to the current ones, so that older recipes and runs
    load:

        class OptimizerSettings(Settings):
            renamed: ClassVar = {"warmup_share": "warmup_ratio"}

            warmup_ratio: float = 0.1
    """

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)
    renamed: ClassVar[Mapping[str, str]] = {}


def read_toml(path: Path) -> Tree:
    """Read a TOML file.

    Raises:
        SettingsError: the file is missing or not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingsError(f"{path}: no such file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: not valid TOML ({error})") from None


def parse_assignments(assignments: Iterable[str]) -> Tree:
    """Parse options of the form `section.key=value` into one tree of settings.

    A value is parsed as TOML; if it is not TOML, it is a string.

    Raises:
        SettingsError: an option has no key or no `=`, or uses a value as a section.
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
                raise SettingsError(
                    f"--set {assignment}: {section!r} has a value already; remove one of the two"
                )
        branch[name] = parsed
    return tree


def merge(*layers: Mapping[str, Any]) -> Tree:
    """Merge trees into a new one, in which later layers take precedence.

    Lists are replaced, not joined.
    """
    merged: Tree = {}
    for layer in layers:
        for key, value in layer.items():
            if isinstance(value, Mapping) and isinstance(merged.get(key), Mapping):
                merged[key] = merge(merged[key], value)
            else:
                merged[key] = merge(value) if isinstance(value, Mapping) else value
    return merged


def resolve(section: type[S], *layers: Mapping[str, Any], source: str = "settings") -> S:
    """Merge layers of settings over the defaults and validate the result.

    Args:
        section: the class of the settings.
        layers: trees of settings; later ones take precedence. They may use former names.
        source: the origin of the settings in messages, such as the path of the recipe.

    Raises:
        SettingsError: a key is unknown (the message names the nearest known one) or missing, or a
            value is invalid.
    """
    try:
        current = (with_current_names(section, layer) for layer in layers)
        return section.model_validate(merge(_nested_defaults(section), *current))
    except pydantic.ValidationError as failure:
        raise SettingsError(f"{source}: {_describe_error(section, failure)}") from None


def _describe_error(section: type[Settings], failure: pydantic.ValidationError) -> str:
    """Describe the first error that pydantic found, and its remedy."""
    error = failure.errors()[0]
    key = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return f"unknown setting {key!r}; {_suggest_key(section, error['loc'])}"
    if error["type"] == "missing":
        return f"{key!r} is missing; add it"
    if error["type"] == "tuple_type":
        message = f"expected a list; write [{error['input']!r}]"
    else:
        message = error["msg"].removeprefix("Value error, ")
        message = message[0].lower() + message[1:]
    return f"{key} = {error['input']!r}: {message}" if key else message


def with_current_names(section: type[Settings], layer: Mapping[str, Any]) -> Tree:
    """Replace former names of settings, in nested sections too."""
    tree: Tree = {}
    for key, value in layer.items():
        name = section.renamed.get(key, key)
        field = section.model_fields.get(name)
        nested = _nested_section(field.annotation) if field else None
        if nested and isinstance(value, Mapping):
            value = with_current_names(nested, value)
        elif nested and isinstance(value, list):
            value = [with_current_names(nested, v) if isinstance(v, Mapping) else v for v in value]
        tree[name] = value
    return tree


def _nested_defaults(section: type[Settings]) -> Tree:
    """Return the values that a section sets in the defaults of its nested sections.

    pydantic drops them where a layer sets any other key of the nested section.
    """
    return {
        name: merge(_nested_defaults(type(default)), default.model_dump(exclude_unset=True))
        for name, field in section.model_fields.items()
        if isinstance(default := field.default, Settings)
    }


def _suggest_key(section: type[Settings], location: tuple[int | str, ...]) -> str:
    """Suggest the key nearest to the unknown one at `location`, or list all keys."""
    owner = section
    for part in location[:-1]:
        if isinstance(part, str):
            nested = _nested_section(owner.model_fields[part].annotation)
            assert nested is not None
            owner = nested
    known = sorted(owner.model_fields)
    near = difflib.get_close_matches(str(location[-1]), known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"the settings here are {', '.join(known)}"


def _nested_section(annotation: Any) -> type[Settings] | None:
    """Return the class of the nested settings in an annotation, or None.

    The annotation may be `Section`, `Section | None`, or a list or tuple of sections.
    """
    if isinstance(annotation, type):
        return annotation if issubclass(annotation, Settings) else None
    arguments = (a for a in typing.get_args(annotation) if a not in (types.NoneType, Ellipsis))
    return next((section for a in arguments if (section := _nested_section(a))), None)


def write_toml(path: Path, settings: Settings) -> None:
    """Write resolved settings as TOML, atomically; omit settings that are None."""
    write_text(path, tomli_w.dumps(settings.model_dump(mode="json", exclude_none=True)))
