"""Measure the resident memory while a model embeds 100,000 ragged texts.

    python benchmarks/memory.py MODEL TEXTS.txt [COUNT] [--precision float32]

MODEL is a model directory, exported or not; OpenVINO runs an exported one with `--precision bfloat16`.
TEXTS.txt is any English text. The texts are its words, 1 to 60 of them (log-uniform), and every 200th
text has 400 words, which the model truncates. They come in requests of 1 to 32, as from the clients of
a server, with the same seed in every run. The benchmark prints the resident memory (VmRSS) and the
processor time at each tenth.
"""

import argparse
import time
from pathlib import Path

import numpy as np

import bertie
from bertie.base.environment import limit_free_memory


def resident_memory() -> float:
    """Return the resident memory of this process, in MiB."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("texts", type=Path)
    parser.add_argument("count", nargs="?", type=int, default=100_000)
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32")
    arguments = parser.parse_args()
    with arguments.texts.open(encoding="utf-8") as file:
        words = file.read(20_000_000).split()
    limit_free_memory()  # as `bertie serve`
    model = bertie.load(arguments.model, precision=arguments.precision)
    random = np.random.default_rng(1)
    done = reported = 0
    print(f"{'texts':>8} {'RSS, MiB':>9} {'processor, s':>13}", flush=True)
    while done < arguments.count:
        texts = []
        for _ in range(random.integers(1, 33)):
            length = 400 if random.integers(200) == 0 else int(np.exp(random.uniform(0, np.log(60))))
            start = random.integers(len(words) - length)
            texts.append(" ".join(words[start : start + length]))
        model.embed(texts)
        done += len(texts)
        if done >= reported:
            print(f"{done:>8} {resident_memory():>9.0f} {time.process_time():>13.0f}", flush=True)
            reported += max(1, arguments.count // 10)


if __name__ == "__main__":
    main()
