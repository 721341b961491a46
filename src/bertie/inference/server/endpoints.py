"""The routes that answer with a model: their paths, handlers and example bodies."""

from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any, NamedTuple, get_type_hints

from bertie.inference.server import openai, own, pipelines, tei
from bertie.inference.server.errors import ErrorFormat
from bertie.inference.server.models import ServedModel
from bertie.inference.server.schemas import Request

Handler = Callable[[ServedModel, Any], Awaitable[Any]]


class Endpoint(NamedTuple):
    """A route that answers requests with a model.

    Attributes:
        path: the path; the same path after /models/NAME chooses a model.
        method: one of `ServedModel.methods`, which the model must have; "predict" if any method of a head
            will do, None if any model will do.
        handle: computes the response. Its annotations are the schemas of the request and the response.
        example: a body.
        choose_schema: returns the request's schema, where it depends on the model.
        loads: whether the weights are needed.
        errors: the format of errors.
        unable: status for models that lack the method.
    """

    path: str
    method: str | None
    handle: Handler
    example: dict[str, Any]
    choose_schema: Callable[[ServedModel, Any], type[Request]] | None = None
    loads: bool = True
    errors: ErrorFormat = "tei"
    unable: int = 424  # as Text Embeddings Inference

    def schema(self, model: ServedModel, body: Any) -> type[Request]:
        """Return the schema of a request."""
        if self.choose_schema:
            return self.choose_schema(model, body)
        schema: type[Request] = annotations(self.handle)["request"]
        return schema

    def suits(self, model: ServedModel) -> bool:
        """Return whether a model has the method."""
        if self.method == "predict":
            return model.method is not None
        return self.method is None or self.method in model.methods


@cache
def annotations(handle: Handler) -> dict[str, Any]:
    """Return the types of a handler's `request` and `return`."""
    return get_type_hints(handle, include_extras=True)


_TEXT = "Deep learning is a part of machine learning."
_PAIR = {"text": "The cat sat down.", "pair": "It began to purr."}
ENDPOINTS = (
    Endpoint("/embed", "embed", tei.embed, {"inputs": [_TEXT]}),
    Endpoint("/embed_all", "embed", tei.embed_all, {"inputs": _TEXT}),
    Endpoint("/embed_sparse", None, tei.embed_sparse, {"inputs": _TEXT}, loads=False),
    Endpoint(
        "/rerank", "rerank", tei.rerank, {"query": "What is deep learning?", "texts": [_TEXT, "A cat."]}
    ),
    Endpoint(
        "/similarity",
        "embed",
        tei.similarity,
        {"inputs": {"source_sentence": "What is deep learning?", "sentences": [_TEXT, "A cat."]}},
    ),
    Endpoint("/tokenize", None, tei.tokenize, {"inputs": _TEXT}, loads=False),
    Endpoint("/decode", None, tei.decode, {"ids": [2, 5, 6, 3]}, loads=False),
    Endpoint("/v1/embeddings", "embed", openai.create_embeddings, {"input": [_TEXT]}, errors="openai"),
    # As Text Embeddings Inference, for clients whose base URL lacks /v1.
    Endpoint("/embeddings", "embed", openai.create_embeddings, {"input": [_TEXT]}, errors="openai"),
    Endpoint("/predict", "predict", own.predict, {"inputs": [_PAIR]}, own.choose_predict_request),
    Endpoint("/next-sentence", "next_sentence", own.next_sentence, {"inputs": [_PAIR]}, unable=422),
    Endpoint("/attention", "attention", own.attention, {"inputs": _PAIR}, unable=422),
    Endpoint("/", None, pipelines.run_pipeline, {"inputs": _TEXT}, pipelines.choose_pipeline_request),
)
