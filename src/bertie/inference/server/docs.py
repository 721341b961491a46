"""The routes that describe the API: the OpenAPI document, and a page to read and try it."""

from functools import cache
from pathlib import Path

from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from bertie.inference.server.openapi import describe_api

DIRECTORY = Path(__file__).parent / "reference"


def docs_routes() -> list[BaseRoute]:
    """Return the routes of the document and of the page; the page loads nothing from elsewhere."""
    return [
        Route("/openapi.json", _document, methods=["GET"]),
        Route("/docs", _index, methods=["GET"]),
        Mount("/docs", StaticFiles(directory=DIRECTORY)),
    ]


async def _document(request: Request) -> Response:
    return Response(_serialized(), media_type="application/json")


@cache
def _serialized() -> bytes:
    return to_json(describe_api())


async def _index(request: Request) -> Response:
    return FileResponse(DIRECTORY / "index.html", media_type="text/html")
