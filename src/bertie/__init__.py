"""bertie: the whole of BERT, from raw text to a served model.

import bertie
model = bertie.load("runs/wikipedia/model")
model.fill_mask("The capital of France is [MASK].")
"""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from bertie.inference.predictor import Predictor

__version__ = "0.1.0"


def load(
    path: str | Path, device: str = "auto", precision: Literal["float32", "bfloat16"] = "float32"
) -> "Predictor":
    """Load a model directory; see `bertie.inference.predictor.Predictor` for what it can do.

    Args:
        path: the directory; what `bertie export` wrote needs ONNX Runtime and no torch.
        device: where to compute; `auto` is a CUDA device where there is one.
        precision: of the matrix products.

    Raises:
        ModelError: it is absent, damaged, or not a model's; or what computes it is not installed.
        SettingsError: there is no such device; an exported model has the processor and its own precision.
    """
    from bertie.inference.predictor import load  # numba, and torch where it is needed, only from here on

    return load(path, device, precision)
