"""Kernels for a GPU: equal to those of a CPU in values and gradients. Run the marked ones with `-m gpu`."""

import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from bertie.model.attention import packed_attention
from bertie.model.batch import PackedBatch, pack
from bertie.model.config import BertConfig
from bertie.model.cross_entropy import cross_entropy
from bertie.model.gpu import _can_compile, can_attend_on_gpu, padded_linear
from bertie.model.heads import LanguageModel
from bertie.model.objectives import IGNORE_INDEX

on_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
gpu = pytest.param("cuda", marks=on_gpu)

LENGTHS = [40, 1, 33, 512, 7, 40]
A = 4


def batch_of(lengths: list[int]) -> PackedBatch:
    ids = np.ones(sum(lengths), np.int32)
    return pack(ids, ids, np.cumsum([0, *lengths]))


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    actual, expected = actual.detach().cpu().double(), expected.detach()
    return float((actual - expected).norm() / expected.norm())


@pytest.mark.parametrize("device", [gpu])
@pytest.mark.parametrize("head_size", [4, 8, 64, 264])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2), (torch.float64, 1e-12)]
)
def test_attention_equals_that_of_a_cpu(device, head_size, causal, dtype, tolerance):
    torch.manual_seed(0)
    batch = batch_of(LENGTHS)
    qkv = torch.randn(sum(LENGTHS), 3 * A * head_size).to(dtype)
    weights = torch.randn(sum(LENGTHS), A * head_size).to(dtype)
    results = []
    for place, values in (("cpu", qkv.double()), (device, qkv.to(device))):
        values.requires_grad_()
        attended = packed_attention(values, batch.to(torch.device(place)), A, 0.0, causal)
        (gradient,) = torch.autograd.grad((attended * weights.to(attended)).sum(), values)
        results.append((attended, gradient))
    (expected, expected_gradient), (attended, gradient) = results
    assert can_attend_on_gpu(values, A, 0.0) == (dtype != torch.float64 and head_size in (8, 64))
    assert attended.dtype == dtype
    assert relative_error(attended, expected) < tolerance
    assert relative_error(gradient, expected_gradient) < tolerance
    with torch.no_grad():
        assert torch.equal(attended, packed_attention(values, batch.to(torch.device(device)), A, 0.0, causal))


