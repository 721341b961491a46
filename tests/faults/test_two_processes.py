"""Of several processes with one output, one writes it and the others report one line."""

import fcntl
from pathlib import Path

import pytest
from tests.faults.commands import (
    COMMANDS,
    RESUMABLE,
    RESUMED_WITH_OPTION,
    Undisturbed,
    arguments_of,
    read_result,
    run,
)
from tests.faults.runs import error_line, fork_bertie

LOCKED = "another bertie process is writing here; wait for it or choose another path"
# What the others may report: the output is locked, or has been written in the meantime.
REFUSALS = (
    LOCKED,
    "exists already; choose another",
    "already holds a run",
    "already contains a prepared corpus",
)
# `reproduce` is not here: its processes share the work, or, with --model, lock a folder in the output.
EXCLUSIVE = [verb for verb in COMMANDS if not verb.startswith("reproduce")]


@pytest.mark.parametrize("verb", EXCLUSIVE)
def test_locked_output_is_reported(
    verb: str, inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / COMMANDS[verb][1]
    lock = out / ".lock" if verb in RESUMABLE else tmp_path / f".{out.name}.lock"
    lock.parent.mkdir(exist_ok=True)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        line = error_line(capsys, *arguments_of(verb, inputs), out)
    assert line == f"bertie: {out}: {LOCKED}"
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [lock]


def check_at_once(verb: str, processes: int, inputs: Path, folder: Path, *options: str) -> None:
    """Start a command several times at once; one must write the output, the others report one line."""
    command = [*arguments_of(verb, inputs), folder / COMMANDS[verb][1], *options]
    forked = [fork_bertie(folder, *command) for _ in range(processes)]
    statuses = [process.join() for process in forked]
    outputs = [process.output for process in forked]
    assert 0 in statuses, outputs
    assert {*statuses} <= {0, 2}, outputs
    if not options and not verb.startswith(("reproduce", "prepare")):
        assert statuses.count(0) == 1, outputs
    for status, process in zip(statuses, forked, strict=True):
        assert "Traceback" not in process.output
        if status == 2:
            assert any(refusal in process.last_line for refusal in REFUSALS), process.output


@pytest.mark.parametrize(
    ("verb", "options", "processes", "rounds"),
    [
        ("vocab", (), 2, 1),
        ("prepare", (), 2, 1),
        ("convert", (), 4, 2),
        ("finetune", ("--resume",), 2, 1),
        *(
            pytest.param(verb, options, processes, 40, marks=pytest.mark.slow)
            for verbs, options in ((COMMANDS, ()), (RESUMED_WITH_OPTION, ("--resume",)))
            for verb in verbs
            for processes in (2, 4)
        ),
    ],
)
def test_processes_at_once_write_one_output(
    verb: str,
    options: tuple[str, ...],
    processes: int,
    rounds: int,
    inputs: Path,
    tmp_path: Path,
    undisturbed: Undisturbed,
) -> None:
    """With --resume, they resume a run that was killed, in each round at another point of its second half."""
    operations, expected = undisturbed(verb)
    for number in range(rounds):
        folder = tmp_path / str(number)
        folder.mkdir()
        if options:
            at = operations // 2 + number % (operations // 2)
            assert run(verb, inputs, folder, fault="kill", at=at)[0] == -9
        check_at_once(verb, processes, inputs, folder, *options)
        assert read_result(folder) == expected, number
    print(f"{verb} {' '.join(options)}: {processes} processes, {rounds} rounds")
