"""The routes of a model's server. Which engine computes the model, nothing here knows."""

import asyncio
import logging
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import bertie
from bertie.base.errors import BertieError
from bertie.inference.dispatch import ask
from bertie.inference.predictor import Predictor
from bertie.inference.records import Record
from bertie.inference.server.batching import Batcher
from bertie.inference.server.pipelines import as_pipeline
from bertie.inference.server.schemas import (
    PIPELINE_REQUESTS,
    PREDICT_REQUESTS,
    Asked,
    Embed,
    EmbedRequest,
    Predict,
)
from bertie.inference.writers import as_json

logger = logging.getLogger(__name__)

# As Text Embeddings Inference calls them; all others are "Validation".
ERROR_TYPES = {429: "Overloaded", 500: "Backend", 503: "Unhealthy"}


class Limits(NamedTuple):
    """What is refused.

    max_texts    texts in a request; each [MASK] is one, and each ending to choose from
    max_body     bytes of a request
    max_waiting  while so many characters wait to be computed, no more are taken
    """

    max_texts: int
    max_body: int
    max_waiting: int


def create_app(model: Predictor, limits: Limits) -> Starlette:
    """The application that serves a model; it is about to end where its `state.stopping` is set."""
    service = Service(model, limits)
    app = Starlette(
        routes=[
            Route("/health", service.health),
            Route("/info", service.info),
            Route("/predict", service.predict, methods=["POST"]),
            Route("/embed", service.embed, methods=["POST"]),
            Route("/", service.pipeline, methods=["POST"]),
        ],
        exception_handlers={HTTPException: _no_route},
        lifespan=service.lifespan,
    )
    app.state.stopping = False
    return app


class Service:
    """What the routes do."""

    def __init__(self, model: Predictor, limits: Limits) -> None:
        self._model = model
        self._limits = limits
        self._batcher = Batcher(self._compute, limits.max_waiting)

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """While requests are answered."""
        running = asyncio.create_task(self._batcher.run())
        yield
        running.cancel()

    async def health(self, request: Request) -> Response:
        """Whether it serves."""
        if request.app.state.stopping:
            return _stopping()
        return JSONResponse({"status": "ok"})

    async def info(self, request: Request) -> Response:
        """What it serves."""
        return JSONResponse(
            {
                "model": self._model.path.name,
                "architecture": self._model.engine.architecture,
                "method": self._model.method,
                "labels": self._model.labels,
                "max_seq_length": self._model.max_seq_length,
                "embedding": self._model.embedding._asdict(),
                "engine": type(self._model.engine).__name__,
                "limits": self._limits._asdict(),
                "version": bertie.__version__,
            }
        )

    async def predict(self, request: Request) -> Response:
        """What `bertie predict --json` has under `prediction`, for each row."""
        method = self._model.method
        if method is None:
            return _error(422, "an encoder without a head predicts nothing; POST /embed")
        return await self._reply(
            request, PREDICT_REQUESTS[method], lambda _, answers: {"predictions": as_json(answers)}
        )

    async def embed(self, request: Request) -> Response:
        """A vector for each text."""
        return await self._reply(request, EmbedRequest, lambda _, vectors: vectors)

    async def pipeline(self, request: Request) -> Response:
        """What the head's pipeline of `transformers` answers; that of an encoder extracts features."""
        method, labels = self._model.method, self._model.labels
        if method is None:
            return await self.embed(request)
        if method not in PIPELINE_REQUESTS:
            return _error(422, f"there is no pipeline for a model that can {method}; POST /predict")
        return await self._reply(
            request,
            PIPELINE_REQUESTS[method],
            lambda asked, answers: as_pipeline(method, answers[0], labels, asked.parameters.top_k),
        )

    async def _reply(
        self, request: Request, schema: type[Asked], shape: Callable[[Any, list[Any]], Any]
    ) -> Response:
        """Read what is asked, have it answered, and bring the answers into shape."""
        try:
            asked = schema.model_validate_json(await self._body(request))
            if (count := sum(row.count for row in asked.rows)) > self._limits.max_texts:
                most = self._limits.max_texts
                raise HTTPException(413, f"inputs: {count} texts; send at most {most} at a time")
            records = [Record(f"inputs.{number}", {}, row.texts) for number, row in enumerate(asked.rows)]
            answers = await _while_connected(request, self._batcher.ask(asked.kind, records))
            return JSONResponse(shape(asked, answers))
        except asyncio.CancelledError:  # by a server that stops and has waited long enough
            return _stopping()
        except Exception as error:
            return self._failure(request, error)

    async def _body(self, request: Request) -> bytes:
        body = bytearray()
        async for part in request.stream():  # what comes in chunks does not say before how long it is
            body += part
            if len(body) > self._limits.max_body:
                raise HTTPException(413, f"more than {self._limits.max_body:,} bytes")
        return bytes(body)

    def _compute(self, kind: Predict | Embed, records: Sequence[Record]) -> list[Any]:
        match kind:
            case Predict(top_k):
                return ask(self._model, records, top_k)
            case Embed(pooling, normalize):
                texts = [record.texts[0] for record in records]
                vectors: list[list[float]] = self._model.embed(texts, pooling, normalize).tolist()
                return vectors

    def _failure(self, request: Request, error: Exception) -> Response:
        """The response where a request could not be answered. Of its texts nothing is logged."""
        match error:
            case ValidationError():
                first = error.errors()[0]
                key = ".".join(map(str, first["loc"]))
                message = f"{key}: {first['msg']}" if key else first["msg"]
                return _error(400 if first["type"] == "json_invalid" else 422, message)
            case BertieError():  # of the model's path, its name is enough
                return _error(422, str(error).replace(str(self._model.path), self._model.path.name))
            case HTTPException():
                return _error(error.status_code, error.detail)
            case asyncio.QueueFull():
                return _error(429, "too much waits already; try again", {"Retry-After": "1"})
            case ClientDisconnect():
                return Response(status_code=499)  # nobody reads it; the number is nginx's
        # Not its message, which may quote a text.
        frames = "".join(traceback.format_tb(error.__traceback__))
        logger.error("%s: %s at\n%s", request.url.path, type(error).__name__, frames)
        return _error(500, "this could not be computed; the server's log says where it failed")


async def _while_connected(request: Request, answering: Coroutine[Any, Any, list[Any]]) -> list[Any]:
    """What is awaited; cancelled where the client goes away before, which raises ClientDisconnect."""
    answer = asyncio.ensure_future(answering)
    gone = asyncio.ensure_future(request.receive())  # behind the body nothing else is received
    try:
        await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise ClientDisconnect
        return answer.result()
    finally:
        answer.cancel()
        gone.cancel()


def _error(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """One line, as Text Embeddings Inference has it."""
    content = {"error": message, "error_type": ERROR_TYPES.get(status, "Validation")}
    return JSONResponse(content, status, headers)


def _stopping() -> Response:
    return _error(503, "this server is shutting down")


def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _error(error.status_code, f"{request.method} {request.url.path}: {error.detail}", error.headers)
