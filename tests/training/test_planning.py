"""The estimates of a plan are close to the actual cost of the run."""

import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.training.runs import read_rows

from bertie.base.errors import SettingsError
from bertie.model.batch import pack
from bertie.model.config import BertConfig
from bertie.model.heads import MaskedLMModel
from bertie.training import planning
from bertie.training.planning import PhaseSample, Plan, plan_pretraining
from bertie.training.pretraining import pretrain
from bertie.training.pretraining_setup import PretrainingSetup

MEASURE_PEAK = """
import resource, sys
from pathlib import Path
import torch
from bertie.base.settings import resolve
from bertie.training.planning import plan_pretraining
from bertie.training.pretraining import pretrain
from bertie.training.pretraining_settings import PretrainingSettings
torch.set_num_threads(1)
shape = dict(hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024)
tree = dict(batch_size=256, warmup_steps=0, device="cpu", held_out_examples=4, micro_batch_tokens=8192,
            phases=[dict(steps=1, max_seq_length=128)], model=shape)
settings = resolve(PretrainingSettings, tree)
corpus, run = map(Path, sys.argv[1:])
planned = plan_pretraining(settings, corpus, run).memory_bytes
pretrain(settings, corpus, run)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, planned)
"""


def test_plan_matches_the_run(corpus_path, tiny_settings, tmp_path):
    settings = tiny_settings(
        phases=[{"steps": 20, "max_seq_length": 32}, {"steps": 10, "max_seq_length": 64}]
    )
    plan = plan_pretraining(settings, corpus_path, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    pretrain(settings, corpus_path, tmp_path / "run")
    last = [row for row in read_rows(tmp_path / "run") if row["kind"] == "train"][-1]
    assert (plan.steps, plan.sequences) == (last["step"], last["examples"]) == (30, 480)
    assert plan.tokens == pytest.approx(last["tokens"], rel=0.1)
    assert plan.seconds > 0
    with pytest.raises(SettingsError, match="already holds a run"):
        plan_pretraining(settings, corpus_path, tmp_path / "run")


def test_plan_of_a_resumed_run_counts_the_remaining_steps(corpus_path, tiny_settings, tmp_path, capsys):
    phases = [{"steps": 6, "max_seq_length": 32}, {"steps": 10, "max_seq_length": 64, "batch_size": 8}]
    settings = tiny_settings(phases=phases, keep_checkpoints=4)
    pretrain(settings, corpus_path, tmp_path / "run")
    assert str(plan_pretraining(settings, corpus_path, tmp_path / "run", resume=True)) == "no steps left"
    for step in (12, 16):
        shutil.rmtree(tmp_path / "run" / "checkpoints" / f"step-{step:08d}")
    plan = plan_pretraining(settings, corpus_path, tmp_path / "run", resume=True)
    assert (plan.steps, plan.sequences, plan.steps_done) == (8, 64, 8)
    pretrain(settings, corpus_path, tmp_path / "run", resume=True)
    assert "pre-training: 8 steps left, 64 sequences, about" in capsys.readouterr().err


@pytest.mark.parametrize(("world_size", "shards"), [(1, 1), (2, 1), (2, 2)])
def test_costs_of_the_phases_are_added(monkeypatch, world_size, shards):
    """The ranks share the tokens of the steps and of the evaluations; each holds its part of a batch."""
    monkeypatch.setattr(planning, "_resident_bytes", lambda: 1_000_000)
    monkeypatch.setattr(planning, "_measure", lambda model, batches, *_: (0.5, 1000 * len(batches)))
    ids = np.zeros(60, np.int32)
    long, short = pack(ids, ids, np.array([0, 40, 60])), pack(ids[:10], ids[:10], np.array([0, 10]))
    samples = [
        PhaseSample(steps=7, batch_size=6, batches=[short, long], evaluation_tokens=900),  # 1,260 tokens
        PhaseSample(steps=3, batch_size=8, batches=[short], evaluation_tokens=300),  # 240 tokens
    ]
    model = MaskedLMModel(BertConfig(vocab_size=9, hidden_size=12, num_hidden_layers=1, intermediate_size=4))
    plan = planning._estimate(model, samples, 150, world_size, shards, torch.autocast("cpu", enabled=False))
    assert (plan.steps, plan.sequences, plan.tokens) == (10, 66, 1500)
    assert plan.seconds == pytest.approx(0.5 * (1500 + 1200 / 3) / world_size)
    floats = 3 * sum(parameter.numel() for parameter in model.parameters())  # gradients and two moments
    largest = min(150, 180 / world_size)  # tokens of a micro-batch
    activations = 1.3 * 2000 * largest
    assert plan.memory_bytes == pytest.approx(4 * floats / shards + activations + 1_000_000, abs=2)


def test_a_phase_is_measured_up_to_a_micro_batch(corpus_path, tiny_settings):
    settings = tiny_settings(evaluate_every=4)
    setup = PretrainingSetup.load(settings, corpus_path)
    examples = setup.example_stream(0).next(16)
    for tokens, sizes in ((examples.bounds[16], [1, 4, 16]), (examples.bounds[16] - 1, [1, 4])):
        changed = setup.settings.model_copy(update={"micro_batch_tokens": int(tokens)})
        sample = planning._sample_phase(replace(setup, settings=changed), 0, steps=10)
        assert [len(batch) for batch in sample.batches] == sizes
    assert sample.batches[1].num_tokens == examples.bounds[4]
    for steps, evaluations in ((10, 3), (8, 2)):  # after steps 4 and 8, and after the last one
        sample = planning._sample_phase(setup, 0, steps)
        assert sample.evaluation_tokens == round(evaluations * 32 * examples.bounds[16] / 16)


@pytest.mark.slow
def test_planned_memory_is_close_to_the_peak(corpus_path, tmp_path):
    command = [sys.executable, "-c", MEASURE_PEAK, str(corpus_path), str(tmp_path / "run")]
    peak, planned = map(int, subprocess.check_output(command, text=True).split())
    assert planned / 1.3 < peak < planned * 1.3


def test_gradient_checkpointing_takes_less_memory(corpus_path, tiny_settings, tmp_path, monkeypatch):
    monkeypatch.setattr(planning, "_resident_bytes", lambda: 0)
    without, with_checkpointing = (
        plan_pretraining(tiny_settings(gradient_checkpointing=value), corpus_path, tmp_path / "run")
        for value in (False, True)
    )
    assert with_checkpointing.memory_bytes < 0.8 * without.memory_bytes
    assert with_checkpointing.parameters == without.parameters


def test_a_batch_that_does_not_fit_in_memory_is_planned(corpus_path, tiny_settings, tmp_path):
    """The plan drew a whole batch, until the process was killed."""
    plan = plan_pretraining(tiny_settings(batch_size=10**15), corpus_path, tmp_path / "run")
    assert plan.sequences == 10**15 * plan.steps


def test_plan_warns_if_memory_does_not_suffice(corpus_path, tiny_settings, tmp_path):
    plan = plan_pretraining(tiny_settings(), corpus_path, tmp_path / "run")
    assert "more than" not in str(plan)
    assert "lower micro_batch_tokens" in str(plan._replace(device_bytes=plan.memory_bytes - 1))


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (60, "a minute"),
        (5000, "83 minutes"),
        (6000, "1.7 hours"),
        (172_800, "2.0 days"),
        (158_726.9 * 3600, "18.1 years"),
    ],
)
def test_plan_has_units_that_people_read(seconds, shown):
    plan = Plan(1_000_000, 256_000_000, 38_400_000_000, 110_106_428, 2_640_000_000, seconds, "cpu", 4 * 10**9)
    text = "about 38.4 billion tokens; 110 million parameters; about 2.64 GB of memory and"
    assert f"{text} {shown} on cpu (" in str(plan)


@pytest.mark.parametrize(("first", "second"), [(9.0, 0.5), (0.4, 0.1)])
def test_slow_first_measurement_does_not_count(
    corpus_path, tiny_settings, tmp_path, monkeypatch, first, second
):
    clock = iter([0.0, first, first, first + second])
    monkeypatch.setattr(planning.time, "perf_counter", lambda: next(clock))
    settings = tiny_settings(batch_size=1, evaluate_every=1000, held_out_examples=1)
    plan = plan_pretraining(settings, corpus_path, tmp_path / "run")
    assert plan.seconds == pytest.approx(12 * second, rel=0.1)
