"""Describe the server's routes as an OpenAPI document.

The types of their handlers are the source.
"""

from typing import Any, Literal

from pydantic import TypeAdapter
from typing_extensions import TypedDict

import bertie
from bertie.inference.server.endpoints import ENDPOINTS, Endpoint, annotations
from bertie.inference.server.info import Info
from bertie.inference.server.openai import Model, ModelList

NAME = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
ERRORS = {
    400: "Not JSON, or no inputs",
    401: "Missing or wrong API key",
    404: "No such model",
    408: "The body did not arrive in time",
    413: "Too many texts or bytes",
    415: "The body is compressed",
    422: "Invalid request",
    424: "The model cannot do this",
    429: "Overloaded; retry later",
    431: "Head too large",
    499: "The client closed its connection before the response",
    500: "The model failed",
    503: "Shutting down, or not computed in time",
}


class ErrorResponse(TypedDict):
    """An error in the format of Text Embeddings Inference."""

    error: str
    error_type: str


class OpenAIError(TypedDict):
    """The content of an error of OpenAI's API."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIErrorResponse(TypedDict):
    """An error in OpenAI's format."""

    error: OpenAIError


class Health(TypedDict):
    """The server accepts requests."""

    status: Literal["ok"]


# Routes without a body: path, type of the response, summary.
GET_ROUTES: tuple[tuple[str, Any, str], ...] = (
    ("/health", Health, "Return 200 while the server accepts requests."),
    ("/info", Info, "Describe the first model, the limits, and all models."),
    ("/models/{name}/info", Info, "Describe a model, the limits, and all models."),
    ("/v1/models", ModelList, "List the models as OpenAI does."),
    ("/v1/models/{name}", Model, "Describe a model as OpenAI does."),
)
# By the format of errors.
ERROR_TYPES = {"tei": ErrorResponse, "openai": OpenAIErrorResponse}


def describe_api(needs_key: bool = False) -> dict[str, Any]:
    """Return the OpenAPI document.

    Args:
        needs_key: whether the server has an API key.
    """
    types: dict[str, Any] = {f"GET {path}": response for path, response, _ in GET_ROUTES} | ERROR_TYPES
    for endpoint in ENDPOINTS:
        types[f"POST {endpoint.path}"] = annotations(endpoint.handle)["return"]
        types[f"body {endpoint.path}"] = annotations(endpoint.handle)["request"]
    schemas, definitions = TypeAdapter.json_schemas(
        [
            (name, "validation" if name.startswith("body") else "serialization", TypeAdapter(type_))
            for name, type_ in types.items()
        ],
        ref_template="#/components/schemas/{model}",
    )
    by_name = {name: schema for (name, _), schema in schemas.items()}
    paths: dict[str, Any] = {
        path: {"get": _operation(summary, by_name[f"GET {path}"], by_name, path)}
        for path, _, summary in GET_ROUTES
    }
    paths["/metrics"] = {
        "get": {
            "summary": "Return the metrics in the text format of Prometheus.",
            "responses": {"200": {"description": "Metrics", "content": {"text/plain": {}}}},
        }
    }
    for endpoint in ENDPOINTS:
        for path in (endpoint.path, f"/models/{{name}}{endpoint.path.rstrip('/')}"):
            paths.setdefault(path, {})["post"] = _post(endpoint, path, by_name)
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "bertie",
            "version": bertie.__version__,
            "description": "Embeddings and predictions of BERT models.",
        },
        "paths": paths,
        "components": {"schemas": definitions.get("$defs", {})},
    }
    if needs_key:
        document["components"]["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"bearer": []}]
        paths["/health"]["get"]["security"] = []  # the only route here that is open
    return document


def _post(endpoint: Endpoint, path: str, schemas: dict[str, Any]) -> dict[str, Any]:
    summary = (endpoint.handle.__doc__ or "").split("\n")[0].replace("`", "")
    operation = _operation(summary, schemas[f"POST {endpoint.path}"], schemas, path, endpoint.errors)
    content = {"schema": schemas[f"body {endpoint.path}"], "example": endpoint.example}
    operation["requestBody"] = {"required": True, "content": {"application/json": content}}
    return operation


def _operation(
    summary: str, response: Any, schemas: dict[str, Any], path: str, errors: str = "tei"
) -> dict[str, Any]:
    if path.startswith("/v1/"):
        errors = "openai"
    responses = {"200": {"description": "The result", "content": {"application/json": {"schema": response}}}}
    for status, description in ERRORS.items():
        content = {"application/json": {"schema": schemas[errors]}}
        responses[str(status)] = {"description": description, "content": content}
    parameters = [NAME] if "{name}" in path else []
    return {"summary": summary, "parameters": parameters, "responses": responses}
