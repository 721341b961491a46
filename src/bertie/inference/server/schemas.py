"""Schemas of the requests that all APIs share, and of bertie's own.

The model's head determines the rows of a request to /predict.

Unknown keys and values of another type are errors.
"""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Generic, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError
from starlette.exceptions import HTTPException
from typing_extensions import TypedDict

from bertie.base.arrays import Float64s
from bertie.inference.records import Record
from bertie.inference.results import Method
from bertie.inference.server.responses import written_as
from bertie.text.vocabulary import MASK

MAX_KEYS = 100  # pydantic makes an error for each unknown key, and does nothing else meanwhile
# For lists: stop at the first wrong item, for the same reason.
FirstError = Field(fail_fast=True)


class Schema(BaseModel):
    """Base class that rejects unknown keys, and strings in place of numbers."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _limit_keys(cls, value: Any) -> Any:
        if isinstance(value, dict) and len(value) > MAX_KEYS:
            raise PydanticCustomError("keys", "Input should have fewer keys")
        return value


class Row(Schema):
    """The texts of one record, in the order of `dispatch.REQUIRED_FIELDS`.

    Attributes:
        counted: the unit of `text_count`.
    """

    counted: ClassVar[str] = "texts"

    @property
    def texts(self) -> tuple[Any, ...]:
        """The texts, as in a `Record`."""
        return tuple(value for _, value in self if value is not None)

    @property
    def text_count(self) -> int:
        """The number of texts that count towards the limit of a request."""
        return 1


class StringOrObject(Row):
    """A row for which a plain string is accepted, as its text.

    Attributes:
        keys: the keys of which an object has one, for errors.
    """

    keys: ClassVar[str] = "`text`"

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        described = handler.resolve_ref_schema(handler(schema))
        return {"anyOf": [{"type": "string"}, described]}

    @model_validator(mode="before")
    @classmethod
    def _accept_string(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"text": value}
        if not isinstance(value, dict):
            raise PydanticCustomError(
                "input", "Input should be a text or an object with {keys}", {"keys": cls.keys}
            )
        return value


class Text(StringOrObject):
    """A text."""

    text: str


class MaskedText(Text):
    """A text with masks; each [MASK] counts as a text."""

    counted: ClassVar[str] = "[MASK] tokens"

    @property
    def text_count(self) -> int:
        return self.text.count(MASK)


class TextOrPair(Text):
    """A text, or a pair of texts."""

    pair: str | None = None


class TextOrWords(StringOrObject):
    """A text, or its words."""

    keys: ClassVar[str] = "`text` or `words`"

    text: str | None = None
    words: Annotated[list[str], FirstError] | None = None

    @model_validator(mode="after")
    def _require_one(self) -> Self:
        if len(self.texts) != 1:
            raise PydanticCustomError("input", "Input should have one of {keys}", {"keys": self.keys})
        return self


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

    counted: ClassVar[str] = "endings"

    context: str
    endings: Annotated[list[str], FirstError]

    @property
    def text_count(self) -> int:
        return len(self.endings)


R = TypeVar("R", bound=Row)


def _describe_item_or_list(schema: dict[str, Any]) -> None:
    """Say in a list's JSON schema that one item is accepted in its place."""
    items = schema.pop("items")
    schema["anyOf"] = [items, {"type": schema.pop("type"), "items": items}]


# Accept a single row in place of a list.
AsList = BeforeValidator(lambda value: value if isinstance(value, list) else [value])
ItemOrList = Field(json_schema_extra=_describe_item_or_list)
TopK = Annotated[int, Field(ge=1, le=100)]
DEFAULT_TOP_K = 5  # as `bertie predict`
# Each prediction for a [MASK] repeats the text. With 100 predictions for each of 32 [MASK]s, 512 tokens of
# ordinary text have 8 million characters; a word of any length is one token.
MAX_REPEATED = 10_000_000


class Request(Schema):
    """Body of a request.

    Attributes:
        key: the key of its texts, for errors.
    """

    key: ClassVar[str] = "inputs"

    @property
    def text_count(self) -> int:
        """The number of texts that count towards the limit of a request.

        Its items are counted before.
        """
        return 1

    @property
    def counted(self) -> str:
        """The unit of `text_count`."""
        return "texts"


# In the body of OpenAI's and bertie's own requests.
ModelName = Annotated[str | None, Field(description="The name of a served model.")]


class RowsRequest(Request, Generic[R]):
    """Body with rows."""

    inputs: Annotated[list[R], FirstError, AsList, ItemOrList]
    model: ModelName = None

    @property
    def text_count(self) -> int:
        return sum(row.text_count for row in self.inputs)

    @property
    def counted(self) -> str:
        return self.inputs[0].counted

    @property
    def records(self) -> list[Record]:
        """The rows as records."""
        return [Record(f"inputs.{i}", {}, row.texts) for i, row in enumerate(self.inputs)]


class PredictRequest(RowsRequest[R], Generic[R]):
    """Body of POST /predict with rows for the model's head."""

    top_k: TopK = DEFAULT_TOP_K


def check_repeated(rows: Sequence[Row], top_k: int) -> None:
    """Check how often a response would repeat texts with masks.

    Raises:
        HTTPException: it would have more than `MAX_REPEATED` characters.
    """
    characters = sum(len(row.text) * row.text_count for row in rows if isinstance(row, MaskedText)) * top_k
    if characters > MAX_REPEATED:
        raise HTTPException(
            413,
            f"inputs: each prediction repeats its text, so the response would have {characters:,} "
            f"characters, more than {MAX_REPEATED:,}; shorten the text, or use fewer [MASK] tokens or a "
            f"smaller top_k",
        )


class NextSentenceRequest(RowsRequest[Pair]):
    """Body of POST /next-sentence."""


class AttentionRequest(Request):
    """Body of POST /attention."""

    inputs: TextOrPair
    model: ModelName = None


class Predictions(TypedDict):
    """The prediction for each row, as `bertie predict --json` prints it."""

    predictions: list[Any]


class Probabilities(TypedDict):
    """For each pair, the probability that its second text follows; null for a blank first text."""

    predictions: list[float | None]


class AttentionMaps(TypedDict):
    """Tokens, their segments, and probabilities by layer, head, attending and attended token."""

    tokens: list[str]
    token_type_ids: list[int]
    attentions: Annotated[Float64s, written_as(list[list[list[list[float]]]])]


AnyPredictRequest = (
    PredictRequest[MaskedText]
    | PredictRequest[Pair]
    | PredictRequest[TextOrPair]
    | PredictRequest[TextOrWords]
    | PredictRequest[Question]
    | PredictRequest[Endings]
)
PREDICT_REQUESTS: dict[Method, type[PredictRequest[Any]]] = {
    "fill_mask": PredictRequest[MaskedText],
    "next_sentence": PredictRequest[Pair],
    "classify": PredictRequest[TextOrPair],
    "regress": PredictRequest[TextOrPair],
    "tag": PredictRequest[TextOrWords],
    "answer": PredictRequest[Question],
    "choose": PredictRequest[Endings],
}
