"""The HTTP application that serves a model, in PyTorch or ONNX Runtime."""

import asyncio
import logging
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

import bertie
from bertie.base.errors import BertieError
from bertie.inference.dispatch import answer_records
from bertie.inference.predictor import Predictor
from bertie.inference.records import Record
from bertie.inference.results import Method
from bertie.inference.server.batching import Batcher, TakingTurns, Turns, count_tokens
from bertie.inference.server.metrics import Metrics
from bertie.inference.server.middleware import OPEN, Access, Limits, middlewares
from bertie.inference.server.pipelines import as_pipeline
from bertie.inference.server.schemas import (
    PIPELINE_REQUESTS,
    PREDICT_REQUESTS,
    AnyRequest,
    Embed,
    EmbedRequest,
    Predict,
)
from bertie.inference.writers import as_json

logger = logging.getLogger(__name__)

PAGE = Path(__file__).parent / "page.html"

# The names that Text Embeddings Inference uses; every other error is "Validation".
ERROR_TYPES = {429: "Overloaded", 500: "Backend", 503: "Unhealthy"}
# Methods that /info reports under another name than the `Predictor`'s, which clients rely on.
METHOD_NAMES: dict[Method | None, str] = {"regress": "rate"}


def create_app(model: Predictor, limits: Limits, access: Access = OPEN) -> Starlette:
    """Create the application that serves a model.

    Set `state.stopping` of the application before shutting it down: /health then returns 503.
    """
    metrics = Metrics()
    service = Service(model, limits, metrics)
    app = Starlette(
        routes=[
            Route("/health", service.health),
            Route("/metrics", metrics.endpoint),
            Route("/info", service.info),
            Route("/predict", service.predict, methods=["POST"]),
            Route("/embed", service.embed, methods=["POST"]),
            Route("/", service.pipeline, methods=["POST"]),
            Route("/", service.page, methods=["GET"]),
        ],
        exception_handlers={HTTPException: _http_error},
        middleware=middlewares(access, limits, metrics),
        lifespan=service.lifespan,
    )
    app.state.stopping = False
    return app


