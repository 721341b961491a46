"""What batching is worth to a server: 32 clients at once beside one, for the same model in torch and in int8.

    python benchmarks/serving.py MODEL [ROUNDS]

MODEL is a classifier of pairs, such as `bertie finetune --task mrpc` makes; its int8 export is made here.
Each side is a process of `bertie serve`. A client asks about one pair of MRPC's dev part at a time, over a
connection that it keeps; all clients are threads of this process, beside the server on the same cores. Turns
alternate: in each a side answers one client, then 32. Medians of the rates, of the server's own processor
time (from Linux's /proc), which other programs on the machine disturb less, and of the ratios.
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
REQUESTS = {1: 24, CLIENTS: 160}  # in a turn, by the number of clients


class Side(NamedTuple):
    """A server, and how to reach it."""

    process: subprocess.Popen[str]
    port: int

    @property
    def processor_time(self) -> float:
        """Seconds until now."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().split()
        return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


def start(stack: ExitStack, directory: Path) -> Side:
    """Serve a directory."""
    command = [sys.executable, "-m", "bertie.commands.main", "serve", str(directory), "--port", "0"]
    process = stack.enter_context(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
    stack.callback(process.terminate)
    assert process.stderr is not None
    found = re.search(r":(\d+) serves", process.stderr.readline())
    assert found is not None
    return Side(process, int(found[1]))


def ask(port: int, bodies: list[bytes]) -> None:
    """One client: its requests, one by one."""
    connection = HTTPConnection("127.0.0.1", port)
    for body in bodies:
        connection.request("POST", "/predict", body)
        response = connection.getresponse()
        assert response.status == 200, response.read()
        response.read()
    connection.close()


def turn(side: Side, bodies: list[bytes], clients: int) -> tuple[float, float]:
    """Requests answered in a second, and milliseconds of the server's processor time for each."""
    count = REQUESTS[clients]
    shares = [bodies[client:count:clients] for client in range(clients)]
    used, begin = side.processor_time, time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(lambda share: ask(side.port, share), shares))
    return count / (time.perf_counter() - begin), 1000 * (side.processor_time - used) / count


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
        sides = {
            "torch": start(stack, arguments.model),
            "int8": start(stack, Path(folder) / "int8"),
        }
        turns: dict[str, list[list[tuple[float, float]]]] = {name: [] for name in sides}
        for number in range(arguments.rounds + 1):
            for name, side in sides.items():
                found = [turn(side, bodies, clients) for clients in REQUESTS]
                if number:  # the first round warms up
                    turns[name].append(found)
    print(f"{'':<32} {'1 client':>10} {f'{CLIENTS} clients':>10} {'ratio':>8}")
    for column, what in enumerate(("requests a second", "ms of processor time")):
        for name, rounds in turns.items():
            pairs_of = [(one[column], many[column]) for one, many in rounds]
            one, many = (statistics.median(values) for values in zip(*pairs_of, strict=True))
            ratio = statistics.median(many / one for one, many in pairs_of)
            print(f"{f'{name}, {what}':<32} {one:>10.1f} {many:>10.1f} {ratio:>8.2f}")


if __name__ == "__main__":
    main()
