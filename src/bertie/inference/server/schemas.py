"""Schemas of requests; the model's head determines the rows of a request.

Unknown keys and values of another type are errors.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from bertie.inference.results import Method
from bertie.model.formats.sentence_transformers import Pooling
from bertie.text.vocabulary import MASK


@dataclass(frozen=True)
class Predict:
    """The operation of predicting with the model's head."""

    top_k: int


@dataclass(frozen=True)
class Embed:
    """The operation of embedding texts; None means the model directory's default."""

    pooling: Pooling | None
    normalize: bool | None


class Schema(BaseModel):
    """Base class that rejects unknown keys, and strings in place of numbers."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Row(Schema):
    """The texts of one record, in the order of `dispatch.REQUIRED_FIELDS`."""

    @property
    def texts(self) -> tuple[Any, ...]:
        """The texts, as in a `Record`."""
        return tuple(value for _, value in self if value is not None)

    @property
    def text_count(self) -> int:
        """The number of texts that count towards the limit of a request."""
        return 1


class Text(Row):
    """A text; also accepted as a plain string."""

    text: str

    @model_validator(mode="before")
    @classmethod
    def _accept_string(cls, value: Any) -> Any:
        return {"text": value} if isinstance(value, str) else value


class MaskedText(Text):
    """A text with masks; each [MASK] counts as a text."""

    @property
    def text_count(self) -> int:
        return self.text.count(MASK)


class TextOrPair(Text):
    """A text, or a pair of texts."""

    pair: str | None = None


class Pair(Row):
    """Two texts."""

    text: str
    pair: str


class Question(Row):
    """A question and the context that answers it."""

    question: str
    context: str


class Endings(Row):
    """A context and its endings.

    Each ending counts as a text, since the model reads it with the context.
    """

    context: str
    endings: list[str]

    @property
    def text_count(self) -> int:
        return len(self.endings)


R = TypeVar("R", bound=Row)

# Accept a single row in place of a list.
AsList = BeforeValidator(lambda value: value if isinstance(value, list) else [value])
# Limited, since each prediction for a [MASK] repeats the text.
TopK = Annotated[int, Field(ge=1, le=100)]
DEFAULT_TOP_K = 5  # as `bertie predict`


class PredictRequest(Schema, Generic[R]):
    """Body of POST /predict."""

    inputs: Annotated[list[R], AsList]
    top_k: TopK = DEFAULT_TOP_K

    @property
    def rows(self) -> Sequence[R]:
        return self.inputs

    @property
    def operation(self) -> Predict:
        return Predict(self.top_k)


class EmbedRequest(Schema):
    """Body of POST /embed, as in Text Embeddings Inference.

    Clients of Text Embeddings Inference send `truncate`; long texts are always truncated.
    """

    inputs: Annotated[list[Text], AsList]
    pooling: Pooling | None = None
    normalize: bool | None = None
    truncate: Literal[True] = True

    @property
    def rows(self) -> Sequence[Text]:
        return self.inputs

    @property
    def operation(self) -> Embed:
        return Embed(self.pooling, self.normalize)


class Parameters(Schema):
    """Parameters of a `transformers` pipeline."""

    top_k: TopK | None = None


class TagParameters(Parameters):
    """Parameters of the token-classification pipeline."""

    # `transformers`' name for bertie's method: the first token of a word determines its tag.
    aggregation_strategy: Literal["first"] = "first"


class PipelineRequest(Schema, Generic[R]):
    """Body of POST /, with one row, as huggingface_hub's InferenceClient sends it."""

    inputs: R
    parameters: Parameters = Parameters()

    @property
    def rows(self) -> Sequence[R]:
        return [self.inputs]

    @property
    def operation(self) -> Predict:
        return Predict(self.parameters.top_k or DEFAULT_TOP_K)


class TagRequest(PipelineRequest[Text]):
    """Body of POST / for a tagger."""

    parameters: TagParameters = TagParameters()


AnyRequest = PredictRequest[Any] | EmbedRequest | PipelineRequest[Any]

PREDICT_REQUESTS: dict[Method, type[PredictRequest[Any]]] = {
    "fill_mask": PredictRequest[MaskedText],
    "next_sentence": PredictRequest[Pair],
    "classify": PredictRequest[TextOrPair],
    "regress": PredictRequest[TextOrPair],
    "tag": PredictRequest[Text],
    "answer": PredictRequest[Question],
    "choose": PredictRequest[Endings],
}
PIPELINE_REQUESTS: dict[Method, type[PipelineRequest[Any]]] = {
    "fill_mask": PipelineRequest[MaskedText],
    "classify": PipelineRequest[TextOrPair],
    "regress": PipelineRequest[TextOrPair],
    "tag": TagRequest,
    "answer": PipelineRequest[Question],
}
