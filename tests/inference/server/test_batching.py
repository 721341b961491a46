"""What waits is asked together; who fails or goes away does so alone."""

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
    """Answers each text in capitals; keeps what it was asked, and begins when it is told to."""

    def __init__(self):
        self.batches, self.begun, self.may_begin = [], Event(), Event()

    def compute(self, kind, records):
        self.begun.set()
        assert self.may_begin.wait(60)
        texts = [record.texts[0] for record in records]
        self.batches.append((kind, texts))
        if bad := [text for text in texts if text.startswith("bad")]:
            raise ValueError(bad[0])
        return [text.upper() for text in texts]


def run(use, max_waiting=1000):
    """Run `use(batcher, model)` beside the batcher."""

    async def both():
        model = Model()
        batcher = Batcher(model.compute, max_waiting)
        running = asyncio.create_task(batcher.run())
        try:
            return await asyncio.wait_for(use(batcher, model), 60)
        finally:
            model.may_begin.set()
            running.cancel()

    return asyncio.run(both())


async def queued(batcher, model, requests):
    """Requests as tasks: the first is being computed, the others wait."""
    tasks = []
    for kind, *records in requests:
        tasks.append(asyncio.create_task(batcher.ask(kind, records)))
        await asyncio.sleep(0)
        if len(tasks) == 1:
            await asyncio.to_thread(model.begun.wait, 60)
    return tasks


def test_what_waits_is_asked_together():
    async def use(batcher, model):
        tasks = await queued(
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
        answers = [await task for task in tasks]
        assert answers == [["ONE"], ["TWO", "THREE"], ["FOUR"], ["FIVE"], ["SIX"], []]
        assert model.batches == [
            ("a", ["one"]),
            ("a", ["two", "three", "five"]),
            ("b", ["four"]),
            ("a", ["six"]),
        ]

    run(use)


def test_a_turn_is_bounded(monkeypatch):
    monkeypatch.setattr(batching, "TURN", 10)

    async def use(batcher, model):
        tasks = await queued(
            batcher, model, [("a", record("one")), ("a", *(record("x" * 4) for _ in range(7)))]
        )
        model.may_begin.set()
        assert await tasks[1] == ["XXXX"] * 7
        assert [len(texts) for _, texts in model.batches] == [1, 3, 3, 1]

    run(use)


@given(st.lists(st.booleans(), min_size=1, max_size=20))
def test_who_fails_fails_alone(bad):
    async def use(batcher, model):
        texts = [f"{'bad' if is_bad else 'good'} {number}" for number, is_bad in enumerate(bad)]
        tasks = await queued(batcher, model, [("a", record("one")), *(("a", record(t)) for t in texts)])
        model.may_begin.set()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        for text, answer in zip(texts, answers[1:], strict=True):
            if text.startswith("bad"):
                assert isinstance(answer, ValueError)
                assert str(answer) == text
            else:
                assert answer == [text.upper()]

    run(use)


def test_beside_one_that_fails_the_others_are_still_asked_in_few_batches():
    async def use(batcher, model):
        texts = [*(f"good {number}" for number in range(31)), "bad"]
        tasks = await queued(batcher, model, [("a", record("one")), *(("a", record(t)) for t in texts)])
        model.may_begin.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        answered = [len(asked) for _, asked in model.batches if "bad" not in asked]
        assert answered == [1, 16, 8, 4, 2, 1]

    run(use)


def test_of_those_who_went_away_nothing_is_computed():
    async def use(batcher, model):
        tasks = await queued(batcher, model, [("a", record(text)) for text in ("one", "two", "three")])
        tasks[0].cancel()
        tasks[1].cancel()
        model.may_begin.set()
        assert await tasks[2] == ["THREE"]
        assert model.batches == [("a", ["one"]), ("a", ["three"])]

    run(use)


def test_too_much_waiting_is_refused_until_it_is_computed():
    async def use(batcher, model):
        first, second = await queued(batcher, model, [("a", record("one")), ("a", record("b", ["12345678"]))])
        third = asyncio.create_task(batcher.ask("a", [record("c")]))
        await asyncio.sleep(0)
        with pytest.raises(asyncio.QueueFull):
            await batcher.ask("a", [record("d")])
        model.may_begin.set()
        assert [await first, await second, await third] == [["ONE"], ["B"], ["C"]]
        assert await batcher.ask("a", [record("d")]) == ["D"]

    run(use, max_waiting=10)
