"""Text Embeddings Inference's API: its OpenAPI document, and what its own router tests expect."""

import itertools
import json
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter, sleep

import jsonschema
import numpy as np
import pytest
import transformers
from tests.inference.server.serving import serving
from tests.inference.small_models import CONFIG, LABELS, MODELS, save_small

import bertie
from bertie.inference.server.batching import RequestThreads
from bertie.inference.server.encoding import Truncation, encode_pairs
from bertie.inference.server.models import ServedModel
from bertie.inference.server.responses import json_pieces
from bertie.inference.server.tei import _tokenize
from bertie.model.heads import ClassificationModel

DOCUMENT = Path(__file__).parents[4] / "shared" / "suites" / "tei" / "docs_openapi.json"
# A body for each of its routes.
BODIES = {
    "/embed": {"inputs": ["the cat", [5, 6]], "normalize": False, "truncate": None},
    "/embed_all": {"inputs": "the cat"},
    "/predict": {"inputs": [["the cat"], ["the cat", "sat"]], "raw_scores": True},
    "/models/classifier/predict": {"inputs": "the cat"},
    "/rerank": {"query": "the cat", "texts": ["sat", "on"], "return_text": True},
    "/similarity": {"inputs": {"source_sentence": "the cat", "sentences": ["cat", "mat"]}},
    "/tokenize": {"inputs": ["the cat", "mat"]},
    "/decode": {"ids": [[5, 6], [7]]},
    "/v1/embeddings": {"input": "the cat"},
}


def check(document, name, value):
    """Check a value against a schema of the document, which is in OpenAPI 3.0."""
    schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
    jsonschema.validate(value, schema)


@pytest.fixture(scope="module")
def document():
    if not DOCUMENT.exists():
        pytest.skip("needs the OpenAPI document of Text Embeddings Inference")
    document = json.loads(DOCUMENT.read_text(), object_hook=_with_null)
    # An empty list and a list of lists fit both members of some of its oneOf.
    return json.loads(json.dumps(document).replace('"oneOf"', '"anyOf"'))


def _with_null(value):
    """Turn OpenAPI 3.0's `nullable` into a type of JSON Schema."""
    if value.pop("nullable", False) and "type" in value:
        value["type"] = [value["type"], "null"]
    return value


@pytest.mark.parametrize("path", BODIES)
def test_responses_have_the_schema_of_the_document(document, several, path):
    operation = document["paths"][path.removeprefix("/models/classifier")]["post"]
    request = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    check(document, request.split("/")[-1], {k: v for k, v in BODIES[path].items() if v is not None})
    status, content = several.post(path, BODIES[path])
    assert status == 200, content
    reference = operation["responses"]["200"]["content"]["application/json"]["schema"]["$ref"]
    check(document, reference.split("/")[-1], content)


def test_info_and_errors_have_the_schema_of_the_document(document, several):
    for name in ("encoder", "classifier", "regression", "tagger"):
        check(document, "Info", several.send("GET", f"/models/{name}/info")[1])
    for path in document["paths"].keys() - {"/health", "/info", "/metrics", "/v1/embeddings"}:
        for body in (b"{", {}, {"inputs": 7}):
            status, content = several.post(path, body)
            assert status in (400, 422), path
            check(document, "ErrorResponse", content)


def test_dimensions_shorten_the_vectors(several):
    """As router/tests/test_http_embed.rs."""
    status, single = several.post("/embed", {"inputs": "the cat", "dimensions": 8})
    assert (status, len(single), len(single[0])) == (200, 1, 8)
    assert np.linalg.norm(single) == pytest.approx(1, abs=1e-5)
    _, batch = several.post("/embed", {"inputs": ["the cat"] * 3, "dimensions": 8})
    np.testing.assert_allclose(batch, single * 3, atol=1e-5)
    status, content = several.post("/embed", {"inputs": "the cat", "dimensions": 17})
    assert (status, content["error"]) == (422, "dimensions: 17 is more than the model's 16; use at most 16")
    _, content = several.post("/embed", {"inputs": "the cat", "dimensions": 10**4000})
    assert content["error"] == f"dimensions: 1{'0' * 79} is more than the model's 16; use at most 16"


