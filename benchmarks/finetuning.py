"""Compare fine-tuning and evaluation on MRPC with `transformers`' BertForSequenceClassification.

All contenders take turns and start from the same weights: the encoder of all-MiniLM-L6-v2 (6 x 384) and a
new head. All compute in float32. Each trains in a separate process, as its users run it: bertie's
keeps the memory that a step has freed, as `bertie finetune` does. They evaluate in one process.

A step of training makes a batch of the same 32 examples, applies the paper's dropout, and ends with
a clipped AdamW update. `transformers` tokenizes all examples first, and pads each batch with
DataCollatorWithPadding to its longest sequence or to 128, as its users do. The time of tokenizing
the training set is divided between the steps of an epoch. An evaluation turns texts of dev into
labels: bertie in batches of similar lengths, `transformers` in batches of 32 in the order of the
file.
"""

import tempfile
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding
from transformers.utils import logging

from bertie.base.arrays import Int64s
from bertie.base.environment import freed_memory_kept
from bertie.model.batch import pack_selected
from bertie.model.config import BertConfig
from bertie.model.engines.hardware import Hardware
from bertie.model.engines.torch_engine import evaluation_engine
from bertie.model.formats.directory import ModelMetadata
from bertie.model.formats.weights import load_model, load_weights, save_model
from bertie.model.heads import ClassificationModel
from bertie.tasks.evaluation import compute_logits
from bertie.tasks.registry import find_task
from bertie.training.finetuning import InitialModel
from bertie.training.optimizers import OptimizerSettings, build_optimizer
from measure import DATA, OwnProcess, Row, Seconds, checkpoint, compare, take_turns, timed, version
from training import FOR_EVER, compare_with_matrices, encoder_operations, multiply_matrices

BATCH_SIZE, MAX_SEQ_LENGTH = 32, 128  # Section 4.1; run_classifier.py
OPTIMIZER = OptimizerSettings(learning_rate=1e-4, bias_correction=True)
STEPS = 3  # in a round
EVALUATED = 192  # examples of dev
PADDINGS = {"longest": "longest", "128": "max_length"}  # as `transformers` calls them
HARDWARE = Hardware(device="cpu", precision="float32")
BARS = {
    ("training", "longest"): 1.9,
    ("training", "128"): 4.0,
    ("evaluation", "longest"): 1.9,
    ("evaluation", "128"): 4.0,
}


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


def bertie_contender(directory: Path, task: Any, training: Any, dev: Any) -> Contender:
    model, metadata = load_model(directory)
    assert isinstance(model, ClassificationModel)
    tokenizer, optimizer = metadata.tokenizer, build_optimizer(model, OPTIMIZER)

    def step(inputs: Any, indices: Int64s) -> None:
        model.train()
        batch = pack_selected(inputs.input_ids, inputs.token_type_ids, inputs.bounds, indices, inputs.labels)
        with HARDWARE.autocast():
            (objective,) = model.compute_losses(batch).values()
        update(model, optimizer, objective.loss_sum / objective.num_targets)

    def evaluate() -> Int64s:
        inputs = task.encode(dev, tokenizer, MAX_SEQ_LENGTH)
        with evaluation_engine(model, HARDWARE) as engine:
            predicted: Int64s = task.decode(dev, inputs, compute_logits(engine, inputs))
        return predicted

    return Contender(lambda: task.encode(training, tokenizer, MAX_SEQ_LENGTH), step, evaluate)


def transformers_contender(directory: Path, padding: str, training: Any, dev: Any, gold: Int64s) -> Contender:
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
        with HARDWARE.autocast():
            loss = model(**make_batch(encoding, indices), labels=torch.from_numpy(gold[indices])).loss
        update(model, optimizer, loss)

    @torch.inference_mode()
    def evaluate() -> Int64s:
        model.eval()
        encoding = tokenize(dev)
        batches = np.array_split(np.arange(len(dev)), range(BATCH_SIZE, len(dev), BATCH_SIZE))
        with HARDWARE.autocast():
            logits = [model(**make_batch(encoding, indices)).logits for indices in batches]
        return torch.cat(logits).argmax(1).numpy()

    return Contender(lambda: tokenize(training), step, evaluate)


def read_examples() -> tuple[Any, Any, Any]:
    """Return the task, its training examples and some examples of dev."""
    task = find_task("mrpc")
    training, dev = (task.read(task.file(DATA / "glue", part), labelled=True) for part in ("train", "dev"))
    return task, training, task.select(dev, range(EVALUATED))


