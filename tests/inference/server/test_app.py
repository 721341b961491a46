"""Every route, over a real port: results equal the `Predictor`'s, errors are one line."""

import codecs
import json
import logging
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Event, current_thread
from time import sleep

import huggingface_hub
import numpy as np
import pytest
from tests.inference.server.serving import LIMITS, read_response, serving
from tests.inference.small_models import LABELS, MODELS, save_small
from tests.inference.test_predictor import flatten

import bertie
from bertie.inference.dispatch import answer_records
from bertie.inference.records import Record
from bertie.inference.server import app, batching, openai, tei
from bertie.inference.server.middleware import Access
from bertie.inference.writers import as_json
from bertie.model.formats.directory import LongTexts

ROWS = {
    "fill_mask": [{"text": "the [MASK] sat on a [MASK] ."}, {"text": "[MASK]"}, {"text": ""}],
    "next_sentence": [{"text": "the cat", "pair": "sat"}, {"text": " ", "pair": "sat"}],
    "classify": [{"text": "the cat sat"}, {"text": "the cat", "pair": "sat on a mat"}, {"text": ""}],
    "regress": [{"text": "the cat sat"}, {"text": "the cat", "pair": "sat on a mat"}, {"text": ""}],
    "tag": [{"text": "cats sat in Paris, on a mat"}, {"text": ""}, {"text": "a cat " * 90}],
    "answer": [{"question": "who?", "context": "the cat sat"}, {"question": "", "context": "the cat"}],
    "choose": [{"context": "a", "endings": ["b", "c"]}, {"context": "a", "endings": []}],
}

TEXT_OR_WORDS = "Input should be a text or an object with `text` or `words`"
HALF_A_PAIR = "Invalid JSON: half of a surrogate pair, a character cut in two,"
MANY_REPEATED = {"inputs": "[MASK] " * 32 + "x" * 100_000, "top_k": 100}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Return the small models by kind."""
    directory = tmp_path_factory.mktemp("models")
    return {kind: bertie.load(save_small(directory, kind)) for kind in MODELS}


@pytest.fixture(scope="module")
def classifier(models):
    with serving(models["classifier"]) as served:
        yield served


def expected(model, rows, top_k=5):
    """Return the model's results for each row, computed one by one, as JSON."""
    records = [Record("here", {}, tuple(row.values())) for row in rows]
    return json.loads(json.dumps(as_json([answer_records(model, [record], top_k)[0] for record in records])))


def assert_same(actual, wanted):
    """Compare JSON values; floats approximately, since the batch changes their last digits."""
    actual, wanted = (list(flatten(to_lists(value))) for value in (actual, wanted))
    assert actual == [
        pytest.approx(value, abs=1e-5) if isinstance(value, float) else value for value in wanted
    ]


