"""Compare the server with infinity-emb and with sentence-transformers behind FastAPI.

    python benchmarks/serving.py MODEL TEXTS [--infinity COMMAND] [--plain PYTHON]

MODEL is a directory of a sentence encoder that all of them load, such as all-MiniLM-L6-v2. TEXTS is
English text, one paragraph a line; each request embeds one sentence of it. `bertie serve` runs in
PyTorch and, exported, in int8. The peers come from environments of their own:

    --infinity PATH/bin/infinity_emb    pip install 'infinity-emb[torch,server]'
    --plain PATH/bin/python             pip install sentence-transformers fastapi uvicorn

For each number of clients the servers take turns of a few seconds, and so does `bertie.load` in this
process, which embeds 32 sentences at a time. A client sends its next request when it has the answer to
the last one. Clients are in this process, on the same cores. The table has medians over the rounds:
requests a second, the 50th and the 99th percentile of the latency, the server's processor time for
a request (from /proc, which other programs disturb less), and the peak of its resident memory.
"""

import argparse
import asyncio
import json
import os
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
from bertie.inference.export import export
from bertie.model.formats.onnx import Quantization

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
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]

    def request(self, text: str) -> bytes:
        """Return the bytes of a request for the vector of a text."""
        body = json.dumps({self.field: text, **({"model": "m"} if self.field == "input" else {})}).encode()
        head = f"POST {self.path} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


class Turn(NamedTuple):
    """What one server did in a few seconds."""

    rate: float
    p50: float
    p99: float
    processor: float


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> bytes:
    """Send a request, and return the body of the response."""
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    body = await reader.readexactly(int(re.search(rb"(?i)content-length: (\d+)", head)[1]))  # type: ignore[index]
    assert head.startswith(b"HTTP/1.1 200"), head + body
    return body


async def run_turn(server: ServerProcess, requests: Iterator[bytes], clients: int, seconds: float) -> Turn:
    """Let clients ask a server for some seconds."""
    latencies = []

    async def run_client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        while (sent := time.perf_counter()) < end:
            await ask(reader, writer, next(requests))
            latencies.append(time.perf_counter() - sent)
        writer.close()

    used, begin = server.processor_seconds, time.perf_counter()
    end = begin + seconds
    await asyncio.gather(*(run_client() for _ in range(clients)))
    rate = len(latencies) / (time.perf_counter() - begin)
    p50, p99 = 1000 * np.quantile(latencies, [0.5, 0.99])
    return Turn(rate, p50, p99, 1000 * (server.processor_seconds - used) / len(latencies))


def run_in_process(model: bertie.Predictor, texts: Iterator[str], seconds: float) -> Turn:
    """Embed 32 texts at a time, without a server."""
    used, begin, count = time.process_time(), time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        model.embed([next(texts) for _ in range(32)])
        count += 32
    elapsed = time.perf_counter() - begin
    return Turn(count / elapsed, np.nan, np.nan, 1000 * (time.process_time() - used) / count)


def start_servers(stack: ExitStack, arguments: argparse.Namespace) -> dict[str, ServerProcess]:
    """Start all servers, and wait until they answer."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    export(arguments.model, folder / "int8", Quantization(layers=True, embeddings=True))
    model, bertie_serve = str(arguments.model), [sys.executable, "-m", "bertie", "serve"]
    commands = {
        "bertie torch": ([*bertie_serve, model, "--port", "{port}"], "/embed", "inputs"),
        "bertie int8": ([*bertie_serve, str(folder / "int8"), "--port", "{port}"], "/embed", "inputs"),
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
    arguments = parser.parse_args()
    with arguments.texts.open(encoding="utf-8") as file:
        sentences = re.split(r"(?<=[.!?])\s+", file.read(2_000_000))
    torch.set_num_threads(arguments.threads)  # as the servers
    sentences = [sentence for sentence in sentences if 3 <= len(sentence.split()) <= 60]
    model = bertie.load(arguments.model)
    with ExitStack() as stack:
        servers = start_servers(stack, arguments)
        requests = {name: cycle([*map(server.request, sentences)]) for name, server in servers.items()}
        texts = cycle(sentences)
        run_in_process(model, texts, 1)
        for name, server in servers.items():
            asyncio.run(run_turn(server, requests[name], 8, 1))
        for clients in arguments.clients:
            turns: dict[str, list[Turn]] = {name: [] for name in [*servers, "in process, torch"]}
            for _ in range(arguments.rounds):
                for name, server in servers.items():
                    turn = asyncio.run(run_turn(server, requests[name], clients, arguments.seconds))
                    turns[name].append(turn)
                turns["in process, torch"].append(run_in_process(model, texts, arguments.seconds))
            print(f"\n{f'{clients} clients':<20} {'requests/s':>10} {'p50, ms':>9} {'p99, ms':>9}", end="")
            print(f" {'processor, ms':>14} {'peak RSS, MiB':>14}")
            for name, rounds in turns.items():
                rate, p50, p99, processor = map(statistics.median, zip(*rounds, strict=True))
                memory = f"{servers[name].peak_memory:.0f}" if name in servers else ""
                print(f"{name:<20} {rate:>10.1f} {p50:>9.1f} {p99:>9.1f} {processor:>14.2f} {memory:>14}")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
