"""Two processes started by torchrun learn what one would."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from bertie.base.errors import SettingsError
from bertie.base.settings import write_toml
from bertie.training.distributed import join_ranks
from bertie.training.pretraining import pretrain

ROUNDING = 1e-5


def torchrun(folder: Path, corpus: Path, run: str, *more: str) -> subprocess.Popen[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    verb = ["-m", "bertie.commands.main", "pretrain", "recipe.toml", "--corpus", str(corpus), "--out", run]
    return subprocess.Popen([*launcher, *verb, *more], cwd=folder, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> None:
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err


def rows_of(run: Path) -> list[dict]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in ("seconds", "tokens_per_second")} for row in rows]


def weights_of(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model" / "model.safetensors")


@pytest.fixture
def folder(tmp_path, tiny_settings) -> Path:
    write_toml(tmp_path / "recipe.toml", tiny_settings(save_every=3, micro_batch_tokens=128))
    return tmp_path


def test_what_is_not_torchrun_is_told_to_be(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with (
        pytest.raises(SettingsError, match="not LOCAL_RANK: start several processes with torchrun"),
        join_ranks("cpu"),
    ):
        pass


@pytest.mark.slow
def test_two_ranks_learn_what_one_learns(folder, corpus_path, tiny_settings):
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    more = [f"--set=model.{name}={value}" for name, value in still.items()]
    finish(torchrun(folder, corpus_path, "two", *more))
    alone = tiny_settings(
        save_every=3, micro_batch_tokens=128, model=tiny_settings().model.model_dump() | still
    )
    pretrain(alone, corpus_path, folder / "one")
    one, two = weights_of(folder / "one"), weights_of(folder / "two")
    for name, weight in one.items():
        torch.testing.assert_close(two[name], weight, atol=ROUNDING, rtol=ROUNDING)
    for ours, theirs in zip(rows_of(folder / "one"), rows_of(folder / "two"), strict=True):
        assert ours.keys() == theirs.keys()
        assert all(ours[key] == pytest.approx(theirs[key], rel=1e-3) for key in ours if key != "kind")


@pytest.mark.slow
def test_a_stopped_run_of_two_ranks_goes_on_bit_for_bit(folder, corpus_path):
    finish(torchrun(folder, corpus_path, "undisturbed"))
    process = torchrun(folder, corpus_path, "stopped")
    while not (folder / "stopped" / "metrics.jsonl").exists() or len(rows_of(folder / "stopped")) < 2:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)
    assert process.returncode != 0
    assert list((folder / "stopped" / "checkpoints").glob("step-*"))
    assert not (folder / "stopped" / "model").exists()
    finish(torchrun(folder, corpus_path, "stopped", "--resume"))
    one, two = weights_of(folder / "undisturbed"), weights_of(folder / "stopped")
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert rows_of(folder / "undisturbed") == rows_of(folder / "stopped")
