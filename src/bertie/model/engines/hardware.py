"""Settings of the hardware: device, precision and memory."""

import functools
import time
from typing import Any, Literal, Self

import pydantic
import torch

from bertie.base.errors import SettingsError
from bertie.base.settings import Settings
from bertie.model.products import multiply

# By how much bfloat16 has to be faster in `_is_bfloat16_faster`: a step also converts between the two.
BFLOAT16_GAIN = 1.25

# On a CPU, more tokens need more memory for little speed (docs/decisions/processors.md, "Tokens in memory").
CPU_MICRO_BATCH_TOKENS = 4096
GPU_MICRO_BATCH_TOKENS = 16384


class Hardware(Settings):
    """Hardware settings of a run; `resolved` fills in `auto` for this machine.

    Attributes:
        device: where to compute: auto, cpu, cuda, cuda:1 and so on. auto is CUDA if available, otherwise
            the CPU.
        precision: precision of matrix products in training. auto is bfloat16 where the hardware
            multiplies it faster. Weights, moments, norms and losses are always float32.
        gradient_checkpointing: recompute each layer in the backward pass to save memory.
    """

    device: str = "auto"
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    gradient_checkpointing: bool = False

    @pydantic.field_validator("device", mode="before")
    @classmethod
    def _take_device_of_torch(cls, device: Any) -> Any:
        return str(device) if isinstance(device, torch.device) else device

    def resolved(self) -> Self:
        """Return these settings with `auto` replaced by values that suit this machine.

        Raises:
            SettingsError: this machine does not have the device, torch's default dtype is not float32, or its
                default device is neither the CPU nor of the same kind.
        """
        if torch.get_default_dtype() != torch.float32:
            raise SettingsError(
                f"torch's default dtype is {torch.get_default_dtype()}, and models are made in float32; call "
                f"torch.set_default_dtype(torch.float32) first"
            )
        device = self.device
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        if not _is_available(device):
            remedy = "use cpu or cuda" if torch.cuda.is_available() else "torch finds no GPU here, so use cpu"
            raise SettingsError(f"device = {device!r}: not available on this machine; {remedy}")
        kind = torch.device(device).type
        if kind == "cpu":
            device = kind  # also if the name is cpu:0
        if torch.get_default_device().type not in ("cpu", kind):
            raise SettingsError(
                f"torch's default device is {torch.get_default_device()}, on which the model would be made "
                f"instead of {device}; call torch.set_default_device('cpu') first, or call bertie outside of "
                f"`with torch.device(…)`"
            )
        precision = self.precision
        if precision == "auto":
            if kind == "cuda":
                is_fast = torch.cuda.is_bf16_supported(including_emulation=False)
            else:
                is_fast = torch.cpu._is_avx512_bf16_supported() and _is_bfloat16_faster()
            precision = "bfloat16" if is_fast else "float32"
        return self.model_copy(update={"device": device, "precision": precision})

    def in_float32(self) -> "Hardware":
        """Return settings for the same device in float32, for evaluation and inference."""
        return Hardware(device=self.device, precision="float32")

    @property
    def inference_batch_tokens(self) -> int:
        """The largest number of tokens per batch in inference.

        On a CPU, a batch should stay in the caches of the cores, but products of few tokens do not use
        several threads well (docs/decisions/inference.md).
        """
        if torch.device(self.device).type == "cpu":
            return 1024 if self.precision == "float32" and torch.get_num_threads() == 1 else 2048
        return 32768

    def autocast(self) -> torch.autocast:
        """Return the context for forward passes in `precision`."""
        kind = torch.device(self.device).type
        return torch.autocast(kind, torch.bfloat16, enabled=self.precision == "bfloat16")


def default_micro_batch_tokens(device: str) -> int:
    """Return about how many tokens to have in memory in training on a device."""
    return CPU_MICRO_BATCH_TOKENS if torch.device(device).type == "cpu" else GPU_MICRO_BATCH_TOKENS


@functools.cache
def _is_bfloat16_faster() -> bool:
    """Measure whether this processor multiplies faster in bfloat16.

    Having the instructions is not enough: Intel Xeons of the fourth and fifth generation without AMX, which
    some virtual machines hide, take 1.9 times as long in bfloat16 (docs/decisions/processors.md). The
    measurement takes some 30 ms. The fastest of five alternating rounds counts, and only the time in which
    the processor works for this thread, so that a run beside other programs has the same precision.
    """
    a = torch.ones(512, 512)
    matrices = {dtype: a.to(dtype) for dtype in (torch.float32, torch.bfloat16)}
    seconds = dict.fromkeys(matrices, float("inf"))
    with torch.inference_mode():
        for _ in range(5):
            for dtype, matrix in matrices.items():
                started = time.thread_time()
                multiply(matrix, matrix)
                seconds[dtype] = min(seconds[dtype], time.thread_time() - started)
    return seconds[torch.float32] > BFLOAT16_GAIN * seconds[torch.bfloat16]


def _is_available(device: str) -> bool:
    """Return whether this machine has a device.

    No tensor is made on a GPU: every process of torchrun calls this function before it has chosen its GPU,
    and a tensor on `cuda` would take some hundred MB of the first GPU for the process.
    """
    try:
        parsed = torch.device(device)
        if parsed.type == "cuda":
            return torch.cuda.is_available() and (parsed.index or 0) < torch.cuda.device_count()
        torch.empty(1, device=parsed).item()  # an error on `meta`, which has no memory
    except (RuntimeError, AssertionError):  # torch raises either
        return False
    return True
