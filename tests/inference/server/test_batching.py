"""Waiting records form batches; failures and cancellations affect no others."""

import asyncio
import gc
import inspect
import weakref
from threading import Event, Thread
from time import sleep

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.inference.small_models import TOKENIZER, save_small

import bertie
from bertie.inference.records import Record
from bertie.inference.server import batching
from bertie.inference.server.batching import (
    LONG_REQUEST_TOKENS,
    AbandonedError,
    Batcher,
    RequestThreads,
    TakingTurns,
    Turns,
    count_tokens,
    is_abandoned,
)
from bertie.inference.server.metrics import Metrics
from bertie.inference.server.middleware import Limits
from bertie.model.engines.engine import Engine

LIMITS = Limits(max_waiting=100_000)


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


def count_characters(records):
    """Count each character as a token."""
    return [sum(map(len, (item for text in record.texts for item in text))) for record in records]


def run(scenario, limits=LIMITS):
    """Run `scenario(batcher, model)` while the batcher runs."""

    async def both():
        model = Model()
        batcher = Batcher(
            model.compute, count_characters, limits, RequestThreads(limits.max_waiting), Metrics(), "model"
        )
        running = asyncio.create_task(batcher.run())
        try:
            return await asyncio.wait_for(scenario(batcher, model), 60)
        finally:
            model.may_begin.set()
            running.cancel()

    return asyncio.run(both())


def count_requests(batcher):
    """Return the number of requests that are or were in the queue."""
    name = "te_request_tokenization_duration_count"
    return batcher.metrics.registry.get_sample_value(name, {"model": "model"}) or 0


async def submit_all(batcher, model, requests):
    """Submit requests as tasks: the first is being computed while the others wait."""
    tasks = []
    for operation, *records in requests:
        before = count_requests(batcher)
        tasks.append(asyncio.create_task(batcher.submit(operation, records)))
        if len(tasks) == 1:
            await asyncio.to_thread(model.begun.wait, 60)
        while count_requests(batcher) == before:  # their tokens are counted in a thread
            await asyncio.sleep(0.001)
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
    """In tokens, but the records of a request stay together."""
    monkeypatch.setattr(batching, "MAX_BATCH_TOKENS", 10)

    async def scenario(batcher, model):
        several = [record("x" * 4) for _ in range(7)]
        requests = [("a", record("one")), *(("a", record("y" * 5)) for _ in range(5)), ("a", *several)]
        tasks = await submit_all(batcher, model, requests)
        model.may_begin.set()
        assert await tasks[-1] == ["XXXX"] * 7
        assert [len(texts) for _, texts in model.batches] == [1, 2, 2, 8]

    run(scenario)


def test_a_batch_has_half_of_the_requests_that_wait_or_were_just_answered():
    """Of clients that each send the next request when they have an answer."""

    async def scenario(batcher, model):
        async def client(name):
            for number in range(4):
                await batcher.submit("a", [record(f"{name} {number}")])

        (first,) = await submit_all(batcher, model, [("a", record("first"))])
        clients = [asyncio.create_task(client(name)) for name in range(8)]
        while batcher.metrics.registry.get_sample_value("te_queue_size", {"model": "model"}) < 8:
            await asyncio.sleep(0.001)
        model.may_begin.set()
        await asyncio.gather(first, *clients)
        return [len(texts) for _, texts in model.batches]

    sizes = run(scenario)
    assert sizes[:2] == [1, 5], "half of the 8 that waited and the 1 that was answered, rounded up"
    assert sum(sizes) == 33
    assert max(sizes[2:]) <= 5


@settings(max_examples=30)
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
        tasks = await submit_all(batcher, model, [("a", record("one")), ("a", *map(record, texts))])
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


def test_a_computation_stops_when_nobody_waits_for_it_any_more():
    """Between two batches of a long text."""

    class CountingEngine:
        batches = 0

        def logits(self, batch):
            self.batches += 1

    async def scenario(batcher, model):
        engine = CountingEngine()
        turns = TakingTurns(engine, Turns())

        def compute(operation, records):
            texts = model.compute(operation, records)
            for _ in range(3):
                turns.logits(None)
            return texts

        batcher.compute = compute
        (first,) = await submit_all(batcher, model, [("a", record("one"))])
        first.cancel()
        await asyncio.wait([first])
        model.may_begin.set()
        assert await batcher.submit("a", [record("two")]) == ["TWO"]
        assert engine.batches == 3  # of the second request

    run(scenario)


def test_a_request_that_is_cancelled_while_it_is_computed_delays_no_other():
    """Of the same batch."""

    async def scenario(batcher, model):
        is_computing, may_end = Event(), Event()

        def compute(operation, records):
            if len(records) == 2:
                is_computing.set()
                assert may_end.wait(60)
            return model.compute(operation, records)

        batcher.compute = compute
        requests = [("a", record(text)) for text in ("one", "two", "three")]
        tasks = await submit_all(batcher, model, requests)
        model.may_begin.set()
        assert await asyncio.to_thread(is_computing.wait, 60)
        tasks[1].cancel()
        await asyncio.wait([tasks[1]])
        may_end.set()
        assert await asyncio.wait_for(tasks[2], 10) == ["THREE"]

    run(scenario)


