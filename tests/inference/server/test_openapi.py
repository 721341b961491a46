"""The OpenAPI document: true for random requests, and for the examples in it."""

import json
import re
from pathlib import Path
from urllib.request import urlopen

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)
from tests.inference.server.serving import serving

from bertie.inference.server.endpoints import ENDPOINTS
from bertie.inference.server.middleware import Access
from bertie.inference.server.openapi import describe_api

FAST = settings(
    max_examples=5,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[*HealthCheck],
    derandomize=True,
)
SERVING = Path(__file__).parents[3] / "docs" / "serving.md"
schema = schemathesis.openapi.from_dict(describe_api())


@schema.exclude(path_regex="^/models/|metrics").parametrize()
@FAST
def test_random_requests_are_answered_as_described(several, case):
    response = case.call(base_url=several.url)
    case.validate_response(
        response,
        checks=[
            not_a_server_error,
            status_code_conformance,
            response_schema_conformance,
            negative_data_rejection,
        ],
    )


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: endpoint.path)
def test_examples_are_accepted(several, endpoint):
    path = "/models/classifier/predict" if endpoint.path == "/predict" else endpoint.path
    status, content = several.post(path, endpoint.example)
    assert status == (424 if endpoint.path == "/embed_sparse" else 200), content


def test_every_route_is_described(several):
    with urlopen(f"{several.url}/openapi.json") as response:
        document = json.load(response)
    paths = {route.path for route in several.app.routes if hasattr(route, "methods")}
    paths = {path.replace("{name:path}", "{name}") for path in paths}
    assert {path.rstrip("/") for path in paths} - {"/docs", "/openapi.json"} == {
        path.rstrip("/") for path in document["paths"]
    }


def test_the_document_of_a_server_with_a_key_has_its_scheme(predictors):
    access = Access("secret", root_path="/bert")
    with serving(predictors["encoder"], access=access) as served:
        document = served.send("GET", "/openapi.json")[1]
    assert document["components"]["securitySchemes"] == {"bearer": {"type": "http", "scheme": "bearer"}}
    assert document["security"] == [{"bearer": []}]
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    assert [each["summary"] for each in operations if "security" in each] == [
        "Return 200 while the server accepts requests."
    ]
    assert "security" not in describe_api()


def test_summaries_say_in_plain_text_what_a_route_does():
    operations = [operation for path in describe_api()["paths"].values() for operation in path.values()]
    assert len(operations) >= len(ENDPOINTS)
    for operation in operations:
        assert re.fullmatch(r"(Answer|Describe|List|Report|Return) [^`]+\.", operation["summary"])


def test_every_status_of_the_documentation_is_described():
    rows = re.findall(r"^\| ([45][\d, ]*) \| `", SERVING.read_text(), re.MULTILINE)
    documented = {status for row in rows for status in row.split(", ")} - {"405"}  # no method of a route
    responses = describe_api()["paths"]["/embed"]["post"]["responses"]
    assert responses.keys() == {"200", *documented}


def test_the_reference_page_loads_nothing_from_elsewhere(several):
    for path in ("/docs", "/docs/reference.js", "/docs/reference.css"):
        with urlopen(several.url + path) as response:
            text = response.read().decode()
        assert "http:" not in text
        assert "https:" not in text
