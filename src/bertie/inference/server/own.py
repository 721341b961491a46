"""bertie's own API: predictions of every head, next sentences, attention."""

from typing import Any

import numpy as np
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from bertie.base.errors import BertieError
from bertie.inference.capabilities import check_pairs
from bertie.inference.records import Record
from bertie.inference.results import Attention
from bertie.inference.server.batching import run_tokenizer
from bertie.inference.server.models import ServedModel
from bertie.inference.server.operations import Attend, Predict
from bertie.inference.server.schemas import (
    PREDICT_REQUESTS,
    AnyPredictRequest,
    AttentionMaps,
    AttentionRequest,
    NextSentenceRequest,
    Predictions,
    Probabilities,
    Request,
    check_repeated,
)
from bertie.inference.server.tei import (
    ClassifyRequest,
    Prediction,
    check_kinds,
    classify,
    require_inputs,
)
from bertie.inference.writers import as_json

# The response has L · A · T² numbers: 12 layers of 12 heads with 128 tokens are 2.4 million.
MAX_ATTENTION_TOKENS = 128
DECIMALS = 4


async def predict(
    model: ServedModel, request: AnyPredictRequest | ClassifyRequest
) -> Predictions | list[Prediction] | list[list[Prediction]]:
    """Return the prediction for each row, in the form of `bertie predict --json`.

    Strings for a sequence classifier are a request of Text Embeddings Inference.
    """
    if isinstance(request, ClassifyRequest):
        return await classify(model, request)
    require_inputs(request.inputs, "inputs")
    check_repeated(request.inputs, request.top_k)
    if model.method in ("classify", "regress"):
        check_kinds(model, [record for record in request.records if not record.is_blank])
    results = await model.submit(Predict(request.top_k), request.records)
    return Predictions(predictions=as_json(results))


def choose_predict_request(model: ServedModel, body: Any) -> type[Request]:
    """Return the schema of a body for POST /predict.

    A sequence classifier reads strings as Text Embeddings Inference does, objects as bertie does.
    """
    assert model.method is not None
    if model.method in ("classify", "regress") and isinstance(body, dict):
        inputs = body.get("inputs")
        items = inputs if isinstance(inputs, list) else [inputs]
        if not any(isinstance(item, dict) for item in items):
            return ClassifyRequest
    return PREDICT_REQUESTS[model.method]


def accepts(model: ServedModel, body: Any) -> bool:
    """Return whether the body of POST /predict has the inputs that a model reads."""
    if model.method is None:
        return False
    try:
        request: Any = choose_predict_request(model, body).model_validate(body)
        if model.method in ("classify", "regress"):
            is_tei = isinstance(request, ClassifyRequest)
            for texts in request.items if is_tei else [row.texts for row in request.inputs]:
                check_pairs(model.metadata, len(texts) == 2)
    except (ValidationError, BertieError):
        return False
    return True


async def next_sentence(model: ServedModel, request: NextSentenceRequest) -> Probabilities:
    """Return for each pair the probability that its second text follows the first."""
    require_inputs(request.inputs, "inputs")
    results = await model.submit(Predict(method="next_sentence"), request.records)
    return Probabilities(predictions=results)


async def attention(model: ServedModel, request: AttentionRequest) -> AttentionMaps:
    """Return the attention probabilities of every layer and head for a text or a pair."""
    texts = request.inputs.texts
    encoding = await run_tokenizer(model.threads, texts, model.metadata.tokenizer.encode, *texts)
    length = len(encoding.input_ids)
    limit = min(MAX_ATTENTION_TOKENS, model.max_seq_length)
    if length > limit:
        raise HTTPException(413, f"inputs: {length} tokens; send at most {limit}")
    found: Attention
    (found,) = await model.submit(Attend(), [Record("inputs", {}, texts)])
    return AttentionMaps(
        tokens=found.tokens,
        token_type_ids=found.token_type_ids,
        attentions=found.probabilities.astype(np.float64).round(DECIMALS),
    )
