"""Training on a GPU; run with `pytest -m gpu`."""

import pytest
import torch
from tests.training.runs import NO_DROPOUT, read_rows

from bertie.model.engines.hardware import Hardware
from bertie.model.heads import PreTrainingModel
from bertie.training.checkpoints import TrainState
from bertie.training.distributed import Ranks
from bertie.training.pretraining import pretrain
from bertie.training.pretraining_setup import PretrainingBatches, PretrainingSetup

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]


def test_losses_and_gradients_match_the_cpu(corpus_path, tiny_settings):
    model_settings = tiny_settings().model.model_dump() | NO_DROPOUT
    del model_settings["vocab_size"]  # the corpus has its size
    setup = PretrainingSetup.load(tiny_settings(model=model_settings), corpus_path)
    batch = next(PretrainingBatches(setup, TrainState(), Ranks())).micro_batches[0]
    torch.manual_seed(0)
    model = PreTrainingModel(setup.settings.model)
    results = {}
    for device in ("cpu", "cuda"):
        model.to(device).zero_grad()
        losses = model.compute_losses(batch.to(torch.device(device)))
        total = torch.stack([objective.loss_sum for objective in losses.values()]).sum()
        total.backward()
        gradients = {name: weight.grad.cpu().clone() for name, weight in model.named_parameters()}
        results[device] = (total.item(), gradients)
    assert results["cuda"][0] == pytest.approx(results["cpu"][0], rel=1e-4)
    for name, gradient in results["cpu"][1].items():
        difference = (results["cuda"][1][name] - gradient).norm()
        assert difference <= 1e-3 * gradient.norm() + 1e-5, name


def test_bfloat16_is_the_default_and_learns_as_float32_does(corpus_path, tiny_settings, tmp_path):
    assert Hardware().resolved().device == "cuda"
    settings = {
        "phases": [{"steps": 60, "max_seq_length": 32}],
        "optimizer": {"learning_rate": 3e-3},
        "evaluate_every": 20,
        "model": tiny_settings().model.model_dump(exclude={"vocab_size"}) | NO_DROPOUT,
    }
    pretrain(tiny_settings(**settings), corpus_path, tmp_path / "cpu")
    pretrain(tiny_settings(**settings, device="auto", precision="auto"), corpus_path, tmp_path / "cuda")
    assert 'precision = "bfloat16"' in (tmp_path / "cuda" / "settings.toml").read_text()
    for expected, actual in zip(*(read_rows(tmp_path / name) for name in ("cpu", "cuda")), strict=True):
        for key in ("masked_lm_loss", "next_sentence_loss"):
            assert actual[key] == pytest.approx(expected[key], rel=0.03)


def test_run_resumes_from_its_checkpoint(corpus_path, tiny_settings, tmp_path):
    two_phases = [{"steps": 8, "max_seq_length": 32}, {"steps": 4, "max_seq_length": 64}]
    settings = tiny_settings(device="cuda", precision="float32", phases=two_phases)
    pretrain(settings, corpus_path, tmp_path / "undisturbed")
    pretrain(settings, corpus_path, tmp_path / "resumed")
    newest = sorted((tmp_path / "resumed" / "checkpoints").iterdir())[-1]
    for file in newest.iterdir():
        file.unlink()
    newest.rmdir()
    pretrain(settings, corpus_path, tmp_path / "resumed", resume=True)
    undisturbed, resumed = (read_rows(tmp_path / name) for name in ("undisturbed", "resumed"))
    assert [row["step"] for row in undisturbed] == [row["step"] for row in resumed]
    for expected, actual in zip(undisturbed, resumed, strict=True):
        if expected["kind"] == "train":
            assert expected["loss"] == pytest.approx(actual["loss"], rel=1e-5)
