"""Batch the records of concurrent requests, and let short requests pass long ones.

Each model has a queue with two lanes: one for short requests, and one for requests that fill more
than one batch of the engine, such as a long text for a tagger. Each lane computes in its own thread.
The requests that arrive while a lane computes form its next batches. An idle server therefore answers
at once, a busy server answers in batches, and there is no waiting time to configure. A batch has half of
the requests that wait or were just answered: the event loop reads and answers the other half meanwhile.

The threads take turns at the engine, batch by batch of `Engine.max_batch_tokens`. A short request
waits for at most one such batch of a long request, however long that request is.
"""

import asyncio
import math
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from itertools import pairwise
from threading import Lock
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

from bertie.base.arrays import Float32s, Int64s
from bertie.inference.records import Record
from bertie.inference.server.metrics import Metrics, RequestCosts, request_costs
from bertie.inference.server.middleware import Limits
from bertie.model.engines.engine import Engine
from bertie.model.sequences import Sequences
from bertie.text.tokenizer import Tokenizer

MAX_BATCH_TOKENS = 16_384  # max-batch-tokens of Text Embeddings Inference
LONG_REQUEST_TOKENS = 2_048  # the largest batch of an engine on a CPU: Hardware.inference_batch_tokens
FEW_CHARACTERS = 4_096  # tokenized in 0.2 ms; waking up a thread on a busy machine takes longer
REQUEST_THREADS = 2
# For `max_waiting`: this number of characters is tokenized in 4 µs, and its tokens take up to 2.4 kB, so the
# default limit of 250,000 tokens bounds the memory to 600 MB.
CHARACTERS_PER_TOKEN = 128

Compute = Callable[[Any, Sequence[Record]], list[Any]]
CountTokens = Callable[[Sequence[Record]], list[int]]
R = TypeVar("R")


def count_tokens(tokenizer: Tokenizer, records: Sequence[Record]) -> list[int]:
    """Return the number of tokens of each record, before truncation.

    A text may also be a list of texts.
    """
    texts: list[str] = []
    bounds = [0]
    for record in records:
        for text in record.texts:
            texts += [text] if isinstance(text, str) else text
        bounds.append(len(texts))
    tokens = tokenizer.encode_batch(texts).bounds[bounds].tolist()
    return [end - start for start, end in pairwise(tokens)]


class RequestThreads:
    """Threads that parse and tokenize large requests.

    Meanwhile the event loop answers others. There are few threads, because each request in a thread takes
    memory, and because the threads take the interpreter lock from the event loop. asyncio's own threads
    remain free to load models.

    Args:
        max_waiting: see `Limits`; `max_characters` is the same limit in characters.
    """

    def __init__(self, max_waiting: int) -> None:
        self.max_characters = max_waiting * CHARACTERS_PER_TOKEN
        self._waiting = 0  # characters
        self._threads = ThreadPoolExecutor(REQUEST_THREADS, thread_name_prefix="requests")
        self._idle = asyncio.Semaphore(REQUEST_THREADS)

    async def run(
        self, size: int, function: Callable[..., R], *arguments: Any, few: int = FEW_CHARACTERS
    ) -> R:
        """Call a function on `size` characters of a request.

        More than `few` characters are processed in a thread. If the caller is cancelled before a thread is
        idle, the function is not called.

        Raises:
            asyncio.QueueFull: too many characters are waiting.
        """
        if size <= few:
            return function(*arguments)
        if self._waiting >= self.max_characters:
            raise asyncio.QueueFull
        self._waiting += size
        try:
            await self._idle.acquire()
        finally:
            self._waiting -= size
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)
        finally:
            self._idle.release()


async def run_tokenizer(
    threads: RequestThreads, texts: Sequence[Any], function: Callable[..., R], *arguments: Any
) -> R:
    """Call a function that tokenizes texts.

    Call it in a thread if tokenizing takes longer than waking up a thread. The items of `texts` are texts,
    lists of texts, or token ids, which need no tokenizing. The characters and the time are added to the costs
    of the request.

    Raises:
        asyncio.QueueFull: too many characters are waiting.
    """
    characters, begin = sum(map(_count_characters, texts)), perf_counter()
    result = await threads.run(characters + count_ids(texts), function, *arguments)
    if costs := request_costs.get():
        costs.characters += characters
        costs.tokenization += perf_counter() - begin
    return result


class Turns:
    """A lock that threads get in the order in which they ask for it.

    A thread that releases a `threading.Lock` and wants it again at once nearly always wins, so that
    a long request would keep it.
    """

    def __init__(self) -> None:
        self._mutex = Lock()
        self._is_taken = False
        self._waiting: deque[Lock] = deque()

    def __enter__(self) -> None:
        with self._mutex:
            if not self._is_taken:
                self._is_taken = True
                return
            turn = Lock()
            turn.acquire()
            self._waiting.append(turn)
        turn.acquire()  # until `__exit__` of the thread before

    def __exit__(self, *_: object) -> None:
        with self._mutex:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._is_taken = False


