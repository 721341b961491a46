"""Compare whole pre-training steps with `transformers`' BertForPreTraining.

Both train with fused AdamW on the same real examples (Wikipedia, the original uncased vocabulary) with
the paper's dropout, in float32, and in bfloat16 too where the processor multiplies it. A step includes
making its batch from the examples: bertie goes from the stream's cursor to a packed batch, `transformers`
pads to the longest sequence. Each side has its own process, as its users run it: bertie's keeps the
memory that a step has freed, as `bertie pretrain` does. The rows `training-*-kept` show the
difference that remains if the peer keeps it, too. Other rows compare the peak memory of a step of
BERT-Base, and the rate of a step's operations with the rate of a matrix product.
"""

import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from bertie.base.environment import freed_memory_kept
from bertie.base.settings import read_toml
from bertie.corpus.examples import Examples, ExampleSettings
from bertie.corpus.preparation import prepare
from bertie.corpus.prepared import Corpus
from bertie.corpus.sampling import ExampleStream
from bertie.model.config import BertConfig
from bertie.model.engines.hardware import Hardware
from bertie.model.heads import PreTrainingModel
from bertie.model.objectives import IGNORE_INDEX
from bertie.model.products import multiplies_in_numpy, multiply
from bertie.recipes import FOLDER
from bertie.text.tokenizer import Tokenizer
from bertie.training.optimizers import OptimizerSettings, build_optimizer
from bertie.training.pretraining_setup import pack_examples
from measure import (
    UNCASED,
    WIKIPEDIA,
    OwnProcess,
    Row,
    Seconds,
    compare,
    run_function,
    take_turns,
    version,
)

SIZES = {  # recipe, batch size, sequence length, rounds for each of the table's, bar
    "tiny": ("tiny", 32, 128, 3, 5.0),
    "mini": ("mini", 32, 128, 2, 3.5),
    "mini-512": ("mini", 8, 512, 2, 4.5),
    "base": ("base", 8, 128, 1, 1.7),
}
MEMORY_BAR, MEMORY_STEPS = 0.7, 2
MATRIX_PRODUCTS = 10
MATRIX_OPERATIONS = MATRIX_PRODUCTS * 2 * 2048 * 768 * 3072  # of `multiply_matrices`
FOR_EVER = ExitStack()  # what a process enters, and never leaves

Step = Callable[[], object]
Precision = Literal["float32", "bfloat16"]


def read_config(recipe: str) -> BertConfig:
    """Return the network of a recipe."""
    return BertConfig(**read_toml(FOLDER / f"{recipe}.toml").get("model", {}))


def padded_inputs(examples: Examples) -> dict[str, torch.Tensor]:
    """Return examples in the layout of `transformers`, padded to the longest sequence."""
    lengths = np.diff(examples.bounds)
    mask = np.arange(lengths.max()) < lengths[:, None]  # (N, S)
    labels = np.full(examples.bounds[-1], IGNORE_INDEX)
    labels[examples.masked_positions] = examples.masked_labels
    assert examples.next_sentence_labels is not None
    inputs = {
        "attention_mask": mask.astype(np.int64),
        "next_sentence_label": examples.next_sentence_labels,
    }
    for name, values, padding in (
        ("input_ids", examples.input_ids, 0),
        ("token_type_ids", examples.token_type_ids, 0),
        ("labels", labels, IGNORE_INDEX),
    ):
        inputs[name] = np.full(mask.shape, padding, np.int64)
        inputs[name][mask] = values
    return {name: torch.from_numpy(values) for name, values in inputs.items()}


