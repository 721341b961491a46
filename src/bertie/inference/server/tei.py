"""The API of Text Embeddings Inference 1.9: requests, defaults and responses."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, NotRequired

import numpy as np
from pydantic import BeforeValidator, Field, WrapValidator
from pydantic_core import PydanticCustomError
from starlette.exceptions import HTTPException
from typing_extensions import TypedDict

from bertie.base.arrays import Float32s, Float64s, Int32s
from bertie.base.errors import DataError, SettingsError
from bertie.inference.capabilities import check_pairs
from bertie.inference.records import Record
from bertie.inference.server.batching import count_ids, run_tokenizer
from bertie.inference.server.encoding import Truncation, encode_pairs, encode_singles
from bertie.inference.server.errors import EmptyRequestError
from bertie.inference.server.models import ServedModel
from bertie.inference.server.operations import ComputeLogits, Embed, EmbedTokens, EncodedText
from bertie.inference.server.responses import LazyList, written_as
from bertie.inference.server.schemas import FirstError, ModelName, Request, Schema
from bertie.model.engines.embeddings import normalize
from bertie.model.formats.sentence_transformers import Pooling
from bertie.tasks.probabilities import label_probabilities, rank
from bertie.text.vocabulary import SPECIAL_TOKENS

TOKENS_AT_A_TIME = 512  # 40 kB of JSON, made in 1 ms


def one_message(expected: str) -> WrapValidator:
    """Report a value that fits no member of a union in one sentence."""

    def validate(value: Any, handler: Any) -> Any:
        try:
            return handler(value)
        except ValueError:
            raise PydanticCustomError("input", "Input should be {expected}", {"expected": expected}) from None

    return WrapValidator(validate)


def require_inputs(values: Sequence[Any], key: str) -> None:
    """Raise EmptyRequestError if a list is empty."""
    if not values:
        raise EmptyRequestError(key)


Strings = Annotated[list[str], FirstError]
TokenIds = Annotated[list[Annotated[int, Field(ge=0)]], FirstError]
Input = Annotated[
    str | TokenIds | Annotated[list[str | TokenIds], FirstError],
    one_message("a text, a list of texts, a list of token ids, or a list of such lists"),
]
Texts = Annotated[str | Strings, one_message("a text or a list of texts")]
Ids = Annotated[
    TokenIds | Annotated[list[TokenIds], FirstError],
    one_message("a list of token ids, or a list of such lists"),
]
Sentence = Annotated[list[str], Field(min_length=1, max_length=2)]
Sentences = Annotated[
    str | Sentence | Annotated[list[Sentence], FirstError],
    one_message("a text, a pair [text, text], or a list of [text] and [text, text]"),
]
Direction = Annotated[
    Literal["Left", "Right"],
    BeforeValidator(lambda value: value.title() if value in ("left", "right") else value),
]


class TruncatingRequest(Request):
    """Body with texts that may be too long."""

    truncate: bool | None = None  # Text Embeddings Inference truncates by default since 1.9
    truncation_direction: Direction = "Right"

    @property
    def truncated(self) -> str:
        """The name of the texts that may be too long, for errors."""
        return f"`{self.key}`"


class PromptRequest(TruncatingRequest):
    """Body with texts that a prompt may precede."""

    inputs: Input
    prompt_name: str | None = None

    @property
    def items(self) -> list[str | list[int]]:
        """The texts and lists of token ids, always as a list."""
        inputs: Any = self.inputs
        single = isinstance(inputs, str) or (inputs and isinstance(inputs[0], int))
        return [inputs] if single else inputs


class EmbedRequest(PromptRequest):
    """Body of POST /embed; `pooling` is bertie's own."""

    normalize: bool = True
    dimensions: Annotated[int | None, Field(ge=1)] = None
    pooling: Pooling | None = None


class EmbedAllRequest(PromptRequest):
    """Body of POST /embed_all."""


class EmbedSparseRequest(PromptRequest):
    """Body of POST /embed_sparse."""


class ClassifyRequest(TruncatingRequest):
    """Body of POST /predict with texts and pairs for a sequence classifier."""

    inputs: Sentences
    raw_scores: bool = False
    model: ModelName = None  # bertie's own

    @property
    def is_batch(self) -> bool:
        """Whether the inputs are a list of lists."""
        return isinstance(self.inputs, list) and (not self.inputs or isinstance(self.inputs[0], list))

    @property
    def items(self) -> list[list[str]]:
        """The texts and pairs, always as a list of lists."""
        inputs: Any = self.inputs
        if self.is_batch:
            return inputs  # type: ignore[no-any-return]
        return [[inputs]] if isinstance(inputs, str) else [inputs]


