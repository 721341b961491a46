"""Start commands, wait for moments of a pre-training run, and compare two runs."""

import atexit
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from tests.faults.template import Forked, Job, Template
from tests.training.runs import read_rows

from bertie.commands.main import main

# Two phases that train within seconds.
RECIPE = """
seed = 5
batch_size = 16
warmup_steps = 5
log_every = 2
evaluate_every = 20
save_every = 7
held_out_examples = 16
device = "cpu"
[[phases]]
steps = 40
max_seq_length = 32
[[phases]]
steps = 20
max_seq_length = 64
[model]
hidden_size = 32
num_hidden_layers = 2
num_attention_heads = 2
intermediate_size = 64
max_position_embeddings = 64
"""
BERTIE = [sys.executable, "-m", "bertie.commands.main"]


@cache
def template() -> Template:
    """Return the process from which tests fork commands; it runs until the tests end."""
    template = Template()
    atexit.register(template.close)
    return template


def fork_bertie(folder: Path, *arguments: object, **options: Any) -> Forked:
    """Start `bertie ARGUMENTS` in a folder, much faster than a new process; its log is beside the folder.

    Args:
        folder: the current folder of the command.
        options: faults and limits, as in `Job`.
    """
    log = folder.with_name(f"{folder.name}-{time.monotonic_ns()}.log")
    return template().start(Job([*map(str, arguments)], str(folder), str(log), **options))


def fork_pretraining(folder: Path, run: str, *options: str) -> Forked:
    """Start `bertie pretrain` with the recipe and the corpus of a folder."""
    return fork_bertie(folder, "pretrain", "recipe.toml", "--corpus", "corpus", "--out", run, *options)


def error_line(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Run `bertie ARGUMENTS` in this process; it must fail; return its error line."""
    with patch.object(sys, "argv", ["bertie", *map(str, arguments)]), pytest.raises(SystemExit) as exit_info:
        main()
    assert exit_info.value.code == 2
    *progress, line = capsys.readouterr().err.splitlines()
    assert not [line for line in progress if line.startswith(("bertie:", "Traceback"))]
    return line


def wait_until(condition: Callable[[], object]) -> None:
    """Poll a condition; fail after a minute."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.0005)


def changed_since(path: Path, nanoseconds: int) -> bool:
    """Return whether a path exists and was modified after a time of `time.time_ns`."""
    try:
        return path.stat().st_mtime_ns > nanoseconds
    except FileNotFoundError:
        return False


def count_logged_lines(run: Path) -> int:
    file = run / "metrics.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def assert_same_run(run: Path, other: Path) -> None:
    """Assert that weights, file names, and metrics but for timings are the same."""
    assert read_rows(run) == read_rows(other)
    weights = [folder / "model" / "model.safetensors" for folder in (run, other)]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    names = [sorted(str(file.relative_to(folder)) for file in folder.rglob("*")) for folder in (run, other)]
    assert names[0] == names[1]
