"""Every route over a real port: answers are the Predictor's, what is wrong is one line."""

import json
import logging
import socket
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import huggingface_hub
import numpy as np
import pytest
from tests.inference.server.serving import LIMITS, serving
from tests.inference.small_models import LABELS, MODELS, save_small
from tests.inference.test_predictor import numbers_and_names

import bertie
from bertie.inference.dispatch import ask
from bertie.inference.records import Record
from bertie.inference.server import batching
from bertie.inference.writers import as_json

ROWS = {
    "fill_mask": [{"text": "the [MASK] sat on a [MASK] ."}, {"text": "[MASK]"}, {"text": ""}],
    "next_sentence": [{"text": "the cat", "pair": "sat"}, {"text": " ", "pair": "sat"}],
    "classify": [{"text": "the cat sat"}, {"text": "the cat", "pair": "sat on a mat"}, {"text": ""}],
    "rate": [{"text": "the cat sat"}, {"text": "the cat", "pair": "sat on a mat"}, {"text": ""}],
    "tag": [{"text": "cats sat in Paris, on a mat"}, {"text": ""}, {"text": "a cat " * 90}],
    "answer": [{"question": "who?", "context": "the cat sat"}, {"question": "", "context": "the cat"}],
    "choose": [{"context": "a", "endings": ["b", "c"]}, {"context": "a", "endings": []}],
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Small models by their kinds."""
    directory = tmp_path_factory.mktemp("models")
    return {kind: bertie.load(save_small(directory, kind)) for kind in MODELS}


@pytest.fixture(scope="module")
def classifier(models):
    with serving(models["classifier"]) as served:
        yield served


def expected(model, rows, top_k=5):
    """What the model answers to each row by itself, as JSON."""
    records = [Record("here", {}, tuple(row.values())) for row in rows]
    return json.loads(json.dumps(as_json([ask(model, [record], top_k)[0] for record in records])))


def assert_same(actual, wanted):
    """All of nested answers, numbers nearly: what else is in a batch changes their last digits."""
    actual, wanted = (list(numbers_and_names(unfolded(value))) for value in (actual, wanted))
    assert actual == [
        pytest.approx(value, abs=1e-5) if isinstance(value, float) else value for value in wanted
    ]


def unfolded(value):
    """Objects as lists of their pairs."""
    if isinstance(value, dict):
        return [[key, unfolded(item)] for key, item in value.items()]
    return [unfolded(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("kind", [kind for kind in MODELS if kind != "encoder"])
def test_predict_answers_as_the_command_does(models, kind):
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
def test_embed(models, kind):
    model, texts = models[kind], ["the cat sat", "Paris", ""]
    with serving(model) as served:
        status, vectors = served.post("/embed", {"inputs": texts, "truncate": True})
        assert status == 200
        np.testing.assert_allclose(vectors, model.embed(texts), atol=1e-5)
        status, vectors = served.post("/embed", {"inputs": texts[0], "pooling": "max", "normalize": True})
        np.testing.assert_allclose(vectors, model.embed(texts[:1], "max", True), atol=1e-5)


class TestInferenceClient:
    """huggingface_hub's own client."""

    @pytest.fixture
    def ask(self, models):
        """Asks the client that is given the address of a model."""

        def ask(kind, method, *arguments, **options):
            with serving(models[kind]) as served:
                client = huggingface_hub.InferenceClient(model=served.url, timeout=60)
                return getattr(client, method)(*arguments, **options)

        return ask

    def test_text_classification(self, models, ask):
        found = ask("classifier", "text_classification", "the cat sat", top_k=2)
        assert_same(
            [dict(label) for label in found], expected(models["classifier"], [{"text": "the cat sat"}], 2)[0]
        )
        (found,) = ask("regression", "text_classification", "the cat sat")
        (number,) = models["regression"].rate(["the cat sat"])
        assert (found.label, found.score) == ("number", pytest.approx(number, abs=1e-5))

    def test_fill_mask(self, models, ask):
        text = "the [MASK] sat"
        (guesses,) = models["masked LM"].fill_mask(text, 3)
        for found, guess in zip(ask("masked LM", "fill_mask", text, top_k=3), guesses, strict=True):
            assert (found.token, found.token_str, found.sequence) == guess[1:]
            assert found.score == pytest.approx(guess.score, abs=1e-5)

    def test_token_classification(self, models, ask, tmp_path):
        text = "cats sat in Paris, on a mat"
        (mentions,) = models["tagger"].tag([text])
        assert mentions
        found = ask("tagger", "token_classification", text, aggregation_strategy="first")
        for entity, mention in zip(found, mentions, strict=True):
            assert entity.entity_group == mention.label
            assert (entity.word, entity.start, entity.end) == mention[1:4]
            assert entity.score == pytest.approx(mention.score, abs=1e-5)
        models["plain tagger"] = bertie.load(save_small(tmp_path, "tagger", labels=("A", "B", "C", "D", "E")))
        (words,) = models["plain tagger"].tag_words([text])
        found = ask("plain tagger", "token_classification", text)
        assert [(entity.entity, entity.word) for entity in found] == [(word.tag, word.word) for word in words]

    @pytest.mark.parametrize("kind", ["squad-v1", "squad-v2"])
    def test_question_answering(self, models, ask, kind):
        question, context = "who?", "the cat sat on a mat in Paris"
        (answers,) = models[kind].answer([question], [context], 3)
        found = [ask(kind, "question_answering", question, context)]
        found += ask(kind, "question_answering", question, context, top_k=3)
        for span, answer in zip(found, [answers[0], *answers], strict=True):
            assert (span.answer, span.start, span.end) == answer[:3]
            assert span.score == pytest.approx(answer.score, abs=1e-5)

    def test_feature_extraction(self, models, ask):
        texts = ["the cat sat", "Paris"]
        found = ask("encoder", "feature_extraction", texts, normalize=True, truncate=True)
        np.testing.assert_allclose(found, models["encoder"].embed(texts, normalize=True), atol=1e-5)
        np.testing.assert_allclose(
            ask("encoder", "feature_extraction", texts[0]), models["encoder"].embed(texts[:1]), atol=1e-5
        )

    def test_a_refusal_says_why(self, ask):
        with pytest.raises(huggingface_hub.errors.HfHubHTTPError, match=r"422.*") as raised:
            ask("classifier", "text_classification", "the cat", function_to_apply="none")
        assert "parameters.function_to_apply" in raised.value.response.text
        with pytest.raises(huggingface_hub.errors.HfHubHTTPError) as raised:
            ask("choices", "text_classification", "the cat")
        assert "a model that can choose; POST /predict" in raised.value.response.text


def test_many_at_once_are_answered_as_one_by_one(models):
    """Alone and in pairs, several at a time, vectors between them, and some that cannot be answered."""
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
        answers = clients.map(lambda request: served.post(*request), requests)
        for (path, body), (status, content) in zip(requests, answers, strict=True):
            texts = body["inputs"]
            if path == "/embed":
                assert status == 200
                np.testing.assert_allclose(content, model.embed(texts, None, body["normalize"]), atol=1e-5)
            elif texts[-1] == "no mask":
                assert status == 422
                assert content["error"].startswith(f"inputs.{len(texts) - 1}: no [MASK] in it")
            else:
                assert status == 200
                rows = [{"text": text} for text in texts]
                assert_same(content["predictions"], expected(model, rows, body["top_k"]))


def test_pairs_and_single_texts_at_once(models, classifier):
    rows = [{"text": f"the cat {number}"} | ({"pair": "sat"} if number % 2 else {}) for number in range(50)]
    with ThreadPoolExecutor(50) as clients:
        answers = list(clients.map(lambda row: classifier.post("/predict", {"inputs": row}), rows))
    assert_same([answer["predictions"][0] for _, answer in answers], expected(models["classifier"], rows))


def test_info_and_health(models, classifier):
    response, content = classifier.send("GET", "/info")
    assert response.status == 200
    assert content == {
        "model": "classifier",
        "architecture": "BertForSequenceClassification",
        "method": "classify",
        "labels": list(LABELS),
        "max_seq_length": 128,
        "embedding": {"pooling": "mean", "normalize": False, "max_seq_length": 128},
        "engine": "TorchEngine",
        "limits": LIMITS._asdict(),
        "version": bertie.__version__,
    }
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
        {"error": "this server is shutting down", "error_type": "Unhealthy"},
    )


