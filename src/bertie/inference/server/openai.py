"""OpenAI's API: embeddings, and the list of models."""

import base64
from collections.abc import Iterable
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from typing_extensions import TypedDict

from bertie.base.arrays import Float32s
from bertie.inference.server.models import ServedModel
from bertie.inference.server.responses import written_as
from bertie.inference.server.schemas import ModelName, Request
from bertie.inference.server.tei import Input, PromptRequest, compute_vectors


class Prompts(PromptRequest):
    """The inputs of a body of POST /v1/embeddings."""

    key: ClassVar[str] = "input"


class EmbeddingsRequest(Request):
    """Body of POST /v1/embeddings. `user` is accepted and not used."""

    key: ClassVar[str] = "input"
    input: Input
    model: ModelName = None
    encoding_format: Literal["float", "base64"] | None = "float"
    dimensions: Annotated[int | None, Field(ge=1)] = None
    user: str | None = None

    @property
    def prompts(self) -> PromptRequest:
        """The same inputs as Text Embeddings Inference's request."""
        return Prompts.model_construct(inputs=self.input)


class Embedding(TypedDict):
    """The vector of one input, as numbers, or as the base64 of little-endian float32 values."""

    object: Literal["embedding"]
    index: int
    embedding: Annotated[Float32s, written_as(list[float])] | str


class Usage(TypedDict):
    """Numbers of tokens, with [CLS] and [SEP]."""

    prompt_tokens: int
    total_tokens: int


class Embeddings(TypedDict):
    """The vectors of a request."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: Usage


class Model(TypedDict):
    """A served model; `created` is when its folder last changed, in seconds since 1970."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(TypedDict):
    """All served models."""

    object: Literal["list"]
    data: list[Model]


async def create_embeddings(model: ServedModel, request: EmbeddingsRequest) -> Embeddings:
    """Return a vector of length 1 for each input, in OpenAI's format."""
    vectors, tokens = await compute_vectors(model, request.prompts, dimensions=request.dimensions)
    data = [
        Embedding(object="embedding", index=i, embedding=_encode(row, request.encoding_format))
        for i, row in enumerate(vectors)
    ]
    usage = Usage(prompt_tokens=tokens, total_tokens=tokens)
    return Embeddings(object="list", data=data, model=model.name, usage=usage)


def describe(model: ServedModel) -> Model:
    """Describe a model as OpenAI does."""
    return Model(id=model.name, object="model", created=model.modified, owned_by="bertie")


def list_models(models: Iterable[ServedModel]) -> ModelList:
    """Describe all models as OpenAI does."""
    return ModelList(object="list", data=[describe(model) for model in models])


def _encode(vector: Float32s, format: str | None) -> Float32s | str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode() if format == "base64" else vector
