"""Embed each text as one vector, like sentence-transformers."""

import numpy as np

from bertie.model.engines.engine import Engine, Float32s
from bertie.model.formats.sentence_transformers import EmbeddingConfig, Pooling
from bertie.model.sequences import Int64s, Sequences, sizes_of


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
    scaled: Float32s = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return scaled


def pool(hidden: Float32s, bounds: Int64s, pooling: Pooling) -> Float32s:
    """Pool the vectors of all tokens of a sequence, with [CLS] and [SEP], into one.

    Args:
        hidden: float32 (T, H), the vectors of the T tokens of N sequences, end to end.
        bounds: int64 (N+1,), the start of each sequence; the last entry is T.
        pooling: `cls`, `mean` or `max`.

    Returns:
        float32 (N, H).
    """
    pooled: Float32s
    match pooling:
        case "cls":
            pooled = hidden[bounds[:-1]]
        case "mean":
            pooled = np.add.reduceat(hidden, bounds[:-1])
            pooled /= sizes_of(bounds)[:, None]
        case "max":
            pooled = np.maximum.reduceat(hidden, bounds[:-1])
    return pooled
