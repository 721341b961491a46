"""Fused layers for training on a CPU: equal to torch's operations, and used only there."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from tests.model.layer_parts import Parts, factors_of
from tests.parity.transformers_peer import SHAPE, ragged_batch
from torch import Tensor

from bertie.model import bert
from bertie.model.bert import BertModel, initialize
from bertie.model.config import BertConfig
from bertie.model.cpu_training import (
    BLOCK,
    _activate_rows,
    _differentiate_activation,
    linear,
    transform_attended,
)
from bertie.model.dropout import DropoutMask
from bertie.model.memory import ALIGNMENT

CONFIG = BertConfig(**SHAPE)
SIZES = [(1, 8), (37, 24), (64, 13), (150, 40)]  # rows and width; an odd width, and several blocks of rows


@pytest.fixture(params=[1, 3], ids=["one thread", "three threads"])
def threads(request, monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr("bertie.model.cpu.MIN_ELEMENTS_PER_THREAD", 1)
    monkeypatch.setattr("torch.get_num_threads", lambda: request.param)


@pytest.mark.parametrize("dropout_p", [0.0, 0.1, 0.5])
@pytest.mark.parametrize(("rows", "width"), SIZES)
def test_outputs_and_gradients_are_as_accurate_as_those_of_torch(library, threads, rows, width, dropout_p):
    parts = Parts(width, transform_attended)
    values, target = torch.randn(2, rows, width), torch.randn(rows, width)
    actual, expected = (parts.gradients(form, dropout_p, values, target) for form in ("fused", "plain"))
    exact = parts.double().gradients("plain", dropout_p, values.double(), target.double())
    for ours, theirs, truth in zip(actual, expected, exact, strict=True):
        assert ours.shape == truth.shape
        assert (ours - truth).norm() <= 2 * (theirs - truth).norm() + 1e-6 * truth.norm()


@pytest.mark.parametrize("dropout_p", [0.0, 0.1])
@pytest.mark.parametrize(("rows", "width"), SIZES)
def test_in_bfloat16_they_are_as_accurate_as_those_of_autocast(library, threads, rows, width, dropout_p):
    parts = Parts(width, transform_attended)
    values, target = torch.randn(2, rows, width), torch.randn(rows, width)
    with torch.autocast("cpu", torch.bfloat16):
        actual, expected = (parts.gradients(form, dropout_p, values, target) for form in ("fused", "plain"))
    exact = parts.double().gradients("plain", dropout_p, values.double(), target.double())
    for ours, theirs, truth in zip(actual, expected, exact, strict=True):
        assert ours.dtype == torch.float32
        assert (ours - truth).norm() <= 2 * (theirs - truth).norm() + 1e-6 * truth.norm()


@pytest.mark.parametrize("rows", [0, 1, 37, 150])
def test_a_linear_layer_in_bfloat16_is_as_accurate_as_that_of_autocast(library, threads, rows):
    rng = torch.Generator().manual_seed(0)
    inputs = [torch.randn(*shape, generator=rng) for shape in ((rows, 24), (5, 24), (5,))]
    target = torch.randn(rows, 5, generator=rng)

    def compute(function: Callable[..., Tensor], dtype: torch.dtype) -> list[Tensor]:
        values = [tensor.to(dtype).requires_grad_() for tensor in inputs]
        output = function(*values)
        return [output.detach(), *torch.autograd.grad((output * target).sum(), values)]

    with torch.autocast("cpu", torch.bfloat16):
        actual, expected = compute(linear, torch.float32), compute(F.linear, torch.float32)
    for ours, theirs, truth in zip(actual, expected, compute(F.linear, torch.float64), strict=True):
        assert ours.dtype == theirs.dtype
        assert (ours - truth).norm() <= 1.5 * (theirs - truth).norm() + 1e-6 * truth.norm()


@pytest.mark.parametrize("rows", [0, 1, 37])
def test_a_linear_layer_and_its_gradients_are_those_of_torch(library, rows):
    weight, bias, target = torch.randn(5, 24), torch.randn(5), torch.randn(rows, 5)
    results = []
    for function in (linear, F.linear):
        values = torch.Generator().manual_seed(0)
        inputs = [torch.randn(rows, 24, generator=values), weight.clone(), bias.clone()]
        output = function(*(tensor.requires_grad_() for tensor in inputs))
        results.append([output, *torch.autograd.grad((output * target).sum(), inputs)])
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected)


def test_activation_and_its_derivative_are_as_accurate_as_those_of_torch():
    values = torch.linspace(-15, 15, 2001)

    def compute(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        inputs = values.to(dtype).requires_grad_()
        activated = F.gelu(inputs)
        return activated.detach(), *torch.autograd.grad(activated.sum(), [inputs])

    rows, bias = values[:, None].numpy(), np.zeros(1, np.float32)
    activated, gradient = np.empty_like(rows), np.ones_like(rows)
    _activate_rows(rows, bias, activated, 0, len(rows))
    again, blocks = rows.copy(), -(-len(rows) // BLOCK)
    _differentiate_activation(again, bias, gradient, np.empty((blocks, 1), np.float32), 0, blocks)
    assert np.array_equal(again, activated)
    ours = (torch.from_numpy(array[:, 0]) for array in (activated, gradient))
    for actual, expected, exact in zip(ours, compute(torch.float32), compute(torch.float64), strict=True):
        assert (actual - exact).abs().max() < 2 * (expected - exact).abs().max()


def test_several_threads_give_the_results_of_one(library, monkeypatch):
    monkeypatch.setattr("bertie.model.cpu.MIN_ELEMENTS_PER_THREAD", 1)
    parts = Parts(24, transform_attended)
    values, target = torch.randn(2, 300, 24), torch.randn(300, 24)
    results = []
    for threads in (1, 3):
        monkeypatch.setattr("torch.get_num_threads", lambda threads=threads: threads)
        results.append(parts.gradients("fused", 0.1, values, target))
    for one, three in zip(*results, strict=True):
        assert torch.equal(one, three)


def test_inputs_and_outputs_are_not_changed(threads):
    parts = Parts(24, transform_attended)
    inputs, residual = torch.randn(2, 37, 24)
    kept = inputs.clone(), residual.clone()
    output = parts.fused(inputs.requires_grad_(), residual.requires_grad_(), 0.1)
    computed, target = output.detach().clone(), torch.randn(37, 24)
    output.backward(target.clone())
    assert torch.equal(inputs, kept[0])
    assert torch.equal(residual, kept[1])
    assert torch.equal(output, computed)


def test_one_piece_of_memory_is_kept_besides_inputs_and_weights():
    parts, (inputs, residual) = Parts(24, transform_attended), torch.randn(2, 37, 24, requires_grad=True)
    storages: dict[int, int] = {}

    def record(tensor: Tensor) -> Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
        output = parts.fused(inputs, residual, 0.1)
    given = {tensor.untyped_storage().data_ptr() for tensor in (inputs, *parts.parameters())}
    kept = sorted(storages[pointer] for pointer in storages.keys() - given)
    # Of two norms, and three matrices and a wide one.
    assert kept == [4 * 37, 4 * 37, 4 * 37 * 7 * 24 + ALIGNMENT]
    assert output.data_ptr() not in given


def test_a_second_backward_pass_is_refused(library, threads):
    inputs, residual = torch.randn(2, 37, 24, requires_grad=True)
    output = Parts(24, transform_attended).fused(inputs, residual, 0.1).sum()
    output.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.backward()


def test_no_rows_have_no_gradients(threads):
    parts, (inputs, residual) = Parts(24, transform_attended), torch.randn(2, 0, 24, requires_grad=True)
    parts.fused(inputs, residual, 0.1).sum().backward()
    assert all(not parameter.grad.any() for parameter in parts.parameters())


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.013])
@pytest.mark.parametrize("width", [128, 333])
def test_elements_of_rows_are_dropped_independently_at_the_given_rate(probability, width):
    torch.manual_seed(0)
    mask = (factors_of(DropoutMask.draw(probability), 3000, width) > 0).double().flatten()
    assert stats.binomtest(int((mask == 0).sum()), mask.numel(), probability).pvalue > 1e-4
    for distance in (1, 2, 3, width // 2, (width + 1) // 2, width, 2 * width, mask.numel() // 2):
        correlation = np.corrcoef(mask[:-distance], mask[distance:])[0, 1]
        assert abs(correlation) < 4.5 / (len(mask) - distance) ** 0.5


def test_kept_elements_are_scaled_up():
    factors = factors_of(DropoutMask.draw(0.25), 9, 64)
    assert factors.unique().tolist() == pytest.approx([0, 1 / 0.75])
    assert factors_of(DropoutMask.draw(0.0), 9, 64).unique().tolist() == [1.0]


def test_nan_stays_in_its_row(threads):
    inputs, residual = torch.randn(2, 37, 24)
    inputs[3, 5] = torch.nan
    assert Parts(24, transform_attended).fused(inputs, residual, 0.1).isnan().any(1).nonzero().tolist() == [
        [3]
    ]


def gradients_of_model(
    config: BertConfig, autocast: torch.dtype | None = None, **changes: object
) -> list[Tensor]:
    torch.manual_seed(1)
    model = BertModel(config).train()
    initialize(model, config)
    for name, value in changes.items():
        setattr(model, name, value)
    with torch.autocast("cpu", autocast, enabled=autocast is not None):
        hidden, pooled = model(ragged_batch(lengths=(40, 3, 17)))
    (hidden.float().square().sum() + pooled.float().sum()).backward()
    return [parameter.grad for parameter in model.parameters()]


def test_a_model_in_bfloat16_has_gradients_as_accurate_as_those_of_autocast(monkeypatch):
    config = CONFIG.model_copy(update={"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0})
    exact, fused = gradients_of_model(config), gradients_of_model(config, torch.bfloat16)
    monkeypatch.setattr(bert, "can_fuse", lambda values: False)
    for ours, theirs, truth in zip(fused, gradients_of_model(config, torch.bfloat16), exact, strict=True):
        assert (ours - truth).norm() <= 1.5 * (theirs - truth).norm() + 1e-6


def test_a_model_has_the_same_gradients_with_and_without(library, monkeypatch):
    config = CONFIG.model_copy(update={"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0})
    fused = gradients_of_model(config)
    monkeypatch.setattr(bert, "can_fuse", lambda values: False)
    for actual, expected in zip(fused, gradients_of_model(config), strict=True):
        assert (actual - expected).norm() <= 1e-4 * expected.norm() + 1e-6


def test_gradient_checkpointing_draws_the_same_masks():
    for actual, expected in zip(
        gradients_of_model(CONFIG, gradient_checkpointing=True), gradients_of_model(CONFIG), strict=True
    ):
        torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-4)


def test_only_training_with_gelu_in_float32_or_bfloat16_is_fused(monkeypatch):
    fused = []
    monkeypatch.setattr(
        bert,
        "transform_attended",
        lambda *args: (fused.append(1), transform_attended(*args))[1],
    )
    for dtype in (None, torch.bfloat16):
        gradients_of_model(CONFIG, dtype)
        assert len(fused) == CONFIG.num_hidden_layers
        fused.clear()
    gradients_of_model(CONFIG, torch.float16)
    for activation in ("gelu_new", "relu"):
        gradients_of_model(CONFIG.model_copy(update={"hidden_act": activation}))
    BertModel(CONFIG).eval()(ragged_batch(lengths=(40, 3, 17)))
    assert not fused
