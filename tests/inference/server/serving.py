"""A server in this process, on a real port, and a client for it."""

import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from http.client import HTTPConnection, HTTPResponse
from threading import Thread
from typing import Any, NamedTuple
from unittest.mock import patch

from starlette.applications import Starlette

from bertie.inference.predictor import Predictor
from bertie.inference.server import running
from bertie.inference.server.app import create_app
from bertie.inference.server.middleware import OPEN, Access, Limits
from bertie.inference.server.models import Models
from bertie.inference.server.running import Server, listen

LIMITS = Limits()


class Served(NamedTuple):
    """A running server."""

    app: Starlette
    server: Server
    port: int
    models: Models

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def send(self, method: str, path: str, body: Any = None, **options: Any) -> tuple[HTTPResponse, Any]:
        """Send a request, bytes as they are; return the response and its parsed JSON."""
        response, text = self.send_text(method, path, body, **options)
        return response, json.loads(text)

    def send_text(self, method: str, path: str, body: Any = None, **options: Any) -> tuple[HTTPResponse, str]:
        """Send a request, bytes as they are; return the response and its text."""
        if isinstance(body, str | dict | list):
            body = json.dumps(body)
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, **options)
            response = connection.getresponse()
            return response, response.read().decode()
        finally:
            connection.close()

    def post(self, path: str, body: Any, **options: Any) -> tuple[int, Any]:
        """Send a POST request; return the status and the parsed JSON."""
        response, content = self.send("POST", path, body, **options)
        return response.status, content


@contextmanager
def serving(
    *predictors: Predictor,
    limits: Limits = LIMITS,
    access: Access = OPEN,
    memory_budget: int = 0,
    closing_seconds: int = 0,
) -> Iterator[Served]:
    """Serve models in a thread, by the names of their directories."""
    loaded = {predictor.path: predictor for predictor in predictors}
    paths = {path.name: path for path in loaded}
    # Copies, because a server replaces the engine.
    models = Models(paths, lambda path: copy(loaded[path]), limits, memory_budget)
    with serving_models(models, access, closing_seconds) as served:
        yield served


@contextmanager
def serving_models(models: Models, access: Access = OPEN, closing_seconds: int = 0) -> Iterator[Served]:
    """Serve models in a thread; a server that stops waits so long for clients with open connections."""
    with listen("127.0.0.1", 0) as listening:
        app = create_app(models, access)
        server = Server(app, models.limits)
        thread = Thread(target=server.run, args=([listening],))
        # A server collects garbage when it starts, which takes a second among the objects of all tests. When
        # it stops, the collector would search the objects again that conftest.py has frozen.
        closing = patch.object(running, "CLOSING_SECONDS", closing_seconds)
        with patch("gc.collect"), patch("gc.unfreeze"), closing:
            thread.start()
            try:
                yield Served(app, server, listening.getsockname()[1], models)
            finally:
                server.should_exit = True
                thread.join()


@contextmanager
def half_a_request(
    port: int, body: bytes, headers: Mapping[str, str] | None = None
) -> Iterator[socket.socket]:
    """Open a connection that has sent the head of a request but not its body."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        head = ["POST /predict HTTP/1.1", "Host: a", f"Content-Length: {len(body)}", "Expect: 100-continue"]
        head += [f"{name}: {value}" for name, value in (headers or {}).items()]
        connection.sendall("\r\n".join([*head, "", ""]).encode())
        assert connection.recv(1000).startswith(b"HTTP/1.1 100")
        yield connection


def read_response(connection: socket.socket) -> tuple[int, Any]:
    """Return the status and the parsed JSON of the response on a connection."""
    with HTTPResponse(connection) as response:
        response.begin()
        return response.status, json.loads(response.read())