class RerankRequest(TruncatingRequest):
    """Body of POST /rerank."""

    key: ClassVar[str] = "texts"
    query: str
    texts: Strings
    raw_scores: bool = False
    return_text: bool = False

    @property
    def truncated(self) -> str:
        return "`query` with one of `texts`"


class SimilarityInput(Schema):
    """A sentence, and the sentences to compare it with."""

    source_sentence: str
    sentences: Strings


class SimilarityParameters(TruncatingRequest):
    """Parameters of POST /similarity."""

    prompt_name: str | None = None


class SimilarityRequest(Request):
    """Body of POST /similarity."""

    inputs: SimilarityInput
    parameters: SimilarityParameters | None = None

    @property
    def text_count(self) -> int:
        return len(self.inputs.sentences) + 1


class TokenizeRequest(Request):
    """Body of POST /tokenize."""

    inputs: Texts
    add_special_tokens: bool = True
    prompt_name: str | None = None

    @property
    def items(self) -> list[str]:
        """The texts, always as a list."""
        return [self.inputs] if isinstance(self.inputs, str) else self.inputs


class DecodeRequest(Request):
    """Body of POST /decode."""

    key: ClassVar[str] = "ids"
    ids: Ids
    skip_special_tokens: bool = True

    @property
    def items(self) -> list[list[int]]:
        """The lists of token ids, always as a list."""
        ids: Any = self.ids
        return [ids] if ids and isinstance(ids[0], int) else ids


class Prediction(TypedDict):
    """A label and its score."""

    score: float
    label: str


class Rank(TypedDict):
    """A text of a request, by its index, and its score."""

    index: int
    text: NotRequired[str]
    score: float


class SparseValue(TypedDict):
    """An entry of a sparse vector."""

    index: int
    value: float


class SimpleToken(TypedDict):
    """A token, and the position of its characters in the text. Only bertie has the key `token`."""

    id: int
    text: str
    token: str
    special: bool
    start: int | None
    stop: int | None


async def embed(
    model: ServedModel, request: EmbedRequest
) -> Annotated[Float32s, written_as(list[list[float]])]:
    """Return a vector for each text, scaled to length 1 unless `normalize` is false."""
    vectors, _ = await compute_vectors(model, request, request.pooling, request.normalize, request.dimensions)
    return vectors


async def compute_vectors(
    model: ServedModel,
    request: PromptRequest,
    pooling: Pooling | None = None,
    normalized: bool = True,
    dimensions: int | None = None,
) -> tuple[Float32s, int]:
    """Embed the texts of a request.

    Returns:
        float32 (n, H), or (n, dimensions), and the number of tokens.

    Raises:
        HTTPException: the model has fewer dimensions.
    """
    require_inputs(request.items, request.key)
    size = model.metadata.config.hidden_size
    if dimensions is not None and dimensions > size:
        raise HTTPException(
            422, f"dimensions: {str(dimensions)[:80]} is more than the model's {size}; use at most {size}"
        )
    encoded = await _encode(model, request)
    found = await model.submit(Embed(pooling or model.embedding.pooling), records_of(encoded))
    vectors = np.stack(found)[:, :dimensions]
    tokens = sum(len(text.input_ids) for text in encoded)
    return normalize(vectors) if normalized else vectors, tokens


async def embed_all(
    model: ServedModel, request: EmbedAllRequest
) -> list[Annotated[Float32s, written_as(list[list[float]])]]:
    """Return the vector of each token of each text, with [CLS] and [SEP], without pooling."""
    require_inputs(request.items, "inputs")
    return await model.submit(EmbedTokens(), records_of(await _encode(model, request)))


async def embed_sparse(model: ServedModel, request: EmbedSparseRequest) -> list[list[SparseValue]]:
    """Report that there are no sparse vectors, which need a SPLADE model."""
    raise HTTPException(424, f"{model.name}: no SPLADE model, so it has no sparse vectors; use /embed")


async def classify(model: ServedModel, request: ClassifyRequest) -> list[Prediction] | list[list[Prediction]]:
    """Return the labels of texts or pairs with their probabilities, most likely first.

    A batch is a list of lists. The score of a regression is the sigmoid of its number.
    """
    require_inputs(request.items, "inputs")
    records = await _classifier_records(model, request)
    logits = np.stack(await model.submit(ComputeLogits(), records))
    labels = model.metadata.labels
    predictions = [
        [Prediction(score=score, label=labels[i]) for i, score in rank(row)]
        for row in (logits if request.raw_scores else _probabilities(model, logits))
    ]
    return predictions if request.is_batch else predictions[0]