class AbandonedError(Exception):
    """Raised inside a computation when nobody waits for its results any more."""


is_abandoned: ContextVar[Callable[[], bool]] = ContextVar("is_abandoned", default=lambda: False)


class TakingTurns:
    """An `Engine` that several threads use in turn.

    Between two batches, a computation stops with AbandonedError if nobody waits for its results.

    Attributes:
        engine: computes the batches.
    """

    def __init__(self, engine: Engine, turns: Turns) -> None:
        self.engine = engine
        self._turns = turns

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def _next_turn(self) -> Turns:
        if is_abandoned.get()():
            raise AbandonedError
        return self._turns

    def logits(self, batch: Sequences) -> Float32s:
        """See `Engine`."""
        with self._next_turn():
            return self.engine.logits(batch)

    def masked_lm_logits(self, batch: Sequences, masked_positions: Int64s) -> Float32s:
        """See `Engine`."""
        with self._next_turn():
            return self.engine.masked_lm_logits(batch, masked_positions)

    def hidden_states(self, batch: Sequences, layers: Sequence[int]) -> list[Float32s]:
        """See `Engine`."""
        with self._next_turn():
            return self.engine.hidden_states(batch, layers)

    def cls_vectors(self, batch: Sequences) -> Float32s:
        """See `Engine`."""
        with self._next_turn():
            return self.engine.cls_vectors(batch)

    def attention_probabilities(self, sequence: Sequences) -> Float32s:
        """See `Engine`."""
        with self._next_turn():
            return self.engine.attention_probabilities(sequence)


class QueuedRecord(NamedTuple):
    """A record in the queue.

    Attributes:
        operation: records of equal operations can be computed together.
        record: the record.
        tokens: number of the record's tokens.
        queued_at: time in seconds, of `perf_counter`.
        costs: the costs of the record's request.
    """

    operation: Hashable
    record: Record
    tokens: int
    queued_at: float
    costs: RequestCosts

    @property
    def group(self) -> tuple[Hashable, tuple[type, ...]]:
        """Key of the records that can be computed together; texts, pairs and lists of words differ in it."""
        return self.operation, tuple(map(type, self.record.texts))


