"""Measure the resident memory while a model embeds 100,000 ragged texts.

    python benchmarks/memory.py MODEL TEXTS.txt [COUNT] [--precision float32]

MODEL is a model directory, exported or not; OpenVINO runs an exported one with `--precision bfloat16`.
TEXTS.txt is any English text. The texts are its words, 1 to 60 of them (log-uniform), and every 200th
text has 400 words, which the model truncates. They come in requests of 1 to 32, as from the clients of
a server, with the same seed in every run. The benchmark prints the resident memory (VmRSS) and the
processor time at each tenth. `serving.py --memory` sends the same texts to the server.
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import bertie
from bertie.base.environment import limit_free_memory


def memory_of(process: int | str, key: str) -> float:
    """Return the resident memory of a process, `VmRSS`, or its peak, `VmHWM`, in MiB."""
    status = Path(f"/proc/{process}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(key)) / 1024


def ragged_requests(file: Path) -> Iterator[list[str]]:
    """Yield the texts of one request after the other, for ever."""
    with file.open(encoding="utf-8") as opened:
        words = opened.read(20_000_000).split()
    random = np.random.default_rng(1)
    while True:
        texts = []
        for _ in range(random.integers(1, 33)):
            length = 400 if random.integers(200) == 0 else int(np.exp(random.uniform(0, np.log(60))))
            start = random.integers(len(words) - length)
            texts.append(" ".join(words[start : start + length]))
        yield texts


def main() -> None:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("texts", type=Path)
    parser.add_argument("count", nargs="?", type=int, default=100_000)
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32")
    arguments = parser.parse_args()
    limit_free_memory(arguments.precision)  # as `bertie serve`
    model = bertie.load(arguments.model, precision=arguments.precision)
    requests = ragged_requests(arguments.texts)
    done = reported = 0
    print(f"{'texts':>8} {'RSS, MiB':>9} {'processor, s':>13}", flush=True)
    while done < arguments.count:
        texts = next(requests)
        model.embed(texts)
        done += len(texts)
        if done >= reported:
            memory = memory_of("self", "VmRSS")
            print(f"{done:>8} {memory:>9.0f} {time.process_time():>13.0f}", flush=True)
            reported += max(1, arguments.count // 10)


if __name__ == "__main__":
    main()
