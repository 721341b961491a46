"""Middleware for addresses, log, metrics, origins, the key, and body limits."""

import asyncio
import hmac
import logging
import re
from time import perf_counter
from typing import NamedTuple
from urllib.parse import unquote

from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bertie.inference.server.errors import ErrorFormat, error_format, error_response
from bertie.inference.server.metrics import COST_HEADERS, Metrics

logger = logging.getLogger("bertie.requests")

# Readable without the key: /health for load balancers, and the pages for people, which send the key
# when they request results.
OPEN_PATHS = ("/", "/health", "/docs", "/openapi.json")
OPEN_FOLDERS = ("/page/", "/docs/")
MODEL_PATH = "/models/{name:path}"  # before the routes for one model, whose name may have slashes
MAX_HEAD = 65_536  # bytes of the line and the headers of a request
MAX_LOGGED_PATH = 200  # characters
ORIGIN = re.compile(rb"https?://[^/]*", re.IGNORECASE)


class Limits(NamedTuple):
    """Limits above which a request is rejected.

    Attributes:
        max_texts: texts in a request; each [MASK] and each ending of a context counts as one.
        max_body: bytes of a request's body.
        max_waiting: tokens already in the queue when a request arrives. 128 characters of
            a text that waits to be tokenized, or of a response of /tokenize, count as a token.
        max_connections: open connections.
        body_seconds: time for a client to send the body.
        request_seconds: time to compute the results, with the time in the queue and to load the model.
    """

    max_texts: int = 32  # this and max_body as Text Embeddings Inference
    max_body: int = 2_000_000
    max_waiting: int = 250_000
    max_connections: int = 1024
    body_seconds: float = 30
    request_seconds: float = 60


class Access(NamedTuple):
    """Rules of access to the server, and its path behind a proxy.

    Attributes:
        api_key: the key that requests must send; None if they need none.
        cors: origins whose pages may call the server from a browser; `*` means any.
        root_path: the path under which a proxy publishes the server, such as `/bert`.
    """

    api_key: str | None = None
    cors: tuple[str, ...] = ()
    root_path: str = ""


OPEN = Access()  # everybody on this machine, as `bertie serve` without options


def middlewares(access: Access, limits: Limits, metrics: Metrics) -> list[Middleware]:
    """Return the layers of an application, outermost first."""
    layers = [
        Middleware(OriginForm),
        Middleware(RootPath, access.root_path),
        Middleware(WholeFiles),
        Middleware(Observer, metrics),
        Middleware(CheckHead),
    ]
    if access.cors:
        layers.append(
            Middleware(
                CORSMiddleware,
                access.cors,
                allow_methods=["GET", "POST"],
                allow_headers=["*"],  # OpenAI's client sends its version and more in custom headers
                expose_headers=["Retry-After", *COST_HEADERS],
            )
        )
    if access.api_key is not None:
        layers.append(Middleware(RequireKey, access.api_key))
    return [*layers, Middleware(LimitBody, limits)]


class OriginForm:
    """Accept `GET http://host/path`, the form of a request to a proxy.

    See RFC 9112, Section 3.2.2.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (origin := ORIGIN.match(scope["raw_path"])):
            raw_path = scope["raw_path"][origin.end() :] or b"/"
            scope = {**scope, "path": unquote(raw_path.decode()), "raw_path": raw_path}
        await self._app(scope, receive, send)


class RootPath:
    """Accept requests with the root path, and those from which a proxy removed it."""

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self._app, self._root_path = app, root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._root_path:
            path = scope["path"]
            if path == self._root_path:  # the links of the page are relative to the root
                await RedirectResponse(f"{path}/")(scope, receive, send)
                return
            if not path.startswith(f"{self._root_path}/"):
                path = self._root_path + path
            scope = {**scope, "path": path, "root_path": self._root_path}
        await self._app(scope, receive, send)


class WholeFiles:
    """Ignore the header Range, as RFC 9110 allows (Section 14.2).

    The files of the pages are small, and Starlette answers a malformed range in plain text.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = {**scope, "headers": [header for header in scope["headers"] if header[0] != b"range"]}
        await self._app(scope, receive, send)


