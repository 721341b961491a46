"""Of two processes with one output, one writes it and the other reports one line."""

import fcntl
from pathlib import Path

import pytest
from tests.faults.runs import error_line, finish, start_bertie
from tests.faults.commands import COMMANDS

LOCKED = "another bertie process is writing here; wait for it or choose another path"


@pytest.mark.parametrize("verb", COMMANDS)
def test_locked_output_is_reported(
    verb: str,
    inputs: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments, name = COMMANDS[verb]
    out = tmp_path / name
    fills_a_directory = verb in ("prepare", "pretrain", "finetune", "finetune-2", "search")
    lock = out / ".lock" if fills_a_directory else tmp_path / f".{name}.lock"
    lock.parent.mkdir(exist_ok=True)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        line = error_line(capsys, *(argument.format(inputs) for argument in arguments), out)
    assert line == f"bertie: {out}: {LOCKED}"
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [lock]


@pytest.mark.parametrize("verb", ["convert", "vocab"])
def test_two_commands_at_once_write_one_output(verb: str, inputs: Path, tmp_path: Path) -> None:
    arguments, name = COMMANDS[verb]
    command = [*(argument.format(inputs) for argument in arguments), str(tmp_path / name)]
    processes = [start_bertie(tmp_path, *command) for _ in range(2)]
    errors = [process.communicate()[1] for process in processes]
    assert sorted(process.returncode for process in processes) == [0, 2], errors
    (loser,) = [err for err, process in zip(errors, processes, strict=True) if process.returncode]
    assert loser.splitlines()[-1].startswith(f"bertie: {tmp_path / name}: ")
    assert "Traceback" not in loser
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_two_processes_resume_one_fine_tuning(inputs: Path, tmp_path: Path) -> None:
    arguments, name = COMMANDS["finetune"]
    command = [*(argument.format(inputs) for argument in arguments), str(tmp_path / name)]
    finish(start_bertie(tmp_path, *command))
    before = {path: path.read_bytes() for path in (tmp_path / name).rglob("*.json*")}
    processes = [start_bertie(tmp_path, *command, "--resume") for _ in range(2)]
    errors = [process.communicate()[1] for process in processes]
    for process, err in zip(processes, errors, strict=True):
        # Both succeed if one ends before the other starts.
        assert process.returncode == 0 or err.splitlines()[-1].endswith(LOCKED), err
    assert {path: path.read_bytes() for path in (tmp_path / name).rglob("*.json*")} == before
