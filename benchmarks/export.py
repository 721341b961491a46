"""Compare the speed of an encoder in ONNX Runtime and in PyTorch.

    python benchmarks/export.py [ROUNDS]

Compares all-MiniLM-L6-v2 (6 x 384) in PyTorch, exported in float32, exported in int8 (--int8
--int8-embeddings), and the float32 export after onnxruntime's own quantize_dynamic, per channel and
with reduce_range.

Latency is measured with one sequence at a time, throughput with 64 sequences in batches of the
engine's size. Neither includes the tokenizer, which is the same for all. The models take turns in
one process, with a pause before each turn, in which the threads of the previous model go to sleep.
Compare the medians of the ratios. The cosines compare the embeddings of MRPC's dev texts with
PyTorch's: the mean and the lowest.
"""

import argparse
import logging
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

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
from measure import DATA, checkpoint

LENGTHS = {"short": (8, 32), "long": (256, 384)}  # tokens of a sequence
SEQUENCES, PAUSE_SECONDS = 64, 0.3
LATENCY_RUNS = 8  # in each turn

Workload = Callable[[Engine, Sequences, list[int]], None]


def random_sequences(lengths: tuple[int, int]) -> Sequences:
    random = np.random.default_rng(0)
    bounds = np.concatenate([[0], np.cumsum(random.integers(*lengths, SEQUENCES, endpoint=True))])
    ids = random.integers(1000, 30000, bounds[-1]).astype(np.int32)
    return Sequences(ids, np.zeros_like(ids), bounds)


def one_at_a_time(engine: Engine, sequences: Sequences, layers: list[int]) -> None:
    for number in range(LATENCY_RUNS):
        engine.hidden_states(sequences.select(np.array([number])), layers)


def in_batches(engine: Engine, sequences: Sequences, layers: list[int]) -> None:
    for _, batch in sequences.batches(engine.max_batch_tokens):
        engine.hidden_states(batch, layers)


# By unit of the times: a workload, and the factor from its seconds to the unit.
WORKLOADS: dict[str, tuple[Workload, float]] = {
    "ms": (one_at_a_time, 1000 / LATENCY_RUNS),
    "ms for all": (in_batches, 1000),
}


def run_turn(workload: Workload, model: Predictor, sequences: Sequences) -> float:
    """Return the seconds that a model takes for a workload."""
    time.sleep(PAUSE_SECONDS)
    begin = time.perf_counter()
    workload(model.engine, sequences, [model.config.num_hidden_layers])
    return time.perf_counter() - begin


def load_exported(source: Path, folder: Path) -> dict[str, Predictor]:
    """Export the source in every way, and load the exported models."""
    export(source, folder / "float32", Quantization())
    export(source, folder / "int8", Quantization(layers=True, embeddings=True))
    shutil.copytree(folder / "float32", folder / "dynamic")
    logging.disable(logging.WARNING)  # quantize_dynamic recommends preprocessing, at the root logger
    quantize_dynamic(
        folder / "float32" / ONNX_FILE,
        folder / "dynamic" / ONNX_FILE,
        op_types_to_quantize=["MatMul", "Gather"],  # not Attention, taken for com.microsoft's
        per_channel=True,
        reduce_range=True,
        weight_type=QuantType.QInt8,
    )
    directories = {"onnx float32": "float32", "onnx int8": "int8", "quantize_dynamic": "dynamic"}
    return {name: bertie.load(folder / directory) for name, directory in directories.items()}


def print_times(models: dict[str, Predictor], rounds: int) -> None:
    print(f"{'':<18}", *(f"{name:>16}" for name in models))
    for length, sizes in LENGTHS.items():
        sequences = random_sequences(sizes)
        for unit, (workload, scale) in WORKLOADS.items():
            seconds: dict[str, list[float]] = {name: [] for name in models}
            for round_number in range(rounds + 1):
                for name, model in models.items():
                    taken = run_turn(workload, model, sequences)
                    if round_number:  # the first round warms up
                        seconds[name].append(taken)
            times = (f"{scale * statistics.median(values):>16.2f}" for values in seconds.values())
            print(f"{length + ', ' + unit:<18}", *times, flush=True)
            ratios = (
                statistics.median(a / b for a, b in zip(seconds["torch"], values, strict=True))
                for values in seconds.values()
            )
            print(f"{'  times faster':<18}", *(f"{ratio:>16.2f}" for ratio in ratios), flush=True)


def print_cosines(models: dict[str, Predictor]) -> None:
    task = find_task("mrpc")
    texts = list(task.read(task.file(DATA / "glue", "dev"), labelled=True).texts)
    reference = models["torch"].embed(texts, normalize=True)
    cosines = [(reference * model.embed(texts, normalize=True)).sum(axis=1) for model in models.values()]
    print(f"{'cosine, mean':<18}", *(f"{values.mean():>16.4f}" for values in cosines))
    print(f"{'cosine, lowest':<18}", *(f"{values.min():>16.4f}" for values in cosines))


def main() -> None:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("rounds", nargs="?", type=int, default=15)
    rounds = parser.parse_args().rounds
    source = checkpoint()
    with tempfile.TemporaryDirectory() as folder:
        models = {"torch": bertie.load(source, "cpu"), **load_exported(source, Path(folder))}
    print_times(models, rounds)
    print_cosines(models)


if __name__ == "__main__":
    main()
