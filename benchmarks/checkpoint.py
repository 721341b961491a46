"""Original TensorFlow checkpoints, read and written without TensorFlow: python benchmarks/checkpoint.py

Of a checkpoint of BERT-large for pre-training: how fast its checksums are computed, against zlib's CRC-32,
which has no checksum of this kind; and the time that bertie takes to read and write it, against its own
directory of the same model (safetensors, no checksums). In turn, in one run; the figures are medians.
"""

import argparse
import statistics
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import torch

from bertie.model.config import BertConfig
from bertie.model.formats import tensorflow, weights
from bertie.model.formats.crc32c import masked_crc32c
from bertie.model.formats.directory import ModelMetadata
from bertie.model.heads import PreTrainingModel
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary

ROUNDS = 5
LARGE = BertConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)


def medians(works: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Seconds; what is not counted comes first, to warm up."""
    taken: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(1 + ROUNDS):
        for name, work in works.items():
            begin = time.perf_counter()
            work()
            taken[name].append(time.perf_counter() - begin)
    return {name: statistics.median(seconds[1:]) for name, seconds in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=LARGE.num_hidden_layers)
    config = LARGE.model_copy(update={"num_hidden_layers": parser.parse_args().layers})
    with torch.device("meta"):
        model = PreTrainingModel(config)
    model.to_empty(device="cpu")
    for weight in model.parameters():
        torch.nn.init.uniform_(weight)
    metadata = ModelMetadata(config, model.architecture, (), Tokenizer(Vocabulary(SPECIAL_TOKENS)))
    with tempfile.TemporaryDirectory() as folder:
        theirs, ours = Path(folder, "tensorflow"), Path(folder, "bertie")
        writing = medians(
            {
                "tensorflow": lambda: tensorflow.save_model(theirs, model, metadata),
                "bertie": lambda: weights.save_model(ours, model, metadata, ""),
            }
        )
        reading = medians(
            {"tensorflow": lambda: tensorflow.load_model(theirs), "bertie": lambda: weights.load_model(ours)}
        )
        data = Path(folder, f"tensorflow/{tensorflow.CHECKPOINT}.data-00000-of-00001").read_bytes()
    checksums = medians({"crc32c": lambda: masked_crc32c(data), "zlib": lambda: zlib.crc32(data)})
    gigabytes = len(data) / 1e9
    print(f"{gigabytes:.2f} GB")
    for name, times in {"writing": writing, "reading": reading}.items():
        ratio = times["tensorflow"] / times["bertie"]
        print(
            f"{name}: {gigabytes / times['tensorflow']:.2f} GB/s, {ratio:.2f} times as long as bertie's own"
        )
    ratio = checksums["zlib"] / checksums["crc32c"]
    print(f"CRC-32C: {gigabytes / checksums['crc32c']:.2f} GB/s, {ratio:.2f} times as fast as zlib's CRC-32")


if __name__ == "__main__":
    main()