def save_start(directory: Path) -> None:
    """Write the model with which all contenders start."""
    initial_model, labels = InitialModel.load(checkpoint()), find_task("mrpc").labels
    assert initial_model.weights is not None
    torch.manual_seed(0)
    model = ClassificationModel(initial_model.config, len(labels))
    load_weights(initial_model.weights, model, prefix="bert.")
    metadata = ModelMetadata(initial_model.config, model.architecture, labels, initial_model.tokenizer)
    save_model(directory, model, metadata, "")


def make_contender(name: str, directory: Path) -> Contender:
    """Make a contender from the model in a directory."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    task, training, dev = read_examples()
    if name == "bertie":
        return bertie_contender(directory, task, training, dev)
    return transformers_contender(directory, PADDINGS[name], training, dev, task.gold(training))


def prepare_training(name: str, directory: Path) -> Callable[[], None]:
    """Return the work of a round of training, for a separate process."""
    contender = make_contender(name, directory)
    _, training, _ = read_examples()
    inputs = contender.tokenize()
    order = np.random.default_rng(0).permutation(len(training))
    batches = iter(np.array_split(order, range(BATCH_SIZE, len(order), BATCH_SIZE)))
    if name == "bertie":
        FOR_EVER.enter_context(freed_memory_kept())

    def work() -> None:
        for indices in islice(batches, STEPS):
            contender.step(inputs, indices)

    return work


def compare_evaluation(
    contenders: dict[str, Contender], bounds: npt.NDArray[np.int64], config: BertConfig, rounds: int
) -> Iterator[Row]:
    """Compare the evaluations, and bertie's with the rate of a matrix product.

    `bounds` has the first token of each text, and the number of tokens.
    """
    predicted: dict[str, Int64s] = {}

    def make_work(name: str) -> Callable[[], None]:
        def work() -> None:
            predicted[name] = contenders[name].evaluate()

        return work

    sides = {name: make_work(name) for name in contenders} | {"matrices": multiply_matrices}
    seconds = take_turns(sides, rounds)
    for padding in PADDINGS:
        same = int((predicted["bertie"] == predicted[padding]).sum())
        yield make_row(
            "evaluation", padding, EVALUATED, seconds, f"{same} of {EVALUATED} labels are the same."
        )
    operations = [encoder_operations(config, bounds, EVALUATED)] * rounds
    name = "finetuning-evaluation-rate"
    yield compare_with_matrices(name, operations, seconds["bertie"], seconds["matrices"])


def compare_training(
    contenders: dict[str, Contender], directory: Path, examples: int, rounds: int
) -> Iterator[Row]:
    """Compare rounds of training, with their share of the time of tokenizing."""
    tokenizing = {name: timed(contender.tokenize) for name, contender in contenders.items()}
    seconds = take_turns({name: OwnProcess(prepare_training, name, directory) for name in contenders}, rounds)
    fraction = STEPS * BATCH_SIZE / examples
    whole = {
        name: [
            Seconds(*(a + b * fraction for a, b in zip(taken, tokenizing[name], strict=True)))
            for taken in seconds[name]
        ]
        for name in contenders
    }
    for padding in PADDINGS:
        yield make_row("training", padding, STEPS * BATCH_SIZE, whole)


def make_row(
    work: str, padding: str, examples: int, seconds: dict[str, list[Seconds]], note: str = ""
) -> Row:
    how = {"longest": "padded to the longest of a batch", "128": "padded to 128"}[padding]
    what = {
        "training": "steps of an epoch of MRPC, 6 × 384",
        "evaluation": "an evaluation on MRPC's dev, 6 × 384",
    }
    return compare(
        f"finetuning-{work}-{padding}",
        f"{what[work]}, batch 32; the peer {how}",
        version("transformers"),
        "examples/s",
        examples,
        seconds["bertie"],
        seconds[padding],
        BARS[work, padding],
        note,
    )


def rows(rounds: int) -> Iterator[Row]:
    """Measure training and evaluation."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "model"
        save_start(directory)
        contenders = {name: make_contender(name, directory) for name in ("bertie", *PADDINGS)}
        task, training, dev = read_examples()
        initial_model = InitialModel.load(checkpoint())
        bounds = task.encode(dev, initial_model.tokenizer, MAX_SEQ_LENGTH).bounds
        yield from compare_evaluation(contenders, bounds, initial_model.config, rounds)
        yield from compare_training(contenders, directory, len(training), rounds)