def test_predict_returns_the_labels_of_each_input(several, predictors):
    """As router/tests/test_http_predict.rs."""
    _, single = several.post("/models/classifier/predict", {"inputs": "the cat"})
    expected = predictors["classifier"].classify("the cat")
    assert [row["label"] for row in single] == [label.label for label in expected]
    assert [row["score"] for row in single] == pytest.approx([label.score for label in expected], abs=1e-5)
    _, batch = several.post("/models/classifier/predict", {"inputs": [["the cat"]] * 5})
    assert len(batch) == 5
    for predictions in batch:
        assert [row["label"] for row in predictions] == [row["label"] for row in single]
    _, pair = several.post("/models/classifier/predict", {"inputs": ["the cat", "sat"]})
    assert {row["label"] for row in pair} == {*LABELS}
    assert pair[0]["score"] == pytest.approx(
        predictors["classifier"].classify("the cat", "sat")[0].score, abs=1e-5
    )


def test_predict_keeps_the_format_of_rows(several):
    rows = [{"text": "the cat"}, {"text": "the cat", "pair": "sat"}]
    status, content = several.post("/models/classifier/predict", {"inputs": rows, "top_k": 1})
    assert (status, [len(labels) for labels in content["predictions"]]) == (200, [1, 1])


def test_rerank_sorts_the_texts_by_score(several, predictors):
    """As router/tests/test_http_rerank.rs."""
    texts = ["the cat", "mat", "the cat"]
    _, ranks = several.post("/rerank", {"query": "the cat", "texts": texts, "return_text": True})
    scores = [rank["score"] for rank in ranks]
    assert scores == sorted(scores, reverse=True)
    by_index = {rank["index"]: rank for rank in ranks}
    assert by_index[0]["score"] == pytest.approx(by_index[2]["score"], abs=1e-6)
    assert [by_index[i]["text"] for i in range(3)] == texts
    _, raw = several.post("/rerank", {"query": "the cat", "texts": texts, "raw_scores": True})
    number = predictors["regression"].regress("the cat", "mat")
    assert {rank["index"]: rank["score"] for rank in raw}[1] == pytest.approx(number, abs=1e-5)
    assert by_index[1]["score"] == pytest.approx(1 / (1 + np.exp(-number)), abs=1e-5)


@pytest.fixture
def binary(tmp_path, monkeypatch):
    """A calibrated classifier with two classes."""
    made = (lambda: ClassificationModel(CONFIG, 2), ("no", "yes"), {"temperature": 0.5})
    monkeypatch.setitem(MODELS, "binary", made)
    return bertie.load(save_small(tmp_path, "binary"))


def test_rerank_scores_by_the_second_of_two_classes(binary):
    texts = ["mat", "sat on a mat", "paris"]
    yes = [{label.label: label.score for label in binary.classify("the cat", text)}["yes"] for text in texts]
    best_first = sorted(range(3), key=lambda i: -yes[i])
    body = {"query": "the cat", "texts": texts}
    with serving(binary) as served:
        _, ranks = served.post("/rerank", body)
        assert [rank["index"] for rank in ranks] == best_first
        assert [rank["score"] for rank in ranks] == pytest.approx([yes[i] for i in best_first], abs=1e-5)
        _, raw = served.post("/rerank", {**body, "raw_scores": True})
        logits = [0.5 * np.log(yes[i] / (1 - yes[i])) for i in best_first]
        assert [rank["score"] for rank in raw] == pytest.approx(logits, abs=1e-5)


def test_labels_of_a_multilabel_model_have_independent_probabilities(tmp_path):
    model = bertie.load(save_small(tmp_path, "multi-label"))
    with serving(model) as served:
        _, found = served.post("/predict", {"inputs": "the cat"})
        assert {row["label"]: row["score"] for row in found} == pytest.approx(
            {label.label: label.score for label in model.classify("the cat")}, abs=1e-5
        )
        assert served.post("/rerank", {"query": "the cat", "texts": ["mat"]})[0] == 424


def test_rerank_rejects_a_long_pair_without_truncation(several):
    body = {"query": "the cat", "texts": ["mat", "sat " * 200]}
    assert several.post("/rerank", body)[0] == 200
    status, content = several.post("/rerank", {**body, "truncate": False})
    assert (status, content["error_type"]) == (413, "Validation")
    assert content["error"].startswith("`query` with one of `texts` must have at most 128 tokens. Given: 205")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/models/classifier/rerank", {"query": "a", "texts": ["b"]}),
        ("/embed_sparse", {"inputs": "a"}),
    ],
)
def test_models_that_cannot_are_reported_as_a_failed_dependency(several, path, body):
    status, content = several.post(path, body)
    assert (status, content["error_type"]) == (424, "Backend")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/embed", {"inputs": []}),
        ("/embed", {"inputs": [[]]}),
        ("/rerank", {"query": "a", "texts": []}),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": []}}),
        ("/tokenize", {"inputs": []}),
        ("/decode", {"ids": []}),
        ("/models/classifier/predict", {"inputs": []}),
    ],
)
def test_an_empty_batch_is_reported_as_empty(several, path, body):
    status, content = several.post(path, body)
    assert (status, content["error_type"]) == (400, "Empty")
    assert content["error"].endswith(" cannot be empty")


