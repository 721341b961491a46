"""Compare the server with infinity-emb and with sentence-transformers behind FastAPI.

    python benchmarks/serving.py MODEL TEXTS [--infinity COMMAND] [--plain PYTHON]

MODEL is a directory of a sentence encoder that all of them load, such as all-MiniLM-L6-v2. TEXTS is
English text, one paragraph a line; each request embeds one sentence of it. `bertie serve` runs in
PyTorch and, exported, in int8. The peers come from separate environments:

    --infinity PATH/bin/infinity_emb    pip install 'infinity-emb[torch,server]'
    --plain PATH/bin/python             pip install sentence-transformers fastapi uvicorn

For each number of clients the servers take turns of a few seconds, and so do the same two models of
bertie in this process, which embeds 32 sentences at a time. A client sends its next request when it has
the answer to the last one. Everybody gets the same sentences in the same order. Clients are in this
process, on the same cores as the server. The table has medians over the rounds: requests a second, the
50th and the 99th percentile of the latency, the processor time of the server and of the clients for a
request (which other programs disturb less), and the peak of the server's resident memory.

    python benchmarks/serving.py MODEL TEXTS --memory 100000

sends so many ragged texts (see memory.py) from 16 clients to `bertie serve` in PyTorch, ONNX Runtime and
int8, and prints its resident memory on the way.
"""

import argparse
import asyncio
import json
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

import bertie
from bertie.base.environment import limit_free_memory
from bertie.inference.export import export
from bertie.model.formats.onnx import Quantization
from memory import memory_of, ragged_requests

PLAIN = Path(__file__).with_name("sentence_transformers_server.py")


