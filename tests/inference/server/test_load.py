"""512 clients at once, slow, vanishing and hostile ones among them."""

import asyncio
import json
import re

import numpy as np
import pytest
from tests.inference.server.serving import LIMITS, serving
from tests.inference.small_models import WORDS, save_small

import bertie

CLIENTS = 512
GARBAGE = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)),  # TLS
    b"GET /\r\n\r\n",
    b"POST /embed HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
    b"POST /embed HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"POST /embed HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\n\xff\xfe{}",
    b"A" * 100_000,
]


def request(text):
    body = json.dumps({"inputs": text, "normalize": True}).encode()
    return f"POST /embed HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


async def read_response(reader):
    """Return the status and the body of a response."""
    head = await reader.readuntil(b"\r\n\r\n")
    body = await reader.readexactly(int(re.search(rb"(?i)content-length: (\d+)", head)[1]))
    return int(head.split()[1]), json.loads(body)


async def run_good_client(port, texts):
    """Send requests one after the other; return the vectors."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    vectors = []
    for text in texts:
        writer.write(request(text))
        status, content = await read_response(reader)
        assert status == 200, content
        vectors += content
    writer.close()
    return vectors


async def run_slow_client(port, texts):
    """Send one request byte by byte, and give up in the middle if the server does not."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    for byte in request(texts[0])[:150]:
        writer.write(bytes([byte]))
        await asyncio.sleep(0.01)
    writer.close()


async def run_vanishing_client(port, texts):
    """Close the connection without waiting for the answer."""
    for text in texts:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(text))
        await writer.drain()
        writer.transport.abort()


async def run_hostile_client(port, texts):
    """Send bytes that are not a request."""
    for garbage in GARBAGE:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(garbage)
        try:
            answer = await asyncio.wait_for(reader.readuntil(b"\r\n"), 60)
            assert answer.startswith(b"HTTP/1.1 4"), answer
        except (asyncio.IncompleteReadError, ConnectionResetError):
            pass
        writer.close()


@pytest.mark.slow
def test_512_clients_get_the_answers_of_the_model(tmp_path):
    model = bertie.load(save_small(tmp_path, "encoder"))
    random = np.random.default_rng(1)
    texts = [
        [" ".join(random.choice(WORDS, random.integers(1, 60))) for _ in range(4)] for _ in range(CLIENTS)
    ]
    expected = [model.embed(part, normalize=True) for part in texts]
    bad = {5: run_slow_client, 6: run_vanishing_client, 7: run_hostile_client}

    async def run_all(port):
        clients = (bad.get(i % 8, run_good_client)(port, part) for i, part in enumerate(texts))
        return await asyncio.gather(*clients)

    with serving(model, limits=LIMITS) as served:
        answers = asyncio.run(run_all(served.port))
        assert served.send("GET", "/health")[0].status == 200
        _, metrics = served.send_text("GET", "/metrics")
    assert re.search(r'^te_queue_size\{model="encoder"\} 0\.0$', metrics, re.MULTILINE)
    assert 'err="backend"' not in metrics
    for i, (vectors, wanted) in enumerate(zip(answers, expected, strict=True)):
        if i % 8 not in bad:
            np.testing.assert_allclose(vectors, wanted, atol=1e-5)