@pytest.mark.parametrize("direction", ["Left", "right"])
@pytest.mark.parametrize("pair", [None, "on " * 100])
def test_truncation_equals_that_of_transformers(several, predictors, direction, pair):
    model = predictors["classifier"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(
        model.path, truncation_side=direction.lower(), model_max_length=128
    )
    text = " ".join(["the", "cat", "sat"] * 60)
    inputs = tokenizer(text, pair, truncation="longest_first", max_length=128)
    item = [text, pair] if pair else [text]
    (encoded,) = encode_pairs(model.tokenizer, [item], Truncation(128, True, direction == "Left"))
    assert encoded.input_ids.tolist() == inputs["input_ids"]
    assert encoded.token_type_ids.tolist() == inputs["token_type_ids"]
    body = {"inputs": text, "truncation_direction": direction}
    assert several.post("/embed", body)[0] == 200
    status, content = several.post("/embed", {"inputs": text, "truncate": False})
    assert (status, content["error_type"]) == (413, "Validation")
    assert content["error"].startswith("`inputs` must have at most 128 tokens. Given: 182")


@pytest.mark.parametrize("max_length", [3, 4, 9, 10])
def test_pairs_are_truncated_as_by_the_tokenizer(predictors, max_length):
    tokenizer = predictors["classifier"].tokenizer
    for sizes in itertools.product(range(12), repeat=2):
        pair = ["the " * size for size in sizes]
        (encoded,) = encode_pairs(tokenizer, [pair], Truncation(max_length))
        expected = tokenizer.encode(*pair, max_length=max_length)
        assert encoded.input_ids.tolist() == expected.input_ids.tolist()
        assert encoded.token_type_ids.tolist() == expected.token_type_ids.tolist()


def test_token_ids_and_prompts_are_inputs(several, predictors):
    tokenizer = predictors["encoder"].tokenizer
    ids = tokenizer.encode("the cat sat").input_ids.tolist()
    _, expected = several.post("/embed", {"inputs": "the cat sat"})
    for body in ({"inputs": ids}, {"inputs": [ids]}, {"inputs": "cat sat", "prompt_name": "query"}):
        np.testing.assert_allclose(several.post("/embed", body)[1], expected, atol=1e-5)
    status, content = several.post("/embed", {"inputs": [10**6]})
    assert (status, content["error"]) == (
        422,
        "inputs: no token has the id 1000000; the ids of encoder end at 93",
    )
    _, content = several.post("/embed", {"inputs": [10**4000]})
    assert content["error"] == f"inputs: no token has the id 1{'0' * 79}; the ids of encoder end at 93"
    status, content = several.post("/embed", {"inputs": "a", "prompt_name": "passage"})
    assert content["error"] == "prompt_name: no prompt 'passage'; the prompts of encoder: query"
    assert status == 422


def test_tokens_have_the_characters_of_the_text(several):
    _, (tokens,) = several.post("/tokenize", {"inputs": "The sitting"})
    assert [(token["special"], token["start"], token["stop"]) for token in (tokens[0], tokens[-1])] == [
        (True, None, None)
    ] * 2
    assert tokens[1] | {"id": 0} == {
        "id": 0, "text": "The", "token": "the", "special": False, "start": 0, "stop": 3
    }  # fmt: skip
    assert "".join(token["text"] for token in tokens[2:-1]) == "sitting"
    ids = [token["id"] for token in tokens]
    assert several.post("/decode", {"ids": ids})[1] == ["the sitting"]


def test_special_tokens_are_left_out_on_request(several):
    _, (tokens,) = several.post("/tokenize", {"inputs": "The cat", "add_special_tokens": False})
    assert [token["token"] for token in tokens] == ["the", "cat"]
    _, (tokens,) = several.post("/tokenize", {"inputs": "cat", "prompt_name": "query"})
    assert [token["token"] for token in tokens] == ["[CLS]", "the", "cat", "[SEP]"]
    ids = [token["id"] for token in tokens]
    assert several.post("/decode", {"ids": ids})[1] == ["the cat"]
    _, decoded = several.post("/decode", {"ids": [ids], "skip_special_tokens": False})
    assert decoded == ["[CLS] the cat [SEP]"]


def test_an_unknown_word_keeps_its_characters(several):
    _, (tokens,) = several.post("/tokenize", {"inputs": "cat ☃", "add_special_tokens": False})
    assert {**tokens[1], "id": 0} == {
        "id": 0, "text": "☃", "token": "[UNK]", "special": False, "start": 4, "stop": 5
    }  # fmt: skip


def test_tokens_are_made_while_they_are_written(predictors):
    """A body of 2 MB has a million tokens, with 400 bytes each."""
    model = ServedModel("encoder", predictors["encoder"].path, RequestThreads(1))
    tracemalloc.start()
    try:
        size = sum(map(len, json_pieces(_tokenize(model, ["a " * 100_000, "b"], True))))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size > 7_500_000
    assert peak < 10_000_000


def test_similarity_is_the_cosine(several, predictors):
    body = {"inputs": {"source_sentence": "the cat", "sentences": ["the cat", "paris"]}}
    _, found = several.post("/similarity", body)
    vectors = predictors["encoder"].embed(["the cat", "paris"], normalize=True)
    assert found == pytest.approx((vectors @ vectors[0]).tolist(), abs=1e-5)
    _, found = several.post("/similarity", body | {"parameters": {"prompt_name": "query"}})
    vectors = predictors["encoder"].embed(["the the cat", "the paris"], normalize=True)
    assert found[1] == pytest.approx(vectors[0] @ vectors[1], abs=1e-5)


def test_embed_all_returns_the_vectors_of_the_tokens(several, predictors):
    _, found = several.post("/embed_all", {"inputs": ["the cat sat", "a"]})
    for vectors, features in zip(found, predictors["encoder"].features(["the cat sat", "a"]), strict=True):
        np.testing.assert_allclose(vectors[1:-1], features.vectors[0], atol=1e-5)


COSTS = ("x-compute-characters", "x-compute-tokens")
TIMES = ("x-compute-time", "x-total-time", "x-tokenization-time", "x-queue-time", "x-inference-time")


@pytest.mark.parametrize(
    ("path", "body", "characters", "tokens"),
    [
        ("/embed", {"inputs": "the cat"}, 7, 4),
        ("/embed", {"inputs": ["the cat", [5, 6, 7]]}, 7, 7),
        ("/embed", {"inputs": "the " * 200}, 800, 128),  # after truncation
        ("/embed_all", {"inputs": ["the cat", "the"]}, 10, 7),
        ("/models/classifier/predict", {"inputs": [["the cat"], ["the", "the"]]}, 13, 9),
        ("/rerank", {"query": "the cat", "texts": ["the", "a"]}, 18, 12),
        ("/similarity", {"inputs": {"source_sentence": "the", "sentences": ["a", "the cat"]}}, 11, 10),
        ("/v1/embeddings", {"input": "the cat"}, 7, 4),
    ],
)
def test_responses_have_the_costs_of_the_request(several, path, body, characters, tokens):
    begin = perf_counter()
    response, _ = several.send_text("POST", path, body)
    elapsed = 1000 * (perf_counter() - begin)
    assert response.status == 200
    assert [int(response.headers[name]) for name in COSTS] == [characters, tokens]
    total, *parts = (int(response.headers[name]) for name in TIMES[1:])
    assert int(response.headers["x-compute-time"]) == total <= elapsed
    assert 0 <= sum(parts) <= total


def test_times_are_those_of_the_computation(several, monkeypatch):
    """A computation of 50 ms delays its own request, and the queue of the next one."""
    model = several.models.find("encoder")
    compute = model._batcher.compute

    def slow(*arguments):
        sleep(0.05)
        return compute(*arguments)

    monkeypatch.setattr(model._batcher, "compute", slow)
    with ThreadPoolExecutor(3) as clients:
        requests = [clients.submit(several.send_text, "POST", "/embed", {"inputs": "a"}) for _ in range(3)]
        headers = [request.result()[0].headers for request in requests]
    assert all(int(header["x-inference-time"]) >= 50 for header in headers)
    assert all(int(header["x-total-time"]) >= 50 for header in headers)
    assert max(int(header["x-queue-time"]) for header in headers) >= 20


def test_only_computed_responses_have_costs(several):
    for path, body in (("/tokenize", {"inputs": "a"}), ("/decode", {"ids": [5]}), ("/embed", {"inputs": []})):
        response, _ = several.send("POST", path, body)
        assert not {*COSTS, *TIMES} & {name.lower() for name in response.headers}