@pytest.mark.parametrize(
    ("kind", "path", "body", "status", "message"),
    [
        ("classifier", "/predict", b'{"inputs": "a', 400, "Invalid JSON"),
        ("classifier", "/predict", b"", 400, "Invalid JSON"),
        ("classifier", "/predict", b"\xff", 400, "Invalid JSON"),
        ("classifier", "/predict", b"[" * 100_000, 400, "Invalid JSON"),
        ("classifier", "/predict", b'{"inputs": "\\ud800"}', 400, "Invalid JSON"),
        ("classifier", "/predict", [], 422, "Input should be an object"),
        ("classifier", "/predict", {"inputs": "a", "topk": 1}, 422, "topk: "),
        ("classifier", "/predict", {"inputs": ["a", {"text": 7}]}, 422, "inputs.1.text: "),
        ("classifier", "/embed", {"inputs": "a", "pooling": "x"}, 422, "pooling: "),
        ("classifier", "/predict", {"inputs": ["a"] * 33}, 413, "inputs: 33 texts; send at most 32"),
        ("choices", "/predict", {"inputs": {"context": "", "endings": ["a"] * 33}}, 413, "inputs: 33 texts"),
        ("masked LM", "/predict", {"inputs": ["[MASK]", "a cat"]}, 422, "inputs.1: no [MASK] in it"),
        ("masked LM", "/predict", {"inputs": ["[MASK]" * 20] * 2}, 413, "inputs: 40 texts; send at most 32"),
        ("masked LM", "/", {"inputs": "[MASK]" + " a" * 200}, 422, "inputs.0: the text has 203 word pieces"),
        ("encoder", "/predict", {"inputs": "a"}, 422, "an encoder without a head"),
        ("next sentence", "/", {"inputs": "a"}, 422, "there is no pipeline for a model"),
        ("classifier", "/nowhere", {}, 404, "POST /nowhere: Not Found"),
        ("classifier", "/health", {}, 405, "POST /health: Method Not Allowed"),
    ],
)
def test_what_cannot_be_answered_is_one_line(models, kind, path, body, status, message):
    with serving(models[kind]) as served:
        found, content = served.post(path, body)
    assert (found, content["error_type"]) == (status, "Validation")
    assert content["error"].startswith(message)
    assert "\n" not in content["error"]


