"""AdamW as the paper's code has it, and as torch has it; LAMB for very large batches."""

from typing import Any, Literal

import pydantic
import torch
from torch import nn

from bertie.base.settings import Settings
from bertie.model.formats.weight_names import their_names


class OptimizerSettings(Settings):
    """Appendix A.2 and google-research/bert optimization.py:59-74."""

    name: Literal["adamw", "lamb"] = "adamw"
    learning_rate: float = pydantic.Field(1e-4, gt=0)
    beta1: float = pydantic.Field(0.9, ge=0, lt=1)
    beta2: float = pydantic.Field(0.999, ge=0, lt=1)
    epsilon: float = pydantic.Field(1e-6, gt=0)
    weight_decay: float = pydantic.Field(0.01, ge=0)
    # The paper's code forgot it (google-research/bert issue 153). Warm-up makes up for it in pre-training;
    # fine-tuning on few examples needs it (Zhang et al., arXiv:2006.05987).
    bias_correction: bool = False
    max_gradient_norm: float = pydantic.Field(1.0, gt=0)  # with inf none is clipped


# Adam corrects its moments by 1 - β^step. With so large a step the correction is exactly 1, which is
# Adam without it; and a float32 of this size does not change when 1 is added.
UNCORRECTED_STEP = 1e9


def decayed(name: str) -> bool:
    """Whether a weight decays: all but biases and norms, so embeddings too (optimization.py:65)."""
    return not ("norm" in name or "bias" in name)


def build_optimizer(model: nn.Module, settings: OptimizerSettings) -> torch.optim.Optimizer:
    """The optimizer of the settings; each parameter has a group, and a state of step and two moments."""
    groups: list[dict[str, Any]] = [
        {"params": [parameter], "weight_decay": settings.weight_decay if decayed(name) else 0.0}
        for name, parameter in model.named_parameters()
    ]
    hyper: dict[str, Any] = {
        "lr": settings.learning_rate,
        "betas": (settings.beta1, settings.beta2),
        "eps": settings.epsilon,
    }
    optimizer: torch.optim.Optimizer
    if settings.name == "lamb":
        for group, (name, _) in zip(groups, model.named_parameters(), strict=True):
            group["matrices"] = len(their_names(name))
        optimizer = Lamb(groups, hyper)
    else:
        optimizer = torch.optim.AdamW(groups, **hyper, fused=True)
    first_step = 0.0 if settings.bias_correction else UNCORRECTED_STEP
    for parameter in model.parameters():
        optimizer.state[parameter] = {
            "step": torch.tensor(first_step, device=parameter.device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return optimizer


class Lamb(torch.optim.Optimizer):
    """LAMB (You et al., arXiv:1904.00962, Algorithm 2): Adam's update, scaled to the norm of each matrix.

    A group holds one parameter; `matrices` says how many stand in it one above the other (queries, keys and
    values are three), each with a trust ratio of its own. What does not decay is not scaled either, as in
    NVIDIA's FusedLAMB.
    """

    def __init__(self, groups: list[dict[str, Any]], hyper: dict[str, Any]) -> None:
        super().__init__(groups, hyper)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update of every parameter from its gradient."""
        for group in self.param_groups:
            (parameter,) = group["params"]
            state, (beta1, beta2) = self.state[parameter], group["betas"]
            state["step"] += 1
            step = state["step"].double()  # 1 - 0.999^step has few digits left in float32
            state["exp_avg"].lerp_(parameter.grad, 1 - beta1)
            state["exp_avg_sq"].mul_(beta2).addcmul_(parameter.grad, parameter.grad, value=1 - beta2)
            mean = state["exp_avg"] / (1 - beta1**step)
            square = state["exp_avg_sq"] / (1 - beta2**step)
            update = mean.div_(square.sqrt_().add_(group["eps"]))
            if group["weight_decay"]:
                update.add_(parameter, alpha=group["weight_decay"])
                for part, matrix in zip(
                    update.chunk(group["matrices"]), parameter.chunk(group["matrices"]), strict=True
                ):
                    ratio = matrix.norm() / part.norm()
                    part.mul_(torch.where(torch.isfinite(ratio) & (ratio > 0), ratio, 1.0))
            parameter.add_(update, alpha=-group["lr"])
