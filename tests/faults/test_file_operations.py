"""Commands that are disturbed at any of their operations on files leave nothing wrong behind.

The same command, or with --resume, writes the same result as an undisturbed run, and removes what its
predecessor left.
"""

from pathlib import Path
from typing import Any

import pytest
from tests.faults.commands import COMMANDS, Undisturbed, read_result, run

# What disturbs a command, with the exit statuses that it may have then. It ends with 0 if a worker was
# killed, whose task another one repeats, and if a signal or a full disk came when all work was done.
FAULTS = {
    "kill": {-9, 0},
    "full": {2, 0},
    "SIGINT": {130, -2, 0},
    "SIGTERM": {143, -15, 0},
    "SIGINT-twice": {130, -2, 0},
    "SIGTERM-twice": {143, -15, 0},
}
# In the default tests: at one operation. All operations of all commands are slow.
QUICK = [
    ("kill", verb)
    for verb in ("vocab-workers", "prepare-workers", "pretrain", "finetune", "search", "reproduce")
] + [("full", "predict"), ("full", "finetune"), ("SIGINT", "convert"), ("SIGTERM-twice", "pretrain")]


def check_fault(verb: str, fault: str, at: int, inputs: Path, folder: Path, expected: dict[str, Any]) -> None:
    """Disturb a command at an operation, run it again, and compare its result."""
    status, _, output = run(verb, inputs, folder, fault=fault, at=at)
    assert status in FAULTS[fault], (at, status, output)
    assert "Traceback" not in output, (at, output)
    if status == 2:
        assert output.splitlines()[-1].startswith("bertie: "), (at, output)
        assert "the disk is full" in output.splitlines()[-1], (at, output)
    status, _, output = run(verb, inputs, folder, resume=True)
    assert "Traceback" not in output, (at, output)
    if status == 2:  # the disturbed command had finished its work
        assert "exists already" in output or "already contains a prepared corpus" in output, (at, output)
    else:
        assert status == 0, (at, status, output)
    left = read_result(folder)
    assert left.keys() == expected.keys(), (at, left.keys() ^ expected.keys())
    assert [key for key in left if left[key] != expected[key]] == [], at


@pytest.mark.parametrize(("fault", "verb"), QUICK)
def test_command_disturbed_at_one_file_operation_is_repeated(
    fault: str, verb: str, inputs: Path, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    operations, expected = undisturbed(verb)
    check_fault(verb, fault, operations * 2 // 3, inputs, tmp_path / "out", expected)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("verb", COMMANDS)
def test_command_disturbed_at_any_file_operation_is_repeated(
    fault: str, verb: str, inputs: Path, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    operations, expected = undisturbed(verb)
    failures = []
    for at in range(1, operations + 1):
        try:
            check_fault(verb, fault, at, inputs, tmp_path / str(at), expected)
        except AssertionError as error:
            failures.append(error)
    print(f"{verb}, {fault}: {operations} operations tried, {operations - len(failures)} survived")
    assert not failures, failures[0]
