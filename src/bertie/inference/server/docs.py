"""Serve the OpenAPI document, and a page to read and try the API."""

from functools import cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from bertie.inference.server.openapi import describe_api
from bertie.inference.server.page import page_routes
from bertie.inference.server.responses import to_json

DIRECTORY = Path(__file__).parent / "reference"


def docs_routes(needs_key: bool) -> list[BaseRoute]:
    """Return the routes of the document and of the page.

    The page loads nothing from other hosts.
    """

    async def document(request: Request) -> Response:
        return Response(_serialized(needs_key), media_type="application/json")

    return [
        Route("/openapi.json", document, methods=["GET"]),
        *page_routes("/docs", "/docs", DIRECTORY),
    ]


@cache
def _serialized(needs_key: bool) -> bytes:
    return to_json(describe_api(needs_key))
