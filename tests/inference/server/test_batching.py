"""Waiting records form batches; failures and cancellations affect no others."""

import asyncio
from threading import Event

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertie.inference.records import Record
from bertie.inference.server import batching
from bertie.inference.server.batching import Batcher


def record(*texts):
    return Record("here", {}, texts)


class Model:
    """A model that returns texts in capitals, and records its batches.

    It sets `begun` and waits for `may_begin` before it computes. Texts that begin with "bad" fail.
    """

    def __init__(self):
        self.batches, self.begun, self.may_begin = [], Event(), Event()

    def compute(self, operation, records):
        self.begun.set()
        assert self.may_begin.wait(60)
        texts = [record.texts[0] for record in records]
        self.batches.append((operation, texts))
        if bad := [text for text in texts if text.startswith("bad")]:
            raise ValueError(bad[0])
        return [text.upper() for text in texts]


def run(scenario, max_waiting=1000):
    """Run `scenario(batcher, model)` while the batcher runs."""

    async def both():
        model = Model()
        batcher = Batcher(model.compute, max_waiting)
        running = asyncio.create_task(batcher.run())
        try:
            return await asyncio.wait_for(scenario(batcher, model), 60)
        finally:
            model.may_begin.set()
            running.cancel()

    return asyncio.run(both())


async def submit_all(batcher, model, requests):
    """Submit requests as tasks: the first is being computed while the others wait."""
    tasks = []
    for operation, *records in requests:
        tasks.append(asyncio.create_task(batcher.submit(operation, records)))
        await asyncio.sleep(0)
        if len(tasks) == 1:
            await asyncio.to_thread(model.begun.wait, 60)
    return tasks


def test_waiting_records_of_one_operation_form_a_batch():
    async def scenario(batcher, model):
        tasks = await submit_all(
            batcher,
            model,
            [
                ("a", record("one")),
                ("a", record("two"), record("three")),
                ("b", record("four")),
                ("a", record("five")),
                ("a", record("six", "a pair")),
                ("a",),
            ],
        )
        model.may_begin.set()
        results = [await task for task in tasks]
        assert results == [["ONE"], ["TWO", "THREE"], ["FOUR"], ["FIVE"], ["SIX"], []]
        assert model.batches == [
            ("a", ["one"]),
            ("a", ["two", "three", "five"]),
            ("b", ["four"]),
            ("a", ["six"]),
        ]

    run(scenario)


def test_the_size_of_a_batch_is_limited(monkeypatch):
    monkeypatch.setattr(batching, "MAX_BATCH_CHARACTERS", 10)

    async def scenario(batcher, model):
        tasks = await submit_all(
            batcher, model, [("a", record("one")), ("a", *(record("x" * 4) for _ in range(7)))]
        )
        model.may_begin.set()
        assert await tasks[1] == ["XXXX"] * 7
        assert [len(texts) for _, texts in model.batches] == [1, 3, 3, 1]

    run(scenario)


@given(st.lists(st.booleans(), min_size=1, max_size=20))
def test_only_the_offending_records_fail(bad):
    async def scenario(batcher, model):
        texts = [f"{'bad' if is_bad else 'good'} {number}" for number, is_bad in enumerate(bad)]
        tasks = await submit_all(batcher, model, [("a", record("one")), *(("a", record(t)) for t in texts)])
        model.may_begin.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for text, result in zip(texts, results[1:], strict=True):
            if text.startswith("bad"):
                assert isinstance(result, ValueError)
                assert str(result) == text
            else:
                assert result == [text.upper()]

    run(scenario)


def test_a_failing_batch_is_bisected():
    async def scenario(batcher, model):
        texts = [*(f"good {number}" for number in range(31)), "bad"]
        tasks = await submit_all(batcher, model, [("a", record("one")), *(("a", record(t)) for t in texts)])
        model.may_begin.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        succeeded = [len(batch) for _, batch in model.batches if "bad" not in batch]
        assert succeeded == [1, 16, 8, 4, 2, 1]

    run(scenario)


def test_cancelled_requests_are_not_computed():
    async def scenario(batcher, model):
        requests = [("a", record(text)) for text in ("one", "two", "three")]
        tasks = await submit_all(batcher, model, requests)
        tasks[0].cancel()
        tasks[1].cancel()
        model.may_begin.set()
        assert await tasks[2] == ["THREE"]
        assert model.batches == [("a", ["one"]), ("a", ["three"])]

    run(scenario)


def test_a_full_queue_rejects_requests_until_it_is_computed():
    async def scenario(batcher, model):
        requests = [("a", record("one")), ("a", record("b", ["12345678"]))]
        first, second = await submit_all(batcher, model, requests)
        third = asyncio.create_task(batcher.submit("a", [record("c")]))
        await asyncio.sleep(0)
        with pytest.raises(asyncio.QueueFull):
            await batcher.submit("a", [record("d")])
        model.may_begin.set()
        assert [await first, await second, await third] == [["ONE"], ["B"], ["C"]]
        assert await batcher.submit("a", [record("d")]) == ["D"]

    run(scenario, max_waiting=10)
