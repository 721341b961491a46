"""What a run computes on and in: the device, the precision, how much it keeps for the backward pass."""

from typing import Literal, Self

import torch

from bertie.base.errors import SettingsError
from bertie.base.settings import Settings


class Hardware(Settings):
    """Settings that every run has, with `resolved` for what only the machine can tell."""

    device: str = "auto"  # a CUDA device where there is one, otherwise the processor
    # Of the matrix products in training, where the hardware multiplies bfloat16 faster: weights, moments,
    # norms and losses are float32 always.
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    gradient_checkpointing: bool = False  # compute each layer twice instead of keeping what is in it

    def resolved(self) -> Self:
        """These settings without `auto`.

        Raises:
            SettingsError: there is no such device.
        """
        device = self.device
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            kind = torch.empty(0, device=device).device.type
        except (RuntimeError, AssertionError):  # torch raises either
            raise SettingsError(
                f"device = {device!r}: this machine has none; use cpu, or cuda where there is one"
            ) from None
        precision = self.precision
        if precision == "auto":
            if kind == "cuda":
                fast = torch.cuda.is_bf16_supported(including_emulation=False)
            else:
                fast = torch.cpu._is_avx512_bf16_supported()
            precision = "bfloat16" if fast else "float32"
        return self.model_copy(update={"device": device, "precision": precision})

    def exact(self) -> "Hardware":
        """The same device, in float32: what is judged or answered."""
        return Hardware(device=self.device, precision="float32")

    @property
    def evaluation_tokens(self) -> int:
        """So many tokens at a time where nothing is learnt.

        On a CPU what they take has to stay in its cache: with 6 × 384, 2,048 were 15 % faster than 8,192.
        """
        return 2048 if torch.device(self.device).type == "cpu" else 32768

    def autocast(self) -> torch.autocast:
        """The context in which forward passes run."""
        kind = torch.device(self.device).type
        return torch.autocast(kind, torch.bfloat16, enabled=self.precision == "bfloat16")