def to_lists(value):
    """Replace objects by lists of their keys and values."""
    if isinstance(value, dict):
        return [[key, to_lists(item)] for key, item in value.items()]
    return [to_lists(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("kind", [kind for kind in MODELS if kind != "encoder"])
def test_predict_returns_the_results_of_the_command(models, kind):
    model = models[kind]
    rows = ROWS[model.method]
    with serving(model) as served:
        status, content = served.post("/predict", {"inputs": rows, "top_k": 2})
        assert status == 200
        assert_same(content, {"predictions": expected(model, rows, 2)})
        status, content = served.post("/predict", {"inputs": rows[0]})
        assert status == 200
        assert_same(content, {"predictions": expected(model, rows[:1])})


@pytest.mark.parametrize("kind", ["encoder", "classifier"])
def test_embed_returns_the_models_vectors(models, kind):
    model, texts = models[kind], ["the cat sat", "Paris", ""]
    with serving(model) as served:
        status, vectors = served.post("/embed", {"inputs": texts, "truncate": True, "normalize": False})
        assert status == 200
        np.testing.assert_allclose(vectors, model.embed(texts), atol=1e-5)
        status, vectors = served.post("/embed", {"inputs": texts[0], "pooling": "max"})
        np.testing.assert_allclose(vectors, model.embed(texts[:1], "max", True), atol=1e-5)


def test_a_string_is_one_text_on_every_route(models):
    """It is never a list of characters; the answer to a list has one answer for each text."""
    text = "the [MASK] sat"
    for kind in ("masked LM", "tagger", "encoder"):
        route = "/embed" if kind == "encoder" else "/predict"
        with serving(models[kind]) as served:
            (_, one), (_, two) = (served.post(route, {"inputs": inputs}) for inputs in (text, [text, text]))
            first, both = (one, two) if kind == "encoder" else (one["predictions"], two["predictions"])
            assert (len(first), len(both)) == (1, 2)
            assert_same(first[0], both[0])
            if kind == "encoder":
                assert len(served.post("/", {"inputs": text})[1]) == 1


@pytest.mark.parametrize("kind", ["masked LM", "tagger"])
def test_parameters_of_a_pipeline_may_be_null(models, kind):
    """Clients that serialize all fields of a request send null for those without a value."""
    with serving(models[kind]) as served:
        body = {"inputs": "the [MASK] sat"}
        answers = [served.post("/", {**body, **more}) for more in ({}, {"parameters": None})]
        assert [status for status, _ in answers] == [200, 200]
        assert_same(answers[0][1], answers[1][1])


class TestInferenceClient:
    """huggingface_hub's client reads the responses of POST /."""

    @pytest.fixture
    def call(self, models):
        """Serve a model, and call a method of a client for it."""

        def call(kind, method, *arguments, **options):
            with serving(models[kind]) as served:
                client = huggingface_hub.InferenceClient(model=served.url, timeout=60)
                return getattr(client, method)(*arguments, **options)

        return call

    def test_text_classification_returns_labels_or_a_number(self, models, call):
        found = call("classifier", "text_classification", "the cat sat", top_k=2)
        assert_same(
            [dict(label) for label in found], expected(models["classifier"], [{"text": "the cat sat"}], 2)[0]
        )
        (found,) = call("regression", "text_classification", "the cat sat")
        number = models["regression"].regress("the cat sat")
        assert (found.label, found.score) == ("number", pytest.approx(number, abs=1e-5))

    def test_fill_mask_returns_the_predictions(self, models, call):
        text = "the [MASK] sat"
        (predictions,) = models["masked LM"].fill_mask(text, 3)
        received = call("masked LM", "fill_mask", text, top_k=3)
        for found, expected in zip(received, predictions, strict=True):
            assert (found.token, found.token_str) == (expected.token, expected.token_str)
            assert found.sequence == expected.sequence
            assert found.score == pytest.approx(expected.score, abs=1e-5)

    def test_token_classification_returns_entities_or_words(self, models, call, tmp_path):
        text = "cats sat in Paris, on a mat"
        entities = models["tagger"].tag(text)
        assert entities
        found = call("tagger", "token_classification", text, aggregation_strategy="first")
        for item, entity in zip(found, entities, strict=True):
            assert item.entity_group == entity.label
            assert (item.word, item.start, item.end) == (entity.text, entity.start, entity.end)
            assert item.score == pytest.approx(entity.score, abs=1e-5)
        models["plain tagger"] = bertie.load(save_small(tmp_path, "tagger", labels=("A", "B", "C", "D", "E")))
        words = models["plain tagger"].tag_words(text)
        found = call("plain tagger", "token_classification", text)
        assert [(item.entity, item.word) for item in found] == [(word.tag, word.word) for word in words]

    @pytest.mark.parametrize("kind", ["squad-v1", "squad-v2"])
    def test_question_answering_returns_spans(self, models, call, kind):
        question, context = "who?", "the cat sat on a mat in Paris"
        answers = models[kind].answer(question, context, 3)
        found = [call(kind, "question_answering", question, context)]
        found += call(kind, "question_answering", question, context, top_k=3)
        for span, answer in zip(found, [answers[0], *answers], strict=True):
            assert (span.answer, span.start, span.end) == (answer.text, answer.start, answer.end)
            assert span.score == pytest.approx(answer.score, abs=1e-5)

    def test_one_answer_is_no_list_and_several_masks_have_a_list_each(self, models):
        inputs = {"question": "who?", "context": "the cat sat on a mat in Paris"}
        with serving(models["squad-v1"]) as served:
            one, two = (
                served.post("/", {"inputs": inputs, "parameters": {"top_k": top_k}})[1] for top_k in (1, 2)
            )
        assert one["answer"] == two[0]["answer"]
        assert len(two) == 2
        text = "the [MASK] sat on a [MASK]"
        with serving(models["masked LM"]) as served:
            _, found = served.post("/", {"inputs": text, "parameters": {"top_k": 3}})
        expected = models["masked LM"].fill_mask(text, 3)
        assert [[item["token"] for item in mask] for mask in found] == [
            [item.token for item in mask] for mask in expected
        ]

    def test_feature_extraction_returns_embeddings(self, models, call):
        texts = ["the cat sat", "Paris"]
        found = call("encoder", "feature_extraction", texts, normalize=True, truncate=True)
        np.testing.assert_allclose(found, models["encoder"].embed(texts, normalize=True), atol=1e-5)
        np.testing.assert_allclose(
            call("encoder", "feature_extraction", texts[0]),
            models["encoder"].embed(texts[:1], normalize=True),
            atol=1e-5,
        )

    def test_sentence_similarity_returns_cosines(self, models, call):
        source, *others = texts = ["the cat sat", "the cat", "Paris"]
        first, *vectors = models["encoder"].embed(texts, normalize=True)
        found = call("encoder", "sentence_similarity", source, others)
        np.testing.assert_allclose(found, [vector @ first for vector in vectors], atol=1e-5)

    @pytest.mark.parametrize(
        ("method", "arguments"),
        [("text_classification", ["the cat"]), ("question_answering", ["who?", "the cat"])],
    )
    def test_an_encoder_lists_its_pipelines(self, call, method, arguments):
        with pytest.raises(huggingface_hub.errors.HfHubHTTPError, match=r"422.*") as raised:
            call("encoder", method, *arguments)
        message = "encoder: this model is an encoder without a head; it extracts features"
        assert raised.value.response.json()["error"].startswith(message)

    def test_errors_reach_the_client(self, call):
        with pytest.raises(huggingface_hub.errors.HfHubHTTPError, match=r"422.*") as raised:
            call("classifier", "text_classification", "the cat", function_to_apply="none")
        assert "parameters.function_to_apply" in raised.value.response.text
        with pytest.raises(huggingface_hub.errors.HfHubHTTPError) as raised:
            call("choices", "text_classification", "the cat")
        assert "no pipeline for the method choose; send rows to POST /predict" in raised.value.response.text


def test_concurrent_requests_are_answered_as_single_ones(models):
    """One text or several, predictions or vectors, and some invalid requests."""
    model, random = models["masked LM"], np.random.default_rng(1)
    requests = []
    for number in range(50):
        words = random.choice(["the", "cat", "[MASK]", "sat", "paris"], random.integers(1, 40)).tolist()
        texts = [f"{' '.join(words[:cut])} [MASK]" for cut in range(random.integers(1, 4))]
        if number % 5 == 0:
            requests.append(("/embed", {"inputs": texts, "normalize": number % 2 == 0}))
        elif number % 7 == 0:
            requests.append(("/predict", {"inputs": [*texts, "no mask"]}))
        else:
            requests.append(("/predict", {"inputs": texts, "top_k": 1 + number % 3}))
    with serving(model) as served, ThreadPoolExecutor(50) as clients:
        responses = clients.map(lambda request: served.post(*request), requests)
        for (path, body), (status, content) in zip(requests, responses, strict=True):
            texts = body["inputs"]
            if path == "/embed":
                assert status == 200
                np.testing.assert_allclose(content, model.embed(texts, None, body["normalize"]), atol=1e-5)
            elif texts[-1] == "no mask":
                assert status == 422
                assert content["error"].startswith(f"inputs.{len(texts) - 1}: no [MASK] in 'no mask'")
            else:
                assert status == 200
                rows = [{"text": text} for text in texts]
                assert_same(content["predictions"], expected(model, rows, body["top_k"]))


def test_concurrent_pairs_and_texts_are_kept_apart(models, classifier):
    rows = [{"text": f"the cat {number}"} | ({"pair": "sat"} if number % 2 else {}) for number in range(50)]
    with ThreadPoolExecutor(50) as clients:
        responses = list(clients.map(lambda row: classifier.post("/predict", {"inputs": row}), rows))
    assert_same([content["predictions"][0] for _, content in responses], expected(models["classifier"], rows))


def test_a_tagger_reads_lists_of_words_beside_texts(models):
    """In one request, and in requests that are computed together."""
    rows = [{"words": ["the", "cat,", "new york"]}, {"text": "the cat"}, {"words": []}, {"text": "paris"}]
    with serving(models["tagger"]) as served, ThreadPoolExecutor(20) as clients:
        status, content = served.post("/predict", {"inputs": rows})
        assert status == 200
        wanted = expected(models["tagger"], rows)
        assert [word["word"] for word in wanted[0]] == rows[0]["words"]
        assert wanted[1][0].keys() >= {"start"}
        assert_same(content["predictions"], wanted)
        responses = list(clients.map(lambda row: served.post("/predict", {"inputs": row}), 10 * rows))
        assert_same([content["predictions"][0] for _, content in responses], 10 * wanted)


def test_info_and_health_describe_the_server(models, classifier):
    response, content = classifier.send("GET", "/info")
    assert response.status == 200
    described = {
        "name": "classifier",
        "architecture": "BertForSequenceClassification",
        "method": "classify",
        "methods": ["classify", "embed", "attention"],
        "pairs": None,
        "labels": list(LABELS),
        "decision_thresholds": {},
        "max_seq_length": 128,
        "long_texts": "truncate",
        "num_truncated": 0,
        "embedding": {"pooling": "mean", "normalize": False, "max_seq_length": 128},
        "engine": "TorchEngine",
    }
    assert described.items() <= content.items()
    (listed,) = content["models"]
    assert listed == {**described, "loaded": content["loaded"]}
    assert content["model"] == content["model_id"] == "classifier"
    assert content["model_type"]["classifier"]["id2label"] == {"0": "bad", "1": "fair", "2": "good"}
    assert (content["limits"], content["version"]) == (LIMITS._asdict(), bertie.__version__)
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert response.headers["Cache-Control"] == "no-store"
    assert "Server" not in response.headers
    response, content = classifier.send("GET", "/health")
    assert (response.status, content) == (200, {"status": "ok"})
    classifier.app.state.stopping = True
    response, content = classifier.send("GET", "/health")
    classifier.app.state.stopping = False
    assert (response.status, content) == (
        503,
        {"error": "the server is shutting down", "error_type": "Unhealthy"},
    )
    assert response.headers["Retry-After"] == "1"


def test_info_counts_truncated_texts(models):
    with serving(models["regression"]) as served:
        rows = [{"text": text} for text in ("the cat", "cat " * 200, "sat " * 200)]
        served.post("/predict", {"inputs": rows})
        assert served.send("GET", "/info")[1]["num_truncated"] == 2
        served.post("/predict", {"inputs": "cat " * 200})  # as Text Embeddings Inference
        assert served.send("GET", "/info")[1]["num_truncated"] == 3


def test_long_texts_are_read_as_by_the_predictor(tmp_path):
    model = bertie.load(save_small(tmp_path, "classifier", long_texts=LongTexts(method="windows")))
    text = "cat sat the " * 100
    expected = {label.label: label.score for label in model.classify(text)}
    with serving(model) as served:
        for inputs in ([{"text": text}], text):
            status, content = served.post("/predict", {"inputs": inputs})
            assert status == 200
            answer = content["predictions"][0] if isinstance(inputs, list) else content
            assert {row["label"]: row["score"] for row in answer} == pytest.approx(expected)
        status, content = served.post("/predict", {"inputs": [text, "a mat"]})  # a pair
        assert status == 422
        assert "long_texts=windows reads single texts, not pairs" in content["error"]
        status, content = served.post("/predict", {"inputs": text, "truncation_direction": "Left"})
        assert status == 422
        assert content["error"].endswith("leave truncation_direction out")
        assert served.post("/predict", {"inputs": text, "truncate": False})[1] == answer
        status, content = served.post("/rerank", {"query": "the cat", "texts": ["a mat"]})  # pairs too
        assert (status, content["error_type"]) == (424, "Backend")
        info = served.send("GET", "/info")[1]
    assert (info["long_texts"], info["num_truncated"]) == ("windows", 0)


def test_truncate_false_rejects_what_head_tail_would_drop(tmp_path):
    model = bertie.load(save_small(tmp_path, "classifier", long_texts=LongTexts(method="head-tail")))
    long, short = "cat sat the " * 100, "the cat sat"
    with serving(model) as served:
        status, content = served.post("/predict", {"inputs": [[short], [long]], "truncate": False})
        assert (status, content["error_type"]) == (413, "Validation")
        assert content["error"].startswith("`inputs` must have at most 128 tokens. Given: 302")
        for body in ({"inputs": long}, {"inputs": short, "truncate": False}):
            assert served.post("/predict", body)[0] == 200


def test_a_body_may_start_with_a_byte_order_mark(models):
    with serving(models["classifier"]) as served:
        body = b'{"inputs": "the cat"}'
        status, content = served.post("/predict", codecs.BOM_UTF8 + body)
        assert (status, content) == (200, served.post("/predict", body)[1])


def test_info_reports_the_method_of_a_regression(models):
    with serving(models["regression"]) as served:
        info = served.send("GET", "/info")[1]
    assert (info["method"], info["pairs"]) == ("regress", None)


@pytest.mark.parametrize("name", ["tagger", "squad-v2"])
def test_info_reports_that_texts_are_read_in_windows(models, name):
    with serving(models[name]) as served:
        assert served.send("GET", "/info")[1]["long_texts"] == "windows"


@pytest.mark.parametrize(
    ("kind", "path", "body", "status", "message"),
    [
        ("classifier", "/predict", b'{"inputs": "a', 400, "Invalid JSON"),
        ("classifier", "/predict", b"", 400, "Invalid JSON"),
        ("classifier", "/predict", b"\xff", 400, "Invalid JSON"),
        ("classifier", "/predict", b"[" * 100_000, 400, "Invalid JSON"),
        ("classifier", "/predict", b'{"inputs": "a\\ud800"}', 400, f"{HALF_A_PAIR} at line 1 column 20"),
        ("classifier", "/predict", b'{"inputs": "a\\udc00"}', 400, HALF_A_PAIR),
        ("classifier", "/predict", b'{"inputs": "\\ud800\\ud800"}', 400, HALF_A_PAIR),
        ("classifier", "/predict", [], 422, "body: Input should be an object"),
        ("choices", "/predict", {"inputs": "a"}, 422, "inputs.0: Input should be an object"),
        ("masked LM", "/predict", {"inputs": [7]}, 422, "inputs.0: Input should be a text or an object with"),
        ("tagger", "/predict", {"inputs": [["a"]]}, 422, f"inputs.0: {TEXT_OR_WORDS}"),
        ("tagger", "/predict", {"inputs": {}}, 422, "inputs.0: Input should have one of `text` or `words`"),
        ("encoder", "/attention", {"inputs": ["a"]}, 422, "inputs: Input should be a text or an object with"),
        ("classifier", "/predict", {"inputs": "a", "top_k": 1}, 422, "top_k: unknown key"),
        ("classifier", "/predict", {"inputs": ["a", {"text": 7}]}, 422, "inputs.1.text: "),
        ("classifier", "/embed", {"inputs": "a", "pooling": "x"}, 422, "pooling: "),
        (
            "classifier",
            "/predict",
            {"inputs": [["a"]] * 33},
            413,
            "inputs: 33 items; send at most 32 in a request, or start the server with a larger --max-texts",
        ),
        (
            "choices",
            "/predict",
            {"inputs": {"context": "", "endings": ["a"] * 33}},
            413,
            "inputs: 33 endings",
        ),
        ("masked LM", "/predict", {"inputs": ["[MASK]", "a cat"]}, 422, "inputs.1: no [MASK] in 'a cat'"),
        (
            "masked LM",
            "/predict",
            {"inputs": ["[MASK]" * 20] * 2},
            413,
            "inputs: 40 [MASK] tokens; send at most 32",
        ),
        ("masked LM", "/", {"inputs": "[MASK]" * 33}, 413, "inputs: 33 [MASK] tokens"),
        ("masked LM", "/predict", {"inputs": [""] * 33}, 413, "inputs: 33 items; send at most 32"),
        (
            "masked LM",
            "/predict",
            MANY_REPEATED,
            413,
            "inputs: each prediction repeats its text, so the response",
        ),
        ("masked LM", "/", {"inputs": "[MASK]" + "x" * 2_000_000}, 413, "body larger than 2,000,000 bytes"),
        (
            "masked LM",
            "/",
            {"inputs": "[MASK]" + "x" * 1_999_000, "parameters": {"top_k": 6}},
            413,
            "inputs: each prediction repeats its text, so the response would have 11,994,036 characters",
        ),
        ("classifier", "/predict", {"a" * 1000: 1, "inputs": "a"}, 422, "a" * 80 + ": unknown key"),
        ("classifier", "/predict/", {"inputs": "a"}, 404, "POST /predict/: Not Found"),
        ("regression", "/rerank", {"query": "a", "texts": ["a"] * 33}, 413, "texts: 33 items"),
        (
            "regression",
            "/rerank",
            {"query": "a " * 200, "texts": ["a"], "truncate": False},
            413,
            "`query` with",
        ),
        ("encoder", "/decode", {"ids": [[1]] * 33}, 413, "ids: 33 items"),
        ("encoder", "/decode", {"ids": [1000]}, 422, "ids: no token has the id 1000"),
        ("masked LM", "/", {"inputs": "[MASK]" + " a" * 200}, 422, "inputs: 203 tokens in "),
        ("encoder", "/models/encoder/embed", {"inputs": "a", "model": "b"}, 404, "model 'b': no such model"),
        ("encoder", "/embed", {"inputs": [1] * 200_000 + ["a"]}, 422, "inputs: Input should be a text, a"),
        ("encoder", "/embed", dict.fromkeys(map(str, range(101))), 422, "body: Input should have fewer keys"),
        ("choices", "/predict", {"inputs": [{}] * 200_000}, 413, "inputs: 200000 items"),
        ("choices", "/predict", {"inputs": [{}]}, 422, "inputs.0.context: Field required"),
        ("next sentence", "/", {"inputs": "a"}, 422, "there is no pipeline for the method"),
        ("classifier", "/nowhere", {}, 404, "POST /nowhere: Not Found"),
        ("classifier", "/" + "a" * 1000, {}, 404, "POST /" + "a" * 74 + ": Not Found"),
        ("classifier", "/health", {}, 405, "POST /health: Method Not Allowed"),
    ],
)
def test_errors_are_one_line(models, kind, path, body, status, message):
    with serving(models[kind]) as served:
        found, content = served.post(path, body)
    assert (found, content["error_type"]) == (status, "Validation")
    assert content["error"].startswith(message)
    assert "\n" not in content["error"]


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/", "GET, HEAD, POST"),
        ("/embed", "POST"),
        ("/models/classifier", "POST"),
        ("/info", "GET, HEAD"),
        ("/docs", "GET, HEAD"),
        ("/page/app.js", "GET, HEAD"),
    ],
)
def test_a_wrong_method_is_answered_with_the_allowed_ones(classifier, path, methods):
    for method in ("PUT", "OPTIONS"):
        response, _ = classifier.send(method, path)
        assert (response.status, response.headers["Allow"]) == (405, methods)


