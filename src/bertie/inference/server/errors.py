"""Answer errors in the formats of Text Embeddings Inference and OpenAI."""

import re
from collections.abc import Iterable, Mapping
from typing import Literal

from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import Scope

ErrorFormat = Literal["tei", "openai"]

# The names that Text Embeddings Inference uses; every other error is "Validation".
ERROR_TYPES = {424: "Backend", 429: "Overloaded", 500: "Backend", 503: "Unhealthy"}
# OpenAI reports an invalid request as 400.
OPENAI_STATUSES = {422: 400, 424: 400}
OPENAI_TYPES = {
    401: "authentication_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
}
OPENAI_CODES = {429: "rate_limit_exceeded"}

# pydantic's messages that name classes of Python, or that a client could read as too many inputs.
MESSAGES = {"model_type": "Input should be an object", "extra_forbidden": "unknown key"}


def error_format(scope: Scope) -> ErrorFormat:
    """Return the format of errors of a path.

    The path may have a root path and /models/NAME before it.
    """
    path = scope["path"].removeprefix(scope.get("root_path", ""))
    return "openai" if re.match(r"(/models/.+)?/(v1/|embeddings$)", path) else "tei"


class EmptyRequestError(HTTPException):
    """Raised for a request without inputs."""

    def __init__(self, key: str) -> None:
        super().__init__(400, f"`{key}` cannot be empty")


class ModelNotFoundError(HTTPException):
    """Raised for the name of a model that is not served."""

    def __init__(self, name: str, served: Iterable[str]) -> None:
        super().__init__(404, f"model {name[:80]!r}: no such model; served: {', '.join(served)}")


def error_response(
    status: int,
    message: str,
    *,
    format: ErrorFormat = "tei",
    error_type: str | None = None,
    code: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Return an error as JSON.

    Args:
        status: the HTTP status.
        message: one line.
        format: the format of the body.
        error_type: Text Embeddings Inference's type of the error. Default: by the status.
        code: OpenAI's code of the error. Default: by the status.
        headers: more headers.
    """
    if format == "openai":
        status = OPENAI_STATUSES.get(status, status)
        content = {
            "message": message,
            "type": OPENAI_TYPES.get(status, "invalid_request_error"),
            "param": None,
            "code": code or OPENAI_CODES.get(status),
        }
        return JSONResponse({"error": content}, status, headers)
    error_type = error_type or ERROR_TYPES.get(status, "Validation")
    return JSONResponse({"error": message, "error_type": error_type}, status, headers)


def http_error_response(error: HTTPException, message: str, format: ErrorFormat) -> Response:
    """Return the response for an error with a status."""
    return error_response(
        error.status_code,
        message,
        format=format,
        error_type="Empty" if isinstance(error, EmptyRequestError) else None,
        code="model_not_found" if isinstance(error, ModelNotFoundError) else None,
        headers=error.headers,
    )


def validation_message(error: ValidationError) -> str:
    """Return the first problem of an invalid request, with the key that has it."""
    first = error.errors()[0]
    key = ".".join(str(part)[:80] for part in first["loc"]) or "body"
    return f"{key}: {MESSAGES.get(first['type'], first['msg'])}"
