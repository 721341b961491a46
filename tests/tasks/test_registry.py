"""Tasks are found by name, in any usual spelling."""

import pytest

from bertie.base.errors import SettingsError
from bertie.commands.task_options import TaskName
from bertie.tasks.registry import TASKS, find_task


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *((name.upper(), name) for name in TASKS),
        *((name.replace("-", ""), name) for name in TASKS),
        ("squad1.1", "squad-v1"),
        ("SQuAD v2.0", "squad-v2"),
        ("CoNLL-2003", "ner"),
    ],
)
def test_usual_spellings_are_accepted(name, expected):
    assert find_task(name) is TASKS[expected]


def test_nearest_name_is_offered():
    with pytest.raises(SettingsError, match="no task 'mrcp'; did you mean 'mrpc'"):
        find_task("mrcp")


def test_help_lists_all_tasks():
    (option,) = TaskName.__metadata__
    assert [name for name in TASKS if name not in option.help] == []
