"""AdamW as the paper's code has it, and as torch has it."""

from typing import Any

import torch
from torch import nn

from bertie.base.settings import Settings


class OptimizerSettings(Settings):
    """Appendix A.2 and google-research/bert optimization.py:59-74."""

    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-6
    weight_decay: float = 0.01
    # The paper's code forgot it (google-research/bert issue 153). Warm-up makes up for it in pre-training;
    # fine-tuning on few examples needs it (Zhang et al., arXiv:2006.05987).
    bias_correction: bool = False
    max_gradient_norm: float = 1.0


# Adam corrects its moments by 1 - β^step. With so large a step the correction is exactly 1, which is
# Adam without it; and a float32 of this size does not change when 1 is added.
UNCORRECTED_STEP = 1e9


def decayed(name: str) -> bool:
    """Whether a weight decays: all but biases and norms, so embeddings too (optimization.py:65)."""
    return not ("norm" in name or "bias" in name)


def build_optimizer(model: nn.Module, settings: OptimizerSettings) -> torch.optim.AdamW:
    """AdamW whose parameters, moments and step stand in the order of `model.named_parameters()`."""
    groups: list[dict[str, Any]] = [
        {"params": [parameter], "weight_decay": settings.weight_decay if decayed(name) else 0.0}
        for name, parameter in model.named_parameters()
    ]
    optimizer = torch.optim.AdamW(
        groups,
        lr=settings.learning_rate,
        betas=(settings.beta1, settings.beta2),
        eps=settings.epsilon,
        fused=True,
    )
    for parameter in model.parameters():
        optimizer.state[parameter] = {
            "step": torch.tensor(
                0.0 if settings.bias_correction else UNCORRECTED_STEP, device=parameter.device
            ),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return optimizer
