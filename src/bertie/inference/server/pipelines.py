"""Answer as `transformers`' pipelines do, for huggingface_hub's `InferenceClient`."""

from collections.abc import Mapping, Sequence
from typing import Any, Generic, Literal

from starlette.exceptions import HTTPException

from bertie.inference.records import Record
from bertie.inference.results import Answer, Entity, Method, TaggedWord
from bertie.inference.server.models import ServedModel
from bertie.inference.server.operations import Predict
from bertie.inference.server.schemas import (
    DEFAULT_TOP_K,
    MaskedText,
    Question,
    R,
    Request,
    Schema,
    Text,
    TextOrPair,
    TopK,
    check_repeated,
)
from bertie.inference.server.tei import EmbedRequest, SimilarityRequest, embed, similarity
from bertie.inference.writers import as_json


class Parameters(Schema):
    """Parameters of a `transformers` pipeline."""

    top_k: TopK | None = None


class TagParameters(Parameters):
    """Parameters of the token-classification pipeline."""

    # `transformers`' name for bertie's method: the first token of a word determines its tag.
    aggregation_strategy: Literal["first"] = "first"


class PipelineRequest(Request, Generic[R]):
    """Body of POST /, with one row, as huggingface_hub's InferenceClient sends it."""

    inputs: R
    parameters: Parameters | None = None

    @property
    def text_count(self) -> int:
        return self.inputs.text_count

    @property
    def counted(self) -> str:
        return self.inputs.counted


class TagRequest(PipelineRequest[Text]):
    """Body of POST / for a tagger."""

    parameters: TagParameters | None = None


PIPELINE_REQUESTS: dict[Method, type[PipelineRequest[Any]]] = {
    "fill_mask": PipelineRequest[MaskedText],
    "classify": PipelineRequest[TextOrPair],
    "regress": PipelineRequest[TextOrPair],
    "tag": TagRequest,
    "answer": PipelineRequest[Question],
}


AnyPipelineRequest = (
    PipelineRequest[MaskedText] | PipelineRequest[TextOrPair] | TagRequest | PipelineRequest[Question]
)


async def run_pipeline(
    model: ServedModel, request: AnyPipelineRequest | EmbedRequest | SimilarityRequest
) -> Any:
    """Answer as `transformers`' pipeline for the model's head.

    An encoder extracts features, or compares sentences.
    """
    if isinstance(request, EmbedRequest):
        return await embed(model, request)
    if isinstance(request, SimilarityRequest):
        return await similarity(model, request)
    assert model.method is not None
    top_k = request.parameters.top_k if request.parameters else None
    check_repeated([request.inputs], top_k or DEFAULT_TOP_K)
    (results,) = await model.submit(
        Predict(top_k or DEFAULT_TOP_K), [Record("inputs", {}, request.inputs.texts)]
    )
    return as_pipeline(model.method, results, model.metadata.labels, top_k)


def choose_pipeline_request(model: ServedModel, body: Any) -> type[Request]:
    """Return the schema of a body for POST /.

    Raises:
        HTTPException: no pipeline has the model's head, or the body is for a head and the model has none.
    """
    if model.method is None:
        return _choose_encoder_request(model, body if isinstance(body, dict) else {})
    if model.method not in PIPELINE_REQUESTS:
        raise HTTPException(
            422, f"there is no pipeline for the method {model.method}; send rows to POST /predict"
        )
    return PIPELINE_REQUESTS[model.method]


def _choose_encoder_request(model: ServedModel, body: Mapping[str, Any]) -> type[Request]:
    inputs = body.get("inputs")
    if isinstance(inputs, dict) and "source_sentence" in inputs:
        return SimilarityRequest
    if "parameters" in body:  # InferenceClient sends them for every head, and never to extract features
        raise HTTPException(
            422,
            f"{model.name}: this model is an encoder without a head; it extracts features, without "
            "`parameters`, or compares sentences",
        )
    return EmbedRequest


def as_pipeline(method: Method, results: Any, labels: Sequence[str], top_k: int | None) -> Any:
    """Return the results for one row as the JSON values of a pipeline.

    Args:
        method: the main method of the model's head.
        results: the results of the method for the row.
        labels: the model's labels.
        top_k: the request's `top_k`; None if it has none.
    """
    match method:
        case "fill_mask":  # one list for each [MASK]; for one [MASK], its list
            return as_json(results[0] if len(results) == 1 else results)
        case "classify":
            return [as_json(results)]
        case "regress":
            return [[{"label": labels[0], "score": results}]]
        case "tag":
            return [_entity_json(result) for result in results]
        case "answer":
            answers = [_answer_json(answer) for answer in results]
            return answers[0] if answers and top_k in (None, 1) else answers
        case "next_sentence" | "choose":
            raise AssertionError(f"{method} has no pipeline")


def _entity_json(result: Entity | TaggedWord) -> dict[str, Any]:
    if isinstance(result, TaggedWord):
        return {"entity": result.tag, "score": result.score, "word": result.word, "start": None, "end": None}
    return {
        "entity_group": result.label,
        "score": result.score,
        "word": result.text,
        "start": result.start,
        "end": result.end,
    }


def _answer_json(answer: Answer) -> dict[str, Any]:
    return {"answer": answer.text, "score": answer.score, "start": answer.start, "end": answer.end}
