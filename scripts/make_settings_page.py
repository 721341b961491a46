"""Write docs/settings.md from the settings classes; tests/test_settings_page.py keeps it current.

python scripts/make_settings_page.py
"""

import inspect
import re
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bertie.base.settings import Settings
from bertie.training.finetuning_settings import FinetuningSettings
from bertie.training.pretraining_settings import Phase, PretrainingSettings
from bertie.training.search import SearchSettings

PAGE = Path(__file__).parents[1] / "docs" / "settings.md"
INTRODUCTION = """# Settings

These are the keys that `--set KEY=VALUE` takes, with their defaults. In Python, pass them as
`settings={"optimizer.learning_rate": 1e-3}` or, without a dot, as keywords: `batch_size=64`. A recipe
is a TOML file of the same keys. A value is written as in TOML; text needs no quotes. The default "not
set" is `None` in Python, and has no form for `--set`.

A run writes its settings to `settings.toml`, with fingerprints of its inputs, which it fills in itself.
This page is generated from the source by `make docs`.
"""
PRETRAINING = """## Pre-training

`bertie pretrain RECIPE --set …` ([pre-training](pretraining.md)). The defaults are from the paper's run.
The recipe overrides them, and `--set` overrides the recipe.
"""
PHASES = """### Phases

`phases.0` is the first phase, `phases.1` the second one, and so on. By default, there are two.
"""
MODEL = """### Model

Without `model.vocab_size`, the model has one row for each token of the corpus's tokenizer. With `--init`, the
sizes come from the initial model.
"""
FINETUNING = """## Fine-tuning

`bertie finetune … --set …` ([fine-tuning](finetuning.md)). The
[tasks of the paper](finetuning.md#tasks-of-the-paper) and [`contrastive_pairs`](finetuning.md#few-labels)
replace some of these defaults.
"""
SEARCH = """## Search

`bertie search … --set …` ([search](finetuning.md#search)). Settings of fine-tuning have the prefix
`finetuning.`, such as `finetuning.max_seq_length`. Settings that the grid varies are rejected: `batch_size`,
`epochs`, `seed` and `optimizer.learning_rate`.
"""
HEADER = "| key | values | default | meaning |\n|---|---|---|---|"
KINDS = {int: "integer", float: "number", str: "text", bool: "`true` or `false`"}
SIGNS = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}


def make_page() -> str:
    """Return the text of docs/settings.md."""
    pretraining, finetuning = PretrainingSettings(), FinetuningSettings()
    parts = [
        INTRODUCTION,
        PRETRAINING,
        _table(PretrainingSettings, [pretraining]),
        PHASES,
        _table(Phase, pretraining.phases, "phases.0."),
        MODEL,
        _table(type(pretraining.model), [pretraining.model], "model."),
        "### Examples\n",
        _table(type(pretraining.examples), [pretraining.examples], "examples."),
        "### Optimizer\n",
        _table(type(pretraining.optimizer), [pretraining.optimizer], "optimizer."),
        FINETUNING,
        _table(FinetuningSettings, [finetuning]),
        "### Optimizer of fine-tuning\n",
        _table(type(finetuning.optimizer), [finetuning.optimizer], "optimizer."),
        SEARCH,
        _table(SearchSettings, [SearchSettings()]),
    ]
    return "\n".join(parts)


def listed_settings(section: type[Settings]) -> list[str]:
    """Return the names of the settings of a section that have a row, in order of definition."""
    return [
        name
        for name, field in section.model_fields.items()
        if not field.exclude
        and not name.endswith("_fingerprint")  # filled in by the run
        and not _is_section(field.default)
    ]


def _is_section(default: Any) -> bool:
    return isinstance(default, Settings) or (isinstance(default, tuple) and isinstance(default[0], Settings))


def _table(section: type[Settings], defaults: typing.Sequence[Settings], prefix: str = "") -> str:
    """Return the table of a section; `defaults` has one section, or the entries of a list of sections."""
    meanings = read_meanings(section)
    rows = [HEADER]
    for name in listed_settings(section):
        values = dict.fromkeys(_write(getattr(entry, name)) for entry in defaults)
        meaning = meanings[name].replace("|", "\\|")
        meaning = meaning[0].upper() + meaning[1:].rstrip(".") + "."
        kind = _describe_type(section.model_fields[name])
        rows.append(f"| `{prefix}{name}` | {kind} | {', then '.join(values)} | {meaning} |")
    return "\n".join(rows) + "\n"


def read_meanings(section: type[Settings]) -> Mapping[str, str]:
    """Return the sentences about each setting in the docstrings of a class and its bases."""
    meanings: dict[str, str] = {}
    for owner in reversed(section.__mro__):
        documentation = inspect.cleandoc(vars(owner).get("__doc__") or "")
        attributes = re.search(r"^Attributes:\n((?: {4}.*\n?)+)", documentation, re.MULTILINE)
        for name, text in re.findall(
            r"^ {4}(\w+): ((?:.+(?:\n {8})?)+)", attributes[1] if attributes else "", re.MULTILINE
        ):
            meanings[name] = " ".join(text.split())
    return meanings


def _describe_type(field: Any) -> str:
    limits = [
        f"{sign} {_plain(getattr(limit, name))}"
        for limit in field.metadata
        for name, sign in SIGNS.items()
        if hasattr(limit, name)
    ]
    return " or ".join(_kinds(field.annotation)) + (" " + ", ".join(limits) if limits else "")


def _kinds(annotation: Any) -> Iterator[str]:
    """Yield the kinds of values of an annotation; None is not one, since it cannot be typed."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation in KINDS:
        yield KINDS[annotation]
    elif origin is typing.Literal:
        yield ", ".join(f"`{value}`" for value in arguments)
    elif origin is tuple:
        kind = typing.get_args(arguments[0])[:1] or arguments[:1]  # of Annotated, which has a limit
        yield f"list of {KINDS[kind[0]]}s"
    elif origin is dict:
        yield f"{KINDS[arguments[1]]}s by key"
    elif origin in (typing.Union, types.UnionType):
        for argument in arguments:
            if argument is not types.NoneType:
                yield from _kinds(argument)
    else:
        raise TypeError(f"{annotation}: say in KINDS or here how to describe this type")


def _write(value: Any) -> str:
    """Return a default as typed after `--set`, or "not set"."""
    return "not set" if value is None else f"`{_plain(value)}`"


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(_plain, value))}]"
    return re.sub(r"e-0", "e-", str(value))


if __name__ == "__main__":
    PAGE.write_text(make_page(), encoding="utf-8")
