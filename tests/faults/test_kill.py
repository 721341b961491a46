"""A pre-training run that is killed or stopped resumes as if nothing had happened."""

import os
import random
import signal
import time
from pathlib import Path

import pytest
from tests.faults.runs import (
    assert_same_run,
    changed_since,
    count_logged_lines,
    fork_bertie,
    fork_pretraining,
    wait_until,
)


def unfinished_saves(run: Path) -> list[Path]:
    return list((run / "checkpoints").glob(".step-*.bertie-tmp"))


def wait_for_line(run: Path, line: int, started: int) -> None:
    """Wait until the process started at `started` has logged line `line`."""
    wait_until(lambda: changed_since(run / "metrics.jsonl", started) and count_logged_lines(run) >= line)


def wait_for_save(run: Path, started: int) -> None:
    wait_until(lambda: any(changed_since(save, started) for save in unfinished_saves(run)))


@pytest.mark.parametrize("kills", [6, pytest.param(20, marks=pytest.mark.slow)])
def test_run_resumes_after_kill_9_at_random_moments(folder: Path, kills: int) -> None:
    """Every other kill waits for a save; some must leave an unfinished checkpoint."""
    name, rng = f"killed-{kills}", random.Random(kills)
    run = folder / name
    lines = range(1, count_logged_lines(folder / "undisturbed") - 5)  # all before the last save
    interrupted = []
    for number, line in enumerate(sorted(rng.choices(lines, k=kills))):
        started = time.time_ns()
        process = fork_pretraining(folder, name, *(["--resume"] if number else []))
        wait_for_line(run, line, started)
        if number % 2:
            wait_for_save(run, started)
            time.sleep(rng.uniform(0, 0.003))
        else:
            time.sleep(rng.uniform(0, 0.1))
            wait_until(lambda: not unfinished_saves(run))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        interrupted.append(bool(unfinished_saves(run)))
    assert 0 < sum(interrupted) < kills
    process = fork_pretraining(folder, name, "--resume")
    process.join()
    assert process.exitcode == 0
    assert_same_run(run, folder / "undisturbed")


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_signal_saves_and_sets_the_exit_status(folder: Path, number: int) -> None:
    run = f"stopped-{number}"
    stopped = fork_pretraining(folder, run)
    wait_until(lambda: count_logged_lines(folder / run) >= 5)
    stopped.kill(number)
    assert stopped.join() == 128 + number
    assert "--resume" in stopped.last_line
    assert (folder / run / "checkpoints").is_dir()
    process = fork_pretraining(folder, run, "--resume")
    process.join()
    assert process.exitcode == 0
    assert_same_run(folder / run, folder / "undisturbed")


@pytest.mark.parametrize("sends_signal", [False, True])
def test_run_outlives_its_terminal(folder: Path, sends_signal: bool) -> None:
    """Without SIGHUP, as after `disown`, it continues; with SIGHUP, it saves its state."""
    name = f"closed-{sends_signal}"
    run = folder / name
    ours, theirs = os.openpty()
    arguments = ["pretrain", "recipe.toml", "--corpus", "corpus", "--out", name, "--set", "save_every=0"]
    process = fork_bertie(folder, *arguments, terminal=os.ttyname(theirs))
    wait_until(lambda: count_logged_lines(run) >= 3)
    os.close(ours)
    os.close(theirs)
    if sends_signal:
        process.kill(signal.SIGHUP)
        process.kill(signal.SIGHUP)
        assert process.join() == 128 + signal.SIGHUP
        assert (run / "checkpoints").is_dir()
        assert not (run / "model").exists()
        process = fork_pretraining(folder, name, "--resume")
    assert process.join() == 0
    assert (run / "model").is_dir()
    weights = [path / "model" / "model.safetensors" for path in (run, folder / "undisturbed")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
