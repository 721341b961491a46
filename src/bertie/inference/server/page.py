"""The page on which people try the served models: static files that call the other routes."""

from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

DIRECTORY = Path(__file__).parent / "page"


def page_routes() -> list[BaseRoute]:
    """Return the routes of the page: / and the files below /page/.

    The page names its files and the server's other routes relative to its own address, so it also
    works below a path of a proxy.
    """
    return [Route("/", _index, methods=["GET"]), Mount("/page", StaticFiles(directory=DIRECTORY))]


async def _index(request: Request) -> Response:
    return FileResponse(DIRECTORY / "index.html", media_type="text/html")