async def rerank(model: ServedModel, request: RerankRequest) -> list[Rank]:
    """Return the texts by their score for the query, best first.

    The score is the sigmoid of a regression's number, or the probability of the second of two classes.
    """
    require_inputs(request.texts, "texts")
    pairs = [[request.query, text] for text in request.texts]
    encoded = await _encode_pairs(model, request, pairs)
    logits = np.stack(await model.submit(ComputeLogits(), records_of(encoded)))
    scores: Any = logits[:, 0] if logits.shape[1] == 1 else logits[:, 1] - logits[:, 0]
    if not request.raw_scores:
        scores = _probabilities(model, scores[:, None])[:, 0]
    ranks = [Rank(index=i, score=score) for i, score in enumerate(scores.tolist())]
    if request.return_text:
        ranks = [Rank(**entry, text=text) for entry, text in zip(ranks, request.texts, strict=True)]
    return sorted(ranks, key=lambda entry: -entry["score"])


async def similarity(model: ServedModel, request: SimilarityRequest) -> list[float]:
    """Return the cosine of the source sentence with each of the sentences."""
    require_inputs(request.inputs.sentences, "inputs.sentences")
    parameters = request.parameters or SimilarityParameters()
    texts: list[str | list[int]] = [request.inputs.source_sentence, *request.inputs.sentences]
    vectors, _ = await compute_vectors(model, PromptRequest(inputs=texts, **dict(parameters)))
    return (vectors[1:] @ vectors[0]).tolist()  # type: ignore[no-any-return]


class TextTokens(LazyList):
    """The tokens of a text.

    Each takes 400 bytes as a `SimpleToken`, and 12 in these arrays.
    """

    def __init__(self, model: ServedModel, text: str, ids: Int32s, offsets: Int32s) -> None:
        self.text = text
        self._tokenizer, self._ids, self._offsets = model.metadata.tokenizer, ids, offsets

    def __iter__(self) -> Iterator[list[SimpleToken]]:
        for begin in range(0, len(self._ids), TOKENS_AT_A_TIME):
            part = slice(begin, begin + TOKENS_AT_A_TIME)
            ids = self._ids[part].tolist()
            tokens = self._tokenizer.convert_ids_to_tokens(ids)
            offsets = self._offsets[part].tolist()
            yield list(map(self._describe, ids, tokens, offsets))

    def _describe(self, token_id: int, token: str, offsets: tuple[int, int]) -> SimpleToken:
        start, stop = offsets
        special = start == stop and token in SPECIAL_TOKENS
        return SimpleToken(
            id=token_id,
            text=token if special else self.text[start:stop],
            token=token,
            special=special,
            start=None if special else start,
            stop=None if special else stop,
        )


async def tokenize(
    model: ServedModel, request: TokenizeRequest
) -> list[Annotated[TextTokens, written_as(list[SimpleToken])]]:
    """Return the tokens of each text, and the positions of their characters."""
    require_inputs(request.items, "inputs")
    prompt = _find_prompt(model, request.prompt_name)
    texts = [prompt + text for text in request.items]
    _refuse_if_full(model)
    tokens = await run_tokenizer(model.threads, texts, _tokenize, model, texts, request.add_special_tokens)
    _refuse_if_full(model)  # other requests may have come meanwhile
    model.written.update(tokens)
    return tokens


async def decode(model: ServedModel, request: DecodeRequest) -> list[str]:
    """Return the text of each list of token ids."""
    require_inputs(request.items, "ids")
    size = sum(map(len, request.items))
    return await model.threads.run(size, _decode, model, request, few=0)


def records_of(texts: Sequence[EncodedText]) -> list[Record]:
    """Return a record for each encoded text."""
    return [Record(f"inputs.{i}", {}, (text,)) for i, text in enumerate(texts)]


def check_ids(model: ServedModel, ids: Sequence[int], key: str) -> None:
    """Raise HTTPException unless all token ids are in the model's vocabulary."""
    size = len(model.metadata.tokenizer.vocabulary)
    if ids and max(ids) >= size:
        largest = str(max(ids))[:80]
        message = f"{key}: no token has the id {largest}; the ids of {model.name} end at {size - 1}"
        raise HTTPException(422, message)


def check_kinds(model: ServedModel, records: Sequence[Record]) -> None:
    """Check that a classifier gets single texts or pairs, as in its fine-tuning.

    Raises:
        DataError: a record is of the other kind; the message begins with its location.
    """
    for record in records:
        try:
            check_pairs(model.metadata, len(record.texts) == 2)
        except SettingsError as error:
            raise DataError(f"{record.location}: {error}") from None


