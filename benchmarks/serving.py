"""Measure the gain of the server's batching: 32 concurrent clients against one.

    python benchmarks/serving.py MODEL [ROUNDS]

MODEL is a classifier of pairs, such as `bertie finetune --task mrpc` trains. It is served in
PyTorch and, exported, in int8; each of the two servers is a process of `bertie serve`. A client
sends one pair of MRPC's dev part at a time, over a connection that it keeps. All clients are
threads of the benchmark's process, on the same cores as the servers. In each turn a server answers
one client, then 32, and the turns alternate. The benchmark prints medians of the requests a
second, of the server's own processor time (from Linux's /proc), which other programs disturb less,
and of the ratios.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path
from typing import NamedTuple

from bertie.inference.export import export
from bertie.model.formats.onnx import Quantization
from bertie.tasks.registry import find_task

DATA = Path(os.environ.get("BERTIE_DATA") or Path(__file__).parents[2] / "shared" / "data")
CLIENTS = 32
REQUESTS = {1: 24, CLIENTS: 160}  # requests in a turn, by the number of clients


class ServerProcess(NamedTuple):
    """A process of `bertie serve`, and its port."""

    process: subprocess.Popen[str]
    port: int

    @property
    def processor_seconds(self) -> float:
        """Processor time that the process has used so far, in seconds."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().split()
        return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


def start_server(stack: ExitStack, directory: Path) -> ServerProcess:
    """Serve a model directory until the stack is closed."""
    command = [sys.executable, "-m", "bertie.commands.main", "serve", str(directory), "--port", "0"]
    process = stack.enter_context(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
    stack.callback(process.terminate)
    assert process.stderr is not None
    match = re.search(r"http://[^ ]*:(\d+)", process.stderr.readline())
    assert match is not None
    return ServerProcess(process, int(match[1]))


def run_client(port: int, bodies: list[bytes]) -> None:
    """Send requests one by one over one connection."""
    connection = HTTPConnection("127.0.0.1", port)
    for body in bodies:
        connection.request("POST", "/predict", body)
        response = connection.getresponse()
        assert response.status == 200, response.read()
        response.read()
    connection.close()


def run_turn(server: ServerProcess, bodies: list[bytes], clients: int) -> tuple[float, float]:
    """Return requests a second, and the server's processor time for each, in ms."""
    count = REQUESTS[clients]
    bodies_of_clients = [bodies[client:count:clients] for client in range(clients)]
    used, begin = server.processor_seconds, time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(lambda part: run_client(server.port, part), bodies_of_clients))
    return count / (time.perf_counter() - begin), 1000 * (server.processor_seconds - used) / count


def main() -> None:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("rounds", nargs="?", type=int, default=7)
    arguments = parser.parse_args()
    task = find_task("mrpc")
    pairs = task.read(task.file(DATA / "glue", "dev"), labelled=True)
    rows = zip(pairs.texts, pairs.pairs, strict=True)
    bodies = [json.dumps({"inputs": {"text": text, "pair": pair}}).encode() for text, pair in rows]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        export(arguments.model, Path(folder) / "int8", Quantization(layers=True, embeddings=True))
        servers = {
            "torch": start_server(stack, arguments.model),
            "int8": start_server(stack, Path(folder) / "int8"),
        }
        turns: dict[str, list[list[tuple[float, float]]]] = {name: [] for name in servers}
        for round_number in range(arguments.rounds + 1):
            for name, server in servers.items():
                figures = [run_turn(server, bodies, clients) for clients in REQUESTS]
                if round_number:  # the first round warms up
                    turns[name].append(figures)
    print(f"{'':<32} {'1 client':>10} {f'{CLIENTS} clients':>10} {'ratio':>8}")
    for column, figure in enumerate(("requests a second", "ms of processor time")):
        for name, rounds in turns.items():
            values = [(one[column], many[column]) for one, many in rounds]
            one, many = (statistics.median(column_values) for column_values in zip(*values, strict=True))
            ratio = statistics.median(many / one for one, many in values)
            print(f"{f'{name}, {figure}':<32} {one:>10.1f} {many:>10.1f} {ratio:>8.2f}")


if __name__ == "__main__":
    main()