@pytest.mark.parametrize("path", ["/", "/docs", "/page/app.js"])
def test_a_range_of_a_page_is_answered_with_the_page(classifier, path):
    """As RFC 9110 allows; Starlette would answer a malformed range with an error in plain text."""
    _, page = classifier.send_text("GET", path)
    for wanted in ("bytes=9-0", "bytes=0-9", "bytes=9999999-", "lines=1-2"):
        response, found = classifier.send_text("GET", path, headers={"Range": wanted})
        assert (response.status, found) == (200, page)


def test_an_encoder_has_no_predictions(models):
    with serving(models["encoder"]) as served:
        status, content = served.post("/predict", {"inputs": "a"})
    assert (status, content["error_type"]) == (424, "Backend")  # as Text Embeddings Inference
    assert content["error"].startswith("encoder: this model is an encoder without a head")


@pytest.mark.parametrize("kind", ["classifier", "tagger", "squad-v1"])
def test_a_request_without_inputs_is_rejected(models, kind):
    with serving(models[kind]) as served:
        assert served.post("/predict", {"inputs": []}) == (
            400,
            {"error": "`inputs` cannot be empty", "error_type": "Empty"},
        )


def test_a_compressed_body_is_rejected(models):
    with serving(models["encoder"]) as served:
        status, content = served.post("/embed", b"\x1f\x8b", headers={"Content-Encoding": "gzip"})
        assert (status, content["error"]) == (415, "Content-Encoding: not supported; send plain JSON")
        headers = {"Content-Encoding": "identity"}
        assert served.post("/embed", {"inputs": "word1"}, headers=headers)[0] == 200