def bertie_step(config: BertConfig, draw: Callable[[], Examples], hardware: Hardware) -> Step:
    """Return bertie's training step on the examples that `draw` returns."""
    torch.manual_seed(0)
    device = torch.device(hardware.device)
    model = PreTrainingModel(config).to(device).train()
    optimizer = build_optimizer(model, OptimizerSettings())

    def step() -> None:
        (batch,) = pack_examples(draw(), micro_batch_tokens=10**9)
        with hardware.autocast():
            losses = model.compute_losses(batch.to(device)).values()
        torch.stack([loss.loss_sum / loss.num_targets for loss in losses]).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def transformers_step(config: BertConfig, draw: Callable[[], Examples], hardware: Hardware) -> Step:
    """Return the step of `transformers` on the examples that `draw` returns."""
    # Imported here, so that bertie's process of `compare_memory` does without.
    from transformers import BertConfig as TransformersConfig
    from transformers import BertForPreTraining
    from transformers.utils import logging

    logging.set_verbosity_error()
    torch.manual_seed(0)
    device = torch.device(hardware.device)
    model = BertForPreTraining(TransformersConfig(**config.model_dump())).train()
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)

    def step() -> None:
        inputs = {name: values.to(device) for name, values in padded_inputs(draw()).items()}
        with hardware.autocast():
            loss = model(**inputs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


STEPS = {"bertie": bertie_step, "transformers": transformers_step}


def encoder_operations(config: BertConfig, bounds: npt.NDArray[np.int64], needed: int) -> float:
    """Count the floating-point operations of the encoder's forward pass, without padding.

    Each token takes two operations for each weight that multiplies it, besides attention. In the last
    layer, queries, keys and values count for all tokens; the rest of the layer counts only for the
    `needed` tokens, which the heads read. The count is the same for both libraries.
    """
    H, L = config.hidden_size, config.num_hidden_layers
    layer = 4 * H * H + 2 * H * config.intermediate_size
    attention = 2 * L * H * float((np.diff(bounds).astype(float) ** 2).sum())
    return 2 * float(bounds[-1] * ((L - 1) * layer + 3 * H * H) + needed * (layer - 3 * H * H) + attention)


def count_operations(config: BertConfig, examples: Examples) -> float:
    """Count the operations of forward and backward; backward takes twice as many as forward."""
    H, masked = config.hidden_size, len(examples.masked_labels)
    encoder = encoder_operations(config, examples.bounds, masked + len(examples.bounds) - 1)
    return 3 * (encoder + 2 * masked * (H * H + H * config.vocab_size))


@cache
def make_matrices() -> tuple[torch.Tensor, torch.Tensor]:
    """Return a batch and weights of the widest layer of BERT-Base."""
    return torch.randn(2048, 768), torch.randn(768, 3072)


def multiply_matrices() -> object:
    """Multiply large matrices in the faster library; the rate is the machine's best."""
    return [multiply(*make_matrices()) for _ in range(MATRIX_PRODUCTS)]


def open_stream(corpus: Corpus, length: int) -> ExampleStream:
    tokenizer = Tokenizer.load(corpus.tokenizer_directory)
    return ExampleStream(corpus.train, ExampleSettings(max_seq_length=length), tokenizer.vocabulary, seed=0)


def prepare_step(side: str, size: str, corpus: Path, precision: Precision, keeps_memory: bool) -> Step:
    """Return the step of a side; with `keeps_memory`, this process keeps the memory that a step has freed."""
    recipe, batch_size, length, *_ = SIZES[size]
    stream = open_stream(Corpus.open(corpus), length)  # of the same examples for all sides
    if keeps_memory:
        FOR_EVER.enter_context(freed_memory_kept())
    hardware = Hardware(device="cpu", precision=precision)
    return STEPS[side](read_config(recipe), lambda: stream.next(batch_size), hardware)


def prepare_matrices() -> Step:
    """Return the product that the rates of steps are compared with."""
    return multiply_matrices


def compare_steps(size: str, corpus: Path, precision: Precision, rounds: int) -> Iterator[Row]:
    """Compare the steps of a size, and bertie's with the rate of a matrix product in float32."""
    name = f"training-{size}" + ("" if precision == "float32" else f"-{precision}")
    recipe, batch_size, length, factor, bar = SIZES[size]
    config = read_config(recipe)
    sides = {
        "bertie": OwnProcess(prepare_step, "bertie", size, corpus, precision, True),
        "transformers": OwnProcess(prepare_step, "transformers", size, corpus, precision, False),
        "kept": OwnProcess(prepare_step, "transformers", size, corpus, precision, True),
        "matrices": OwnProcess(prepare_matrices),
    }
    seconds = take_turns(sides, rounds * factor)
    stream = open_stream(Corpus.open(corpus), length)
    _, *examples = (stream.next(batch_size) for _ in range(1 + rounds * factor))
    tokens = statistics.median(int(drawn.bounds[-1]) for drawn in examples)
    layers = f"{config.num_hidden_layers} × {config.hidden_size}"
    claim = f"a pre-training step of {layers}, batch {batch_size} × {length}, {precision}"
    for peer, suffix, addition, to_reach in (
        ("transformers", "", "", bar),
        ("kept", "-kept", "; the peer keeps memory", None),
    ):
        yield compare(
            name + suffix,
            claim + addition,
            version("transformers"),
            "tokens/s",
            tokens,
            seconds["bertie"],
            seconds[peer],
            to_reach,
        )
    operations = [count_operations(config, drawn) for drawn in examples]
    yield compare_with_matrices(f"{name}-rate", operations, seconds["bertie"], seconds["matrices"])


def compare_with_matrices(
    name: str, operations: Sequence[float], taken: Sequence[Seconds], multiplying: Sequence[Seconds]
) -> Row:
    """Compare the rates of bertie's work and of `multiply_matrices` in the same rounds."""
    rates = [count / seconds.processor / 1e9 for count, seconds in zip(operations, taken, strict=True)]
    best = [MATRIX_OPERATIONS / seconds.processor / 1e9 for seconds in multiplying]
    fractions = [rate / limit for rate, limit in zip(rates, best, strict=True)]
    return Row(
        name,
        f"operations of {name.removesuffix('-rate')}, beside a matrix product",
        version("numpy" if multiplies_in_numpy(make_matrices()[0]) else "torch"),
        "GFLOP/s",
        statistics.median(rates),
        statistics.median(best),
        statistics.median(fractions),
        (min(fractions), max(fractions)),
    )


def run_steps(side: str, corpus: str) -> None:
    """Take steps of BERT-Base in this process, whose memory is measured."""
    step = prepare_step(side, "base", Path(corpus), "float32", keeps_memory=side == "bertie")
    for _ in range(MEMORY_STEPS):
        step()


def compare_memory(corpus: Path) -> Row:
    """Compare the peak memory of processes that take steps of BERT-Base."""
    run_function("training", "run_steps", "bertie", corpus)  # compiles kernels, which takes up to 150 MiB
    ours, theirs = (run_function("training", "run_steps", side, corpus).peak for side in STEPS)
    return Row(
        "training-base-memory",
        "peak resident memory of a process that takes two steps of 12 × 768, batch 8 × 128",
        version("transformers"),
        "MiB",
        ours,
        theirs,
        ours / theirs,
        (ours / theirs, ours / theirs),
        MEMORY_BAR,
        at_most=True,
        note="One process each, with all that it imports.",
    )


def rows(rounds: int) -> Iterator[Row]:
    """Measure all sizes."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        Tokenizer.load(UNCASED).save(folder / "tokenizer")
        prepare([WIKIPEDIA], folder / "tokenizer", folder / "corpus", workers=1)
        yield compare_memory(folder / "corpus")
        is_fast = Hardware(device="cpu").resolved().precision == "bfloat16"
        precisions: list[Precision] = ["float32", "bfloat16"] if is_fast else ["float32"]
        for precision in precisions:
            for size in SIZES:
                yield from compare_steps(size, folder / "corpus", precision, rounds)
