"""What requests hold, as JSON; which rows a model takes, its head decides.

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
    """To ask the head."""

    top_k: int


@dataclass(frozen=True)
class Embed:
    """To ask for vectors; None is as the directory says."""

    pooling: Pooling | None
    normalize: bool | None


class Schema(BaseModel):
    """Closed; nothing is converted, so that "5" is no number."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Row(Schema):
    """What one answer is of, under the names of `ASKED`, in their order."""

    @property
    def texts(self) -> tuple[Any, ...]:
        """As a Record has them."""
        return tuple(value for _, value in self if value is not None)

    @property
    def count(self) -> int:
        """How many texts it is worth, where they are limited."""
        return 1


class Text(Row):
    """Also a string by itself."""

    text: str

    @model_validator(mode="before")
    @classmethod
    def _of_string(cls, value: Any) -> Any:
        return {"text": value} if isinstance(value, str) else value


class MaskedText(Text):
    """The model answers to each [MASK]."""

    @property
    def count(self) -> int:
        return self.text.count(MASK)


class TextOrPair(Text):
    pair: str | None = None


class Pair(Row):
    text: str
    pair: str


class Question(Row):
    question: str
    context: str


class Endings(Row):
    """The model reads the context with each ending."""

    context: str
    endings: list[str]

    @property
    def count(self) -> int:
        return len(self.endings)


R = TypeVar("R", bound=Row)

# One by itself, too.
Listed = BeforeValidator(lambda value: value if isinstance(value, list) else [value])
# Bounded: each guess for a [MASK] repeats the text.
TopK = Annotated[int, Field(ge=1, le=100)]
TOP_K = 5  # as `bertie predict`


class PredictRequest(Schema, Generic[R]):
    """POST /predict"""

    inputs: Annotated[list[R], Listed]
    top_k: TopK = TOP_K

    @property
    def rows(self) -> Sequence[R]:
        return self.inputs

    @property
    def kind(self) -> Predict:
        return Predict(self.top_k)


class EmbedRequest(Schema):
    """POST /embed, as Text Embeddings Inference has it. Its clients send `truncate`; long texts are cut."""

    inputs: Annotated[list[Text], Listed]
    pooling: Pooling | None = None
    normalize: bool | None = None
    truncate: Literal[True] = True

    @property
    def rows(self) -> Sequence[Text]:
        return self.inputs

    @property
    def kind(self) -> Embed:
        return Embed(self.pooling, self.normalize)


class Parameters(Schema):
    """Of a pipeline of `transformers`."""

    top_k: TopK | None = None


class TagParameters(Parameters):
    """Of the one that tags."""

    # `transformers`' name for what is done here: a word's first piece decides.
    aggregation_strategy: Literal["first"] = "first"


class PipelineRequest(Schema, Generic[R]):
    """POST /, as huggingface_hub's InferenceClient sends it: one row."""

    inputs: R
    parameters: Parameters = Parameters()

    @property
    def rows(self) -> Sequence[R]:
        return [self.inputs]

    @property
    def kind(self) -> Predict:
        return Predict(self.parameters.top_k or TOP_K)


class TagRequest(PipelineRequest[Text]):
    """POST / to a tagger."""

    parameters: TagParameters = TagParameters()


Asked = PredictRequest[Any] | EmbedRequest | PipelineRequest[Any]

PREDICT_REQUESTS: dict[Method, type[PredictRequest[Any]]] = {
    "fill_mask": PredictRequest[MaskedText],
    "next_sentence": PredictRequest[Pair],
    "classify": PredictRequest[TextOrPair],
    "rate": PredictRequest[TextOrPair],
    "tag": PredictRequest[Text],
    "answer": PredictRequest[Question],
    "choose": PredictRequest[Endings],
}
PIPELINE_REQUESTS: dict[Method, type[PipelineRequest[Any]]] = {
    "fill_mask": PipelineRequest[MaskedText],
    "classify": PipelineRequest[TextOrPair],
    "rate": PipelineRequest[TextOrPair],
    "tag": TagRequest,
    "answer": PipelineRequest[Question],
}