async def _encode(model: ServedModel, request: PromptRequest) -> list[EncodedText]:
    """Tokenize the inputs of a request; token ids are used as they are."""
    prompt = _find_prompt(model, request.prompt_name)
    items = await model.threads.run(count_ids(request.items), _prepend_prompt, model, request, prompt)
    truncation = _truncation(request, model.embedding.max_seq_length)
    return await run_tokenizer(
        model.threads, items, encode_singles, model.metadata.tokenizer, items, truncation
    )


async def _classifier_records(model: ServedModel, request: ClassifyRequest) -> list[Record]:
    """Return the inputs as records.

    They are encoded, or texts if the model reads more of a long text.

    Raises:
        HTTPException: the request does not allow the model's way to read a long text.
        DataError: an input is a single text and the model reads pairs, or the other way round.
    """
    method = model.metadata.long_texts.method
    if method != "truncate" and request.truncation_direction == "Left":
        raise HTTPException(
            422,
            f"truncation_direction: {model.name} was fine-tuned with long_texts={method}, which decides how "
            "it reads a long text; leave truncation_direction out",
        )
    records = [Record(f"inputs.{i}", {}, tuple(item)) for i, item in enumerate(request.items)]
    check_kinds(model, records)
    if method == "truncate" or (method == "head-tail" and request.truncate is False):
        encoded = await _encode_pairs(model, request, request.items)
        if method == "truncate":
            return records_of(encoded)
    return records


async def _encode_pairs(
    model: ServedModel, request: TruncatingRequest, items: Sequence[Sequence[str]]
) -> list[EncodedText]:
    truncation = _truncation(request, model.max_seq_length)
    return await run_tokenizer(
        model.threads, items, encode_pairs, model.metadata.tokenizer, items, truncation
    )


def _prepend_prompt(model: ServedModel, request: PromptRequest, prompt: str) -> list[str | list[int]]:
    """Return the inputs of a request with the prompt, which may be empty.

    Token ids become texts with it.

    Raises:
        HTTPException: token ids are missing, or not in the model's vocabulary.
    """
    items: list[str | list[int]] = []
    for item in request.items:
        if isinstance(item, str):
            items.append(prompt + item)
        else:
            require_inputs(item, request.key)
            check_ids(model, item, request.key)
            items.append(prompt + model.metadata.tokenizer.decode(item) if prompt else item)
    return items


def _truncation(request: TruncatingRequest, max_length: int) -> Truncation:
    allowed, left = request.truncate is not False, request.truncation_direction == "Left"
    return Truncation(max_length, allowed, left, request.truncated)


def _find_prompt(model: ServedModel, name: str | None) -> str:
    """Return a prompt of the model's sentence-transformers settings; "" for None."""
    if name is None:
        return ""
    prompts: Mapping[str, str] = model.metadata.sentence_transformers_config.get("prompts") or {}
    if name not in prompts:
        listed = ", ".join(prompts) or "none"
        raise HTTPException(
            422, f"prompt_name: no prompt {name[:80]!r}; the prompts of {model.name}: {listed}"
        )
    return prompts[name]


def _probabilities(model: ServedModel, logits: Float32s) -> Float64s:
    is_multilabel = model.metadata.problem_type == "multi_label_classification" or logits.shape[1] == 1
    return label_probabilities(logits, is_multilabel, model.metadata.temperature)


def _decode(model: ServedModel, request: DecodeRequest) -> list[str]:
    for ids in request.items:
        check_ids(model, ids, request.key)
    tokenizer = model.metadata.tokenizer
    return [tokenizer.decode(ids, request.skip_special_tokens) for ids in request.items]


def _refuse_if_full(model: ServedModel) -> None:
    """Raise QueueFull while responses with many characters are being written.

    They may also wait for their clients.
    """
    if sum(len(tokens.text) for tokens in model.written) >= model.threads.max_characters:
        raise asyncio.QueueFull


def _tokenize(model: ServedModel, texts: list[str], add_special_tokens: bool) -> list[TextTokens]:
    encoding = model.metadata.tokenizer.encode_batch(texts, add_special_tokens=add_special_tokens)
    bounds = pairwise(encoding.bounds.tolist())
    return [
        TextTokens(model, text, encoding.input_ids[begin:end], encoding.offsets[begin:end])
        for text, (begin, end) in zip(texts, bounds, strict=True)
    ]
