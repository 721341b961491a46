"""Fused layers for training on a GPU: equal to torch's operations. Run with `-m gpu`."""

import pytest
import torch
from tests.model.layer_parts import Parts, factors_of
from tests.parity.transformers_peer import SHAPE, ragged_batch
from torch import Tensor

from bertie.model.bert import BertModel, initialize
from bertie.model.config import BertConfig
from bertie.model.dropout import DropoutMask

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
CONFIG = BertConfig(**SHAPE | {"hidden_size": 64, "hidden_dropout_prob": 0.1})


@pytest.fixture
def transform():
    from bertie.model.gpu_training import transform_attended

    return transform_attended


def relative_error(actual: Tensor, exact: Tensor) -> float:
    return float((actual.detach().cpu().double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("dropout_p", [0.0, 0.1, 0.5])
# One row; an odd width; several rows in a tile; more tiles than programs; the sizes of `mini` and `large`.
@pytest.mark.parametrize(
    ("rows", "width"), [(1, 8), (37, 13), (150, 40), (20000, 24), (130, 256), (128, 768), (65, 1024)]
)
def test_outputs_and_gradients_equal_those_of_autograd(transform, rows, width, dropout_p):
    torch.manual_seed(0)
    parts = Parts(width, transform)
    for linear in (parts.linear, parts.wide, parts.narrow):
        linear.weight.data = linear.weight.data.bfloat16().float()
    values, target = torch.randn(2, rows, width).bfloat16().float(), torch.randn(rows, width)
    with torch.autocast("cuda", torch.bfloat16):
        actual = parts.cuda().gradients("fused", dropout_p, values.cuda(), target.cuda())
    exact = parts.cpu().double().gradients("plain", dropout_p, values.double(), target.double())
    for ours, truth in zip(actual, exact, strict=True):
        assert ours.shape == truth.shape
        assert ours.dtype == torch.float32 or ours.shape == (rows, width)
        # A sum of gradients that cancel each other has a larger relative error.
        assert relative_error(ours, truth) < 2e-2


def test_dropout_is_that_of_a_cpu():
    from bertie.model.gpu_kernels import normalize

    rows, width, p = 70, 33, 0.3
    torch.manual_seed(1)
    mask = DropoutMask.draw(p)
    product = torch.ones(rows, width, dtype=torch.bfloat16, device="cuda")
    zeros, ones = torch.zeros(width, device="cuda"), torch.ones(width, device="cuda")
    residual = torch.zeros(rows, width, device="cuda")
    normed = normalize(product, zeros, residual, (ones, zeros), 0.0, mask).exact.cpu()
    factors = factors_of(mask, rows, width).double()
    expected = (factors - factors.mean(1, keepdim=True)) / factors.std(1, correction=0, keepdim=True)
    assert relative_error(normed, expected) < 1e-5


def test_no_rows_have_an_empty_result_and_gradients_of_zero(transform):
    parts = Parts(24, transform).cuda()
    inputs, residual = torch.randn(2, 0, 24, device="cuda", requires_grad=True)
    output = parts.fused(inputs, residual, 0.1)
    output.sum().backward()
    assert output.shape == (0, 24)
    assert all((parameter.grad == 0).all() for parameter in parts.parameters())


@pytest.mark.parametrize("gradient_checkpointing", [False, True])
def test_models_with_and_without_kernels_agree(gradient_checkpointing, monkeypatch):
    torch.manual_seed(0)
    config = CONFIG.model_copy(update={"hidden_dropout_prob": 0.0})
    model = BertModel(config).cuda().train()
    initialize(model, config)
    model.gradient_checkpointing = gradient_checkpointing
    batch = ragged_batch().to(torch.device("cuda"))
    results = []
    for triton in (False, True):
        monkeypatch.setattr("bertie.model.gpu._can_compile", lambda triton=triton: triton)
        with torch.autocast("cuda", torch.bfloat16):
            hidden, pooled = model(batch)
        loss = (hidden.float() ** 3).sum() + pooled.float().sum()
        results.append([hidden, pooled, *torch.autograd.grad(loss, list(model.parameters()))])
    for theirs, ours in zip(*results, strict=True):
        assert ours.dtype == theirs.dtype
        assert relative_error(ours, theirs.detach().cpu().double()) < 5e-2


def test_checkpointed_layers_drop_the_same_elements_again():
    torch.manual_seed(0)
    model = BertModel(CONFIG).cuda().train()
    initialize(model, CONFIG)
    gradients = []
    for model.gradient_checkpointing in (False, True):
        torch.manual_seed(1)
        with torch.autocast("cuda", torch.bfloat16):
            hidden, _ = model(ragged_batch().to(torch.device("cuda")))
        gradients.append(torch.autograd.grad((hidden**3).sum(), list(model.layers.parameters())))
    for kept, again in zip(*gradients, strict=True):
        assert relative_error(again, kept.cpu().double()) < 1e-3
