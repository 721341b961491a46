"""Key, origins, root path, limits of bodies, metrics and the log, over a real port."""

import logging
import socket
from time import sleep

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.inference.server.serving import LIMITS, half_a_request, read_response, serving
from tests.inference.small_models import save_small

import bertie
from bertie.inference.server.middleware import Access

KEY = "a key with ünicode"
BODY = {"inputs": "the cat"}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return bertie.load(save_small(tmp_path_factory.mktemp("models"), "classifier"))


@pytest.fixture(scope="module")
def closed(model):
    access = Access(KEY, ("https://a.example", "https://b.example"), "/bert")
    with serving(model, limits=LIMITS, access=access) as served:
        yield served


def bearer(key, scheme="Bearer"):
    return {"Authorization": f"{scheme} {key}".encode()}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        bearer(""),
        bearer("x"),
        bearer(KEY[:-1]),
        bearer(KEY + "x"),
        bearer(KEY, "Basic"),
        bearer("\u00e9"),
    ],
)
def test_requests_without_the_key_are_rejected(closed, headers):
    for method, path in [("POST", "/predict"), ("POST", "/"), ("GET", "/info"), ("GET", "/metrics")]:
        response, content = closed.send(method, path, BODY, headers=headers)
        assert (response.status, content["error_type"]) == (401, "Unauthorized")
        assert content["error"].endswith("send the header Authorization: Bearer KEY")
        assert response.headers["WWW-Authenticate"] == "Bearer"
    assert closed.send("GET", "/nowhere", headers=headers)[0].status == 401


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("http://example.com/health", 200),
        ("HTTPS://example.com:80/bert/health?a=/b", 200),
        ("http://example.com/models/classif%69er/info", 200),
        ("http://example.com/nowhere", 404),
        ("http://example.com", 200),
        ("http://example.com?a=b", 200),
    ],
)
def test_absolute_targets_are_answered_as_their_path(closed, target, status):
    response, text = closed.send_text("GET", target, headers=bearer(KEY))
    assert response.status == status
    if status == 404:
        assert "GET /bert/nowhere: Not Found" in text
    if "models" in target:
        assert closed.send("GET", target)[0].status == 401


def test_requests_with_the_key_are_answered(closed):
    for headers in (bearer(KEY), bearer(KEY, "bearer"), bearer(f" {KEY} ")):
        assert closed.post("/predict", BODY, headers=headers)[0] == 200
    assert closed.send("GET", "/health")[0].status == 200
    assert closed.send("POST", "/health")[0].status == 401


@pytest.mark.parametrize(
    "path",
    ["/", "/health", "/docs", "/openapi.json", "/page/app.js", "/docs/reference.js", "/bert/page/app.js"],
)
def test_pages_and_the_health_need_no_key(closed, path):
    """The pages send the key when they request results."""
    for method in ("GET", "HEAD"):
        assert closed.send_text(method, path)[0].status == 200
    assert closed.send_text("POST", path)[0].status == 401


def test_names_that_begin_like_an_open_path_need_the_key(closed):
    for path in ("/healthy", "/docsx", "/pages/app.js", "/page"):
        assert closed.send("GET", path)[0].status == 401


def test_an_open_server_needs_no_key(model):
    with serving(model) as served:
        assert served.post("/predict", BODY)[0] == 200
        assert served.post("/predict", BODY, headers=bearer("any"))[0] == 200
        response, _ = served.send("POST", "/predict", BODY, headers={"Origin": "https://a.example"})
        assert "Access-Control-Allow-Origin" not in response.headers


def test_pages_of_the_listed_origins_may_call_the_server(closed):
    for origin, allowed in [("https://a.example", "https://a.example"), ("https://c.example", None)]:
        headers = {"Origin": origin, **bearer(KEY)}
        response, _ = closed.send("POST", "/predict", BODY, headers=headers)
        assert response.headers["Access-Control-Allow-Origin"] == allowed
        exposed = response.headers["Access-Control-Expose-Headers"].split(", ")
        assert {"Retry-After", "x-total-time", "x-compute-tokens"} <= {*exposed}
        names = "authorization,content-type,x-stainless-lang"  # of OpenAI's client
        asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": names}
        with socket.create_connection(("127.0.0.1", closed.port), timeout=60) as connection:
            head = ["OPTIONS /predict HTTP/1.1", "Host: a", f"Origin: {origin}"]
            head += [f"{name}: {value}" for name, value in asked.items()]
            connection.sendall("\r\n".join([*head, "", ""]).encode())
            assert connection.recv(1000).startswith(b"HTTP/1.1 200" if allowed else b"HTTP/1.1 400")
    response, _ = closed.send("POST", "/predict", BODY, headers={"Origin": "https://a.example"})
    assert response.status == 401
    assert response.headers["Access-Control-Allow-Origin"] == "https://a.example"


