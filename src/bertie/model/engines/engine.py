"""The protocol of an engine: a model in memory that computes batches.

Code around an engine works on numpy arrays, so that exported models run without torch.
"""

from collections.abc import Sequence
from typing import Protocol

from bertie.base.arrays import Float32s, Int64s
from bertie.model.sequences import Sequences


class Engine(Protocol):
    """A model in memory; each method runs it on one batch of N sequences and T tokens.

    Attributes:
        architecture: the class of `transformers` with the same weights; it determines the head
        max_batch_tokens: the largest number of tokens in a batch that does not slow the engine down
        num_hidden_layers: the number of layers, L; `hidden_states` returns layers 0 to L
        hidden_size: the size of a token's vector, H
    """

    architecture: str
    max_batch_tokens: int
    num_hidden_layers: int
    hidden_size: int

    def logits(self, batch: Sequences) -> Float32s:
        """Return the head's logits, (N, labels) or (T, labels).

        A pre-training model returns its next-sentence logits, (N, 2).
        """

    def masked_lm_logits(self, batch: Sequences, masked_positions: Int64s) -> Float32s:
        """Return the masked-LM logits of the tokens at `masked_positions`, (M, V)."""

    def hidden_states(self, batch: Sequences, layers: Sequence[int]) -> list[Float32s]:
        """Return the output of each of `layers`, (T, H); layer 0 is the embeddings.

        Raises:
            ModelError: the model is exported, and it has a head or `layers` contains a layer other
                than the last.
        """

    def cls_vectors(self, batch: Sequences) -> Float32s:
        """Return the output of the last layer for each sequence's [CLS], (N, H).

        Raises:
            ModelError: the model is exported, and it has a head.
        """

    def attention_probabilities(self, sequence: Sequences) -> Float32s:
        """Return the attention probabilities of one sequence, (L, A, T, T).

        Raises:
            ModelError: the model is exported.
        """
