"""AdamW and LAMB against the formulae of their papers."""

import re

import pytest
import torch

from bertie.model.config import BertConfig
from bertie.model.formats.weight_names import hugging_face_names
from bertie.model.heads import PreTrainingModel
from bertie.training.optimizers import OptimizerSettings, build_optimizer, has_weight_decay

SMALL = BertConfig(
    vocab_size=50, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
)


def paper_step(p, g, m, v, settings, step):
    """Return the update of optimization.py:130-149, optionally with bias correction."""
    m.mul_(settings.beta1).add_(g, alpha=1 - settings.beta1)
    v.mul_(settings.beta2).addcmul_(g, g, value=1 - settings.beta2)
    m_hat, v_hat = m, v
    if settings.bias_correction:
        m_hat = m / (1 - settings.beta1**step)
        v_hat = v / (1 - settings.beta2**step)
    return p - settings.learning_rate * (
        m_hat / (v_hat.sqrt() + settings.epsilon) + settings.weight_decay * p
    )


@pytest.mark.parametrize("bias_correction", [False, True])
def test_adamw_matches_the_papers_code(bias_correction):
    torch.manual_seed(0)
    settings = OptimizerSettings(learning_rate=0.1, weight_decay=0.1, bias_correction=bias_correction)
    model = torch.nn.Linear(5, 3).double()
    expected = {name: p.detach().clone() for name, p in model.named_parameters()}
    moments = {name: (torch.zeros_like(p), torch.zeros_like(p)) for name, p in model.named_parameters()}
    optimizer = build_optimizer(model, settings)
    for step in range(1, 8):
        for name, parameter in model.named_parameters():
            parameter.grad = torch.randn_like(parameter)
            own = settings if has_weight_decay(name) else settings.model_copy(update={"weight_decay": 0.0})
            expected[name] = paper_step(expected[name], parameter.grad, *moments[name], own, step)
        optimizer.step()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.detach(), expected[name])


def test_adamw_passes_the_case_of_googles_suite():
    """The only case of optimization_test.py (google-research/bert, commit eedf5716, Apache-2.0).

    Its file builds a graph of TensorFlow, so the case is repeated here instead of run from the file.
    """
    target = torch.tensor([0.4, 0.2, -0.5])
    model = torch.nn.Module()
    model.weight = torch.nn.Parameter(torch.tensor([0.1, -0.2, -0.1]))
    optimizer = build_optimizer(model, OptimizerSettings(learning_rate=0.2, weight_decay=0))
    for _ in range(100):
        optimizer.zero_grad()
        (target - model.weight).square().mean().backward()
        optimizer.step()
    torch.testing.assert_close(model.weight.detach(), target, rtol=1e-2, atol=1e-2)


def test_all_but_biases_and_norms_decay():
    """Judged by the names and patterns of google-research/bert (optimization.py:65)."""
    for name, _ in PreTrainingModel(SMALL).named_parameters():
        excluded = any(re.search("LayerNorm|layer_norm|bias", theirs) for theirs in hugging_face_names(name))
        assert has_weight_decay(name) is not excluded, name


@pytest.mark.parametrize("bias_correction", [False, True])
def test_lamb_scales_queries_keys_and_values_separately(bias_correction):
    torch.manual_seed(0)
    settings = OptimizerSettings(
        name="lamb", learning_rate=0.1, weight_decay=0.1, bias_correction=bias_correction
    )
    model = PreTrainingModel(SMALL).double()
    optimizer = build_optimizer(model, settings)
    expected, moments = {}, {}
    for name, parameter in model.named_parameters():
        matrices = 3 if "qkv" in name else 1
        expected[name] = [part.clone() for part in parameter.detach().chunk(matrices)]
        moments[name] = [(torch.zeros_like(part), torch.zeros_like(part)) for part in expected[name]]
    for step in range(1, 5):
        for name, parameter in model.named_parameters():
            parameter.grad = torch.randn_like(parameter)
            for part, grad in enumerate(parameter.grad.chunk(len(expected[name]))):
                # Algorithm 2 for one matrix, line by line.
                x, (m, v) = expected[name][part], moments[name][part]
                m.mul_(0.9).add_(0.1 * grad)
                v.mul_(0.999).add_(0.001 * grad**2)
                c1, c2 = (1 - 0.9**step, 1 - 0.999**step) if bias_correction else (1, 1)
                update = (m / c1) / ((v / c2).sqrt() + 1e-6)
                if has_weight_decay(name):
                    update = update + 0.1 * x
                    update *= x.norm() / update.norm()
                expected[name][part] = x - 0.1 * update
        optimizer.step()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.detach(), torch.cat(expected[name]))


@pytest.mark.parametrize("name", ["adamw", "lamb"])
def test_layer_decay_lowers_the_rate_of_lower_layers(name):
    """Layer l of L learns at rate · decay^(L - l); the embeddings are layer 0, the head keeps the rate."""
    config = SMALL.model_copy(update={"num_hidden_layers": 3})
    model = PreTrainingModel(config)
    optimizer = build_optimizer(model, OptimizerSettings(name=name), layer_decay=0.5)
    scales = {
        parameter: group["rate_scale"] for group in optimizer.param_groups for parameter in group["params"]
    }
    for parameter_name, parameter in model.named_parameters():
        layer = re.search(r"layer\.(\d+)\.", hugging_face_names(parameter_name)[0])
        depth = int(layer[1]) + 1 if layer else 0 if "embeddings" in parameter_name else 3
        assert scales[parameter] == 0.5 ** (3 - depth), parameter_name
    assert {group["rate_scale"] for group in build_optimizer(model, OptimizerSettings()).param_groups} == {1}


def test_lamb_skips_parameters_without_a_gradient():
    model = PreTrainingModel(SMALL)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = build_optimizer(model, OptimizerSettings(name="lamb"))
    *_, (last, parameter) = model.named_parameters()
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert [name for name, p in model.named_parameters() if not torch.equal(p, before[name])] == [last]


def test_lamb_does_not_scale_a_zero_matrix():
    model = torch.nn.Linear(3, 2)
    torch.nn.init.zeros_(model.weight)
    optimizer = build_optimizer(torch.nn.ModuleDict({"classifier": model}), OptimizerSettings(name="lamb"))
    model.weight.grad, model.bias.grad = torch.ones(2, 3), torch.ones(2)
    optimizer.step()
    assert torch.isfinite(model.weight).all()
    assert (model.weight < 0).all()
