"""The response of GET /info: fields of Text Embeddings Inference and bertie."""

from typing import Any, NotRequired

from typing_extensions import TypedDict

import bertie
from bertie.inference.capabilities import reads_pairs
from bertie.inference.server.batching import MAX_BATCH_TOKENS
from bertie.inference.server.models import Models, ServedModel
from bertie.model.formats.directory import SEQUENCE_CLASSIFIER


class ModelInfo(TypedDict):
    """A served model; `pairs` says whether a classifier reads pairs of texts, null that this is unknown."""

    name: str
    architecture: str
    method: str | None
    methods: list[str]
    pairs: bool | None
    labels: list[str]
    decision_thresholds: dict[str, float]
    max_seq_length: int
    long_texts: str
    num_truncated: int
    embedding: dict[str, Any]
    engine: str
    loaded: bool


class ClassifierInfo(TypedDict):
    """The labels of a classifier."""

    id2label: dict[str, str]
    label2id: dict[str, int]


class PoolingInfo(TypedDict):
    """The pooling of an encoder."""

    pooling: str


class ModelType(TypedDict):
    """One of the three kinds of models of Text Embeddings Inference."""

    classifier: NotRequired[ClassifierInfo]
    embedding: NotRequired[PoolingInfo]
    reranker: NotRequired[ClassifierInfo]


class Info(ModelInfo):
    """One model, the limits, and all models."""

    model: str
    model_id: str
    model_sha: None
    model_dtype: str
    served_model_name: str
    model_type: ModelType
    max_concurrent_requests: int
    max_input_length: int
    max_batch_tokens: int
    max_batch_requests: None
    max_client_batch_size: int
    auto_truncate: bool
    tokenization_workers: int
    limits: dict[str, float]
    models: list[ModelInfo]
    version: str


def describe(model: ServedModel) -> ModelInfo:
    """Describe one model without loading it."""
    return ModelInfo(
        name=model.name,
        architecture=model.architecture,
        method=model.method,
        methods=model.methods,
        pairs=reads_pairs(model.metadata) if model.method in ("classify", "regress") else None,
        labels=[*model.metadata.labels],
        decision_thresholds=model.decision_thresholds,
        max_seq_length=model.max_seq_length,
        # Taggers and question models always read texts in windows.
        long_texts="windows" if model.method in ("tag", "answer") else model.metadata.long_texts.method,
        num_truncated=model.predictor.num_truncated if model.predictor else 0,
        embedding=model.embedding._asdict(),
        engine=model.engine,
        loaded=model.predictor is not None,
    )


def describe_server(models: Models, model: ServedModel) -> Info:
    """Describe the server, and one of its models in more detail."""
    limits = models.limits
    return Info(
        **describe(model),
        model=model.name,
        model_id=model.name,
        model_sha=None,
        model_dtype="int8" if model.is_int8 else models.precision,
        served_model_name=model.name,
        model_type=_model_type(model),
        max_concurrent_requests=limits.max_connections,
        max_input_length=model.max_seq_length if model.method else model.embedding.max_seq_length,
        max_batch_tokens=MAX_BATCH_TOKENS,
        max_batch_requests=None,
        max_client_batch_size=limits.max_texts,
        auto_truncate=True,
        tokenization_workers=1,
        limits=limits._asdict(),
        models=[describe(served) for served in models],
        version=bertie.__version__,
    )


def _model_type(model: ServedModel) -> ModelType:
    if model.architecture != SEQUENCE_CLASSIFIER:
        return ModelType(embedding=PoolingInfo(pooling=model.embedding.pooling))
    labels = model.metadata.labels
    info = ClassifierInfo(
        id2label={str(i): label for i, label in enumerate(labels)},
        label2id={label: i for i, label in enumerate(labels)},
    )
    return ModelType(reranker=info) if len(labels) == 1 else ModelType(classifier=info)
