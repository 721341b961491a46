"""JSON in pieces: the same bytes as in one call, with room for other requests between the pieces."""

import asyncio
import json

import numpy as np
import pytest
from pydantic_core import to_json

from bertie.inference.server.responses import PIECE_BYTES, LazyList, as_lists, json_pieces, json_response

RANDOM = np.random.default_rng(1)


def vectors(*shape):
    return RANDOM.normal(size=shape).astype(np.float32)


class Parts(LazyList):
    """A list of which two items at a time are made."""

    def __init__(self, items):
        self.items = items

    def __iter__(self):
        for i in range(0, len(self.items), 2):
            yield self.items[i : i + 2]


def to_lists(content):
    if isinstance(content, Parts):
        return content.items
    if isinstance(content, dict):
        return {key: to_lists(value) for key, value in content.items()}
    if isinstance(content, list):
        return [to_lists(value) for value in content]
    return as_lists(content) if isinstance(content, np.ndarray) else content


@pytest.mark.parametrize("scale", [1e-9, 1e-3, 0.05, 1, 20, 1e6, 1e30])
def test_numbers_are_written_for_float32(scale):
    written = vectors(8, 384) * np.float32(scale)
    text = b"".join(json_pieces(written))
    assert np.array_equal(np.array(json.loads(text), np.float32), written)
    if 1e-3 < scale < 1e6:  # as numpy, which finds the fewest digits
        assert len(text) < 1.01 * sum(len(f"{number!s},") for number in written.ravel())


def test_special_numbers_are_written_for_float32():
    numbers = [0.0, 1.0, -1.0, 0.1, 16_777_216.0, float(np.finfo(np.float32).max), 1e-45]
    assert as_lists(np.array(numbers, np.float32)) == [*numbers[:5], *map(pytest.approx, numbers[5:])]
    assert as_lists(np.array([[0.1]])) == [[0.1]]
    assert as_lists(np.array([3, 2])) == [3, 2]


@pytest.mark.parametrize(
    "content",
    [
        vectors(1, 384),
        vectors(300, 384) / 1e9,
        [vectors(7, 8), vectors(300, 384)],
        {"tokens": ["[CLS]", "é"], "attentions": vectors(3, 4, 40, 40).astype(np.float64).round(4)},
        {"data": [{"index": i, "embedding": vectors(384).tolist()} for i in range(100)], "usage": {"a": 1}},
        [[{"id": i, "text": "a", "start": None} for i in range(10_000)], []],
        [Parts([{"id": i} for i in range(20_001)]), Parts([]), Parts([1])],
        {"predictions": [None, [{"label": "a", "score": 0.1}]]},
        [[]],
        [],
        {},
        0.5,
        None,
    ],
)
def test_pieces_are_the_same_bytes(content):
    pieces = [*json_pieces(content)]
    assert b"".join(pieces) == to_json(to_lists(content))
    assert all(PIECE_BYTES <= len(piece) < 3 * PIECE_BYTES for piece in pieces[:-1])


def test_a_large_response_lets_the_event_loop_run_between_its_pieces():
    content, events = vectors(300, 384), []

    async def write():
        async for _ in json_response(content).body_iterator:
            events.append("piece")

    async def run_another():
        while len(events) < 20:
            events.append("another")
            await asyncio.sleep(0)

    async def run_both():
        await asyncio.gather(write(), run_another())

    asyncio.run(run_both())
    assert events[:20] == ["piece", "another"] * 10


def test_a_large_response_ends_quietly_when_it_is_cancelled():
    """As at the second signal to stop; an exception would be a traceback in the log."""
    scope = {"type": "http", "asgi": {"spec_version": "2.3"}}

    sent = []

    async def receive():
        await asyncio.Event().wait()

    async def send(message):
        sent.append(message)
        await asyncio.Event().wait()

    async def cancel():
        sending = asyncio.create_task(json_response(vectors(300, 384))(scope, receive, send))
        while not sent:
            await asyncio.sleep(0)
        sending.cancel()
        await asyncio.wait([sending])
        return sending

    sending = asyncio.run(cancel())
    assert len(sent) == 1
    assert not sending.cancelled()
    assert sending.exception() is None
