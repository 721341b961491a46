"""Global batches are split evenly, and a run computes what the paper's code does."""

import ctypes
import resource
import shutil
import statistics
from contextlib import nullcontext
from itertools import count, pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.parity.transformers_peer import masked_lm_labels, padded_inputs
from tests.training.runs import NO_DROPOUT, read_rows
from transformers import BertForPreTraining

from bertie.base.random import stream_key
from bertie.model.batch import pack
from bertie.model.config import BertConfig
from bertie.model.formats.directory import ModelMetadata
from bertie.model.formats.weights import save_model
from bertie.model.heads import ClassificationModel, PreTrainingModel
from bertie.training import loop
from bertie.training.checkpoints import RunDirectory, TrainState
from bertie.training.distributed import LossFunction, Ranks
from bertie.training.finetuning_settings import FinetuningSettings
from bertie.training.loop import Batch, LoopSchedule, count_micro_batches, split_sequences
from bertie.training.metrics_file import read_metrics
from bertie.training.optimizers import OptimizerSettings, build_optimizer
from bertie.training.pretraining import pretrain
from bertie.training.pretraining_settings import PretrainingSettings
from bertie.training.pretraining_setup import PretrainingBatches, PretrainingSetup


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=60),
    st.integers(1, 200),
)
def test_micro_batches_are_complete_ordered_and_even(lengths, micro_batch_tokens):
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    count = count_micro_batches(bounds, micro_batch_tokens)
    ranges = split_sequences(bounds, count)
    assert len(ranges) == min(count, len(lengths))
    assert ranges[0][0] == 0
    assert ranges[-1][1] == len(lengths)
    assert all(a[1] == b[0] for a, b in pairwise(ranges))
    assert all(start < stop for start, stop in ranges)
    for start, stop in ranges:
        assert bounds[stop] - bounds[start] <= micro_batch_tokens + max(lengths)


