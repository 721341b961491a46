"""The page on which people try the served models.

Its static files call the other routes.
"""

from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

DIRECTORY = Path(__file__).parent / "page"


def page_routes(path: str = "/", folder: str = "/page", directory: Path = DIRECTORY) -> list[BaseRoute]:
    """Return the routes of a page: its address, and its files below `folder`.

    A page names its files and the server's other routes relative to its own address, so it also
    works below a path of a proxy.
    """

    async def index(request: Request) -> Response:
        return FileResponse(directory / "index.html", media_type="text/html")

    return [Route(path, index, methods=["GET"]), Mount(folder, StaticFiles(directory=directory))]