class Service:
    """The endpoints of the application, for one model."""

    def __init__(self, model: Predictor, limits: Limits, metrics: Metrics) -> None:
        self._model = model
        self._engine = type(model.engine).__name__
        self._limits = limits
        model.engine = TakingTurns(model.engine, Turns())
        counting = partial(count_tokens, model.tokenizer)
        self._batcher = Batcher(self._compute, counting, limits, metrics, model.path.name)

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """Run the batcher while the application runs."""
        running = asyncio.create_task(self._batcher.run())
        yield
        running.cancel()

    async def health(self, request: Request) -> Response:
        """Return 200 while the server accepts requests."""
        if request.app.state.stopping:
            return _stopping()
        return JSONResponse({"status": "ok"})

    async def page(self, request: Request) -> Response:
        """Return the page on which people try the model; it calls the other routes."""
        return FileResponse(PAGE, media_type="text/html")

    async def info(self, request: Request) -> Response:
        """Describe the model and the limits."""
        return JSONResponse(
            {
                "model": self._model.path.name,
                "architecture": self._model.engine.architecture,
                "method": METHOD_NAMES.get(self._model.method, self._model.method),
                "labels": self._model.labels,
                "decision_thresholds": self._model.decision_thresholds,
                "max_seq_length": self._model.max_seq_length,
                "long_texts": self._model.long_texts.method,
                "num_truncated": self._model.num_truncated,
                "embedding": self._model.embedding._asdict(),
                "engine": self._engine,
                "limits": self._limits._asdict(),
                "version": bertie.__version__,
            }
        )

    async def predict(self, request: Request) -> Response:
        """Return for each row what `bertie predict --json` prints under `prediction`."""
        method = self._model.method
        if method is None:
            return _error(422, "this model is an encoder without a head; send texts to POST /embed")
        return await self._respond(
            request, PREDICT_REQUESTS[method], lambda _, results: {"predictions": as_json(results)}
        )

    async def embed(self, request: Request) -> Response:
        """Return a vector for each text."""
        return await self._respond(request, EmbedRequest, lambda _, vectors: vectors)

    async def pipeline(self, request: Request) -> Response:
        """Answer as `transformers`' pipeline for the head; an encoder extracts features."""
        method, labels = self._model.method, self._model.labels
        if method is None:
            return await self.embed(request)
        if method not in PIPELINE_REQUESTS:
            return _error(422, f"there is no pipeline for the method {method}; send rows to POST /predict")
        return await self._respond(
            request,
            PIPELINE_REQUESTS[method],
            lambda parsed, results: as_pipeline(method, results[0], labels, parsed.parameters.top_k),
        )

    async def _respond(
        self, request: Request, schema: type[AnyRequest], format: Callable[[Any, list[Any]], Any]
    ) -> Response:
        """Parse a request, compute its rows, and format the results."""
        request.state.model = self._model.path.name
        try:
            parsed = schema.model_validate_json(await request.body())
            count = sum(row.text_count for row in parsed.rows)
            if count > self._limits.max_texts:
                most = self._limits.max_texts
                raise HTTPException(413, f"inputs: {count} texts; send at most {most} in a request")
            records = [Record(f"inputs.{i}", {}, row.texts) for i, row in enumerate(parsed.rows)]
            submitted = self._batcher.submit(parsed.operation, records)
            results = await _cancel_on_disconnect(request, submitted)
            return JSONResponse(format(parsed, results))
        except asyncio.CancelledError:  # shutting down, and the time to finish requests is over
            return _stopping()
        except Exception as error:
            return self._failure(request, error)

    def _compute(self, operation: Predict | Embed, records: Sequence[Record]) -> list[Any]:
        match operation:
            case Predict(top_k):
                return answer_records(self._model, records, top_k)
            case Embed(pooling, normalize):
                texts = [record.texts[0] for record in records]
                vectors: list[list[float]] = self._model.embed(texts, pooling, normalize).tolist()
                return vectors

    def _failure(self, request: Request, error: Exception) -> Response:
        """Return the response for an error. Texts of the request are never logged."""
        match error:
            case ValidationError():
                first = error.errors()[0]
                key = ".".join(map(str, first["loc"]))
                message = f"{key}: {first['msg']}" if key else first["msg"]
                return _error(400 if first["type"] == "json_invalid" else 422, message)
            case BertieError():  # clients see the name of the model directory, not its path
                return _error(422, str(error).replace(str(self._model.path), self._model.path.name))
            case HTTPException():
                return _error(error.status_code, error.detail)
            case asyncio.QueueFull():
                return _error(429, "queue full; retry later", {"Retry-After": "1"})
            case TimeoutError():
                seconds = self._limits.request_seconds
                message = f"not computed within {seconds:g} seconds; retry later"
                return _error(503, message, {"Retry-After": "1"})
            case ClientDisconnect():
                return Response(status_code=499)  # nobody reads it; nginx uses this status
        # Without the exception's message, which may quote a text.
        frames = "".join(traceback.format_tb(error.__traceback__))
        logger.error("%s: %s at\n%s", request.url.path, type(error).__name__, frames)
        return _error(500, "the model failed on this request; see the server's log")


async def _cancel_on_disconnect(request: Request, computing: Coroutine[Any, Any, list[Any]]) -> list[Any]:
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


def _error(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return an error in the format of Text Embeddings Inference."""
    content = {"error": message, "error_type": ERROR_TYPES.get(status, "Validation")}
    return JSONResponse(content, status, headers)


def _stopping() -> Response:
    return _error(503, "the server is shutting down")


def _http_error(request: Request, error: Exception) -> Response:
    """Return the response for an unknown path or method."""
    assert isinstance(error, HTTPException)
    return _error(error.status_code, f"{request.method} {request.url.path}: {error.detail}", error.headers)
