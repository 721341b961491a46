"""A pre-training run that is killed or stopped goes on as if nothing had happened."""

import random
import signal
import time
from pathlib import Path

import pytest
from tests.faults.runs import (
    assert_same_run,
    changed_since,
    fork_pretrain,
    logged_lines,
    pretrain,
    wait_until,
)


def saves_in_hand(run: Path) -> list[Path]:
    return list((run / "checkpoints").glob(".step-*.tmp"))


def wait_for_line(run: Path, line: int, started: int) -> None:
    """Wait until there are so many lines of metrics, and the process of this start is writing them."""
    wait_until(lambda: changed_since(run / "metrics.jsonl", started) and logged_lines(run) >= line)


def wait_for_save(run: Path, started: int) -> None:
    wait_until(lambda: any(changed_since(save, started) for save in saves_in_hand(run)))


@pytest.mark.parametrize("kills", [6, pytest.param(20, marks=pytest.mark.slow)])
def test_kill_9_at_random_moments(folder: Path, kills: int) -> None:
    """Every other kill waits for a save; a checkpoint left half-written shows that it hit one."""
    name, chance = f"killed-{kills}", random.Random(kills)
    run = folder / name
    lines = range(1, logged_lines(folder / "undisturbed") - 5)  # the last save is still to come
    hits = []
    for number, line in enumerate(sorted(chance.choices(lines, k=kills))):
        started = time.time_ns()
        process = fork_pretrain(folder, name, *(["--resume"] if number else []))
        wait_for_line(run, line, started)
        if number % 2:
            wait_for_save(run, started)
            time.sleep(chance.uniform(0, 0.003))
        else:
            time.sleep(chance.uniform(0, 0.1))
            wait_until(lambda: not saves_in_hand(run))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        hits.append(bool(saves_in_hand(run)))
    assert 0 < sum(hits) < kills
    process = fork_pretrain(folder, name, "--resume")
    process.join()
    assert process.exitcode == 0
    assert_same_run(run, folder / "undisturbed")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_says_so_by_its_exit_status(folder: Path, number: int) -> None:
    run = f"stopped-{number}"
    stopped = pretrain(folder, run)
    wait_until(lambda: logged_lines(folder / run) >= 5)
    stopped.send_signal(number)
    _, err = stopped.communicate()
    assert stopped.returncode == 128 + number
    assert "--resume" in err
    assert (folder / run / "checkpoints").is_dir()
    process = fork_pretrain(folder, run, "--resume")
    process.join()
    assert process.exitcode == 0
    assert_same_run(folder / run, folder / "undisturbed")
