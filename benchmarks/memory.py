"""Measure the resident memory while a model embeds 100,000 ragged texts, and while another one trains.

    python benchmarks/memory.py MODEL TEXTS.txt [COUNT] [--precision float32]

MODEL is a model directory, exported or not; OpenVINO runs an exported one with `--precision bfloat16`.
TEXTS.txt is any English text. The texts are its words, 1 to 60 of them (log-uniform), and every 200th
text has 400 words, which the model truncates. They come in requests of 1 to 32, as from the clients of
a server, with the same seed in every run. The benchmark prints the resident memory (VmRSS) and the
processor time at each tenth. `serving.py --memory` sends the same texts to the server.

The rows of `make bench` are the peak of the resident memory (VmHWM) of every engine, after ever more texts,
with an encoder of 2 × 128, random weights and 30,522 entries. OpenVINO multiplies in bfloat16 on processors
that have it. torch in bfloat16 is measured where it is faster than float32. The last row is the peak of
pre-training after ever more steps; each step has other batches, so its tensors have other sizes.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np

import bertie
from bertie.base.environment import limit_free_memory
from measure import UNCASED, WIKIPEDIA, Growth, run_function

COUNTS = (1600, 6400, 25_600, 102_400)  # texts, fourfold each time
# Memory is flat if it grows by at most 9 % while the texts grow 64-fold: 64 ** 0.02 is 1.09.
FLAT = 0.02
STEPS = (4, 16, 64)
# The largest of more batches is larger: 15 % more memory for 16 times as many steps (16 ** 0.05 is 1.15).
LARGEST_BATCH = 0.05


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


def save_encoders(folder: Path) -> dict[str, tuple[Path, str]]:
    """Write a random encoder for every engine; return directory and precision by engine."""
    import torch

    from bertie.inference.export import export
    from bertie.model.config import BertConfig
    from bertie.model.engines.hardware import Hardware
    from bertie.model.formats.directory import ModelMetadata
    from bertie.model.formats.onnx import Quantization
    from bertie.model.formats.weights import save_model
    from bertie.model.heads import EncoderModel
    from bertie.text.tokenizer import Tokenizer

    torch.manual_seed(0)
    config = BertConfig(num_hidden_layers=2, hidden_size=128, num_attention_heads=2, intermediate_size=512)
    model = EncoderModel(config)
    save_model(
        folder / "torch", model, ModelMetadata(config, model.architecture, (), Tokenizer.load(UNCASED)), ""
    )
    export(folder / "torch", folder / "onnx", Quantization())
    export(folder / "torch", folder / "int8", Quantization(layers=True))
    engines = {
        "torch": (folder / "torch", "float32"),
        "onnx": (folder / "onnx", "float32"),
        "onnx-int8": (folder / "int8", "float32"),
        "torch-int8": (folder / "torch", "int8"),
        "openvino": (folder / "onnx", "bfloat16"),
    }
    if Hardware(device="cpu").resolved().precision == "bfloat16":
        engines["torch-bfloat16"] = (folder / "torch", "bfloat16")
    return engines


def record_peaks(directory: str, precision: Literal["float32", "bfloat16", "int8"]) -> None:
    """Embed texts in this process; print its peak memory in MiB after each of COUNTS as JSON."""
    limit_free_memory()  # as `bertie serve`
    model = bertie.load(directory, precision=precision)
    requests = ragged_requests(WIKIPEDIA)
    done, peaks = 0, []
    for count in COUNTS:
        while done < count:
            texts = next(requests)
            model.embed(texts)
            done += len(texts)
        peaks.append(memory_of("self", "VmHWM"))
    print(json.dumps(peaks))


def pretrain(corpus: str, run: str, steps: str) -> None:
    """Train a model of 4 × 256 in this process, whose memory is measured, with steps of 16 × 512."""
    phases = [{"steps": int(steps), "max_seq_length": 512}]
    settings: dict[str, Any] = {
        "batch_size": 16,
        "warmup_steps": 1,
        "held_out_examples": 4,
        "precision": "float32",
    }
    bertie.pretrain("mini", corpus=corpus, out=run, phases=phases, **settings)


def compare_steps() -> Growth:
    """Measure the peak memory of runs with ever more steps."""
    from bertie.text.tokenizer import Tokenizer

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        Tokenizer.load(UNCASED).save(folder / "tokenizer")
        bertie.prepare([WIKIPEDIA], tokenizer=folder / "tokenizer", out=folder / "corpus", workers=1)
        peaks = [
            run_function("memory", "pretrain", folder / "corpus", folder / f"run-{steps}", str(steps)).peak
            for steps in STEPS
        ]
    claim = "peak memory of a process that pre-trains 4 × 256 in float32, by its steps of 16 × 512"
    return Growth("memory-pretraining", claim, "MiB", STEPS, tuple(peaks), bar=LARGEST_BATCH)


def rows(rounds: int) -> Iterator[Growth]:
    """Measure the peak memory of each engine, and of pre-training, once."""
    with tempfile.TemporaryDirectory() as folder:
        encoders = save_encoders(Path(folder))
        for precision in ("float32", "int8"):
            model = bertie.load(encoders["torch"][0], precision=precision)
            model.embed(["This compiles kernels, which takes more memory."])
        for engine, (directory, precision) in encoders.items():
            peaks = json.loads(run_function("memory", "record_peaks", directory, precision).output)
            claim = f"peak memory of a process that embeds ragged texts, {engine}, 2 × 128"
            yield Growth(f"memory-{engine}", claim, "MiB", COUNTS, tuple(peaks), bar=FLAT)
    yield compare_steps()


def main() -> None:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("texts", type=Path)
    parser.add_argument("count", nargs="?", type=int, default=100_000)
    parser.add_argument("--precision", choices=["float32", "bfloat16", "int8"], default="float32")
    arguments = parser.parse_args()
    limit_free_memory()  # as `bertie serve`
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