@pytest.mark.parametrize("root", ["", "/bert"])
def test_a_fault_of_the_server_has_the_format_of_the_path(models, monkeypatch, root):
    def fail(_):
        raise RuntimeError

    monkeypatch.setattr(openai, "list_models", fail)
    with serving(models["encoder"], access=Access(root_path="/bert")) as served:
        response, content = served.send("GET", f"{root}/v1/models")
    assert (response.status, content["error"]["type"]) == (500, "server_error")


def test_errors_show_the_models_name_and_not_its_path(models, monkeypatch):
    """For example the error of an exported model that cannot embed."""

    def hidden_states(*_):
        raise bertie.base.errors.ModelError(f"{models['encoder'].path}: has no vectors")

    monkeypatch.setattr(models["encoder"].engine, "hidden_states", hidden_states)
    with serving(models["encoder"]) as served:
        assert served.post("/embed", {"inputs": "a"})[1]["error"] == "encoder: has no vectors"


@pytest.mark.parametrize("chunked", [False, True])
def test_a_long_body_is_rejected(models, chunked):
    with serving(models["classifier"], limits=LIMITS._replace(max_body=1000)) as served:
        for size, status in ((1000, 200), (1001, 413), (300_000, 413)):
            body = json.dumps({"inputs": "a"}).encode().ljust(size)
            parts = iter([body[start : start + 700] for start in range(0, size, 700)])
            found, content = served.post("/predict", parts if chunked else body, encode_chunked=chunked)
            assert found == status
        assert content == {
            "error": "body larger than 1,000 bytes; send less text, or raise the server's --max-body",
            "error_type": "Validation",
        }


