"""Embed each text as one vector, like sentence-transformers."""

from typing import Literal

import numpy as np

from bertie.base.arrays import Float32s, Int64s
from bertie.model.engines.engine import Engine
from bertie.model.formats.sentence_transformers import EmbeddingConfig
from bertie.model.sequences import Sequences, sizes_of


def embed(engine: Engine, sequences: Sequences, embedding: EmbeddingConfig) -> Float32s:
    """Compute one vector for each of N sequences: float32 (N, H)."""
    vectors = np.empty((len(sequences.bounds) - 1, engine.hidden_size), dtype=np.float32)
    for indices, batch in sequences.batches(engine.max_batch_tokens):
        if embedding.pooling == "cls":
            vectors[indices] = engine.cls_vectors(batch)
        else:
            (hidden,) = engine.hidden_states(batch, [engine.num_hidden_layers])
            vectors[indices] = pool(hidden, batch.bounds, embedding.pooling)
    return normalize(vectors) if embedding.normalize else vectors


def normalize(vectors: Float32s) -> Float32s:
    """Scale vectors (N, H) to length 1.

    A vector of zeros stays as it is, as with torch.nn.functional.normalize.
    """
    norms = np.sqrt((vectors * vectors).sum(axis=1, keepdims=True))  # as np.linalg.norm, but faster
    scaled: Float32s = vectors / np.maximum(norms, 1e-12)
    return scaled


def pool(rows: Float32s, bounds: Int64s, pooling: Literal["mean", "max"]) -> Float32s:
    """Pool the token vectors of each sequence, or the window logits of each text.

    Args:
        rows: float32 (T, H), T rows of N groups, end to end.
        bounds: int64 (N+1,), the start of each group; the last entry is T.
        pooling: `mean` or `max` of the rows of a group.

    Returns:
        float32 (N, H).
    """
    pooled: Float32s
    if pooling == "max":
        pooled = np.maximum.reduceat(rows, bounds[:-1])
    else:
        pooled = np.add.reduceat(rows, bounds[:-1])
        pooled /= sizes_of(bounds)[:, None]
    return pooled