@pytest.mark.parametrize("device", [gpu])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 1e-2)])
def test_backward_pass_of_attention_drops_the_same_weights(device, dtype, tolerance):
    torch.manual_seed(0)
    batch, H = batch_of(LENGTHS).to(torch.device(device)), A * 64
    q, k = (torch.randn(sum(LENGTHS), H, device=device, dtype=dtype) for _ in range(2))
    v = torch.ones(sum(LENGTHS), H, device=device, dtype=dtype, requires_grad=True)

    def attend(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return packed_attention(torch.cat([q, k, v], 1), batch, A, 0.3)

    attended, weights = attend(1), torch.randn(sum(LENGTHS), H, device=device, dtype=dtype)
    assert torch.equal(attended, attend(1))
    assert not torch.equal(attended, attend(2))
    attended, v_gradient = attended.detach(), torch.autograd.grad(attended, v, weights)[0]
    # Each element is the sum of the weights that were kept, divided by 0.7.
    assert float(attended.float().mean()) == pytest.approx(1, abs=0.05)
    assert float(attended.float().std()) > 0.05
    # Attention is linear in the values: values · their gradient = outputs · their gradient.
    product = float((attended.double() * weights.double()).sum())
    size = float((attended * weights).float().norm())
    assert float(v_gradient.double().sum()) == pytest.approx(product, abs=tolerance * 30 * size)


@pytest.mark.parametrize("device", ["cpu", gpu])
@pytest.mark.parametrize("width", [1, 7, 8, 522])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
def test_padded_linear_adds_columns_of_minus_infinity(device, width, dtype, tolerance):
    torch.manual_seed(0)
    arguments = [torch.randn(5, 16), torch.randn(width, 16), torch.randn(width)]
    exact = [x.to(dtype).double().requires_grad_() for x in arguments]
    ours = [x.to(device, dtype).requires_grad_() for x in arguments]
    expected, padded = F.linear(*exact), padded_linear(*ours)
    assert padded.shape == (5, -(-width // 8) * 8)
    assert (padded[:, width:] == -torch.inf).all()
    expected_gradients = torch.autograd.grad(expected.softmax(1)[:, 0].sum(), exact)
    gradients = torch.autograd.grad(padded.float().softmax(1)[:, 0].sum(), ours)
    assert relative_error(padded[:, :width], expected) < tolerance
    for computed, wanted in zip(gradients, expected_gradients, strict=True):
        assert relative_error(computed, wanted) < 3 * tolerance or wanted.norm() < 1e-12


@pytest.mark.parametrize("device", [gpu])
def test_models_return_a_logit_for_each_token_of_the_vocabulary(device):
    config = BertConfig(
        vocab_size=43, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    batch = batch_of(LENGTHS)
    model = LanguageModel(config).eval()
    with torch.no_grad():
        expected = model(batch)
        logits = model.to(device)(batch.to(torch.device(device)))
    torch.testing.assert_close(logits.cpu(), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("device", [gpu])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize("all_targets", [False, True])
@pytest.mark.parametrize("classes", [2, 1003, 30522])
@pytest.mark.parametrize("triton", [False, True])
def test_cross_entropy_equals_that_of_torch(
    device, dtype, tolerance, all_targets, classes, triton, monkeypatch
):
    monkeypatch.setattr("bertie.model.gpu._can_compile", lambda: triton)
    torch.manual_seed(0)
    logits, labels = (3 * torch.randn(50, classes)).to(dtype), torch.randint(classes, (50,))
    if not all_targets:
        labels[::7] = IGNORE_INDEX
    exact = logits.double().requires_grad_()
    expected = F.cross_entropy(exact, labels, reduction="sum")
    ours = logits.to(device).requires_grad_()
    loss_sum, correct = cross_entropy(ours * 1, labels.to(device), all_targets)
    (2 * loss_sum).backward()
    (2 * expected).backward()
    assert loss_sum.item() == pytest.approx(expected.item(), rel=1e-5)
    assert correct == (exact.argmax(1) == labels).sum()
    assert relative_error(ours.grad, exact.grad) < tolerance


@pytest.mark.parametrize("device", ["cpu", gpu])
@pytest.mark.parametrize("layout", ["a part of the columns", "transposed"])
def test_cross_entropy_takes_logits_that_are_not_contiguous(device, layout):
    torch.manual_seed(0)
    stored, labels = torch.randn(10, 16, device=device), torch.randint(10, (10,), device=device)
    logits = (stored[:, :10] if layout == "a part of the columns" else stored.T[:10]).detach()
    exact = logits.double().requires_grad_()
    F.cross_entropy(exact, labels, reduction="sum").mul(3).backward()
    others = stored[:, 10:].clone()
    loss_sum, _ = cross_entropy(logits.requires_grad_(), labels)
    (gradient,) = torch.autograd.grad(3 * loss_sum, logits)
    assert relative_error(gradient, exact.grad.cpu()) < 1e-5
    assert torch.equal(stored[:, 10:], others)


@pytest.mark.parametrize("device", ["cpu", gpu])
def test_of_equal_logits_the_first_is_the_prediction(device):
    logits = torch.tensor([[1.0, 2.0, 2.0], [3.0, 3.0, 3.0], [0.0, 0.0, 1.0]], device=device)
    assert cross_entropy(logits, torch.tensor([1, 0, 2], device=device))[1] == 3
    assert cross_entropy(logits, torch.tensor([2, 1, 1], device=device))[1] == 0


def test_without_triton_one_line_says_what_it_needs(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "bertie.model.gpu_kernels", raising=False)
    assert not _can_compile.__wrapped__()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: Triton compiles no kernels (ModuleNotFoundError: ")
    assert "needs a C compiler" in line
