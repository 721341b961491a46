"""AdamW, with and without bias correction, and LAMB for very large batches."""

import re
from itertools import pairwise
from typing import Any, Literal, cast

import pydantic
import torch
import torch.distributed as dist
from torch import Tensor, nn

from bertie.base.settings import Settings
from bertie.model.formats.weight_names import hugging_face_names


class OptimizerSettings(Settings):
    """Optimizer settings; defaults from Appendix A.2 and optimization.py:59-74.

    Attributes:
        name: AdamW, or LAMB for very large batches.
        learning_rate: the learning rate at the end of warm-up; afterwards it falls linearly.
        beta1: decay of the mean of the gradients.
        beta2: decay of the mean of their squares.
        epsilon: added to the denominator of the update.
        weight_decay: decay of the weights, except biases and norms.
        bias_correction: correct the bias of Adam's moments. The paper's code has none.
        max_gradient_norm: gradients with a larger norm are scaled down to it; inf turns this off.
    """

    name: Literal["adamw", "lamb"] = "adamw"
    learning_rate: float = pydantic.Field(1e-4, gt=0, allow_inf_nan=False)
    beta1: float = pydantic.Field(0.9, ge=0, lt=1)
    beta2: float = pydantic.Field(0.999, ge=0, lt=1)
    epsilon: float = pydantic.Field(1e-6, gt=0)
    weight_decay: float = pydantic.Field(0.01, ge=0)
    # The paper's code has none (google-research/bert issue 153). Warm-up compensates in pre-training, but
    # fine-tuning on few examples needs the correction (Zhang et al., arXiv:2006.05987).
    bias_correction: bool = False
    max_gradient_norm: float = pydantic.Field(1.0, gt=0)


# Adam divides its moments by 1 - β^step. At this step the divisor is exactly 1, so nothing is corrected, and
# adding 1 does not change a float32 of this size.
UNCORRECTED_STEP = 1e9


def has_weight_decay(name: str) -> bool:
    """Return whether a parameter decays: not biases and norms (optimization.py:65)."""
    return not ("norm" in name or "bias" in name)


def layer_of(name: str) -> int | None:
    """Return the layer of a parameter: 0 for the embeddings, then 1 to L.

    None above the layers.
    """
    if name.startswith("bert.embeddings."):
        return 0
    match = re.match(r"bert\.layers\.(\d+)\.", name)
    return int(match[1]) + 1 if match else None


def build_optimizer(
    model: nn.Module, settings: OptimizerSettings, layer_decay: float = 1.0
) -> torch.optim.Optimizer:
    """Build the optimizer for all parameters of `model`.

    Its state (`step`, `exp_avg`, `exp_avg_sq`) exists before the first step, so that a checkpoint
    can be loaded into it. AdamW has a parameter group for each weight decay and rate, since a
    small network's step costs less with few groups; LAMB has one for each parameter.

    The loop sets the rate of a group to the schedule's, times the group's `rate_scale`, which is
    layer_decay^(L - l) in layer l of L, where the embeddings are layer 0, and 1 above the layers.
    """
    named = list(model.named_parameters())
    layers = {name: layer_of(name) for name, _ in named}
    num_layers = max((layer for layer in layers.values() if layer is not None), default=0)
    options = {
        name: {
            "weight_decay": settings.weight_decay if has_weight_decay(name) else 0.0,
            "rate_scale": 1.0 if layer is None else layer_decay ** (num_layers - layer),
        }
        for name, layer in layers.items()
    }
    hyperparameters: dict[str, Any] = {
        "lr": settings.learning_rate,
        "betas": (settings.beta1, settings.beta2),
        "eps": settings.epsilon,
    }
    optimizer: torch.optim.Optimizer
    if settings.name == "lamb":
        groups = [
            {"params": [parameter], "matrices": len(hugging_face_names(name)), **options[name]}
            for name, parameter in named
        ]
        optimizer = Lamb(groups, hyperparameters)
    else:
        distinct: list[dict[str, Any]] = []
        for chosen in options.values():
            if chosen not in distinct:
                distinct.append(chosen)
        groups = [
            {"params": [parameter for name, parameter in named if options[name] == chosen], **chosen}
            for chosen in distinct
        ]
        optimizer = torch.optim.AdamW(groups, **hyperparameters, fused=True)
    first_step = 0.0 if settings.bias_correction else UNCORRECTED_STEP
    for parameter in model.parameters():
        optimizer.state[parameter] = {
            "step": torch.tensor(first_step, device=parameter.device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return optimizer


class Lamb(torch.optim.Optimizer):
    """LAMB (You et al., arXiv:1904.00962, Algorithm 2).

    Adam's update, scaled by a trust ratio for each matrix. A group holds one parameter. Its key
    `matrices` is the number of matrices stacked in the parameter along the first dimension (three
    for queries, keys and values); each has its own trust ratio. Parameters without weight decay are
    not scaled, as in NVIDIA's FusedLAMB.
    """

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            (parameter,) = group["params"]
            if parameter.grad is None:
                continue
            state, (beta1, beta2) = self.state[parameter], group["betas"]
            state["step"] += 1
            step = state["step"].double()  # in float32, 1 - 0.999^step has few significant digits
            state["exp_avg"].lerp_(parameter.grad, 1 - beta1)
            state["exp_avg_sq"].mul_(beta2).addcmul_(parameter.grad, parameter.grad, value=1 - beta2)
            mean = state["exp_avg"] / (1 - beta1**step)
            square = state["exp_avg_sq"] / (1 - beta2**step)
            update = mean.div_(square.sqrt_().add_(group["eps"]))
            if group["weight_decay"]:
                update.add_(parameter, alpha=group["weight_decay"])
                _scale_by_trust_ratios(update, parameter, group["matrices"])
            parameter.add_(update, alpha=-group["lr"])


def _scale_by_trust_ratios(update: Tensor, parameter: Tensor, matrices: int) -> None:
    """Multiply each matrix of `update` by its trust ratio.

    This is the norm of its weights over its own norm.

    Args:
        update: changed in place. If the ranks share the parameter, both are DTensors, and each rank has some
            rows of a matrix, or none.
        parameter: the weights.
        matrices: number of matrices stacked in both along the first dimension.
    """
    size, first_row = len(parameter) // matrices, 0
    local_update, local_parameter, group = update, parameter, None
    if hasattr(parameter, "device_mesh"):  # a DTensor; importing the class takes 0.6 s
        mesh = parameter.device_mesh
        group = mesh.get_group()
        first_row = mesh.get_local_rank() * -(-len(parameter) // mesh.size())  # as torch.chunk divides rows
        local_update, local_parameter = (cast(Any, values).to_local() for values in (update, parameter))
    starts = [max(0, matrix * size - first_row) for matrix in range(matrices + 1)]
    rows = [slice(start, stop) for start, stop in pairwise(starts)]
    norms = torch.stack(
        [torch.stack([values[part].norm() for part in rows]) for values in (local_parameter, local_update)]
    )
    if group is not None:
        norms.square_()
        dist.all_reduce(norms, group=group)
        norms.sqrt_()
    ratios = norms[0] / norms[1]
    ratios = torch.where(torch.isfinite(ratios) & (ratios > 0), ratios, 1.0)
    for part, ratio in zip(rows, ratios, strict=True):
        local_update[part].mul_(ratio)
