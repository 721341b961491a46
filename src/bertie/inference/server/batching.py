"""Batch the records of concurrent requests: one queue, one computing thread.

The records that arrive while a batch is computed form the next batch. An idle server therefore
answers at once, a busy server answers in batches, and there is no waiting time to configure.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from bertie.inference.records import Record

# Characters taken from the queue at a time: about the 16,384 tokens that Text Embeddings Inference
# takes (max-batch-tokens).
MAX_BATCH_CHARACTERS = 65_536

Compute = Callable[[Any, Sequence[Record]], list[Any]]


class QueuedRecord(NamedTuple):
    """A record in the queue, and the future of its result.

    Attributes:
        operation: what to compute; records of equal operations can be computed together.
        record: the record.
        result: receives the result, or the exception.
    """

    operation: Hashable
    record: Record
    result: asyncio.Future[Any]

    @property
    def size(self) -> int:
        """The number of characters in the record's texts."""
        return sum(len(text) if isinstance(text, str) else sum(map(len, text)) for text in self.record.texts)

    @property
    def group(self) -> tuple[Hashable, int]:
        """Key of the records that can be computed together; texts and pairs differ in it."""
        return self.operation, len(self.record.texts)


class Batcher:
    """A queue that computes the records of several requests together.

    Args:
        compute: takes an operation and records, returns a result for each record.
        max_waiting: number of waiting characters at which new requests are rejected.
    """

    def __init__(self, compute: Compute, max_waiting: int) -> None:
        self._compute = compute
        self._max_waiting = max_waiting
        self._queue: asyncio.Queue[QueuedRecord] = asyncio.Queue()
        self._waiting = 0  # characters

    async def submit(self, operation: Hashable, records: Sequence[Record]) -> list[Any]:
        """Return the results for the records of one request.

        If the caller is cancelled, records still in the queue are not computed.

        Raises:
            asyncio.QueueFull: too many characters are waiting.
            Exception: the exception that `compute` raises for one of the records.
        """
        if self._waiting >= self._max_waiting:
            raise asyncio.QueueFull
        loop = asyncio.get_running_loop()
        queued = [QueuedRecord(operation, record, loop.create_future()) for record in records]
        for item in queued:
            self._waiting += item.size
            self._queue.put_nowait(item)
        return await asyncio.gather(*(item.result for item in queued))

    async def run(self) -> None:
        """Compute queued records until cancelled."""
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(max_workers=1) as thread:
            while True:
                groups = defaultdict(list)
                for item in await self._next_batch():
                    groups[item.group].append(item)
                for (operation, _), group in groups.items():
                    records = [item.record for item in group]
                    results = await loop.run_in_executor(thread, self._compute_each, operation, records)
                    for item, result in zip(group, results, strict=True):
                        _deliver(item.result, result)

    async def _next_batch(self) -> list[QueuedRecord]:
        """Wait for a record; return a batch of queued records without the cancelled ones."""
        batch, size = [await self._queue.get()], 0
        while (size := size + batch[-1].size) < MAX_BATCH_CHARACTERS and not self._queue.empty():
            batch.append(self._queue.get_nowait())
        self._waiting -= size
        return [item for item in batch if not item.result.cancelled()]

    def _compute_each(self, operation: Hashable, records: Sequence[Record]) -> list[Any]:
        """Return the result, or the exception, of each record.

        Bisect a failing batch so that only the offending record fails, and the others are still
        computed in few batches.
        """
        try:
            return self._compute(operation, records)
        except Exception as error:
            if len(records) == 1:
                return [error]
        half = len(records) // 2
        return self._compute_each(operation, records[:half]) + self._compute_each(operation, records[half:])


def _deliver(future: asyncio.Future[Any], result: Any) -> None:
    if future.cancelled():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
