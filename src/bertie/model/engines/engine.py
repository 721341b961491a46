"""What computes a model: torch, or ONNX Runtime where there is no torch. All else is done once, in numpy."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from bertie.model.sequences import Int64s, Sequences

Float32s = npt.NDArray[np.float32]


class Engine(Protocol):
    """A model in memory. What it is given is one batch.

    architecture  the `transformers` class, which names the head
    max_tokens    so many tokens at a time it computes best
    """

    architecture: str
    max_tokens: int

    def logits(self, batch: Sequences) -> Float32s:
        """What the head says of each sequence, (N, labels), or of each token, (T, labels).

        Of a pre-training model those of the next sentence.
        """

    def masked_lm_logits(self, batch: Sequences, masked_positions: Int64s) -> Float32s:
        """What could stand at some places of the batch's tokens: (M, V)."""

    def hidden_states(self, batch: Sequences, layers: Sequence[int]) -> list[Float32s]:
        """For each layer what it says of the tokens, (T, H); 0 is the output of the embeddings.

        Raises:
            ModelError: an exported model has only the last one, and only without a head.
        """
