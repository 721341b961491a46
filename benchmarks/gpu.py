"""Pre-training steps on a GPU against `transformers`, in one run, alternating, and the matrix rate there.

    python benchmarks/gpu.py [--device cuda] [--steps 20] [SIZE ...]

Sequences have random ids and about the lengths of real examples (fill 0.885), so no data need be carried.
Both sides run forward and backward in bfloat16 autocast with the paper's dropout, clip, and step a fused
AdamW over float32 weights; bertie packs, `transformers` pads to the longest. Medians of the steps.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from transformers import BertConfig as TheirConfig
from transformers import BertForPreTraining
from transformers.utils import logging

from bertie.base.settings import read_toml
from bertie.corpus.examples import Examples
from bertie.model.config import BertConfig
from bertie.model.engines.hardware import Hardware
from bertie.model.heads import PreTrainingModel
from bertie.recipes import FOLDER
from bertie.training.optimizers import OptimizerSettings, build_optimizer
from bertie.training.pretraining import pack_examples

SIZES = {  # recipe, sequences, length
    "tiny-128": ("tiny", 8, 128),
    "mini-128": ("mini", 512, 128),
    "base-128": ("base", 256, 128),
    "base-512": ("base", 64, 512),
    "large-512": ("large", 32, 512),
}
MASKED_SHARE = 0.15


def make_examples(count: int, length: int, vocab_size: int) -> Examples:
    """Random ids: three quarters of the sequences full, the others of any length, as in real text at 128."""
    random = np.random.default_rng(0)
    lengths = np.where(random.random(count) < 0.75, length, random.integers(16, length, count))
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    masked = [
        first + np.sort(random.choice(size - 1, max(round(size * MASKED_SHARE), 1), replace=False) + 1)
        for first, size in zip(bounds, lengths, strict=False)
    ]
    ids = random.integers(1000, vocab_size, bounds[-1]).astype(np.int32)
    segments = np.concatenate([np.arange(size) >= size // 2 for size in lengths]).astype(np.int32)
    return Examples(
        input_ids=ids,
        token_type_ids=segments,
        bounds=bounds,
        masked_positions=np.concatenate(masked),
        masked_labels=random.integers(1000, vocab_size, sum(map(len, masked))),
        masked_bounds=np.concatenate([[0], np.cumsum([len(places) for places in masked])]),
        next_sentence_labels=random.integers(0, 2, count),
    )


def padded(examples: Examples, device: torch.device) -> dict[str, torch.Tensor]:
    """The layout of `transformers`."""
    lengths = np.diff(examples.bounds)
    mask = np.arange(lengths.max()) < lengths[:, None]
    inputs = {"attention_mask": mask.astype(np.int64)}
    labels = np.full(examples.bounds[-1], -100)
    labels[examples.masked_positions] = examples.masked_labels
    for name, values, fill in (
        ("input_ids", examples.input_ids, 0),
        ("token_type_ids", examples.token_type_ids, 0),
        ("labels", labels, -100),
    ):
        rows = np.full(mask.shape, fill, np.int64)
        rows[mask] = values
        inputs[name] = rows
    inputs["next_sentence_label"] = examples.next_sentence_labels
    return {name: torch.from_numpy(values).to(device) for name, values in inputs.items()}


def matrix_rate(device: torch.device) -> float:
    """Floating-point operations a second of a large bfloat16 product."""
    side = 8192 if device.type == "cuda" else 1024
    a, b = (torch.randn(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))
    seconds = [clock(lambda: a @ b, device) for _ in range(12)]
    return 2 * side**3 / statistics.median(seconds[2:])


def clock(work: Callable[[], object], device: torch.device) -> float:
    """Seconds until the device has done it."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def operations(config: BertConfig, examples: Examples) -> float:
    """Of forward and backward over real tokens: six for each weight of a product, and attention's.

    Of the last layer only what is needed, the queries, keys and values of all tokens and the rest of those
    that are read, on both sides.
    """
    H, L = config.hidden_size, config.num_hidden_layers
    tokens, masked = int(examples.bounds[-1]), len(examples.masked_labels)
    read = masked + len(examples.bounds) - 1
    layer = 4 * H * H + 2 * H * config.intermediate_size
    attention = 2 * L * H * float((np.diff(examples.bounds).astype(float) ** 2).sum())
    encoder = tokens * ((L - 1) * layer + 3 * H * H) + read * (layer - 3 * H * H)
    return 6 * (encoder + masked * (H * H + H * config.vocab_size) + attention)


def compare(size: str, steps: int, device: torch.device, peak: float) -> None:
    recipe, count, length = SIZES[size]
    config = BertConfig(**read_toml(FOLDER / f"{recipe}.toml").get("model", {}))
    examples = make_examples(count, length, config.vocab_size)
    autocast = Hardware(device=str(device), precision="bfloat16").autocast()
    torch.manual_seed(0)
    ours = PreTrainingModel(config).to(device).train()
    our_optimizer = build_optimizer(ours, OptimizerSettings())
    theirs = BertForPreTraining(TheirConfig(**config.model_dump())).to(device).train()
    their_optimizer = torch.optim.AdamW(theirs.parameters(), lr=1e-4, weight_decay=0.01, fused=True)

    def our_step() -> None:
        (batch,) = pack_examples(examples, micro_batch_tokens=10**9)
        with autocast:
            losses = ours.losses(batch.to(device))
        torch.stack([one.loss_sum / one.targets for one in losses.values()]).sum().backward()
        torch.nn.utils.clip_grad_norm_(ours.parameters(), 1.0)
        our_optimizer.step()
        our_optimizer.zero_grad()

    def their_step() -> None:
        with autocast:
            loss = theirs(**padded(examples, device)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        their_optimizer.step()
        their_optimizer.zero_grad()

    seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
    for number in range(steps + 3):
        for name, step in (("ours", our_step), ("theirs", their_step)):
            taken = clock(step, device)
            if number >= 3:  # the first ones warm caches
                seconds[name].append(taken)
    tokens = int(examples.bounds[-1])
    ours_s, theirs_s = (statistics.median(seconds[name]) for name in ("ours", "theirs"))
    share = operations(config, examples) / ours_s / peak
    their_share = operations(config, examples) / theirs_s / peak
    print(
        f"{size:<10} {tokens:>7,} {tokens / ours_s:>11,.0f} {share:>6.1%} {tokens / theirs_s:>13,.0f} "
        f"{their_share:>6.1%}  {theirs_s / ours_s:.2f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sizes", nargs="*", default=["base-128", "base-512", "mini-128", "large-512"])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    logging.set_verbosity_error()
    device = torch.device(options.device)
    peak = matrix_rate(device)
    print(f"bfloat16 matrix rate {peak / 1e12:.2f} TFLOP/s")
    print("size        tokens  bertie, t/s  share  transformers  share  ratio")
    for size in options.sizes:
        compare(size, options.steps, device, peak)


if __name__ == "__main__":
    main()
