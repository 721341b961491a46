"""How a global batch is cut, and what a run makes of its batches."""

import json
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.parity.transformers_peer import masked_lm_labels, padded
from transformers import BertForPreTraining

from bertie.corpus.shards import Corpus
from bertie.model.formats.directory import ModelMetadata
from bertie.model.formats.weights import save_model
from bertie.model.heads import PreTrainingModel
from bertie.text.tokenizer import Tokenizer
from bertie.training.checkpoints import TrainState
from bertie.training.distributed import Ranks
from bertie.training.loop import split_micro_batches
from bertie.training.pretraining import global_batches, pretrain


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=60),
    st.integers(1, 200),
    st.integers(1, 5),
)
def test_shares_are_whole_in_order_and_nearly_even(lengths, micro_batch_tokens, multiple):
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    shares = split_micro_batches(bounds, micro_batch_tokens, multiple)
    assert shares[0][0] == 0
    assert shares[-1][1] == len(lengths)
    assert all(a[1] == b[0] for a, b in pairwise(shares))
    assert all(first < last for first, last in shares)
    for first, last in shares:
        assert bounds[last] - bounds[first] <= micro_batch_tokens + max(lengths)
    if min(lengths) == max(lengths) and len(lengths) % multiple == 0 and micro_batch_tokens >= bounds[-1]:
        assert len(shares) == multiple


MAX_GRADIENT_NORM = 2.0  # clips some of the steps below
WEIGHT_DECAY = 0.2  # enough to be seen after so few


def paper_step(parameters, gradients, moments, rate):
    """One step of google-research/bert optimization.py:59-149; returns the norm before clipping."""
    norm = torch.stack([gradient.square().sum() for gradient in gradients.values()]).sum().sqrt()
    for name, parameter in parameters.items():
        gradient = gradients[name] * MAX_GRADIENT_NORM / max(norm, MAX_GRADIENT_NORM)
        m, v = moments.setdefault(name, (torch.zeros_like(parameter), torch.zeros_like(parameter)))
        m.copy_(0.9 * m + 0.1 * gradient)
        v.copy_(0.999 * v + 0.001 * gradient.square())
        update = m / (v.sqrt() + 1e-6)
        if not any(part in name for part in ("LayerNorm", "layer_norm", "bias")):
            update += WEIGHT_DECAY * parameter
        parameter -= rate * update
    return norm.item()


def test_a_run_is_that_of_the_papers_code(corpus_path, tmp_path, tiny_settings):
    """The peer takes each global batch whole; a second phase goes on with step, rate and moments."""
    corpus = Corpus.open(corpus_path)
    tokenizer = Tokenizer.load(corpus.tokenizer_directory)
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "initializer_range": 0.1}
    settings = tiny_settings(
        model={**still, "vocab_size": len(tokenizer.vocabulary)},
        phases=[{"steps": 7, "max_seq_length": 24}, {"steps": 5, "max_seq_length": 48}],
        micro_batch_tokens=100,
        log_every=1,
        optimizer={"max_gradient_norm": MAX_GRADIENT_NORM, "weight_decay": WEIGHT_DECAY},
    )
    torch.manual_seed(0)
    metadata = ModelMetadata(settings.model, PreTrainingModel.architecture, (), tokenizer)
    save_model(tmp_path / "init", PreTrainingModel(settings.model), metadata, "card")
    pretrain(settings, corpus_path, tmp_path / "run", init=tmp_path / "init")
    rows = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    logged = [row for row in rows if row["kind"] == "train"]

    theirs = BertForPreTraining.from_pretrained(tmp_path / "init")
    theirs.bert.embeddings.word_embeddings.padding_idx = None  # theirs learns nothing of [PAD], google's does
    parameters, moments, norms = dict(theirs.named_parameters()), {}, []
    whole = settings.model_copy(update={"micro_batch_tokens": 10**6})
    for step, global_batch in enumerate(global_batches(corpus, tokenizer, whole, TrainState(), Ranks())):
        (batch,) = global_batch.micro_batches
        labels = {"labels": masked_lm_labels(batch), "next_sentence_label": batch.next_sentence_labels}
        loss = theirs(**padded(batch), **labels).loss
        gradients = dict(zip(parameters, torch.autograd.grad(loss, parameters.values()), strict=True))
        rate = 1e-3 * (step / 2 if step < 2 else 1 - step / 12)
        with torch.no_grad():
            norms.append(paper_step(parameters, gradients, moments, rate))
        figures = [logged[step][name] for name in ("learning_rate", "loss", "gradient_norm")]
        assert figures == pytest.approx([rate, loss.item(), norms[-1]], rel=1e-4)
    assert min(norms) < MAX_GRADIENT_NORM < max(norms)
    learnt = BertForPreTraining.from_pretrained(tmp_path / "run" / "model").state_dict()
    for name, weight in theirs.state_dict().items():
        torch.testing.assert_close(learnt[name], weight, atol=1e-5, rtol=1e-4)


def test_each_step_of_each_seed_has_a_dropout_of_its_own(corpus_path, tmp_path, tiny_settings, monkeypatch):
    seeds = []

    def remember(values, probability):
        seeds.append(torch.initial_seed())
        return values

    monkeypatch.setattr("bertie.model.dropout._masked", remember)
    for seed in (0, 1):
        pretrain(tiny_settings(seed=seed), corpus_path, tmp_path / f"run{seed}")
    measuring = 1  # the plan, before the first step
    assert len(set(seeds)) == 2 * (measuring + tiny_settings().total_steps)
