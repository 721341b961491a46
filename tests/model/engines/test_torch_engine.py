"""How torch computes: the order of the weights in memory."""

import numpy as np
import pytest
import torch
from tests.inference.small_models import save_small
from tests.model.formats.test_onnx import random_sequences

from bertie.model.engines.hardware import Hardware
from bertie.model.engines.torch_engine import TorchEngine, load_torch_engine
from bertie.model.formats.weights import load_model

FLOAT32 = Hardware(device="cpu", precision="float32")


def linear_layers(engine: TorchEngine) -> list[torch.nn.Linear]:
    return [module for module in engine.model.modules() if isinstance(module, torch.nn.Linear)]


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="torch multiplies without MKL")
@pytest.mark.parametrize("kind", ["classifier", "pre-training", "tagger"])
def test_columns_of_weights_are_contiguous_and_nothing_else_changes(tmp_path, kind):
    path = save_small(tmp_path, kind)
    engine, _ = load_torch_engine(path, FLOAT32)
    model, _ = load_model(path)
    assert len(linear_layers(engine)) > 4
    assert all(module.weight.stride(0) == 1 for module in linear_layers(engine))
    for (name, weight), (_, expected) in zip(
        engine.model.named_parameters(), model.named_parameters(), strict=True
    ):
        assert torch.equal(weight, expected), name
    for lengths in ([3], [5, 17, 9], [30] * 10):
        batch = random_sequences(lengths)
        expected = TorchEngine(model, FLOAT32).logits(batch)
        np.testing.assert_allclose(engine.logits(batch), expected, rtol=1e-5, atol=1e-6)


def test_weights_in_bfloat16_are_as_they_were(tmp_path):
    engine, _ = load_torch_engine(
        save_small(tmp_path, "classifier"), Hardware(device="cpu", precision="bfloat16")
    )
    assert all(module.weight.is_contiguous() for module in linear_layers(engine))
