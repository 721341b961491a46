"""`bertie inspect`: describe and check a model directory."""

import json
from pathlib import Path
from typing import Annotated, Any

from bertie.commands.options import AllowPickle, Json, NoVerify, check_stdout, local_path_argument


def inspect(
    directory: Annotated[
        Path, local_path_argument("A model in any layout that `bertie convert` reads.", "DIR")
    ],
    allow_pickle: AllowPickle = False,
    as_json: Json = False,
    no_verify: NoVerify = False,
) -> None:
    """Describe a model, and check that its files fit together."""
    from bertie.model.formats.inspection import inspect_model

    check_stdout()
    facts, checks = inspect_model(directory, allow_pickle)
    if as_json:
        print(json.dumps({**facts, "checks": [check._asdict() for check in checks]}, ensure_ascii=False))
        return
    width = max(map(len, [*facts, *(check.name for check in checks)]))
    for name, value in facts.items():
        print(f"{name:<{width}}  {_format(value)}")
    print()
    for check in checks:
        print(f"{check.name:<{width}}  {'yes' if check.passed else 'NO '}  {check.found}".rstrip())


def _format(value: Any) -> str:
    match value:
        case bool() | None:
            return {True: "yes", False: "no", None: "-"}[value]
        case int():
            return f"{value:,}"
        case dict():
            return ", ".join(f"{key} {_format(entry)}" for key, entry in value.items()) or "-"
        case list():
            return ", ".join(map(_format, value)) or "-"
        case _:
            return str(value)
