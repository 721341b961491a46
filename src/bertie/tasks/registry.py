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
    """Return the task called `name`.

    Raises:
        SettingsError: there is no such task; the message suggests similar names and lists all.
    """
    if name in TASKS:
        return TASKS[name]
    # With the default cutoff, 0.6, "conll" would suggest "cola".
    similar = difflib.get_close_matches(name.lower(), TASKS, n=2, cutoff=0.7)
    suggestion = f"did you mean {' or '.join(map(repr, similar))}? " if similar else ""
    raise SettingsError(f"no task {name!r}; {suggestion}there are: {', '.join(TASKS)}")
