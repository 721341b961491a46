"""Prometheus metrics, with the names that Text Embeddings Inference gives them.

Dashboards for Text Embeddings Inference work here. Every metric has a label `model` in addition. The metric
of the loading of models is bertie's own.
"""

import re
from contextvars import ContextVar
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Gauge, Histogram, ProcessCollector, generate_latest
from starlette.requests import Request
from starlette.responses import Response

# Buckets of Text Embeddings Inference (router/src/prometheus.rs); durations in seconds up to 165.
DURATIONS = [0.00001 * 1.5**i for i in range(1, 42)]
SIZES = [2.0**i for i in range(13)]
TOKENS = [2.0**i for i in range(21)]
LENGTHS = [2.0**i for i in range(20)]  # there up to the model's maximum; models share the buckets here

OPERATIONS = ("embed", "predict", "rerank")  # also counted under separate names
PARTS = ("tokenization", "queue", "inference")  # of the time that an operation takes, as in `RequestCosts`
# The label `err` by status; every other error is "validation".
ERRORS = {424: "backend", 429: "overloaded", 499: "cancelled", 500: "backend", 503: "unhealthy"}

COUNTER = re.compile(rb"^(# TYPE te_\w+_(?:count|success|failure)) gauge$", re.MULTILINE)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass
class RequestCosts:
    """The size of a request, and how long its parts took.

    Attributes:
        characters: characters of its texts, with prompts.
        tokens: tokens of its inputs, with special tokens.
        inputs: number of its inputs; 0 if no model computed them.
        tokenization: seconds to tokenize its texts.
        queue: seconds that an input waited for its computation; the mean over the inputs.
        inference: seconds that the batch of an input was computed; the mean over the inputs.
    """

    characters: int = 0
    tokens: int = 0
    inputs: int = 0
    tokenization: float = 0.0
    queue: float = 0.0
    inference: float = 0.0

    def headers(self, seconds: float) -> dict[str, str]:
        """Return the headers of Text Embeddings Inference, with times in ms.

        There are none if no model computed the request.

        Args:
            seconds: the time since the request arrived.
        """
        if not self.inputs:
            return {}
        times = {
            "compute": seconds,
            "total": seconds,
            "tokenization": self.tokenization,
            "queue": self.queue,
            "inference": self.inference,
        }
        return {
            "x-compute-characters": str(self.characters),
            "x-compute-tokens": str(self.tokens),
            **{f"x-{name}-time": str(int(1000 * value)) for name, value in times.items()},
        }


# Headers of `RequestCosts`, for browsers.
COST_HEADERS = tuple(RequestCosts(inputs=1).headers(0))

# The costs of the request that is answered; its tasks share the object. A request that has none is not timed.
request_costs: ContextVar[RequestCosts | None] = ContextVar("request_costs", default=None)


class Metrics:
    """The metrics of one server; the route /metrics is `endpoint`.

    Attributes:
        registry: of prometheus-client; holds all metrics.
        loading: seconds to load a model on first use, or again.
        input_length: number of tokens of an input.
        tokenization: seconds to tokenize a request.
        queue: seconds that a request waits for its computation to begin.
        inference: seconds that the batch of a request is computed.
        queue_size: number of inputs in the queue.
        batch_size: number of inputs in a batch.
        batch_tokens: number of tokens in a batch.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)  # resident memory, processor time, open files
        self._count = self._counter("te_request_count", "Requests", "method")
        self._success = self._counter("te_request_success", "Requests answered with a result", "method")
        self._failure = self._counter("te_request_failure", "Requests answered with an error", "err")
        self._duration = self._histogram("te_request_duration", "Seconds from request to response")
        self.loading = self._histogram("bertie_model_load_duration", "Seconds to load a model")
        self.tokenization = self._histogram(
            "te_request_tokenization_duration", "Seconds to tokenize a request"
        )
        self.input_length = self._histogram("te_request_input_length", "Tokens of an input", LENGTHS)
        self.queue = self._histogram("te_request_queue_duration", "Seconds that a request waits")
        self.inference = self._histogram(
            "te_request_inference_duration", "Seconds that the batch of a request is computed"
        )
        self.queue_size = Gauge("te_queue_size", "Inputs in the queue", ["model"], registry=self.registry)
        self.batch_size = self._histogram("te_batch_next_size", "Inputs in a batch", SIZES)
        self.batch_tokens = self._histogram("te_batch_next_tokens", "Tokens in a batch", TOKENS)
        self._operations = {
            name: (
                self._counter(f"te_{name}_count", f"Requests to {name}"),
                self._counter(f"te_{name}_success", f"Requests to {name} answered with a result"),
                self._histogram(f"te_{name}_duration", f"Seconds from request to response, to {name}"),
                tuple(
                    self._histogram(f"te_{name}_{part}_duration", f"Seconds of {part} of requests to {name}")
                    for part in PARTS
                ),
            )
            for name in OPERATIONS
        }

    def _histogram(self, name: str, text: str, buckets: list[float] = DURATIONS) -> Histogram:
        return Histogram(name, text, ["model"], buckets=buckets, registry=self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Gauge:
        # A `Counter` of prometheus-client adds _total to its name, which no dashboard for TEI asks for.
        # `endpoint` writes the type.
        return Gauge(name, text, ["model", *labels], registry=self.registry)

    def observe(
        self, operation: str, model: str, status: int, seconds: float, costs: RequestCosts | None
    ) -> None:
        """Count a request.

        Args:
            operation: the name of the route, such as `embed`.
            model: the name of the model; empty if the request chose none.
            status: the HTTP status of the response.
            seconds: the time from the request to the response.
            costs: the costs of the request; None if it reached no route that computes.
        """
        self._count.labels(model, operation).inc()
        self._duration.labels(model).observe(seconds)
        if status < 400:
            self._success.labels(model, operation).inc()
        else:
            self._failure.labels(model, ERRORS.get(status, "validation")).inc()
        if operation in self._operations:
            count, success, duration, parts = self._operations[operation]
            count.labels(model).inc()
            success.labels(model).inc(status < 400)
            duration.labels(model).observe(seconds)
            if status < 400 and costs:
                for name, part in zip(PARTS, parts, strict=True):
                    part.labels(model).observe(getattr(costs, name))

    async def endpoint(self, request: Request) -> Response:
        """Return all metrics in the text format of Prometheus."""
        text = COUNTER.sub(rb"\1 counter", generate_latest(self.registry))
        return Response(text, media_type=CONTENT_TYPE)
