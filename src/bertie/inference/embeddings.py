"""Texts -> one vector each, as sentence-transformers makes them."""

import numpy as np

from bertie.model.config import BertConfig
from bertie.model.engines.engine import Engine, Float32s
from bertie.model.formats.sentence_transformers import Embedding, Pooling
from bertie.model.sequences import Int64s, Sequences
from bertie.text.tokenizer import Encoding


def embed(engine: Engine, encoding: Encoding, embedding: Embedding, config: BertConfig) -> Float32s:
    """The vector of each of n encoded texts: float32 (n, H)."""
    vectors = np.empty((len(encoding), config.hidden_size), dtype=np.float32)
    sequences = Sequences(encoding.input_ids, encoding.token_type_ids, encoding.bounds)
    for chosen, batch in sequences.batches(engine.max_tokens):
        (hidden,) = engine.hidden_states(batch, [config.num_hidden_layers])
        vectors[chosen] = pool(hidden, batch.bounds, embedding.pooling)
    if embedding.normalize:
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def pool(hidden: Float32s, bounds: Int64s, pooling: Pooling) -> Float32s:
    """The vectors of all tokens (T, H), [CLS] and [SEP] among them -> one for each sequence (N, H)."""
    pooled: Float32s
    match pooling:
        case "cls":
            pooled = hidden[bounds[:-1]]
        case "mean":
            pooled = np.add.reduceat(hidden, bounds[:-1])
            pooled /= np.diff(bounds)[:, None]
        case "max":
            pooled = np.maximum.reduceat(hidden, bounds[:-1])
    return pooled
