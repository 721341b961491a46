"""Commands on a machine with few open files, a read-only disk, a clock set back, or little memory."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.faults.commands import COMMANDS, Undisturbed, arguments_of, read_result, run
from tests.faults.runs import BERTIE, fork_bertie

DAY = 86_400.0
GIB = 1 << 30
SMALL_DEMO = [sys.executable, "-m", "tests.faults.small_demo"]  # the real one takes minutes


def with_all_slow(*quick: str) -> list[object]:
    """Return all commands as parameters, the quick ones for the default tests."""
    return [verb if verb in quick else pytest.param(verb, marks=pytest.mark.slow) for verb in COMMANDS]


@pytest.mark.parametrize("verb", with_all_slow("prepare-workers", "pretrain"))
def test_64_open_files_suffice(verb: str, inputs: Path, tmp_path: Path, undisturbed: Undisturbed) -> None:
    status, _, output = run(verb, inputs, tmp_path / "out", files=64)
    assert status == 0, output
    assert read_result(tmp_path / "out") == undisturbed(verb)[1]


@pytest.mark.parametrize("verb", with_all_slow("prepare", "finetune"))
def test_clock_set_back_changes_nothing(
    verb: str, inputs: Path, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """The clock goes back by 400 days while the command is killed and runs again."""
    operations, expected = undisturbed(verb)
    run(verb, inputs, tmp_path / "out", fault="kill", at=operations // 2)
    status, _, output = run(verb, inputs, tmp_path / "out", resume=True, clock=-400 * DAY)
    # A command whose worker was killed repeated its task and finished.
    assert status == 0 or "already contains a prepared corpus" in output, output
    assert read_result(tmp_path / "out") == expected


@pytest.mark.parametrize("verb", with_all_slow("predict", "prepare", "pretrain", "search", "reproduce"))
def test_read_only_folder_is_reported(verb: str, inputs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    if subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "true"]).returncode:
        pytest.skip("this system does not let ordinary users mount")
    out = folder / COMMANDS[verb][1]
    process = fork_bertie(folder, *arguments_of(verb, inputs), out, read_only=str(folder))
    assert process.join() == 2, process.output
    assert "Traceback" not in process.output
    assert process.last_line.endswith(": cannot be created (read-only file system); choose another path")
    assert not any(folder.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("gigabytes", [0.3, 1])
@pytest.mark.parametrize("verb", COMMANDS)
def test_little_memory_is_reported(verb: str, gigabytes: float, inputs: Path, tmp_path: Path) -> None:
    """With 1 GB of address space a command succeeds or reports one line; with 0.3 GB, it reports one.

    `reproduce` may also report a failed cell, which the same command tries again.
    """
    limit = int(gigabytes * GIB)
    bertie = SMALL_DEMO if verb == "demo" else BERTIE
    program = ["prlimit", f"--as={limit}", *bertie, *arguments_of(verb, inputs), tmp_path / COMMANDS[verb][1]]
    done = subprocess.run(program, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert "Traceback" not in done.stderr, done.stderr
    allowed = ({0, 1, 2} if verb == "reproduce" else {0, 2}) if gigabytes == 1 else {2}
    assert done.returncode in allowed, done.stderr
    if done.returncode == 1:
        assert done.stderr.splitlines()[-1] == "bertie: 1 of 1 cells failed; see table.md"
        assert "failed: [Errno 12]" in done.stderr or "memory" in done.stderr, done.stderr
    elif done.returncode:
        assert done.stderr.splitlines()[-1].startswith("bertie: out of memory")
    print(f"{verb}, {gigabytes} GB: exit status {done.returncode}")
