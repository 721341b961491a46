"""The tasks of the paper, by name."""

import difflib
from typing import Any

from bertie.base.errors import SettingsError
from bertie.tasks import glue
from bertie.tasks.ner import NER
from bertie.tasks.squad.task import SQUAD_TASKS
from bertie.tasks.swag import SWAG
from bertie.tasks.task import Task

TASKS: dict[str, Task[Any, Any]] = {task.name: task for task in (*glue.TASKS, *SQUAD_TASKS, NER, SWAG)}


def find_task(name: str) -> Task[Any, Any]:
    """The task called `name`.

    Raises:
        SettingsError: there is none; the message names the nearest and all.
    """
    if name in TASKS:
        return TASKS[name]
    # Nearer than by default, for cola is not what conll means.
    near = difflib.get_close_matches(name.lower(), TASKS, n=2, cutoff=0.7)
    guess = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    raise SettingsError(f"no task {name!r}; {guess}there are: {', '.join(TASKS)}")
