"""One queue, and one thread that computes: what waits while it computes is asked together next.

So a server at rest answers at once and a busy one in batches, and no waiting time is to be set.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from bertie.inference.records import Record

# Characters that are computed before the queue is looked at again: about the 16,384 word pieces that Text
# Embeddings Inference takes at a time (max-batch-tokens).
TURN = 65_536

Compute = Callable[[Any, Sequence[Record]], list[Any]]


class Waiting(NamedTuple):
    """A record in the queue."""

    kind: Hashable
    record: Record
    answer: asyncio.Future[Any]

    @property
    def size(self) -> int:
        """Its characters."""
        return sum(len(text) if isinstance(text, str) else sum(map(len, text)) for text in self.record.texts)

    @property
    def group(self) -> tuple[Hashable, int]:
        """Those of equal groups can be asked together: a batch has pairs, or it has none."""
        return self.kind, len(self.record.texts)


class Batcher:
    """Answers records, those of several requests together.

    Args:
        compute: a kind of request and records -> an answer for each record.
        max_waiting: where so many characters wait, nothing more is taken.
    """

    def __init__(self, compute: Compute, max_waiting: int) -> None:
        self._compute = compute
        self._max_waiting = max_waiting
        self._queue: asyncio.Queue[Waiting] = asyncio.Queue()
        self._waiting = 0  # characters

    async def ask(self, kind: Hashable, records: Sequence[Record]) -> list[Any]:
        """The answers to the records of one request. Cancelled, what has not begun is not computed.

        Raises:
            asyncio.QueueFull: too much waits already.
            Exception: what `compute` raises for one of the records.
        """
        if self._waiting >= self._max_waiting:
            raise asyncio.QueueFull
        loop = asyncio.get_running_loop()
        asked = [Waiting(kind, record, loop.create_future()) for record in records]
        for waiting in asked:
            self._waiting += waiting.size
            self._queue.put_nowait(waiting)
        return await asyncio.gather(*(waiting.answer for waiting in asked))

    async def run(self) -> None:
        """Compute what waits, for ever."""
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(max_workers=1) as thread:
            while True:
                groups = defaultdict(list)
                for waiting in await self._turn():
                    groups[waiting.group].append(waiting)
                for (kind, _), group in groups.items():
                    records = [waiting.record for waiting in group]
                    answers = await loop.run_in_executor(thread, self._answer, kind, records)
                    for waiting, answer in zip(group, answers, strict=True):
                        if waiting.answer.cancelled():
                            continue
                        if isinstance(answer, Exception):
                            waiting.answer.set_exception(answer)
                        else:
                            waiting.answer.set_result(answer)

    async def _turn(self) -> list[Waiting]:
        """The first that waits, and what waits behind it, less those whose client has gone."""
        turn, size = [await self._queue.get()], 0
        while (size := size + turn[-1].size) < TURN and not self._queue.empty():
            turn.append(self._queue.get_nowait())
        self._waiting -= size
        return [waiting for waiting in turn if not waiting.answer.cancelled()]

    def _answer(self, kind: Hashable, records: Sequence[Record]) -> list[Any]:
        """An answer for each record, or the exception that it causes.

        Where a batch fails, its halves are tried: who fails, fails alone, and the others are still computed
        together.
        """
        try:
            return self._compute(kind, records)
        except Exception as error:
            if len(records) == 1:
                return [error]
        half = len(records) // 2
        return self._answer(kind, records[:half]) + self._answer(kind, records[half:])