class Observer:
    """Count, time and log requests; the log has no texts and no query strings.

    While the server stops, it tells each client to close its connection. A client that sent its next request
    on this connection would find it closed.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin, status = perf_counter(), 500

        async def observe(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if scope["app"].state.stopping:
                    message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
            await send(message)

        try:
            await self._app(scope, receive, observe)
        finally:
            seconds = perf_counter() - begin
            model = scope["state"].get("model", "")
            if scope["method"] == "POST":
                operation = _operation(scope)
                costs = scope["state"].get("costs")
                self._metrics.observe(operation, model, status, seconds, costs)
            path = scope["path"]
            shown = path if len(path) <= MAX_LOGGED_PATH else f"{path[:MAX_LOGGED_PATH]}…"
            # repr, because a path may contain line breaks
            logger.info("%s %r %d %.1f ms %s", scope["method"], shown, status, 1000 * seconds, model)


def _operation(scope: Scope) -> str:
    """Return the name of a route, such as `embed`; empty if there is no such route."""
    path: str | None = getattr(scope.get("route"), "path", None)
    if path is None:
        return ""
    return path.removeprefix(MODEL_PATH).strip("/") or "/"


class CheckHead:
    """Reject a head that is too large, or with an ambiguous length of the body.

    A proxy that finds another end of the body than this server would take the rest of it for another request,
    so the connection is closed (RFC 9112, Section 6.1).
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        names = {name for name, _ in scope["headers"]}
        other = b"content-length" in names or scope["http_version"] == "1.0"
        format = error_format(scope)
        if _head_bytes(scope) > MAX_HEAD:  # h11 rejects only heads that arrive in several pieces
            await head_too_large(format)(scope, receive, send)
        elif b"transfer-encoding" in names and other:
            message = "Transfer-Encoding with Content-Length or HTTP/1.0: the end of the body is ambiguous"
            response = error_response(400, message, format=format, headers={"Connection": "close"})
            await response(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def head_too_large(format: ErrorFormat = "tei") -> Response:
    """Return the response for a request whose line and headers are too large."""
    message = f"head larger than {MAX_HEAD:,} bytes; send fewer or shorter headers"
    return error_response(431, message, format=format, headers={"Connection": "close"})


def _head_bytes(scope: Scope) -> int:
    """Return the bytes of the line and the headers of a request.

    Optional blanks do not count.
    """
    line = len(f"{scope['method']} ? HTTP/1.1\r\n") + len(scope["raw_path"]) + len(scope["query_string"])
    return line + sum(len(name) + len(value) + len(": \r\n") for name, value in scope["headers"])


class RequireKey:
    """Reject requests without `Authorization: Bearer KEY`.

    Open paths and folders need no key.
    """

    def __init__(self, app: ASGIApp, api_key: str) -> None:
        self._app, self._api_key = app, api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not _is_open(scope) and not self._has_key(scope):
            headers = {"WWW-Authenticate": "Bearer"}
            message = "missing or wrong API key; send the header Authorization: Bearer KEY"
            response = error_response(
                401, message, format=error_format(scope), error_type="Unauthorized", headers=headers
            )
            await response(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _has_key(self, scope: Scope) -> bool:
        scheme, _, key = dict(scope["headers"]).get(b"authorization", b"").partition(b" ")
        # compare_digest takes the same time wherever the keys differ
        return scheme.lower() == b"bearer" and hmac.compare_digest(key.strip(), self._api_key)


def _is_open(scope: Scope) -> bool:
    path = scope["path"].removeprefix(scope.get("root_path", ""))
    return scope["method"] in ("GET", "HEAD") and (path in OPEN_PATHS or path.startswith(OPEN_FOLDERS))


class LimitBody:
    """Limit the size of a request's body, chunked or not, and the time to send it."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self._app, self._limits = app, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        max_body, seconds = self._limits.max_body, self._limits.body_seconds
        deadline = asyncio.get_running_loop().time() + seconds
        size, is_complete = 0, False
        too_large = f"body larger than {max_body:,} bytes; send less text, or raise the server's --max-body"
        if int(dict(scope["headers"]).get(b"content-length", 0)) > max_body:  # do not wait for the body
            await error_response(413, too_large, format=error_format(scope))(scope, receive, send)
            return

        async def limited() -> Message:
            nonlocal size, is_complete
            if is_complete:  # a disconnect follows, however late
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, f"the body did not arrive within {seconds:g} s") from None
            size += len(message.get("body", b""))
            is_complete = not message.get("more_body", False)
            if size > max_body:
                raise HTTPException(413, too_large)
            return message

        await self._app(scope, limited, send)