def test_the_root_path_may_be_removed_by_the_proxy_or_not(closed):
    for path in ("/bert/predict", "/predict"):
        assert closed.post(path, BODY, headers=bearer(KEY))[0] == 200
    assert closed.send("GET", "/bert/health")[0].status == 200
    response, _ = closed.send_text("GET", "/bert")
    assert (response.status, response.headers["Location"]) == (307, "/bert/")
    assert closed.send_text("GET", "/bert/")[0].status == 200
    assert closed.post("/bert/bert/predict", BODY, headers=bearer(KEY))[0] == 404
    assert closed.post("/bertpredict", BODY, headers=bearer(KEY))[0] == 404


def test_responses_forbid_foreign_content(closed):
    for path in ("/health", "/info"):
        headers = closed.send("GET", path)[0].headers
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "unsafe" not in policy


def test_a_slow_body_is_given_up(model):
    limits = LIMITS._replace(body_seconds=0.3)
    with serving(model, limits=limits) as served, half_a_request(served.port, b"{}" * 9) as connection:
        connection.sendall(b"{")
        status, content = read_response(connection)
    assert (status, content["error_type"]) == (408, "Validation")
    assert content["error"] == "the body did not arrive within 0.3 s"


@pytest.mark.parametrize("path", ["/predict", "/v1/embeddings"])
def test_a_body_that_is_announced_as_too_large_is_not_awaited(model, path):
    with serving(model) as served, socket.create_connection(("127.0.0.1", served.port)) as connection:
        head = [f"POST {path} HTTP/1.1", "Host: a", "Content-Length: 2000001", "Expect: 100-continue"]
        connection.sendall("\r\n".join([*head, "", ""]).encode())
        status, content = read_response(connection)
    message = "body larger than 2,000,000 bytes; send less text, or raise the server's --max-body"
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
    assert (status, content) == (
        413,
        {"error": error} if path.startswith("/v1/") else {"error": message, "error_type": "Validation"},
    )


def test_metrics_have_the_names_of_text_embeddings_inference(model):
    with serving(model) as served:
        paths = ("/predict", "/embed", "/nowhere", "/embed_sparse")
        for path, body in [*((path, BODY) for path in paths), ("/embed", {"inputs": 7})]:
            served.post(path, body)
        response, text = served.send_text("GET", "/metrics")
    assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    counters = ("te_request_count", "te_request_success", "te_request_failure", "te_embed_count")
    for name in counters:
        assert f"\n# TYPE {name} counter\n{name}{{" in text
    found = {
        (
            # The parser adds _total to the names of counters.
            sample.name.removesuffix("_total") if family.type == "counter" else sample.name,
            *(sample.labels[key] for key in ("model", "method", "err") if key in sample.labels),
        ): sample
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }

    def value(*key):
        return found[key].value

    types = {family.name: family.type for family in text_string_to_metric_families(text)}
    assert {types[name] for name in counters} == {"counter"}
    assert types["te_queue_size"] == "gauge"
    assert types["te_request_duration"] == "histogram"
    assert value("te_request_count", "classifier", "embed") == 2
    assert value("te_request_count", "classifier", "predict") == 1
    assert value("te_request_count", "", "") == 1  # no label has a path that a client made up
    assert value("te_request_success", "classifier", "embed") == 1
    assert value("te_request_failure", "classifier", "validation") == 1
    assert value("te_request_failure", "classifier", "backend") == 1  # it has no sparse vectors
    assert value("te_request_duration_count", "classifier") == 4
    assert value("te_request_input_length_count", "classifier") == 2
    assert value("te_request_input_length_sum", "classifier") == 8  # [CLS] the cat [SEP], twice
    for part in ("tokenization", "queue", "inference"):
        assert value(f"te_embed_{part}_duration_count", "classifier") == 1
        assert value(f"te_predict_{part}_duration_count", "classifier") == 1
    # Tokens are made before a request is queued, and their time is counted all the same.
    assert value("te_embed_tokenization_duration_sum", "classifier") > 0
    assert value("te_embed_count", "classifier") == 2
    assert value("te_embed_success", "classifier") == 1
    assert value("te_predict_duration_count", "classifier") == 1
    assert value("te_batch_next_tokens_count", "classifier") == 2
    assert value("te_queue_size", "classifier") == 0
    assert value("process_resident_memory_bytes") > 1e7