@pytest.fixture
def paused(models, monkeypatch):
    """A classifier that sets `begun` and waits for `may_begin`, and its batches."""
    model, batches, begun, may_begin = models["classifier"], [], Event(), Event()
    original = model.classify

    def classify(texts, *arguments):
        begun.set()
        assert may_begin.wait(60)
        batches.append(texts)
        return original(texts, *arguments)

    monkeypatch.setattr(model, "classify", classify)
    return model, batches, begun, may_begin


def test_a_full_queue_returns_429(paused):
    model, _, begun, may_begin = paused
    with serving(model, limits=LIMITS._replace(max_waiting=4)) as served, ThreadPoolExecutor(2) as clients:
        first = clients.submit(served.post, "/predict", {"inputs": {"text": "a cat"}})
        assert begun.wait(60)
        second = clients.submit(served.post, "/predict", {"inputs": {"text": "a cat sat on"}})
        while 'te_queue_size{model="classifier"} 1.0' not in served.send_text("GET", "/metrics")[1]:
            sleep(0.01)
        response, content = served.send("POST", "/predict", {"inputs": {"text": "a"}})
        assert (response.status, response.headers["Retry-After"]) == (429, "1")
        assert content == {"error": "queue full; retry later", "error_type": "Overloaded"}
        may_begin.set()
        assert first.result()[0] == second.result()[0] == 200
        assert served.post("/predict", {"inputs": {"text": "a"}})[0] == 200


