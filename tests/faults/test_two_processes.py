"""Of several processes with one output, one writes it and the others report one line."""

import fcntl
import random
import signal
import time
from pathlib import Path
from typing import Any

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
from tests.faults.runs import error_line, fork_bertie, wait_until

LOCKED = "another bertie process is writing here; wait for it or choose another path"
# What the others may report: the output is locked, or has been written in the meantime.
REFUSALS = (
    LOCKED,
    "exists already; choose another",
    "already holds a run",
    "already contains a prepared corpus",
)
# `reproduce` is not here: its processes share the work.
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


def test_report_that_another_process_writes_is_awaited(inputs: Path, tmp_path: Path) -> None:
    lock = tmp_path / "out/.given.md.lock"
    lock.parent.mkdir()
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        process = fork_bertie(tmp_path, *arguments_of("reproduce-model", inputs), tmp_path / "out")
        wait_until(
            lambda: process.output.endswith("given.md: waiting for the process that is writing here\n")
        )
    assert process.join() == 0, process.output
    assert (tmp_path / "out/given.md").exists()


def trunk_arguments(inputs: Path) -> list[str]:
    """Return the arguments, but for the output, of a table whose rows share the text and a trunk."""
    table = [
        inputs / "trunk-table.toml",
        "--scale",
        inputs / "trunk-scale.toml",
        "--text",
        inputs / "text.txt",
    ]
    options = ["--data", inputs / "data", "--device", "cpu", "--workers", "1"]
    return [*map(str, ["reproduce", *table, *options]), "--out"]


@pytest.fixture(scope="module")
def table_of_one_process(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The files of such a table, which one process has written."""
    folder = tmp_path_factory.mktemp("table")
    process = fork_bertie(folder, *trunk_arguments(inputs), folder / "out")
    assert process.join() == 0, process.output
    return read_result(folder)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 4])
def test_processes_share_the_rows_of_a_table(
    processes: int, inputs: Path, tmp_path: Path, table_of_one_process: dict[str, Any]
) -> None:
    """Together they prepare the text, make the trunk and run the rows; each ends when all is done."""
    for number in range(10):
        folder = tmp_path / str(number)
        folder.mkdir()
        forked = [fork_bertie(folder, *trunk_arguments(inputs), folder / "out") for _ in range(processes)]
        assert [process.join() for process in forked] == [0] * processes, [p.output for p in forked]
        assert not [p.output for p in forked if "Traceback" in p.output or "failed" in p.output]
        assert read_result(folder) == table_of_one_process, number


@pytest.mark.slow
def test_processes_share_the_rows_of_killed_ones(
    inputs: Path, tmp_path: Path, table_of_one_process: dict[str, Any]
) -> None:
    """Three of four are killed or stopped at random moments; the same command removes what they left."""
    rng = random.Random(1)
    for number in range(10):
        folder = tmp_path / str(number)
        folder.mkdir()
        forked = [fork_bertie(folder, *trunk_arguments(inputs), folder / "out") for _ in range(4)]
        for process in forked[1:]:
            time.sleep(rng.uniform(0, 2))
            process.kill(rng.choice((signal.SIGKILL, signal.SIGTERM)))
        assert forked[0].join() == 0, forked[0].output
        assert {process.join() for process in forked} <= {0, -9, -15, 143}
        again = fork_bertie(folder, *trunk_arguments(inputs), folder / "out")
        assert again.join() == 0, again.output
        assert not [p.output for p in [*forked, again] if "Traceback" in p.output]
        assert read_result(folder) == table_of_one_process, number


@pytest.mark.slow
@pytest.mark.parametrize("step", [1, 3])
def test_another_process_makes_the_trunk_of_a_killed_one(
    step: int, inputs: Path, tmp_path: Path, table_of_one_process: dict[str, Any]
) -> None:
    """It waits for the process that makes the trunk, and resumes the trunk when that is killed."""
    killed = fork_bertie(tmp_path, *trunk_arguments(inputs), tmp_path / "out")
    wait_until(lambda: [*tmp_path.glob(f"out/pretraining/*/checkpoints/step-{step:08}")])
    killed.kill(signal.SIGSTOP)  # so that it makes the trunk until the other one waits
    other = fork_bertie(tmp_path, *trunk_arguments(inputs), tmp_path / "out")
    wait_until(lambda: "running in other processes; waiting" in other.output)
    killed.kill()
    assert killed.join() == -signal.SIGKILL
    assert other.join() == 0, other.output
    assert "Traceback" not in other.output
    assert read_result(tmp_path) == table_of_one_process
