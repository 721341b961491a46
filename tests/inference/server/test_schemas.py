"""Schemas of requests: accepted and rejected bodies."""

import pytest
from pydantic import ValidationError

from bertie.inference.dispatch import REQUIRED_FIELDS
from bertie.inference.server.pipelines import PIPELINE_REQUESTS
from bertie.inference.server.schemas import PREDICT_REQUESTS
from bertie.inference.server.tei import EmbedRequest


@pytest.mark.parametrize("method", REQUIRED_FIELDS)
def test_rows_have_the_fields_of_the_method(method):
    optional = {"pair": "more"} if method in ("classify", "regress") else {}
    values = {"endings": ["an", "ending"], "text": "a [MASK] in a [MASK]"}
    row = {name: values.get(name, f"a {name}") for name in REQUIRED_FIELDS[method]}
    request = PREDICT_REQUESTS[method].model_validate({"inputs": [row | optional, row], "top_k": 3})
    assert [row.texts for row in request.inputs] == [(*row.values(), *optional.values()), (*row.values(),)]
    assert [row.text_count for row in request.inputs] == [2 if method in ("choose", "fill_mask") else 1] * 2
    assert request.top_k == 3
    if method in PIPELINE_REQUESTS:
        only = PIPELINE_REQUESTS[method].model_validate({"inputs": row})
        assert only.inputs.texts == (*row.values(),)


def test_one_row_is_a_list_and_a_string_is_a_text():
    for inputs in ("a cat", ["a cat"], {"text": "a cat"}, [{"text": "a cat"}]):
        for schema in (PREDICT_REQUESTS["classify"], PREDICT_REQUESTS["tag"]):
            assert [row.texts for row in schema.model_validate({"inputs": inputs}).inputs] == [("a cat",)]


@pytest.mark.parametrize(
    ("schema", "request_body"),
    [
        (PREDICT_REQUESTS["classify"], {}),
        (PREDICT_REQUESTS["classify"], {"inputs": "a", "topk": 1}),
        (PREDICT_REQUESTS["classify"], {"inputs": "a", "top_k": 0}),
        (PREDICT_REQUESTS["classify"], {"inputs": "a", "top_k": "5"}),
        (PREDICT_REQUESTS["classify"], {"inputs": "a", "top_k": 101}),
        (PREDICT_REQUESTS["classify"], {"inputs": 1}),
        (PREDICT_REQUESTS["classify"], {"inputs": [["a", "b"]]}),
        (PREDICT_REQUESTS["classify"], {"inputs": {"text": "a", "question": "b"}}),
        (PREDICT_REQUESTS["tag"], {"inputs": {"text": "a", "pair": "b"}}),
        (PREDICT_REQUESTS["tag"], {"inputs": {"text": "a", "words": ["a"]}}),
        (PREDICT_REQUESTS["tag"], {"inputs": {}}),
        (PREDICT_REQUESTS["tag"], {"inputs": {"words": "a"}}),
        (PREDICT_REQUESTS["tag"], {"inputs": [["a", "b"]]}),
        (PREDICT_REQUESTS["next_sentence"], {"inputs": "a"}),
        (PREDICT_REQUESTS["answer"], {"inputs": "a"}),
        (PREDICT_REQUESTS["choose"], {"inputs": {"context": "a", "endings": "b"}}),
        (PIPELINE_REQUESTS["classify"], {"inputs": ["a", "b"]}),
        (PIPELINE_REQUESTS["classify"], {"inputs": "a", "parameters": {"function_to_apply": "none"}}),
        (PIPELINE_REQUESTS["tag"], {"inputs": "a", "parameters": {"aggregation_strategy": "simple"}}),
        (EmbedRequest, {"inputs": "a", "pooling": "median"}),
        (EmbedRequest, {"inputs": {"text": "a"}}),
        (EmbedRequest, {"inputs": [["a"]]}),
        (EmbedRequest, {"inputs": [-1]}),
        (EmbedRequest, {"inputs": "a", "dimensions": 0}),
        (EmbedRequest, {"inputs": "a", "truncation_direction": "up"}),
        (EmbedRequest, {"inputs": "a", "normalize": 1}),
    ],
)
def test_other_requests_are_rejected(schema, request_body):
    with pytest.raises(ValidationError):
        schema.model_validate(request_body)
