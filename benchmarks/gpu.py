"""Time pre-training steps on a GPU against `transformers`, and matrix products.

    python benchmarks/gpu.py [--device cuda] [--steps 20] [SIZE ...]

Both run forward and backward in bfloat16 autocast with the paper's dropout, clip the gradient, and
take a step of fused AdamW over float32 weights, in one run, alternating. bertie packs,
`transformers` pads to the longest sequence. The ids are random, so that no data is needed; the
lengths resemble real examples, which fill 0.885 of the padded batch. The table has the medians over
the steps, in tokens per second, and the model FLOPs utilization (MFU): the rate of the step's
operations, divided by the rate of a matrix product.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from transformers import BertConfig as TransformersConfig
from transformers import BertForPreTraining
from transformers.utils import logging

from bertie.base.settings import read_toml
from bertie.corpus.examples import Examples
from bertie.model.config import BertConfig
from bertie.model.engines.hardware import Hardware
from bertie.model.heads import PreTrainingModel
from bertie.recipes import FOLDER
from bertie.training.optimizers import OptimizerSettings, build_optimizer
from bertie.training.pretraining_setup import pack_examples
from training import padded_inputs

SIZES = {  # recipe, sequences, length
    "tiny-128": ("tiny", 8, 128),
    "mini-128": ("mini", 512, 128),
    "base-128": ("base", 256, 128),
    "base-512": ("base", 64, 512),
    "large-512": ("large", 32, 512),
}
MASKING_RATE = 0.15  # Section 3.1, Task #1
WARMUP_STEPS = 3  # not measured: they fill caches


def make_examples(count: int, length: int, vocab_size: int) -> Examples:
    """Make random examples; three quarters have full length, the others are shorter.

    Examples of real text, of at most 128 tokens, have similar lengths.
    """
    random = np.random.default_rng(0)
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


def count_operations(config: BertConfig, examples: Examples) -> float:
    """Count the floating-point operations of forward and backward, without padding.

    Each token takes six operations for each weight that multiplies it, besides attention. In the
    last layer, queries, keys and values count for all tokens; the rest of the layer counts only for
    the masked tokens and [CLS], which the heads need. The count is the same for both libraries.
    """
    H, L = config.hidden_size, config.num_hidden_layers
    tokens, masked = int(examples.bounds[-1]), len(examples.masked_labels)
    needed = masked + len(examples.bounds) - 1
    layer = 4 * H * H + 2 * H * config.intermediate_size
    attention = 2 * L * H * float((np.diff(examples.bounds).astype(float) ** 2).sum())
    encoder = tokens * ((L - 1) * layer + 3 * H * H) + needed * (layer - 3 * H * H)
    return 6 * (encoder + masked * (H * H + H * config.vocab_size) + attention)


def compare(size: str, steps: int, device: torch.device, matrix_rate: float) -> None:
    """Time one size and print its row of the table."""
    recipe, count, length = SIZES[size]
    config = BertConfig(**read_toml(FOLDER / f"{recipe}.toml").get("model", {}))
    examples = make_examples(count, length, config.vocab_size)
    autocast = Hardware(device=str(device), precision="bfloat16").autocast()
    torch.manual_seed(0)
    model = PreTrainingModel(config).to(device).train()
    optimizer = build_optimizer(model, OptimizerSettings())
    reference = BertForPreTraining(TransformersConfig(**config.model_dump())).to(device).train()
    reference_optimizer = torch.optim.AdamW(reference.parameters(), lr=1e-4, weight_decay=0.01, fused=True)

    def bertie_step() -> None:
        (batch,) = pack_examples(examples, micro_batch_tokens=10**9)
        with autocast:
            losses = model.compute_losses(batch.to(device)).values()
        torch.stack([loss.loss_sum / loss.num_targets for loss in losses]).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    def transformers_step() -> None:
        with autocast:
            inputs = {name: values.to(device) for name, values in padded_inputs(examples).items()}
            loss = reference(**inputs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(reference.parameters(), 1.0)
        reference_optimizer.step()
        reference_optimizer.zero_grad()

    seconds: dict[str, list[float]] = {"bertie": [], "transformers": []}
    for number in range(WARMUP_STEPS + steps):
        for name, step in (("bertie", bertie_step), ("transformers", transformers_step)):
            elapsed = time_on_device(step, device)
            if number >= WARMUP_STEPS:
                seconds[name].append(elapsed)
    tokens, operations = int(examples.bounds[-1]), count_operations(config, examples)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    rates = {name: tokens / median for name, median in medians.items()}
    mfus = {name: operations / median / matrix_rate for name, median in medians.items()}
    print(
        f"{size:<10} {tokens:>7,} {rates['bertie']:>11,.0f} {mfus['bertie']:>6.1%} "
        f"{rates['transformers']:>13,.0f} {mfus['transformers']:>6.1%}  "
        f"{medians['transformers'] / medians['bertie']:.2f}",
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
    logging.set_verbosity_error()
    device = torch.device(options.device)
    matrix_rate = measure_matrix_rate(device)
    print(f"bfloat16 matrix rate {matrix_rate / 1e12:.2f} TFLOP/s")
    print("size        tokens  bertie, t/s    MFU  transformers    MFU  ratio")
    for size in options.sizes:
        compare(size, options.steps, device, matrix_rate)


if __name__ == "__main__":
    main()