def test_a_request_whose_client_left_is_not_invalid(model):
    with serving(model) as served:
        with half_a_request(served.port, b"{}"):
            pass
        for _ in range(100):
            _, text = served.send_text("GET", "/metrics")
            if "te_request_failure{" in text:
                break
            sleep(0.02)
    assert 'te_request_failure{err="cancelled"' in text


def test_the_root_of_a_model_is_counted_as_the_root(model):
    with serving(model) as served:
        for path in ("/", "/models/classifier"):
            assert served.post(path, BODY)[0] == 200
        text = served.send_text("GET", "/metrics")[1]
    (line,) = (line for line in text.split("\n") if line.startswith("te_request_count{"))
    assert 'method="/"' in line
    assert line.endswith(" 2.0")


def test_errors_of_openai_routes_have_its_format(closed):
    for path in ("/v1/embeddings", "/bert/v1/embeddings", "/models/classifier/v1/embeddings"):
        response, content = closed.send("POST", path, {"input": "a"})
        assert (response.status, content["error"]["type"]) == (401, "authentication_error")
    headers = bearer(KEY)
    for method, path in [("GET", "/bert/v1/models/x"), ("GET", "/models/classifier/v1/embeddings")]:
        response, content = closed.send(method, path, headers=headers)
        assert response.status in (404, 405)
        assert content["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_an_ambiguous_end_of_the_body_closes_the_connection(model, version):
    """A proxy may take the rest of the body for another request."""
    head = [f"POST /predict HTTP/{version}", "Host: a", "Transfer-Encoding: chunked"]
    head += ["Content-Length: 4"] * (version == "1.1")
    rest = b"0\r\n\r\nGET /health HTTP/1.1\r\nHost: a\r\n\r\n"
    with serving(model) as served, socket.create_connection(("127.0.0.1", served.port)) as connection:
        connection.sendall("\r\n".join([*head, "", ""]).encode() + rest)
        received = b"".join(iter(lambda: connection.recv(1000), b""))
    assert received.startswith(b"HTTP/1.1 400 ")
    assert received.count(b"HTTP/1.1 ") == 1
    assert b"the end of the body is ambiguous" in received


def test_an_ambiguous_end_has_the_error_format_of_the_path(model):
    headers = {"Transfer-Encoding": "chunked", "Content-Length": "4"}
    with serving(model) as served:
        content = served.send("POST", "/v1/embeddings", "0\r\n\r\n", headers=headers)[1]
    assert content["error"]["type"] == "invalid_request_error"


def test_the_log_of_requests_has_no_texts(model, caplog):
    with caplog.at_level(logging.INFO, "bertie.requests"), serving(model) as served:
        served.post("/predict?secret=1", {"inputs": "secret"})
        served.post("/no%0Awhere", BODY)
    predicted, missing = (
        record.getMessage() for record in caplog.records if record.name == "bertie.requests"
    )
    assert predicted.startswith("POST '/predict' 200 ")
    assert predicted.endswith(" ms classifier")
    assert missing.startswith(r"POST '/no\nwhere' 404 ")
    assert "secret" not in caplog.text


def test_a_long_path_is_cut_in_the_log(model, caplog):
    with caplog.at_level(logging.INFO, "bertie.requests"), serving(model) as served:
        served.send("GET", "/" + "a" * 36_000)
    (message,) = (record.getMessage() for record in caplog.records if record.name == "bertie.requests")
    assert message[:220].startswith(f"GET '/{'a' * 199}…' 404 ")


def test_a_request_that_takes_too_long_fails_with_503(model):
    with serving(model, limits=LIMITS._replace(request_seconds=0.0001)) as served:
        response, content = served.send("POST", "/predict", BODY)
    assert response.status == 503
    assert response.headers["Retry-After"] == "1"
    assert content == {
        "error": "not computed within 0.0001 s; send fewer texts in a request, or retry later",
        "error_type": "Unhealthy",
    }
