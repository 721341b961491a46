"""A pre-training run that is killed goes on as if nothing had happened."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

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


def bertie(folder: Path, *arguments: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "bertie.commands.main", *arguments]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def pretrain(folder: Path, run: str, *more: str) -> subprocess.Popen:
    return bertie(folder, "pretrain", "recipe.toml", "--corpus", "corpus", "--out", run, *more)


def rows_of(run: Path) -> list[dict]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return [{k: v for k, v in row.items() if k not in ("seconds", "tokens_per_second")} for row in rows]


def wait_for_lines(run: Path, lines: int) -> None:
    """Wait until the run has logged so many lines; give up where it takes a minute."""
    for _ in range(6000):
        if (run / "metrics.jsonl").exists() and (run / "metrics.jsonl").read_bytes().count(b"\n") >= lines:
            return
        time.sleep(0.01)
    raise AssertionError(f"{run} logged fewer than {lines} lines")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("kill")
    chance = random.Random(1)
    words = [f"word{number}" for number in range(50)]
    lines = [" ".join(chance.sample(words, 9)) + "." if n % 10 else "" for n in range(800)]
    (folder / "text.txt").write_text("\n".join(lines) + "\n")
    (folder / "recipe.toml").write_text(RECIPE)
    for arguments in (
        ["vocab", "text.txt", "--size", "150", "--out", "tokenizer", "--workers", "1"],
        ["prepare", "text.txt", "--tokenizer", "tokenizer", "--out", "corpus", "--held-out", "0.1"],
    ):
        process = bertie(folder, *arguments)
        _, err = process.communicate()
        assert process.returncode == 0, err
    process = pretrain(folder, "undisturbed")
    _, err = process.communicate()
    assert process.returncode == 0, err
    return folder


def assert_same_as_undisturbed(folder: Path, run: str) -> None:
    assert rows_of(folder / run) == rows_of(folder / "undisturbed")
    weights = [folder / name / "model" / "model.safetensors" for name in (run, "undisturbed")]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_kill_9_then_resume(folder):
    for number, (lines, more) in enumerate([(3, []), (12, ["--resume"]), (24, ["--resume"])]):
        process = pretrain(folder, "killed", *more)
        wait_for_lines(folder / "killed", lines)
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL, number
    process = pretrain(folder, "killed", "--resume")
    _, err = process.communicate()
    assert process.returncode == 0, err
    assert_same_as_undisturbed(folder, "killed")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_says_so_by_its_exit_status(folder, number):
    run = f"stopped-{number}"
    process = pretrain(folder, run)
    wait_for_lines(folder / run, 5)
    process.send_signal(number)
    _, err = process.communicate()
    assert process.returncode == 128 + number
    assert "--resume" in err
    assert (folder / run / "checkpoints").is_dir()
    process = pretrain(folder, run, "--resume")
    _, err = process.communicate()
    assert process.returncode == 0, err
    assert_same_as_undisturbed(folder, run)