@pytest.mark.parametrize("section", [PretrainingSettings, FinetuningSettings])
def test_default_size_of_micro_batches_suits_the_device(monkeypatch, section):
    """Resolving settings looks for a GPU, and does not use it."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    for device, tokens in (("cpu", 4096), ("cuda", 16384)):
        settings = section(device=device, precision="float32")
        assert settings.resolved().micro_batch_tokens == tokens
        chosen = settings.model_copy(update={"micro_batch_tokens": 100})
        assert chosen.resolved().micro_batch_tokens == 100


MAX_GRADIENT_NORM = 2.0  # clips some of the steps below, but not all
WEIGHT_DECAY = 0.2  # large enough to show after twelve steps


def paper_step(parameters, gradients, moments, learning_rate):
    """Take one step of optimization.py:59-149; return the norm before clipping."""
    norm = torch.stack([gradient.square().sum() for gradient in gradients.values()]).sum().sqrt()
    for name, parameter in parameters.items():
        gradient = gradients[name] * MAX_GRADIENT_NORM / max(norm, MAX_GRADIENT_NORM)
        m, v = moments.setdefault(name, (torch.zeros_like(parameter), torch.zeros_like(parameter)))
        m.copy_(0.9 * m + 0.1 * gradient)
        v.copy_(0.999 * v + 0.001 * gradient.square())
        update = m / (v.sqrt() + 1e-6)
        if not any(part in name for part in ("LayerNorm", "layer_norm", "bias")):
            update += WEIGHT_DECAY * parameter
        parameter -= learning_rate * update
    return norm.item()


def test_run_matches_the_papers_code(corpus_path, tmp_path, tiny_settings):
    """The peer takes whole global batches; phases share step, rate and moments."""
    settings = tiny_settings(
        model={**NO_DROPOUT, "initializer_range": 0.1},
        phases=[{"steps": 7, "max_seq_length": 24}, {"steps": 5, "max_seq_length": 48}],
        micro_batch_tokens=100,
        log_every=1,
        optimizer={"max_gradient_norm": MAX_GRADIENT_NORM, "weight_decay": WEIGHT_DECAY},
    )
    whole = settings.model_copy(update={"micro_batch_tokens": 10**6})
    setup = PretrainingSetup.load(whole, corpus_path)
    torch.manual_seed(0)
    config = setup.settings.model
    metadata = ModelMetadata(config, PreTrainingModel.architecture, (), setup.tokenizer)
    save_model(tmp_path / "init", PreTrainingModel(config), metadata, "card")
    pretrain(settings, corpus_path, tmp_path / "run", init=tmp_path / "init")
    logged = [row for row in read_rows(tmp_path / "run") if row["kind"] == "train"]

    peer = BertForPreTraining.from_pretrained(tmp_path / "init")
    # transformers never trains the embedding of [PAD]; google's code does, when it is a random token.
    peer.bert.embeddings.word_embeddings.padding_idx = None
    parameters, moments, norms = dict(peer.named_parameters()), {}, []
    batches = PretrainingBatches(setup, TrainState(), Ranks())
    for step in range(whole.total_steps):
        (batch,) = next(batches).micro_batches
        labels = {"labels": masked_lm_labels(batch), "next_sentence_label": batch.next_sentence_labels}
        loss = peer(**padded_inputs(batch), **labels).loss
        gradients = dict(zip(parameters, torch.autograd.grad(loss, parameters.values()), strict=True))
        rate = 1e-3 * (step / 2 if step < 2 else 1 - step / 12)
        with torch.no_grad():
            norms.append(paper_step(parameters, gradients, moments, rate))
        metrics = [logged[step][name] for name in ("learning_rate", "loss", "gradient_norm")]
        assert metrics == pytest.approx([rate, loss.item(), norms[-1]], rel=1e-4)
    assert min(norms) < MAX_GRADIENT_NORM < max(norms)
    trained = BertForPreTraining.from_pretrained(tmp_path / "run" / "model").state_dict()
    for name, weight in peer.state_dict().items():
        torch.testing.assert_close(trained[name], weight, atol=1e-5, rtol=1e-4)


def test_dropout_differs_in_each_step_seed_and_rank(corpus_path, tmp_path, tiny_settings, monkeypatch):
    seeds = []

    def record_seed(values, probability):
        seeds.append(torch.initial_seed())
        return values

    monkeypatch.setattr("bertie.model.dropout._cpu_dropout", record_seed)
    for seed in (0, 1):
        pretrain(tiny_settings(seed=seed), corpus_path, tmp_path / f"run{seed}")
    rank, plan = 0, 1  # a measurement, before the first step
    expected = {int(stream_key(seed, step, rank)) for seed in (0, 1) for step in range(12)}
    assert expected <= set(seeds)
    assert len(set(seeds)) == len(expected) + 2 * plan


def test_logged_gradient_norm_is_the_largest_since_the_last_row(corpus_path, tmp_path, tiny_settings):
    norms = []
    for log_every in (1, 100):
        run = tmp_path / f"run{log_every}"
        pretrain(tiny_settings(log_every=log_every), corpus_path, run)
        norms.append([row["gradient_norm"] for row in read_rows(run) if row["kind"] == "train"])
    assert norms[1] == [max(norms[0])]
    assert norms[0][-1] < max(norms[0])


def test_a_spare_batch_counts_nothing_and_has_no_gradient():
    """A rank without examples of its own computes those of another one."""
    config = BertConfig(vocab_size=9, hidden_size=12, num_hidden_layers=1, intermediate_size=4, **NO_DROPOUT)
    model = ClassificationModel(config, 2).train()
    ids = np.arange(6, dtype=np.int32)
    micro_batches = [pack(ids, np.zeros_like(ids), np.array([0, 2, 6]), labels=np.array([0, 1]))] * 2
    gradients = {}
    for is_spare in (False, True):
        batch, ranks = Batch(micro_batches, 0, is_spare), Ranks()
        counts = loop._count(model, batch, ranks)
        sums = loop._backward(LossFunction(model, ranks), batch, counts.targets, 1, nullcontext())
        gradients[is_spare] = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
        model.zero_grad()
        if is_spare:
            assert (counts.tokens, counts.examples, [*counts.targets.values()]) == (0, 0, [1])
            assert (sums == 0).all()
        else:
            assert (counts.tokens, counts.examples, [*counts.targets.values()]) == (12, 4, [4])
            assert (sums[:, 0] > 0).all()
    assert gradients[False].abs().max() > 0
    assert (gradients[True] == 0).all()


def test_logged_times_are_of_training_steps_also_after_a_resume(
    corpus_path, tmp_path, tiny_settings, monkeypatch
):
    clock = SimpleNamespace(perf_counter=count(step=0.5).__next__)  # every step takes half a second
    monkeypatch.setattr("bertie.training.loop.time", clock)
    pretrain(tiny_settings(), corpus_path, tmp_path)
    shutil.rmtree(tmp_path / "checkpoints" / "step-00000012")  # so that it resumes between two rows
    pretrain(tiny_settings(), corpus_path, tmp_path, resume=True)
    rows = [row for row in read_metrics(tmp_path / "metrics.jsonl") if row["kind"] == "train"]
    assert [row["seconds"] for row in rows] == [1.5, 3, 4.5, 6]
    tokens = [0, *(row["tokens"] for row in rows)]
    speeds = [row["tokens_per_second"] for row in rows]
    assert speeds == [pytest.approx((b - a) / 1.5, abs=0.1) for a, b in pairwise(tokens)]


def test_training_removes_checkpoints_that_a_kill_left(tmp_path):
    """`save` removes them after the next step; a run that has no next step saves nothing."""
    model = ClassificationModel(
        BertConfig(vocab_size=9, hidden_size=12, num_hidden_layers=1, intermediate_size=4), 2
    )
    optimizer = build_optimizer(model, OptimizerSettings())
    with RunDirectory(tmp_path) as run:
        for step in (1, 2, 3):
            run.save(TrainState(step=step), model, optimizer, save_every=1, keep_checkpoints=3)
        loop.train(
            LossFunction(model, Ranks()),
            iter(()),
            optimizer,
            learning_rate=1.0,
            max_gradient_norm=1.0,
            schedule=LoopSchedule(3, 0, log_every=0, evaluate_every=0, save_every=1, keep_checkpoints=2),
            seed=0,
            state=TrainState(step=3),
            run=run,
            evaluate=dict,
            progress=None,
            ranks=Ranks(),
            autocast=nullcontext(),
        )
    assert [path.name for path in run.checkpoints()] == ["step-00000002", "step-00000003"]


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="needs glibc")
def test_freed_memory_is_kept_until_the_run_ends(corpus_path, tmp_path, tiny_settings, monkeypatch):
    faults = []

    def use_memory() -> None:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        assert b"x" * 2**26  # 16,384 pages, freed at once
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

    def next_batch(batches: PretrainingBatches) -> Batch:
        use_memory()
        return draw(batches)

    draw = PretrainingBatches.__next__
    monkeypatch.setattr(PretrainingBatches, "__next__", next_batch)
    pretrain(tiny_settings(), corpus_path, tmp_path / "run")
    use_memory()
    first, *others, after = faults
    assert len(others) == tiny_settings().total_steps - 1
    assert 10 * statistics.median(others) < min(first, after)


def test_a_micro_batch_may_hold_any_number_of_tokens():
    assert count_micro_batches(np.array([0, 7, 20]), 1 << 70) == 1
