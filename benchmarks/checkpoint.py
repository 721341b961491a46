"""Measure the TensorFlow checkpoint format, read and written without TensorFlow.

    python benchmarks/checkpoint.py [--layers N]

The model is BERT-large for pre-training with random weights. The figures are the throughput of its
checksums, compared with zlib's CRC-32 of the same bytes, and the time to write and read the
checkpoint, compared with bertie's model directory (safetensors, without checksums). All are medians
of runs that alternate in one process.
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


def median_seconds(functions: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Return the median time of each function; the functions run in turn.

    One warm-up round is not counted.
    """
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(1 + ROUNDS):
        for name, function in functions.items():
            begin = time.perf_counter()
            function()
            seconds[name].append(time.perf_counter() - begin)
    return {name: statistics.median(values[1:]) for name, values in seconds.items()}


def random_model(config: BertConfig) -> PreTrainingModel:
    with torch.device("meta"):
        model = PreTrainingModel(config)
    model.to_empty(device="cpu")
    for weight in model.parameters():
        torch.nn.init.uniform_(weight)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure reading and writing TensorFlow checkpoints.")
    parser.add_argument("--layers", type=int, default=LARGE.num_hidden_layers, help="default: %(default)s")
    config = LARGE.model_copy(update={"num_hidden_layers": parser.parse_args().layers})
    model = random_model(config)
    metadata = ModelMetadata(config, model.architecture, (), Tokenizer(Vocabulary(SPECIAL_TOKENS)))
    with tempfile.TemporaryDirectory() as folder:
        checkpoint, directory = Path(folder, "tensorflow"), Path(folder, "bertie")
        writing = median_seconds(
            {
                "tensorflow": lambda: tensorflow.save_model(checkpoint, model, metadata),
                "bertie": lambda: weights.save_model(directory, model, metadata, ""),
            }
        )
        reading = median_seconds(
            {
                "tensorflow": lambda: tensorflow.load_model(checkpoint),
                "bertie": lambda: weights.load_model(directory),
            }
        )
        data = (checkpoint / f"{tensorflow.CHECKPOINT_NAME}.data-00000-of-00001").read_bytes()
    checksums = median_seconds({"crc32c": lambda: masked_crc32c(data), "zlib": lambda: zlib.crc32(data)})
    gigabytes = len(data) / 1e9
    print(f"{gigabytes:.2f} GB")
    for name, seconds in {"writing": writing, "reading": reading}.items():
        ratio = seconds["tensorflow"] / seconds["bertie"]
        throughput = gigabytes / seconds["tensorflow"]
        print(f"{name}: {throughput:.2f} GB/s, {ratio:.2f} times the time of a bertie model directory")
    ratio = checksums["zlib"] / checksums["crc32c"]
    print(
        f"CRC-32C: {gigabytes / checksums['crc32c']:.2f} GB/s, {ratio:.2f} times the speed of zlib's CRC-32"
    )


if __name__ == "__main__":
    main()
