"""Requests as JSON: what is read, and the line that says what is wrong."""

import pytest
from pydantic import ValidationError

from bertie.inference.dispatch import ASKED
from bertie.inference.server.schemas import PIPELINE_REQUESTS, PREDICT_REQUESTS, EmbedRequest


@pytest.mark.parametrize("method", ASKED)
def test_rows_are_what_the_method_is_asked(method):
    more = {"pair": "more"} if method in ("classify", "rate") else {}
    values = {"endings": ["an", "ending"], "text": "a [MASK] in a [MASK]"}
    row = {name: values.get(name, f"a {name}") for name in ASKED[method]}
    asked = PREDICT_REQUESTS[method].model_validate({"inputs": [row | more, row], "top_k": 3})
    assert [row.texts for row in asked.rows] == [(*row.values(), *more.values()), (*row.values(),)]
    assert [row.count for row in asked.rows] == [2 if method in ("choose", "fill_mask") else 1] * 2
    assert asked.kind.top_k == 3
    if method in PIPELINE_REQUESTS:
        (only,) = PIPELINE_REQUESTS[method].model_validate({"inputs": row}).rows
        assert only.texts == (*row.values(),)


def test_one_is_read_as_a_list_of_one_and_a_string_as_a_text():
    for inputs in ("a cat", ["a cat"], {"text": "a cat"}, [{"text": "a cat"}]):
        for schema in (PREDICT_REQUESTS["classify"], PREDICT_REQUESTS["tag"], EmbedRequest):
            assert [row.texts for row in schema.model_validate({"inputs": inputs}).rows] == [("a cat",)]


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
        (PREDICT_REQUESTS["next_sentence"], {"inputs": "a"}),
        (PREDICT_REQUESTS["answer"], {"inputs": "a"}),
        (PREDICT_REQUESTS["choose"], {"inputs": {"context": "a", "endings": "b"}}),
        (PIPELINE_REQUESTS["classify"], {"inputs": ["a", "b"]}),
        (PIPELINE_REQUESTS["classify"], {"inputs": "a", "parameters": {"function_to_apply": "none"}}),
        (PIPELINE_REQUESTS["tag"], {"inputs": "a", "parameters": {"aggregation_strategy": "simple"}}),
        (EmbedRequest, {"inputs": "a", "pooling": "median"}),
        (EmbedRequest, {"inputs": "a", "truncate": False}),
        (EmbedRequest, {"inputs": "a", "normalize": 1}),
    ],
)
def test_what_is_not_so_is_refused(schema, request_body):
    with pytest.raises(ValidationError):
        schema.model_validate(request_body)