def test_a_full_queue_rejects_requests_until_it_is_computed():
    async def scenario(batcher, model):
        requests = [("a", record("one")), ("a", record("b", ["12345678"]))]
        first, second = await submit_all(batcher, model, requests)
        (third,) = await submit_all(batcher, model, [("a", record("c"))])
        with pytest.raises(asyncio.QueueFull):
            await batcher.submit("a", [record("d")])
        model.may_begin.set()
        assert [await first, await second, await third] == [["ONE"], ["B"], ["C"]]
        assert await batcher.submit("a", [record("d")]) == ["D"]

    run(scenario, LIMITS._replace(max_waiting=10))


def test_a_full_queue_rejects_requests_that_come_together():
    async def scenario(batcher, model):
        text = "x" * 6000  # a thread counts its tokens
        tasks = [asyncio.create_task(batcher.submit("a", [record(text)])) for _ in range(8)]
        while count_requests(batcher) + sum(task.done() for task in tasks) < len(tasks):
            await asyncio.sleep(0.001)
        model.may_begin.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        rejected = sum(isinstance(result, asyncio.QueueFull) for result in results)
        assert 4 <= rejected <= 6  # two requests fill the queue, and up to two were taken from it
        assert results.count([text.upper()]) == 8 - rejected

    run(scenario, LIMITS._replace(max_waiting=10_000))


def test_cancelled_requests_leave_the_queue():
    async def scenario(batcher, model):
        requests = [("a", record("one")), ("a", record("b", ["12345678"]))]
        first, second = await submit_all(batcher, model, requests)
        (third,) = await submit_all(batcher, model, [("a", record("c"))])
        for task in (second, third):
            task.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        fourth = asyncio.create_task(batcher.submit("a", [record("d")]))
        await asyncio.sleep(0)
        model.may_begin.set()
        assert [await first, await fourth] == [["ONE"], ["D"]]

    run(scenario, LIMITS._replace(max_waiting=10))


def test_the_records_of_cancelled_requests_are_freed():
    """Clients that send and go away must not fill the memory while a long batch is computed."""

    class Text(str):
        """A text that can be referred to weakly."""

    async def scenario(batcher, model):
        (first,) = await submit_all(batcher, model, [("a", record("one"))])
        texts = [Text("word") for _ in range(100)]
        references = [weakref.ref(text) for text in texts]
        tasks = await submit_all(batcher, model, [("a", record(text)) for text in texts])
        del texts
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        del task, tasks
        gc.collect()
        assert not any(reference() for reference in references)
        model.may_begin.set()
        assert await first == ["ONE"]

    run(scenario)


def test_a_request_that_takes_too_long_is_not_computed():
    async def scenario(batcher, model):
        tasks = await submit_all(batcher, model, [("a", record("one")), ("a", record("two"))])
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(tasks[1], 0.2)
        model.may_begin.set()
        await asyncio.wait(tasks)
        assert await batcher.submit("a", [record("three")]) == ["THREE"]
        assert [texts for _, texts in model.batches] == [["one"], ["three"]]

    run(scenario)


def test_a_short_request_passes_a_long_one():
    """The long one is being computed, and another one waits."""

    async def scenario(batcher, model):
        compute = batcher.compute
        long = record("x" * (LONG_REQUEST_TOKENS + 1))

        def only_long_ones_wait(operation, records):
            return compute(operation, records) if records[0] is long else ["short"]

        batcher.compute = only_long_ones_wait
        tasks = await submit_all(batcher, model, [("a", long), ("a", long)])
        assert await batcher.submit("a", [record("y")]) == ["short"]
        assert not any(task.done() for task in tasks)
        model.may_begin.set()
        assert await tasks[1] == [long.texts[0].upper()]

    run(scenario)


def test_threads_take_turns_at_the_engine(tmp_path):
    """Batches of a long text alternate with those of other requests, and the results are the same."""
    model = bertie.load(save_small(tmp_path, "tagger"))
    text, batches, begun = "cats sat in Paris, on a mat. " * 2000, [], Event()
    expected = model.tag(text)
    engine, logits = model.engine, model.engine.logits

    def note(batch):
        batches.append(len(batch.input_ids))
        begun.set()
        sleep(0.02)  # so that the short texts begin before the long one is done
        return logits(batch)

    engine.logits = note
    model.engine = TakingTurns(engine, Turns())
    found = []
    long = Thread(target=lambda: found.append(model.tag(text)))
    long.start()
    assert begun.wait(60)
    for _ in range(3):
        assert model.tag("Paris")
    long.join()
    assert found == [expected]
    short = [i for i, tokens in enumerate(batches) if tokens < 10]
    assert len(short) == 3
    assert short[-1] < len(batches) - 1, "the short texts waited for the end of the long one"


