"""The tasks of the paper, by name."""

import difflib
import re
from typing import Any

from bertie.base.errors import SettingsError
from bertie.tasks import glue
from bertie.tasks.ner import NER
from bertie.tasks.pairs import STS_B_EMBEDDINGS
from bertie.tasks.squad.task import SQUAD_TASKS
from bertie.tasks.swag import SWAG
from bertie.tasks.task import Task

TASKS: dict[str, Task[Any, Any]] = {
    task.name: task for task in (*glue.TASKS, *SQUAD_TASKS, NER, SWAG, STS_B_EMBEDDINGS)
}


# The names of tasks by their letters and digits, and other usual names.
_SPELLINGS = {re.sub("[^a-z0-9]", "", name): name for name in TASKS} | {
    **dict.fromkeys(("squad1", "squad11", "squadv11"), "squad-v1"),
    **dict.fromkeys(("squad2", "squad20", "squadv20"), "squad-v2"),
    **dict.fromkeys(("conll", "conll2003", "conll03"), "ner"),
}


def find_task(name: str) -> Task[Any, Any]:
    """Return the task called `name`, also in another spelling.

    Other spellings are MRPC, SST2, squad1.1 and CoNLL-2003, for example.

    Raises:
        SettingsError: there is no such task; the message suggests similar names and lists all.
    """
    spelling = re.sub("[^a-z0-9]", "", name.lower())
    if spelling in _SPELLINGS:
        return TASKS[_SPELLINGS[spelling]]
    # With the default cutoff, 0.6, "conll" would suggest "cola".
    similar = difflib.get_close_matches(name.lower(), TASKS, n=2, cutoff=0.7)
    suggestion = f"did you mean {' or '.join(map(repr, similar))}? " if similar else ""
    raise SettingsError(
        f"no task {name!r}; {suggestion}there are: {', '.join(TASKS)}; `bertie evaluate` also has blimp"
    )
