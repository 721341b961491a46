"""The HTTP application that serves models, in PyTorch, ONNX Runtime or OpenVINO."""

import asyncio
import codecs
import logging
import re
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from time import perf_counter
from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from bertie.base.errors import BertieError
from bertie.inference.server import openai, own
from bertie.inference.server.docs import docs_routes
from bertie.inference.server.endpoints import ENDPOINTS, Endpoint
from bertie.inference.server.errors import (
    ErrorFormat,
    ModelNotFoundError,
    error_format,
    error_response,
    http_error_response,
    validation_message,
)
from bertie.inference.server.info import describe_server
from bertie.inference.server.metrics import RequestCosts, request_costs
from bertie.inference.server.middleware import MODEL_PATH, OPEN, Access, middlewares
from bertie.inference.server.models import Models, ServedModel
from bertie.inference.server.page import page_routes
from bertie.inference.server.responses import json_response
from bertie.inference.server.schemas import Request

logger = logging.getLogger(__name__)

FEW_BYTES = 65_536  # parsed and validated in at most 5 ms, and in 0.03 if they are texts

# The JSON parser's messages for a surrogate without its other half.
SURROGATE = "lone leading surrogate in hex escape|unexpected end of hex escape"


def create_app(models: Models, access: Access = OPEN) -> Starlette:
    """Create the application that serves models.

    Set `state.stopping` of the application before shutting it down: /health then returns 503.
    """
    service = Service(models)
    routes: list[BaseRoute] = [
        Route("/health", service.health),
        Route("/metrics", models.metrics.endpoint),
        Route("/info", service.info),
        Route(f"{MODEL_PATH}/info", service.info),
        Route("/v1/models", service.list_models),
        Route("/v1/models/{name:path}", service.describe_model),
    ]
    for endpoint in ENDPOINTS:
        answer = service.endpoint(endpoint)
        path = endpoint.path.rstrip("/")
        routes.append(Route(endpoint.path, answer, methods=["POST"]))
        routes.append(Route(MODEL_PATH + path, answer, methods=["POST"]))

    def internal_error(request: HttpRequest, error: Exception) -> Response:
        """Return the response for a fault of the server, whose traceback uvicorn logs."""
        format = error_format({**request.scope, "root_path": access.root_path})  # outside the middleware
        return error_response(500, "internal error; see the server's log", format=format)

    app = Starlette(
        routes=[*routes, *docs_routes(access.api_key is not None), *page_routes()],
        exception_handlers={HTTPException: _http_error, Exception: internal_error},
        middleware=middlewares(access, models.limits, models.metrics),
        lifespan=service.lifespan,
    )
    app.router.redirect_slashes = False  # it would redirect to the host that the request names
    app.state.stopping = False
    return app


