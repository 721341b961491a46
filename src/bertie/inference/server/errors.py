"""Errors of requests, as responses in the formats of Text Embeddings Inference and OpenAI."""

import re
from collections.abc import Mapping
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
OPENAI_CODES = {404: "model_not_found", 429: "rate_limit_exceeded"}


def error_format(scope: Scope) -> ErrorFormat:
    """Return the format of errors of a path, with or without a root path and /models/NAME before it."""
    path = scope["path"].removeprefix(scope.get("root_path", ""))
    return "openai" if re.match(r"(/models/[^/]+)?/v1/", path) else "tei"


class EmptyRequestError(HTTPException):
    """Raised for a request without inputs."""

    def __init__(self, key: str) -> None:
        super().__init__(400, f"`{key}` cannot be empty")


def error_response(
    status: int,
    message: str,
    *,
    format: ErrorFormat = "tei",
    error_type: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Return an error as JSON.

    Args:
        status: the HTTP status.
        message: one line.
        format: whose format the body has.
        error_type: Text Embeddings Inference's type of the error. Default: by the status.
        headers: more headers.
    """
    if format == "openai":
        status = OPENAI_STATUSES.get(status, status)
        content = {
            "message": message,
            "type": OPENAI_TYPES.get(status, "invalid_request_error"),
            "param": None,
            "code": OPENAI_CODES.get(status),
        }
        return JSONResponse({"error": content}, status, headers)
    error_type = error_type or ERROR_TYPES.get(status, "Validation")
    return JSONResponse({"error": message, "error_type": error_type}, status, headers)


def validation_message(error: ValidationError) -> str:
    """Return the first problem of an invalid request, with the key that has it."""
    first = error.errors()[0]
    key = ".".join(map(str, first["loc"]))
    return f"{key}: {first['msg']}" if key else first["msg"]