class Batcher:
    """A queue that computes the records of several requests of one model together.

    Args:
        compute: takes an operation and records, returns a result for each record.
        count_tokens: returns the number of tokens of each record.
        limits: `max_waiting` applies here.
        threads: for long texts.
        metrics: of the server.
        model: the name of the model, for the metrics.

    `compute` and `metrics` are attributes.
    """

    def __init__(
        self,
        compute: Compute,
        count_tokens: CountTokens,
        limits: Limits,
        threads: RequestThreads,
        metrics: Metrics,
        model: str,
    ) -> None:
        self.compute = compute
        self._count_tokens = count_tokens
        self._limits = limits
        self._threads = threads
        self.metrics = metrics
        self._model = model
        # The futures of the results of each request, and the records of results that somebody waits for.
        self._short: asyncio.Queue[list[asyncio.Future[Any]]] = asyncio.Queue()
        self._long: asyncio.Queue[list[asyncio.Future[Any]]] = asyncio.Queue()
        self._queued: dict[asyncio.Future[Any], QueuedRecord] = {}
        self._waiting = 0  # the sum of their tokens

    async def submit(self, operation: Hashable, records: Sequence[Record]) -> list[Any]:
        """Return the results for the records of one request.

        If the caller is cancelled, records still in the queue are not computed.

        Raises:
            asyncio.QueueFull: too many tokens are waiting.
            Exception: the exception that `compute` raises for one of the records.
        """
        self._refuse_if_full()
        texts = [text for record in records for text in record.texts]
        counts = await run_tokenizer(self._threads, texts, self._count_tokens, records)
        self._refuse_if_full()  # other requests may have come while a thread counted the tokens
        queued_at = perf_counter()
        costs = request_costs.get() or RequestCosts()
        costs.inputs += len(records)
        costs.tokens += sum(counts)
        self.metrics.tokenization.labels(self._model).observe(costs.tokenization)
        input_length = self.metrics.input_length.labels(self._model)
        for count in counts:
            input_length.observe(count)
        lane = self._short if sum(counts) <= LONG_REQUEST_TOKENS else self._long
        loop = asyncio.get_running_loop()
        results = []
        for record, tokens in zip(records, counts, strict=True):
            result: asyncio.Future[Any] = loop.create_future()
            result.add_done_callback(self._take)
            self._queued[result] = QueuedRecord(operation, record, tokens, queued_at, costs)
            self._waiting += tokens
            results.append(result)
        if results:
            lane.put_nowait(results)
        self.metrics.queue_size.labels(self._model).inc(len(records))
        return await asyncio.gather(*results)

    def _refuse_if_full(self) -> None:
        if self._waiting >= self._limits.max_waiting:
            raise asyncio.QueueFull

    async def run(self) -> None:
        """Compute queued records until cancelled."""
        async with asyncio.TaskGroup() as lanes:
            lanes.create_task(self._run_lane(self._short))
            lanes.create_task(self._run_lane(self._long))

    async def _run_lane(self, lane: asyncio.Queue[list[asyncio.Future[Any]]]) -> None:
        loop = asyncio.get_running_loop()
        thread = ThreadPoolExecutor(max_workers=1)
        answered = 0  # requests of the last batch
        try:
            while True:
                groups = defaultdict(list)
                batch, answered = await self._next_batch(lane, answered)
                for result, item in batch:
                    groups[item.group].append((result, item))
                for (operation, _), group in groups.items():
                    futures, items = zip(*group, strict=True)
                    begin = perf_counter()
                    results = await loop.run_in_executor(
                        thread, self._compute_wanted, operation, [item.record for item in items], futures
                    )
                    seconds = perf_counter() - begin
                    # Later: if requests wait, the thread gets the next batch first.
                    loop.call_soon(self._answer, futures, items, results, begin, seconds)
        finally:  # without waiting for the thread, which would hold up the event loop
            thread.shutdown(wait=False)

    async def _next_batch(
        self, lane: asyncio.Queue[list[asyncio.Future[Any]]], answered: int
    ) -> tuple[list[tuple[asyncio.Future[Any], QueuedRecord]], int]:
        """Return the records of the next batch, and the number of its requests.

        Wait until there is a request that somebody waits for. The last batch had `answered` requests, whose
        clients may send others while this batch is computed, so batches become equal. If a batch took all
        requests that wait, 32 clients would be answered in batches of 31 and 1 in turn, and the computing
        thread would have too little to do while 31 are answered (docs/decisions/serving.md).
        """
        batch: list[tuple[asyncio.Future[Any], QueuedRecord]] = []
        requests, tokens, half = 0, 0, 0
        while not batch or (requests < half and tokens < MAX_BATCH_TOKENS and not lane.empty()):
            results = await lane.get()
            half = half or math.ceil((1 + lane.qsize() + answered) / 2)
            items = [(result, item) for result in results if (item := self._take(result))]
            batch += items
            requests += bool(items)
            tokens += sum(item.tokens for _, item in items)
        return batch, requests

    def _take(self, result: asyncio.Future[Any]) -> QueuedRecord | None:
        """Take a record from the queue.

        It will be computed, or nobody awaits its result any more.
        """
        item = self._queued.pop(result, None)
        if item:
            self._waiting -= item.tokens
            self.metrics.queue_size.labels(self._model).dec()
        return item

    def _answer(
        self,
        futures: Sequence[asyncio.Future[Any]],
        items: Sequence[QueuedRecord],
        results: Sequence[Any],
        begin: float,
        seconds: float,
    ) -> None:
        """Deliver the results of a batch, which were computed from `begin` for `seconds`."""
        for queued_at in {item.queued_at for item in items}:  # one for each request
            self.metrics.queue.labels(self._model).observe(begin - queued_at)
            self.metrics.inference.labels(self._model).observe(seconds)
        for item in items:
            item.costs.queue += (begin - item.queued_at) / item.costs.inputs
            item.costs.inference += seconds / item.costs.inputs
        self.metrics.batch_size.labels(self._model).observe(len(items))
        self.metrics.batch_tokens.labels(self._model).observe(sum(item.tokens for item in items))
        for future, result in zip(futures, results, strict=True):
            _deliver(future, result)

    def _compute_wanted(
        self, operation: Hashable, records: Sequence[Record], futures: Sequence[asyncio.Future[Any]]
    ) -> list[Any]:
        """Return the result, or the exception, of each record.

        Stop when all of them are cancelled.
        """
        token = is_abandoned.set(lambda: all(future.cancelled() for future in futures))
        try:
            return self._compute_each(operation, records)
        finally:
            is_abandoned.reset(token)

    def _compute_each(self, operation: Hashable, records: Sequence[Record]) -> list[Any]:
        """Return the result, or the exception, of each record.

        Bisect a failing batch so that only the offending record fails, and the others are still
        computed in few batches.
        """
        try:
            return self.compute(operation, records)
        except Exception as error:
            if len(records) == 1 or isinstance(error, AbandonedError):
                return [error] * len(records)
        half = len(records) // 2
        return self._compute_each(operation, records[:half]) + self._compute_each(operation, records[half:])


def count_ids(items: Iterable[Any]) -> int:
    """Return the number of token ids among the inputs of a request."""
    return sum(len(item) for item in items if _is_token_ids(item))


def _is_token_ids(item: Any) -> bool:
    return isinstance(item, list) and bool(item) and isinstance(item[0], int)


def _count_characters(text: Any) -> int:
    """Return the number of characters to tokenize; 0 for token ids."""
    if isinstance(text, str):
        return len(text)
    if _is_token_ids(text):
        return 0
    return sum(len(item) for item in text if isinstance(item, str))


def _deliver(future: asyncio.Future[Any], result: Any) -> None:
    if future.cancelled():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
