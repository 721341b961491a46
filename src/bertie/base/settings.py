"""Typed settings, resolved from layers: defaults < recipe file < options."""

import difflib
import hashlib
import tomllib
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

import pydantic
import tomli_w

from bertie.base.errors import SettingsError
from bertie.base.files import write_text
from bertie.base.schemas import describe_problem

SETTINGS_FILE, ARGUMENTS_FILE = "settings.toml", "arguments.json"  # in the directory of a run
CHECKSUM = "# SHA-256 of the lines below: "  # before the checksum in the first line of SETTINGS_FILE

Tree = dict[str, Any]
S = TypeVar("S", bound="Settings")


def _check_seed(seed: int) -> int:
    if not -(2**63) <= seed < 2**63:
        raise ValueError("use a seed of less than 64 bits; a larger one repeats the run of a smaller one")
    return seed


Seed = Annotated[int, pydantic.AfterValidator(_check_seed)]  # of `base.random.stream_key`


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

    @pydantic.field_validator("*", mode="before")
    @classmethod
    def _reject_flags(cls, value: Any, info: pydantic.ValidationInfo) -> Any:
        """Reject a flag in place of a number, such as `patience = true`.

        pydantic reads it as 1.
        """
        annotation = cls.model_fields[str(info.field_name)].annotation
        if isinstance(value, bool) and {int, float} & {annotation, *typing.get_args(annotation)}:
            raise ValueError("expected a number, not a flag")
        return value


def read_toml(path: Path) -> Tree:
    """Read a TOML file.

    Raises:
        SettingsError: the file is missing or not TOML.
    """
    return _parse_toml(path, _read_text(path))


def read_settings(path: Path) -> Tree:
    """Read the settings of a run, and verify the checksum in the first line.

    Settings without this line, as earlier versions wrote them, are not compared.

    Raises:
        SettingsError: the file is missing, not TOML, or changed since the run wrote it.
    """
    text = _read_text(path)
    first_line, _, rest = text.partition("\n")
    if first_line.startswith(CHECKSUM) and first_line != CHECKSUM + _sha256(rest):
        raise SettingsError(
            f"{path}: changed since the run wrote it; restore it, or remove its first line to accept "
            f"the changes"
        )
    return _parse_toml(path, text)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise SettingsError(f"{path}: no such file") from None
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: not valid TOML ({error})") from None