GONE = b'POST /predict HTTP/1.1\r\nHost: a\r\nContent-Length: 18\r\n\r\n{"inputs": "gone"}'


def test_requests_of_disconnected_clients_are_not_computed(paused):
    model, batches, begun, may_begin = paused
    with serving(model) as served, ThreadPoolExecutor(1) as client:
        first = client.submit(served.post, "/predict", {"inputs": {"text": "first"}})
        assert begun.wait(60)
        with socket.create_connection(("127.0.0.1", served.port)) as connection:
            connection.sendall(GONE)
        for _ in range(5):  # handled in turn: the server then knows of the disconnect
            assert served.send("GET", "/health")[0].status == 200
        may_begin.set()
        assert first.result()[0] == 200
        assert served.post("/predict", {"inputs": {"text": "last"}})[0] == 200
        assert batches == [["first"], ["last"]]


def test_a_half_closed_connection_gets_status_499(paused, caplog):
    """Such as `nc -N`. To the server it looks like a client that has gone, so nothing is computed for it."""
    model, batches, begun, may_begin = paused
    with serving(model) as served, ThreadPoolExecutor(1) as client:
        first = client.submit(served.post, "/predict", {"inputs": {"text": "first"}})
        assert begun.wait(60)
        with socket.create_connection(("127.0.0.1", served.port)) as connection:
            connection.sendall(GONE)
            connection.shutdown(socket.SHUT_WR)
            assert read_response(connection) == (
                499,
                {
                    "error": "the client closed its connection before the response; keep it open until then",
                    "error_type": "Validation",
                },
            )
            assert connection.recv(1) == b""
        may_begin.set()
        assert first.result()[0] == 200
    assert batches == [["first"]]
    assert caplog.text == ""


