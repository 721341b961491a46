"""The tasks of the paper, by name."""

import difflib
from typing import Any

from bertie.base.errors import SettingsError
from bertie.tasks import glue
from bertie.tasks.ner import NER
from bertie.tasks.squad import SQUAD_TASKS
from bertie.tasks.swag import SWAG
from bertie.tasks.task import Task

TASKS: dict[str, Task[Any, Any]] = {task.name: task for task in (*glue.TASKS, *SQUAD_TASKS, NER, SWAG)}


def find_task(name: str) -> Task[Any, Any]:
    """The task called `name`.

    Raises:
        SettingsError: there is none; the message names the nearest.
    """
    if name in TASKS:
        return TASKS[name]
    near = difflib.get_close_matches(name.lower(), TASKS, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(TASKS)}"
    raise SettingsError(f"no task {name!r}; {hint}")