class ServerProcess(NamedTuple):
    """A running server, and how to ask it."""

    process: subprocess.Popen[bytes]
    port: int
    path: str
    field: str

    @property
    def processor_seconds(self) -> float:
        """Processor time that the process has used so far, in seconds."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def peak_memory(self) -> float:
        """Peak of the resident memory, in MiB."""
        return memory_of(self.process.pid, "VmHWM")

    def request(self, texts: str | list[str]) -> bytes:
        """Return the bytes of a request for the vectors of a text or of several."""
        body = json.dumps({self.field: texts, **({"model": "m"} if self.field == "input" else {})}).encode()
        head = f"POST {self.path} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


class Turn(NamedTuple):
    """What one server did in a few seconds."""

    rate: float
    p50: float
    p99: float
    processor: float
    clients: float


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> bytes:
    """Send a request, and return the body of the response."""
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    if length := re.search(rb"(?i)content-length: (\d+)", head):
        body = await reader.readexactly(int(length[1]))
    else:  # bertie sends large responses in chunks
        body = b""
        while size := int(await reader.readuntil(b"\r\n"), base=16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readexactly(2)
    assert head.startswith(b"HTTP/1.1 200"), head + body
    return body


async def run_turn(server: ServerProcess, requests: Iterator[bytes], clients: int, seconds: float) -> Turn:
    """Let clients ask a server for some seconds."""
    latencies: list[float] = []

    async def run_client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        while (sent := time.perf_counter()) < end:
            await ask(reader, writer, next(requests))
            latencies.append(time.perf_counter() - sent)
        writer.close()

    used, own, begin = server.processor_seconds, time.process_time(), time.perf_counter()
    end = begin + seconds
    await asyncio.gather(*(run_client() for _ in range(clients)))
    rate = len(latencies) / (time.perf_counter() - begin)
    p50, p99 = 1000 * np.quantile(latencies, [0.5, 0.99])
    processor = 1000 * (server.processor_seconds - used) / len(latencies)
    return Turn(rate, p50, p99, processor, 1000 * (time.process_time() - own) / len(latencies))


def run_in_process(model: bertie.Predictor, texts: Iterator[str], seconds: float) -> Turn:
    """Embed 32 texts at a time, without a server."""
    used, begin, count = time.process_time(), time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        model.embed([next(texts) for _ in range(32)])
        count += 32
    elapsed = time.perf_counter() - begin
    return Turn(count / elapsed, np.nan, np.nan, 1000 * (time.process_time() - used) / count, np.nan)


async def run_ragged(server: ServerProcess, requests: Iterator[list[str]], count: int) -> None:
    """Send ragged texts to a server from 16 clients, and print its memory after 1, 10, 50 and 100 %."""
    done, reports = 0, [count // 100, count // 10, count // 2, count]

    async def run_client() -> None:
        nonlocal done
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=2**24)
        while done < count:
            texts = next(requests)
            await ask(reader, writer, server.request(texts))
            done += len(texts)
            while reports and done >= reports[0]:
                memory = memory_of(server.process.pid, "VmRSS")
                print(f"{reports.pop(0):>9,} texts {memory:>7.0f} MiB", flush=True)
        writer.close()

    await asyncio.gather(*(run_client() for _ in range(16)))


def start_servers(
    stack: ExitStack, models: dict[str, Path], arguments: argparse.Namespace
) -> dict[str, ServerProcess]:
    """Start `bertie serve` for each model, and the peers; wait until they answer."""
    model, bertie_serve = str(arguments.model), [sys.executable, "-m", "bertie", "serve"]
    commands = {
        f"bertie {name}": ([*bertie_serve, str(path), "--port", "{port}"], "/embed", "inputs")
        for name, path in models.items()
    }
    if arguments.infinity:
        options = ["--engine", "torch", "--device", "cpu", "--no-bettertransformer", "--host", "127.0.0.1"]
        options += ["--served-model-name", "m", "--log-level", "error", "--port", "{port}"]
        command = [arguments.infinity, "v2", "--model-id", model, *options]
        commands["infinity-emb"] = (command, "/embeddings", "input")
    if arguments.plain:
        commands["FastAPI"] = ([arguments.plain, str(PLAIN), model, "{port}"], "/embed", "inputs")
    servers = {}
    for name, (command, path, field) in commands.items():
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        process = subprocess.Popen(
            [part.format(port=port) for part in command],
            env={**os.environ, "OMP_NUM_THREADS": str(arguments.threads), "HF_HUB_OFFLINE": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        stack.callback(process.terminate)
        servers[name] = ServerProcess(process, port, path, field)
    for name, server in servers.items():
        while True:
            assert server.process.poll() is None, f"{name} has stopped"
            try:
                socket.create_connection(("127.0.0.1", server.port)).close()
                break
            except ConnectionRefusedError:
                time.sleep(0.5)
        print(f"{name} is up", file=sys.stderr, flush=True)
    return servers


def main() -> None:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("texts", type=Path)
    parser.add_argument("--infinity")
    parser.add_argument("--plain")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32, 128])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--memory", type=int, metavar="COUNT")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        models = {"torch": arguments.model, "int8": folder / "int8"}
        export(arguments.model, models["int8"], Quantization(layers=True, embeddings=True))
        if arguments.memory:
            models["ONNX"] = folder / "onnx"
            export(arguments.model, models["ONNX"], Quantization())
            arguments.infinity = arguments.plain = None
        servers = start_servers(stack, models, arguments)
        if arguments.memory:
            for name, server in servers.items():
                print(name)
                asyncio.run(run_ragged(server, ragged_requests(arguments.texts), arguments.memory))
        else:
            compare(servers, models, arguments)


def compare(
    servers: dict[str, ServerProcess], models: dict[str, Path], arguments: argparse.Namespace
) -> None:
    """Print the table of all servers, and of the models in this process."""
    with arguments.texts.open(encoding="utf-8") as file:
        sentences = re.split(r"(?<=[.!?])\s+", file.read(2_000_000))
    sentences = [sentence for sentence in sentences if 3 <= len(sentence.split()) <= 60]
    random.Random(0).shuffle(sentences)  # a slow model computes fewer of them, of the same mean length
    torch.set_num_threads(arguments.threads)  # as the servers
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)  # which `bertie.load` hands to ONNX Runtime
    limit_free_memory()
    loaded = {f"in process, {name}": bertie.load(path) for name, path in models.items()}
    requests = {name: cycle([*map(server.request, sentences)]) for name, server in servers.items()}
    texts = {name: cycle(sentences) for name in loaded}
    for name, model in loaded.items():
        run_in_process(model, texts[name], 1)
    for name, server in servers.items():
        asyncio.run(run_turn(server, requests[name], 8, 1))
    for clients in arguments.clients:
        turns: dict[str, list[Turn]] = {name: [] for name in [*servers, *loaded]}
        for _ in range(arguments.rounds):
            for name, server in servers.items():
                turns[name].append(asyncio.run(run_turn(server, requests[name], clients, arguments.seconds)))
            for name, model in loaded.items():
                turns[name].append(run_in_process(model, texts[name], arguments.seconds))
        print(f"\n{f'{clients} clients':<20} {'requests/s':>10} {'p50, ms':>9} {'p99, ms':>9}", end="")
        print(f" {'processor, ms':>14} {'clients, ms':>12} {'peak RSS, MiB':>14}")
        for name, rounds in turns.items():
            rate, p50, p99, processor, own = map(statistics.median, zip(*rounds, strict=True))
            memory = f"{servers[name].peak_memory:.0f}" if name in servers else ""
            print(f"{name:<20} {rate:>10.1f} {p50:>9.1f} {p99:>9.1f} {processor:>14.2f}", end="")
            print(f" {own:>12.2f} {memory:>14}", flush=True)


if __name__ == "__main__":
    main()