@pytest.mark.parametrize(
    "method", [name for name, _ in inspect.getmembers(Engine, inspect.isfunction) if not name.startswith("_")]
)
def test_every_computation_of_an_engine_takes_a_turn(method):
    """And does not begin if nobody waits for it any more."""

    class Computing:
        def __getattr__(self, name):
            return lambda *arguments: (name, arguments, turns._is_taken)

    turns = Turns()
    compute = getattr(TakingTurns(Computing(), turns), method)
    arguments = (*range(len(inspect.signature(getattr(Engine, method)).parameters) - 1),)
    assert compute(*arguments) == (method, arguments, True)
    assert not turns._is_taken
    token = is_abandoned.set(lambda: True)
    try:
        with pytest.raises(AbandonedError):
            compute(*arguments)
    finally:
        is_abandoned.reset(token)


def test_turns_are_given_in_the_order_of_asking():
    turns, order, threads = Turns(), [], []

    def take(number):
        with turns:
            order.append(number)

    with turns:
        for number in range(4):
            threads.append(Thread(target=take, args=(number,)))
            threads[-1].start()
            while len(turns._waiting) <= number:
                sleep(0.001)
    for thread in threads:
        thread.join(60)
    assert order == [0, 1, 2, 3]


@given(st.lists(st.integers(0, 3), max_size=20))
def test_turns_are_given_one_at_a_time(pauses):
    turns, inside, most = Turns(), 0, 0

    def take(pause):
        nonlocal inside, most
        for _ in range(pause):
            with turns:
                inside += 1
                most = max(most, inside)
                inside -= 1

    threads = [Thread(target=take, args=(pause,)) for pause in pauses]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert most <= 1


def test_tokens_are_counted_over_all_texts_of_a_record():
    records = [
        record("the cat"),
        record("the cat", "sat"),
        record("the", ["cat", "sat on"]),
    ]
    assert count_tokens(TOKENIZER, records) == [4, 7, 10]
    assert count_tokens(TOKENIZER, []) == []


def test_metrics_describe_the_batches():
    async def scenario(batcher, model):
        tasks = await submit_all(
            batcher, model, [("a", record("one")), ("a", record("three"), record("four"))]
        )
        value = batcher.metrics.registry.get_sample_value
        assert value("te_queue_size", {"model": "model"}) == 2
        model.may_begin.set()
        await asyncio.gather(*tasks)
        assert value("te_queue_size", {"model": "model"}) == 0
        assert value("te_batch_next_size_sum", {"model": "model"}) == 3
        assert value("te_batch_next_size_count", {"model": "model"}) == 2
        assert value("te_batch_next_tokens_sum", {"model": "model"}) == len("onethreefour")
        assert value("te_request_queue_duration_count", {"model": "model"}) == 2
        assert value("te_request_inference_duration_count", {"model": "model"}) == 2

    run(scenario)


def test_stopping_does_not_wait_for_a_running_computation():
    async def stop():
        model = Model()
        batcher = Batcher(
            model.compute, count_characters, LIMITS, RequestThreads(100_000), Metrics(), "model"
        )
        running = asyncio.create_task(batcher.run())
        (task,) = await submit_all(batcher, model, [("a", record("one"))])
        task.cancel()
        running.cancel()
        await asyncio.wait([task, running])
        is_computing = not model.may_begin.is_set()
        model.may_begin.set()
        return is_computing

    assert asyncio.run(asyncio.wait_for(stop(), 60))


def test_too_many_characters_that_wait_for_a_thread_are_refused():
    async def scenario():
        threads, may_end = RequestThreads(max_waiting=100), Event()
        tasks = [asyncio.create_task(threads.run(10_000, may_end.wait, 60)) for _ in range(5)]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            assert [task.done() for task in tasks] == [False] * 4 + [True]  # two in work, and two waiting
            with pytest.raises(asyncio.QueueFull):
                tasks[4].result()
            assert (
                await threads.run(10, str, "few characters need no thread") == "few characters need no thread"
            )
            for task in tasks[2:4]:
                task.cancel()
            await asyncio.wait(tasks[2:4])
            tasks[2:] = [asyncio.create_task(threads.run(10_000, may_end.wait, 60))]
        finally:
            may_end.set()
        assert await asyncio.gather(*tasks) == [True] * 3

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_batcher_that_stops_leaves_no_records_in_the_metrics():
    """The server unloads a model when the clients of all its requests have left."""

    async def stop_while_a_record_waits():
        model, metrics = Model(), Metrics()
        batcher = Batcher(model.compute, count_characters, LIMITS, RequestThreads(100_000), metrics, "model")
        running = asyncio.create_task(batcher.run())
        tasks = await submit_all(batcher, model, [("a", record("one")), ("a", record("two"))])
        for task in (*tasks, running):
            task.cancel()
        await asyncio.wait([running])
        model.may_begin.set()
        return metrics.registry.get_sample_value("te_queue_size", {"model": "model"})

    assert asyncio.run(stop_while_a_record_waits()) == 0