def test_of_the_model_s_path_errors_tell_its_name_alone(models, monkeypatch):
    """Such as of an exported model that cannot embed."""

    def embed(*_):
        raise bertie.base.errors.ModelError(f"{models['encoder'].path}: gives logits alone")

    monkeypatch.setattr(models["encoder"], "embed", embed)
    with serving(models["encoder"]) as served:
        assert served.post("/embed", {"inputs": "a"})[1]["error"] == "encoder: gives logits alone"


@pytest.mark.parametrize("chunked", [False, True])
def test_a_long_body_is_refused(models, chunked):
    with serving(models["classifier"], LIMITS._replace(max_body=1000)) as served:
        for size, status in ((1000, 200), (1001, 413), (300_000, 413)):
            body = json.dumps({"inputs": "a"}).encode().ljust(size)
            parts = iter([body[start : start + 700] for start in range(0, size, 700)])
            found, content = served.post("/predict", parts if chunked else body, encode_chunked=chunked)
            assert found == status
        assert content == {"error": "more than 1,000 bytes", "error_type": "Validation"}


@pytest.fixture
def held_back(models, monkeypatch):
    """A classifier that begins when it is told to; what it was asked, whether it has been asked, the word."""
    model, asked, begun, may_begin = models["classifier"], [], Event(), Event()
    original = model.classify

    def classify(texts, *pairs):
        begun.set()
        assert may_begin.wait(60)
        asked.append(texts)
        return original(texts, *pairs)

    monkeypatch.setattr(model, "classify", classify)
    return model, asked, begun, may_begin


def test_a_full_queue_says_so(held_back, monkeypatch):
    model, _, begun, may_begin = held_back
    monkeypatch.setattr(batching, "TURN", 1)  # so the second text waits
    with serving(model, LIMITS._replace(max_waiting=5)) as served, ThreadPoolExecutor(1) as client:
        first = client.submit(served.post, "/predict", {"inputs": ["a cat", "a mat"]})
        assert begun.wait(60)
        response, content = served.send("POST", "/predict", {"inputs": "a"})
        assert (response.status, response.headers["Retry-After"]) == (429, "1")
        assert content == {"error": "too much waits already; try again", "error_type": "Overloaded"}
        may_begin.set()
        assert first.result()[0] == 200
        assert served.post("/predict", {"inputs": "a"})[0] == 200


def test_who_went_away_is_not_computed(held_back):
    model, asked, begun, may_begin = held_back
    with serving(model) as served, ThreadPoolExecutor(1) as client:
        first = client.submit(served.post, "/predict", {"inputs": "first"})
        assert begun.wait(60)
        with socket.create_connection(("127.0.0.1", served.port)) as connection:
            connection.sendall(
                b'POST /predict HTTP/1.1\r\nHost: a\r\nContent-Length: 18\r\n\r\n{"inputs": "gone"}'
            )
        for _ in range(5):  # what the server does in turn; it has then noticed
            assert served.send("GET", "/health")[0].status == 200
        may_begin.set()
        assert first.result()[0] == 200
        assert served.post("/predict", {"inputs": "last"})[0] == 200
        assert asked == [["first"], ["last"]]


def test_an_unexpected_failure_is_logged_without_texts_and_the_server_goes_on(models, monkeypatch, caplog):
    model = models["classifier"]
    original = model.classify

    def fail(texts, *pairs):
        if "secret" in texts[0]:
            raise RuntimeError(f"cannot take {texts[0]}")
        return original(texts, *pairs)

    monkeypatch.setattr(model, "classify", fail)
    with serving(model) as served, caplog.at_level(logging.DEBUG):
        status, content = served.post("/predict", {"inputs": "a secret"})
        assert (status, content["error_type"]) == (500, "Backend")
        assert "secret" not in content["error"]
        assert served.post("/predict", {"inputs": "a cat"})[0] == 200
    assert "/predict: RuntimeError at" in caplog.text
    assert "in fail" in caplog.text
    assert "a secret" not in caplog.text