def test_large_bodies_are_parsed_in_threads(models, monkeypatch):
    names = []

    def record(function):
        def recorded(*arguments):
            names.append(current_thread().name)
            return function(*arguments)

        return recorded

    monkeypatch.setattr(app, "_parse_json", record(app._parse_json))
    monkeypatch.setattr(app.Service, "_validate", record(app.Service._validate))
    with serving(models["encoder"]) as served:
        assert served.post("/embed", {"inputs": [[5] * 100]})[0] == 200
        assert not any(name.startswith("requests") for name in names)
        names.clear()
        assert served.post("/embed", {"inputs": [5] * 30_000})[0] == 200
    assert len(names) == 2
    assert all(name.startswith("requests") for name in names)


def test_tokenizing_large_texts_holds_up_nothing_else(models, monkeypatch):
    """Not /info, which reads files in asyncio's threads. Texts of clients that left are not tokenized."""
    may_end, tokenized = Event(), []

    def tokenize(model, texts, add_special_tokens):
        assert may_end.wait(60)
        tokenized.append(texts)
        return []

    monkeypatch.setattr(tei, "_tokenize", tokenize)
    body = json.dumps({"inputs": "a" * 5_000}).encode()
    head = f"POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with serving(models["encoder"], models["classifier"]) as served, ExitStack() as clients:
        for _ in range(40):  # asyncio has up to 32 threads
            client = clients.enter_context(socket.create_connection(("127.0.0.1", served.port)))
            client.sendall(head + body)
        state = served.server.server_state
        while len(state.tasks) < 40:
            sleep(0.01)
        assert served.send("GET", "/info")[0].status == 200
        clients.close()
        while state.tasks:
            sleep(0.01)
        may_end.set()
        assert served.post("/tokenize", {"inputs": "a" * 5_000}) == (200, [])
    assert len(tokenized) <= batching.REQUEST_THREADS + 1