def _parse_toml(path: Path, text: str) -> Tree:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path}: not valid TOML ({error})") from None


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def parse_assignments(assignments: Iterable[str]) -> Tree:
    """Parse options of the form `section.key=value` into one tree of settings.

    A value is parsed as TOML; if it is not TOML, it is a string. `section.0.key=value` changes the
    first entry of a list of sections.

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
        if isinstance(branch.get(name), dict):
            if not isinstance(parsed, dict):
                raise SettingsError(f"--set {assignment}: {name!r} is a section here; remove one of the two")
            parsed = merge(branch[name], parsed)
        branch[name] = parsed
    return tree


def merge(*layers: Mapping[str, Any]) -> Tree:
    """Merge trees into a new one, in which later layers take precedence.

    Lists are replaced, not joined, but a tree whose keys are all indices, such as
    `{"0": {"steps": 100}}`, changes entries of the list.

    Raises:
        SettingsError: the list has no entry of that index.
    """
    merged: Tree = {}
    for layer in layers:
        for key, value in layer.items():
            old = merged.get(key)
            if not isinstance(value, Mapping):
                merged[key] = value
            elif isinstance(old, list | tuple) and _has_indices(value):
                merged[key] = _merge_entries(key, old, value)
            else:
                merged[key] = merge(old, value) if isinstance(old, Mapping) else merge(value)
    return merged


def _has_indices(tree: Mapping[str, Any]) -> bool:
    """Return whether all keys of a tree are indices of a list."""
    return bool(tree) and all(str(key).isdecimal() for key in tree)  # Python's callers may write integers


def _merge_entries(key: str, entries: Sequence[Any], changes: Mapping[str, Any]) -> list[Any]:
    """Merge a tree with indices as keys into the entries of the list `key`."""
    merged = {str(index): entry for index, entry in enumerate(entries)}
    named = {str(index): change for index, change in changes.items()}
    for index in named:
        if index not in merged:
            known = ", ".join(f"{key}.{known_index}" for known_index in merged)
            raise SettingsError(f"{key}.{index}: no such entry; the list has {known or 'none'}")
    return list(merge(merged, named).values())


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
    nested = _section_at(section, error["loc"])
    if nested is not None and error["type"] in ("tuple_type", "model_type"):
        entry = f"{key}.0" if error["type"] == "tuple_type" else key
        message = f"expected a section; set a key in it, such as {entry}.{next(iter(nested.model_fields))}"
        return f"{key} = {error['input']!r}: {message}"
    if error["type"] == "tuple_type":
        message = f"expected a list; write [{error['input']!r}]"
    elif error["type"] == "too_short":
        message = f"the list is too short; give at least {error['ctx']['min_length']} value"
    else:
        message = describe_problem(error["msg"])
    if not key:
        return message
    if nested is not None and error["type"] == "value_error":  # the message names the settings of the section
        return f"{key}: {message}"
    return f"{key} = {error['input']!r}: {message}"


def with_current_names(section: type[Settings], layer: Mapping[str, Any]) -> Tree:
    """Replace former names of settings, in nested sections too."""
    tree: Tree = {}
    for key, value in layer.items():
        name = section.renamed.get(key, key)
        field = section.model_fields.get(name)
        nested = _nested_section(field.annotation) if field else None
        if nested and isinstance(value, Mapping) and _has_indices(value):
            value = {
                index: with_current_names(nested, entry) if isinstance(entry, Mapping) else entry
                for index, entry in value.items()
            }
        elif nested and isinstance(value, Mapping):
            value = with_current_names(nested, value)
        elif nested and isinstance(value, list):
            value = [with_current_names(nested, v) if isinstance(v, Mapping) else v for v in value]
        tree[name] = value
    return tree


def _nested_defaults(section: type[Settings]) -> Tree:
    """Return the values that a section sets in the defaults of its nested sections.

    pydantic drops them where a layer sets any other key of the nested section, or changes an entry
    of a list of sections.
    """
    defaults: Tree = {}
    for name, field in section.model_fields.items():
        if isinstance(default := field.default, Settings):
            defaults[name] = merge(_nested_defaults(type(default)), default.model_dump(exclude_unset=True))
        elif isinstance(default, tuple) and default and isinstance(default[0], Settings):
            defaults[name] = [entry.model_dump(exclude_unset=True) for entry in default]
    return defaults


# Names in the Trainer of transformers and in google-research/bert. Similar names here are other settings.
_NAMES_ELSEWHERE = {
    "bf16": "precision",
    "eval_steps": "evaluate_every",
    "fp16": "precision",
    "gradient_accumulation_steps": "micro_batch_tokens",
    "logging_steps": "log_every",
    "masked_lm_prob": "examples.masking_rate",
    "max_steps": "phases.0.steps",
    "mlm_probability": "examples.masking_rate",
    "num_train_epochs": "epochs",
    "num_train_steps": "phases.0.steps",
    "per_device_train_batch_size": "batch_size",
    "save_checkpoints_steps": "save_every",
    "save_steps": "save_every",
}


def nearest_setting(
    section: type[Settings], location: tuple[int | str, ...], cutoff: float = 0.6
) -> str | None:
    """Return the path of the setting that an unknown one at `location` probably means.

    A setting of this name in another section is nearer than another name in the same section. Initials,
    such as `lr`, are a name, too, and so are the names of other programs. Other names must be as similar
    as `cutoff`, from 0 to 1.

    Example:
        >>> nearest_setting(PretrainingSettings, ("lr",))
        'optimizer.learning_rate'
    """
    *parents, unknown = (str(part) for part in location)
    owner = _section_at(section, location[:-1])
    assert owner is not None
    prefix = "".join(f"{parent}." for parent in parents)
    by_path = dict(_setting_paths(section))
    siblings = _setting_names(owner)

    def nearest(names: Iterable[str], cutoff: float) -> str | None:
        return next(iter(difflib.get_close_matches(unknown, list(names), n=1, cutoff=cutoff)), None)

    def elsewhere(name: str | None) -> str | None:
        return next((path for path, last_part in by_path.items() if last_part == name), None)

    def here(name: str | None) -> str | None:
        return name and prefix + name

    return (
        here(nearest(siblings, 0.9))
        or elsewhere(unknown)
        or next((path for path in by_path if path == _NAMES_ELSEWHERE.get(unknown)), None)
        or elsewhere(next((name for name in by_path.values() if _initials(name) == unknown), None))
        or here(nearest(siblings, cutoff))
        or elsewhere(nearest(by_path.values(), cutoff))
    )


def _suggest_key(section: type[Settings], location: tuple[int | str, ...]) -> str:
    """Suggest the setting nearest to the unknown one at `location`, or list all of its section."""
    if suggestion := nearest_setting(section, location):
        return f"did you mean {suggestion!r}?"
    owner = _section_at(section, location[:-1])
    assert owner is not None
    return f"the settings here are {', '.join(sorted(_setting_names(owner)))}"


def _initials(name: str) -> str:
    return "".join(part[0] for part in name.split("_"))


def _setting_names(section: type[Settings]) -> list[str]:
    """Return the names of the settings that a user may choose.

    A run fills in its fingerprints.
    """
    fields = section.model_fields.items()
    return [name for name, field in fields if not field.exclude and not name.endswith("_fingerprint")]


def _setting_paths(section: type[Settings], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield (path, name) of every setting, outer sections first.

    Lists are shown by their first entry.
    """
    nested_sections = []
    for name in _setting_names(section):
        yield prefix + name, name
        annotation = section.model_fields[name].annotation
        if nested := _nested_section(annotation):
            entry = ".0" if typing.get_origin(annotation) in (list, tuple) else ""
            nested_sections.append((nested, f"{prefix}{name}{entry}."))
    for nested, nested_prefix in nested_sections:
        yield from _setting_paths(nested, nested_prefix)


def _section_at(section: type[Settings], location: Iterable[int | str]) -> type[Settings] | None:
    """Return the class of the settings at a location.

    None if there is a single setting.
    """
    owner: type[Settings] | None = section
    for part in location:
        if isinstance(part, str):
            field = owner.model_fields.get(part) if owner else None
            owner = _nested_section(field.annotation) if field else None
    return owner


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
    write_text(path, _to_toml(settings))


def write_settings(path: Path, settings: Settings) -> None:
    """Write the settings of a run as `write_toml` does, below their checksum."""
    text = _to_toml(settings)
    write_text(path, f"{CHECKSUM}{_sha256(text)}\n{text}")


def _to_toml(settings: Settings) -> str:
    return tomli_w.dumps(settings.model_dump(mode="json", exclude_none=True))
