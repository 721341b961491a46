"""Operations of the server's models on the records of requests.

Records of equal operations are computed together. The texts of a record are strings, or one
`EncodedText` if the request was tokenized before it was queued.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from bertie.base.arrays import Float32s, Int32s
from bertie.inference.dispatch import answer_records
from bertie.inference.predictor import Predictor, count_truncated
from bertie.inference.records import Record
from bertie.inference.results import Method
from bertie.model.engines.embeddings import embed
from bertie.model.formats.sentence_transformers import EmbeddingConfig, Pooling
from bertie.model.sequences import Sequences, cumulative_bounds
from bertie.tasks.evaluation import compute_logits
from bertie.tasks.task import Inputs


class EncodedText(NamedTuple):
    """The tokens of a text or a pair, with special tokens: int32 (T,) each."""

    input_ids: Int32s
    token_type_ids: Int32s
    is_truncated: bool = False


@dataclass(frozen=True)
class Predict:
    """Predict with a head; `method` is None for the model's main method."""

    top_k: int = 1
    method: Method | None = None


@dataclass(frozen=True)
class Embed:
    """Embed encoded texts: a vector for each, (H,)."""

    pooling: Pooling


@dataclass(frozen=True)
class EmbedTokens:
    """Compute the vectors of the last layer: (T, H) for an encoded text of T tokens."""


@dataclass(frozen=True)
class ComputeLogits:
    """Compute a sequence classifier's logits for encoded texts."""


@dataclass(frozen=True)
class Attend:
    """Compute the attention probabilities of a text or a pair, by layer and head."""


Operation = Predict | Embed | EmbedTokens | ComputeLogits | Attend


def compute(model: Predictor, operation: Operation, records: Sequence[Record]) -> list[Any]:
    """Return the result of an operation for each record.

    Raises:
        BertieError: a record cannot be computed; a DataError begins with the record's location.
    """
    match operation:
        case Predict(top_k, method):
            return answer_records(model, records, top_k, method=method)
        case Attend():
            return [model.attention(*record.texts) for record in records]
        case ComputeLogits() if isinstance(records[0].texts[0], str):
            return [*model.classifier_logits(*map(list, zip(*(r.texts for r in records), strict=True)))]
    count_truncated(model, sum(record.texts[0].is_truncated for record in records))
    sequences = _join([record.texts[0] for record in records])
    match operation:
        case Embed(pooling):
            return [*embed(model.engine, sequences, EmbeddingConfig(pooling))]
        case EmbedTokens():
            return _token_vectors(model, sequences)
        case ComputeLogits():
            return [*compute_logits(model.engine, Inputs(*sequences, labels=None))]


def _join(texts: Sequence[EncodedText]) -> Sequences:
    """Lay encoded texts end to end."""
    bounds = cumulative_bounds(np.array([len(text.input_ids) for text in texts], dtype=np.int64))
    return Sequences(
        np.concatenate([text.input_ids for text in texts]),
        np.concatenate([text.token_type_ids for text in texts]),
        bounds,
    )


def _token_vectors(model: Predictor, sequences: Sequences) -> list[Float32s]:
    vectors: dict[int, Float32s] = {}
    engine = model.engine
    for indices, batch in sequences.batches(engine.max_batch_tokens):
        (hidden,) = engine.hidden_states(batch, [engine.num_hidden_layers])
        vectors |= zip(indices.tolist(), np.split(hidden, batch.bounds[1:-1]), strict=True)
    return [vectors[i] for i in range(len(vectors))]
