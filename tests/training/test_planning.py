"""What a run says it will take, beside what it takes."""

import json
import subprocess
import sys

import pytest

from bertie.base.errors import SettingsError
from bertie.training import planning
from bertie.training.pretraining import plan, pretrain

PEAK = """
import resource, sys
from pathlib import Path
import torch
from bertie.base.settings import resolve
from bertie.training.pretraining import PretrainingSettings, plan, pretrain
torch.set_num_threads(1)
shape = dict(hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024)
tree = dict(batch_size=256, warmup_steps=0, device="cpu", held_out_examples=4, micro_batch_tokens=8192,
            phases=[dict(steps=1, max_seq_length=128)], model=shape)
settings = resolve(PretrainingSettings, tree)
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
said = plan(settings, Path(sys.argv[1]), Path(sys.argv[2] + "x"), init=None, resume=False).memory_bytes
pretrain(settings, Path(sys.argv[1]), Path(sys.argv[2]))
print(peak(), said)
"""


def test_steps_tokens_and_parameters_are_those_of_the_run(corpus_path, tiny_settings, tmp_path):
    settings = tiny_settings(
        phases=[{"steps": 20, "max_seq_length": 32}, {"steps": 10, "max_seq_length": 64}]
    )
    said = plan(settings, corpus_path, tmp_path / "run", init=None, resume=False)
    assert not (tmp_path / "run").exists()
    pretrain(settings, corpus_path, tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    last = [row for row in rows if row["kind"] == "train"][-1]
    assert (said.steps, said.sequences) == (last["step"], last["examples"]) == (30, 480)
    assert said.tokens == pytest.approx(last["tokens"], rel=0.1)
    assert said.seconds > 0
    with pytest.raises(SettingsError, match="already holds a run"):
        plan(settings, corpus_path, tmp_path / "run", init=None, resume=False)


@pytest.mark.slow
def test_the_memory_is_about_that_of_the_run(corpus_path, tmp_path):
    command = [sys.executable, "-c", PEAK, str(corpus_path), str(tmp_path / "run")]
    taken, said = map(int, subprocess.check_output(command, text=True).split())
    assert said / 1.3 < taken < said * 1.3


def test_gradient_checkpointing_takes_less_memory(corpus_path, tiny_settings, tmp_path, monkeypatch):
    monkeypatch.setattr(planning, "_resident_bytes", lambda: 0)
    usual, less = (
        plan(tiny_settings(gradient_checkpointing=on), corpus_path, tmp_path / "run", init=None, resume=False)
        for on in (False, True)
    )
    assert less.memory_bytes < 0.8 * usual.memory_bytes
    assert less.parameters == usual.parameters


def test_too_much_for_the_machine_is_said(corpus_path, tiny_settings, tmp_path, monkeypatch):
    said = plan(tiny_settings(), corpus_path, tmp_path / "run", init=None, resume=False)
    assert "more than" not in str(said)
    assert "lower micro_batch_tokens" in str(said._replace(device_bytes=said.memory_bytes - 1))


def test_a_cold_start_does_not_count(corpus_path, tiny_settings, tmp_path, monkeypatch):
    clock = iter([0.0, 9.0, 9.0, 9.5] + [10.0 + n for n in range(100)])
    monkeypatch.setattr(planning.time, "perf_counter", lambda: next(clock))
    one_phase = tiny_settings(batch_size=1, evaluate_every=1000, held_out_examples=1)
    said = plan(one_phase, corpus_path, tmp_path / "run", init=None, resume=False)
    assert said.seconds == pytest.approx(12 * 0.5, rel=0.1)