class Service:
    """The endpoints of the application."""

    def __init__(self, models: Models) -> None:
        self._models = models

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """Unload the models when the application stops."""
        yield
        self._models.stop()

    async def health(self, request: HttpRequest) -> Response:
        """Return 200 while the server accepts requests."""
        if request.app.state.stopping:
            return _stopping("tei")
        return JSONResponse({"status": "ok"})

    async def info(self, request: HttpRequest) -> Response:
        """Describe the default model or the one of the path, the limits, and all models."""
        for served in self._models:
            await self._models.describe_replaced(served)
        name = request.path_params.get("name")
        model = self._models.default if name is None else self._models.find(name)
        return json_response(describe_server(self._models, model))

    async def list_models(self, request: HttpRequest) -> Response:
        """List the models as OpenAI does."""
        return json_response(openai.list_models(self._models))

    async def describe_model(self, request: HttpRequest) -> Response:
        """Describe a model as OpenAI does."""
        return json_response(openai.describe(self._models.find(request.path_params["name"])))

    def endpoint(self, endpoint: Endpoint) -> Callable[[HttpRequest], Awaitable[Response]]:
        """Return the function that answers the requests to an endpoint."""

        async def answer(request: HttpRequest) -> Response:
            begin, costs = perf_counter(), RequestCosts()
            request_costs.set(costs)
            request.state.costs = costs  # for metrics
            try:
                if request.headers.get("content-encoding", "").lower() not in ("", "identity"):
                    raise HTTPException(415, "Content-Encoding: not supported; send plain JSON")
                body = await request.body()
                result = await _cancel_on_disconnect(request, self._handle(request, endpoint, body))
                response = json_response(result)
                response.headers.update(costs.headers(perf_counter() - begin))
                return response
            except asyncio.CancelledError:  # shutting down, and the time to finish requests is over
                return _stopping(endpoint.errors)
            except Exception as error:
                return self._failure(request, error, endpoint.errors)

        answer.__name__ = endpoint.handle.__name__  # the operation in metrics
        return answer

    async def _handle(self, request: HttpRequest, endpoint: Endpoint, body: bytes) -> Any:
        run = partial(self._models.threads.run, len(body), few=FEW_BYTES)
        async with asyncio.timeout(self._models.limits.request_seconds):
            content = request.state.body = await run(_parse_json, body)
            model = await self._choose(request.path_params.get("name"), content, endpoint)
            request.state.model = model.name  # for metrics and logs
            parsed = await run(self._validate, endpoint, model, content)
            if not endpoint.loads:
                return await endpoint.handle(model, parsed)
            async with self._models.use(model):
                return await endpoint.handle(model, parsed)

    async def _choose(self, name: str | None, body: Any, endpoint: Endpoint) -> ServedModel:
        """Return the model of the path or of the body.

        By default it is the first that has the method.
        """
        in_body: Any = body.get("model") if isinstance(body, dict) else None
        named = [self._models.find(value) for value in (name, in_body) if isinstance(value, str)]
        if len({*named}) > 1:
            raise HTTPException(422, f"model: {in_body[:80]!r}, but the address names {name!r}; omit one")
        models = named[:1] or [*self._models]
        for model in models:
            await self._models.describe_replaced(model)
            if endpoint.suits(model):
                return model
        model = models[0]
        if len(models) > 1:
            message = f"no served model supports {endpoint.method}; GET /info lists what each model supports"
            raise HTTPException(endpoint.unable, message)
        if endpoint.method == "predict":
            raise HTTPException(
                endpoint.unable,
                f"{model.name}: this model is an encoder without a head; send texts to POST /embed",
            )
        able = ", ".join(filter(None, model.methods))
        raise HTTPException(
            endpoint.unable,
            f"{model.name}: the model does not support {endpoint.method}; it supports: {able}",
        )

    def _validate(self, endpoint: Endpoint, model: ServedModel, body: Any) -> Request:
        schema = endpoint.schema(model, body)
        # Count first: pydantic makes an object of each item. A list that begins with a number is token ids.
        most = self._models.limits.max_texts
        items = body.get(schema.key) if isinstance(body, dict) else None
        if isinstance(items, list) and len(items) > most and not isinstance(items[0], int):
            raise _too_many(schema.key, len(items), "items", most)
        parsed = schema.model_validate(body)
        if parsed.text_count > most:
            raise _too_many(parsed.key, parsed.text_count, parsed.counted, most)
        return parsed

    def _failure(self, request: HttpRequest, error: Exception, format: ErrorFormat) -> Response:
        """Return the response for an error. Texts of the request are never logged."""
        match error:
            case ValidationError():
                message = validation_message(error) + self._advise(request)
                return error_response(422, message, format=format)
            case BertieError():  # clients see the names of the model directories, not their paths
                message = str(error)
                for model in self._models:
                    message = message.replace(str(model.path), model.name)
                return error_response(422, message + self._advise(request), format=format)
            case HTTPException():
                return http_error_response(error, error.detail, format)
            case asyncio.QueueFull():
                return error_response(
                    429, "queue full; retry later", format=format, headers={"Retry-After": "1"}
                )
            case TimeoutError():
                seconds = self._models.limits.request_seconds
                message = f"not computed within {seconds:g} s; send fewer texts in a request, or retry later"
                return error_response(503, message, format=format, headers={"Retry-After": "1"})
            case ClientDisconnect():  # nginx uses this status
                message = "the client closed its connection before the response; keep it open until then"
                return error_response(499, message, format=format)
        # Without the exception's message, which may quote a text.
        frames = "".join(traceback.format_tb(error.__traceback__))
        logger.error("%s: %s at\n%s", request.url.path, type(error).__name__, frames)
        return error_response(500, "the model failed on this request; see the server's log", format=format)

    def _advise(self, request: HttpRequest) -> str:
        """Return the end of an error, which names other models that read the inputs.

        It is empty if the request named its model.
        """
        body = request.state.body
        if request.scope["route"].path != "/predict" or not isinstance(body, dict) or body.get("model"):
            return ""
        others = [model for model in self._models if model.name != request.state.model]
        names = ", ".join(model.name for model in others if own.accepts(model, body))
        return f"; name a model that reads such inputs in the key `model`: {names}" if names else ""


def _too_many(key: str, count: int, counted: str, most: int) -> HTTPException:
    return HTTPException(
        413,
        f"{key}: {count} {counted}; send at most {most} in a request, or start the server with a larger "
        "--max-texts",
    )


def _parse_json(body: bytes) -> Any:
    try:
        return from_json(body.removeprefix(codecs.BOM_UTF8), allow_inf_nan=False)
    except ValueError as error:
        # Such as "\ud83d", which JavaScript writes for a text that was cut within an emoji.
        problem = re.sub(SURROGATE, "half of a surrogate pair, a character cut in two,", str(error))
        raise HTTPException(400, f"Invalid JSON: {problem}") from None


async def _cancel_on_disconnect(request: HttpRequest, computing: Coroutine[Any, Any, Any]) -> Any:
    """Await the results; raise ClientDisconnect if the client goes away first."""
    results = asyncio.ensure_future(computing)
    disconnected = asyncio.ensure_future(request.receive())  # only a disconnect follows the body
    try:
        await asyncio.wait((results, disconnected), return_when=asyncio.FIRST_COMPLETED)
        if not results.done():
            raise ClientDisconnect
        return results.result()
    finally:
        results.cancel()
        disconnected.cancel()


def _stopping(format: ErrorFormat) -> Response:
    message = "the server is shutting down"
    return error_response(503, message, format=format, headers={"Retry-After": "1"})


def _http_error(request: HttpRequest, error: Exception) -> Response:
    """Return the response for an unknown path, method or model."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405 and (methods := _methods_of_path(request)):
        error.headers = {"Allow": ", ".join(sorted(methods))}
    format = error_format(request.scope)
    message = error.detail
    if not isinstance(error, ModelNotFoundError):  # which names the model
        requested = f"{request.method} {request.url.path}"
        message = f"{requested[:80]}: {error.detail}"
    return http_error_response(error, message, format)


def _methods_of_path(request: HttpRequest) -> set[str]:
    """Return the methods of all routes with the path of a request.

    Starlette lists only the first route's. There are none for a file of the page.
    """
    path = request.scope["route"].path
    routes = (route for route in request.app.routes if isinstance(route, Route) and route.path == path)
    return {method for route in routes for method in route.methods or ()}
