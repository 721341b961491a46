"""Time pre-training steps on a GPU against `transformers`, and matrix products.

    python benchmarks/gpu.py [--device cuda] [--steps 20] [SIZE ...]

Both run forward and backward in bfloat16 autocast with the paper's dropout, clip the gradient, and
take a step of fused AdamW over float32 weights, in one run, alternating. bertie packs,
`transformers` pads to the longest sequence. The ids are random, so that no data is needed; the
lengths resemble real examples, which fill 0.885 of the padded batch. Each step has other examples, as
in training. The table has the medians over the steps, in tokens per second, and the model FLOPs
utilization (MFU): the rate of the step's operations, divided by the rate of a matrix product.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from bertie.corpus.examples import Examples
from bertie.model.engines.hardware import Hardware
from training import STEPS, count_operations, read_config

SIZES = {  # recipe, sequences, length
    "tiny-128": ("tiny", 8, 128),
    "mini-128": ("mini", 512, 128),
    "base-128": ("base", 256, 128),
    "base-512": ("base", 64, 512),
    "large-512": ("large", 32, 512),
}
MASKING_RATE = 0.15  # Section 3.1, Task #1
# Not measured: cuBLAS prepares each new shape of a matrix, and training of thousands of steps has them all.
WARMUP_STEPS = 20


def make_examples(count: int, length: int, vocab_size: int, seed: int = 0) -> Examples:
    """Make random examples; three quarters have full length, the others are shorter.

    Examples of real text, of at most 128 tokens, have similar lengths.
    """
    random = np.random.default_rng(seed)
    lengths = np.where(random.random(count) < 0.75, length, random.integers(16, length, count))
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    masked_positions = [
        first + np.sort(random.choice(size - 1, max(round(size * MASKING_RATE), 1), replace=False) + 1)
        for first, size in zip(bounds, lengths, strict=False)
    ]
    ids = random.integers(1000, vocab_size, bounds[-1]).astype(np.int32)
    segments = np.concatenate([np.arange(size) >= size // 2 for size in lengths]).astype(np.int32)
    masked_counts = [len(positions) for positions in masked_positions]
    return Examples(
        input_ids=ids,
        token_type_ids=segments,
        bounds=bounds,
        masked_positions=np.concatenate(masked_positions),
        masked_labels=random.integers(1000, vocab_size, sum(masked_counts)),
        masked_bounds=np.concatenate([[0], np.cumsum(masked_counts)]),
        next_sentence_labels=random.integers(0, 2, count),
    )


def measure_matrix_rate(device: torch.device) -> float:
    """Return the operations per second of a large bfloat16 matrix product."""
    side = 8192 if device.type == "cuda" else 1024
    a, b = (torch.randn(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))
    seconds = [time_on_device(lambda: a @ b, device) for _ in range(12)]
    return 2 * side**3 / statistics.median(seconds[2:])


def time_on_device(work: Callable[[], object], device: torch.device) -> float:
    """Return how many seconds the device takes for `work`."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def compare(size: str, steps: int, device: torch.device, matrix_rate: float) -> None:
    """Time one size and print its row of the table."""
    recipe, count, length = SIZES[size]
    config = read_config(recipe)
    drawn = [make_examples(count, length, config.vocab_size, seed) for seed in range(WARMUP_STEPS + steps)]
    hardware = Hardware(device=str(device), precision="bfloat16")
    sides = {name: make_step(config, iter(drawn).__next__, hardware) for name, make_step in STEPS.items()}
    seconds = np.array([[time_on_device(step, device) for step in sides.values()] for _ in drawn])
    tokens = np.array([[examples.bounds[-1]] for examples in drawn])
    operations = np.array([[count_operations(config, examples)] for examples in drawn])
    values = np.hstack(
        [tokens / seconds, operations / seconds / matrix_rate, seconds[:, 1:] / seconds[:, :1]]
    )
    ours, theirs, our_mfu, their_mfu, ratio = np.median(values[WARMUP_STEPS:], axis=0)
    print(
        f"{size:<10} {np.median(tokens):>9,.0f} {ours:>11,.0f} {our_mfu:>6.1%} {theirs:>13,.0f} "
        f"{their_mfu:>6.1%}  {ratio:.2f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "sizes",
        nargs="*",
        metavar="SIZE",
        default=["base-128", "base-512", "mini-128", "large-512"],
        help=f"{', '.join(SIZES)}; default: %(default)s",
    )
    parser.add_argument("--device", default="cuda", help="default: %(default)s")
    parser.add_argument("--steps", type=int, default=20, help="measured steps; default: %(default)s")
    options = parser.parse_args()
    device = torch.device(options.device)
    matrix_rate = measure_matrix_rate(device)
    print(f"bfloat16 matrix rate {matrix_rate / 1e12:.2f} TFLOP/s")
    print("size        tokens  bertie, t/s    MFU  transformers    MFU  ratio")
    for size in options.sizes:
        compare(size, options.steps, device, matrix_rate)


if __name__ == "__main__":
    main()
