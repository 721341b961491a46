"""What only a GPU shows. Run with `pytest -m gpu`."""

import json

import numpy as np
import pytest
import torch

from bertie.corpus.shards import Corpus
from bertie.model.engines.hardware import Hardware
from bertie.model.heads import PreTrainingModel
from bertie.text.tokenizer import Tokenizer
from bertie.training.checkpoints import TrainState
from bertie.training.distributed import Ranks
from bertie.training.pretraining import global_batches, pretrain

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]


def rows_of(run) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_losses_and_gradients_are_those_of_the_processor(corpus_path, tiny_settings):
    corpus = Corpus.open(corpus_path)
    tokenizer = Tokenizer.load(corpus.tokenizer_directory)
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model_settings = tiny_settings().model.model_dump() | still | {"vocab_size": len(tokenizer.vocabulary)}
    settings = tiny_settings(model=model_settings)
    batch = next(global_batches(corpus, tokenizer, settings, TrainState(), Ranks())).micro_batches[0]
    torch.manual_seed(0)
    model = PreTrainingModel(settings.model)
    found = {}
    for device in ("cpu", "cuda"):
        model.to(device).zero_grad()
        losses = model.losses(batch.to(torch.device(device)))
        total = torch.stack([objective.loss_sum for objective in losses.values()]).sum()
        total.backward()
        gradients = {name: weight.grad.cpu().clone() for name, weight in model.named_parameters()}
        found[device] = (total.item(), gradients)
    assert found["cuda"][0] == pytest.approx(found["cpu"][0], rel=1e-4)
    for name, gradient in found["cpu"][1].items():
        difference = (found["cuda"][1][name] - gradient).norm()
        assert difference <= 1e-3 * gradient.norm() + 1e-5, name


def test_bfloat16_is_what_a_gpu_takes_by_itself_and_it_learns(corpus_path, tiny_settings, tmp_path):
    assert Hardware().resolved().device == "cuda"
    phases = [{"steps": 300, "max_seq_length": 32}]
    fast = tiny_settings(device="auto", phases=phases, optimizer={"learning_rate": 3e-3}, evaluate_every=100)
    pretrain(fast, corpus_path, tmp_path / "run")
    losses = [row["masked_lm_loss"] for row in rows_of(tmp_path / "run") if row["kind"] == "train"]
    assert np.mean(losses[-5:]) < 0.7 * np.mean(losses[:5])
    assert 'precision = "bfloat16"' in (tmp_path / "run" / "settings.toml").read_text()


def test_a_run_on_a_gpu_goes_on_where_it_was(corpus_path, tiny_settings, tmp_path):
    two_phases = [{"steps": 8, "max_seq_length": 32}, {"steps": 4, "max_seq_length": 64}]
    settings = tiny_settings(device="cuda", precision="float32", phases=two_phases)
    pretrain(settings, corpus_path, tmp_path / "whole")
    pretrain(settings, corpus_path, tmp_path / "resumed")
    newest = sorted((tmp_path / "resumed" / "checkpoints").iterdir())[-1]
    for file in newest.iterdir():
        file.unlink()
    newest.rmdir()
    pretrain(settings, corpus_path, tmp_path / "resumed", resume=True)
    one, two = rows_of(tmp_path / "whole"), rows_of(tmp_path / "resumed")
    assert [row["step"] for row in one] == [row["step"] for row in two]
    for a, b in zip(one, two, strict=True):
        if a["kind"] == "train":
            assert a["loss"] == pytest.approx(b["loss"], rel=1e-5)