def test_an_unexpected_error_is_logged_without_texts(models, monkeypatch, caplog):
    model = models["classifier"]
    original = model.classify

    def fail(texts, *arguments):
        if "secret" in texts[0]:
            raise RuntimeError(f"cannot take {texts[0]}")
        return original(texts, *arguments)

    monkeypatch.setattr(model, "classify", fail)
    with serving(model) as served, caplog.at_level(logging.DEBUG):
        status, content = served.post("/predict", {"inputs": {"text": "a secret"}})
        assert (status, content["error_type"]) == (500, "Backend")
        assert "secret" not in content["error"]
        assert served.post("/predict", {"inputs": {"text": "a cat"}})[0] == 200
    assert "/predict: RuntimeError at" in caplog.text
    assert "in fail" in caplog.text
    assert "a secret" not in caplog.text


def test_single_texts_and_pairs_are_those_of_fine_tuning(tmp_path):
    pairs = save_small(tmp_path / "pairs", "regression", input_columns={"text": "a", "pair": "b"})
    singles = save_small(tmp_path / "singles", "regression", input_columns={"text": "a"})
    single, pair = {"text": "the cat"}, {"text": "the cat", "pair": "sat"}
    for path, fits, others in ((pairs, pair, single), (singles, single, pair)):
        with serving(bertie.load(path)) as served:
            assert served.send("GET", "/info")[1]["pairs"] == (path == pairs)
            for route in ("/predict", "/"):
                assert served.post(route, {"inputs": fits})[0] == 200
                status, content = served.post(route, {"inputs": others})
                assert status == 422
                assert "the model was fine-tuned on" in content["error"]
            # As Text Embeddings Inference; a list in a list is a pair.
            assert served.post("/predict", {"inputs": [[*fits.values()]]})[0] == 200
            assert served.post("/predict", {"inputs": [[*others.values()]]})[0] == 422
            for one, other in ((fits, others), ([*fits.values()], [*others.values()])):  # rows, and lists
                status, content = served.post("/predict", {"inputs": [one, other, other]})
                assert status == 422
                assert content["error"].startswith("inputs.1: the model was fine-tuned on ")
            blank = {**others, "text": ""}
            assert served.post("/predict", {"inputs": blank}) == (200, {"predictions": [None]})
            status, _ = served.post("/rerank", {"query": "the cat", "texts": ["sat"]})
            assert status == (200 if path == pairs else 424)
