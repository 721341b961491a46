"""A pre-training run of two phases in seconds, its commands, and what must be equal in two of them."""

import json
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from unittest.mock import patch

import pytest

from bertie.commands.main import main

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
TIMINGS = ("seconds", "tokens_per_second")


def bertie(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [*BERTIE, *arguments]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def pretrain(folder: Path, run: str, *more: str) -> subprocess.Popen[str]:
    return bertie(folder, "pretrain", "recipe.toml", "--corpus", "corpus", "--out", run, *more)


# Forks processes that have imported torch already: a start costs a second instead of four.
FORKSERVER = multiprocessing.get_context("forkserver")
FORKSERVER.set_forkserver_preload(["bertie.commands.main", "bertie.training.pretraining", "torch._dynamo"])


def fork_pretrain(folder: Path, run: str, *more: str) -> BaseProcess:
    """As `pretrain`, its output left alone."""
    files = [str(folder / "recipe.toml"), "--corpus", str(folder / "corpus"), "--out", str(folder / run)]
    with patch.object(sys, "argv", ["bertie", "pretrain", *files, *more]):
        process = FORKSERVER.Process(target=main)
        process.start()
    return process


def finish(process: subprocess.Popen[str]) -> None:
    _, err = process.communicate()
    assert process.returncode == 0, err


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The line with which `bertie ARGUMENTS`, in this process, refuses to work."""
    with patch.object(sys, "argv", ["bertie", *map(str, arguments)]), pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    *progress, line = capsys.readouterr().err.splitlines()
    assert not [line for line in progress if line.startswith(("bertie:", "Traceback"))]
    return line


def wait_until(condition: Callable[[], object]) -> None:
    """Wait until it holds; give up after a minute."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.0005)


def changed_since(path: Path, nanoseconds: int) -> bool:
    try:
        return path.stat().st_mtime_ns > nanoseconds
    except FileNotFoundError:
        return False


def logged_lines(run: Path) -> int:
    file = run / "metrics.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def rows_of(run: Path) -> list[dict[str, object]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key not in TIMINGS} for row in rows]


def assert_same_run(run: Path, other: Path) -> None:
    """The same weights byte for byte, the same rows of metrics but for timings, and nothing left over."""
    assert rows_of(run) == rows_of(other)
    weights = [folder / "model" / "model.safetensors" for folder in (run, other)]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    names = [sorted(str(file.relative_to(folder)) for file in folder.rglob("*")) for folder in (run, other)]
    assert names[0] == names[1]
