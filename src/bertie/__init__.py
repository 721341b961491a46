"""bertie: the whole of BERT, from raw text to a served model.

import bertie
model = bertie.load("runs/wikipedia/model")
model.fill_mask("The capital of France is [MASK].")
"""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bertie.inference.predictors import Predictor

__version__ = "0.1.0"


def load(path: str | Path) -> "Predictor":
    """Load a model directory; see `bertie.inference.predictors.Predictor` for what it can do.

    Raises:
        ModelError: it is absent, damaged, or not a model's.
    """
    from bertie.inference.predictors import load  # torch is only needed from here on

    return load(path)
