"""Fine-tuning (Section 4, Appendix A.3): BERT with a new head, all of it trained on labelled texts."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pydantic
import torch

from bertie.base.progress import Progress
from bertie.base.random import permutation, stream_key
from bertie.base.settings import Settings, write_toml
from bertie.model.batch import pack_selected, token_budget_batches
from bertie.model.config import BertConfig
from bertie.model.directory import Description
from bertie.model.heads import ClassificationModel
from bertie.model.weights import WEIGHTS_FILE, load_weights, save_model
from bertie.tasks.metrics import accuracy
from bertie.text.tokenizer import Encoding, Tokenizer
from bertie.training.checkpoints import RunDirectory, TrainState
from bertie.training.loop import GlobalBatch, Pace, train
from bertie.training.optimizers import OptimizerSettings, build_optimizer


class FinetuningSettings(Settings):
    """The defaults are those of Section 4.1, and the bias correction that few examples need."""

    seed: int = 0
    batch_size: int = pydantic.Field(32, gt=0)
    epochs: int = pydantic.Field(3, gt=0)
    warmup_share: float = 0.1  # run_classifier.py:843-845
    max_seq_length: int = pydantic.Field(128, gt=2)
    evaluation_batch_tokens: int = 8192
    optimizer: OptimizerSettings = OptimizerSettings(learning_rate=5e-5, bias_correction=True)


class LabelledTexts(NamedTuple):
    """Texts and the number of the class of each."""

    texts: list[str]
    labels: npt.NDArray[np.int64]


class Start(NamedTuple):
    """What fine-tuning starts from: the encoder of a model directory, or random weights without one."""

    config: BertConfig
    tokenizer: Tokenizer
    weights: Path | None


def finetune_classifier(
    start: Start,
    training: LabelledTexts,
    held_out: LabelledTexts,
    labels: tuple[str, ...],
    settings: FinetuningSettings,
    output: Path,
) -> npt.NDArray[np.int64]:
    """Train a classifier; `output` holds the run, `output`/model the result.

    The order of the examples and the new head are functions of the seed.

    Returns:
        The predicted class of each held-out text: int64 (n,).
    """
    torch.manual_seed(int(stream_key(settings.seed)))
    model = ClassificationModel(start.config, len(labels))
    if start.weights is not None:
        load_weights(start.weights / WEIGHTS_FILE, model, only="bert.")
    encoded = start.tokenizer.encode_batch(training.texts, max_length=settings.max_seq_length)
    unseen = start.tokenizer.encode_batch(held_out.texts, max_length=settings.max_seq_length)
    steps_per_epoch = -(-len(encoded) // settings.batch_size)
    total_steps = steps_per_epoch * settings.epochs

    def predictions() -> npt.NDArray[np.int64]:
        return predict_classes(model, unseen, settings.evaluation_batch_tokens)

    state = TrainState()
    with (
        RunDirectory(output) as run,
        Progress(f"fine-tuning {output.name}", total_steps, "steps") as progress,
    ):
        write_toml(run.settings_file, settings)
        train(
            model,
            _global_batches(encoded, training.labels, settings),
            build_optimizer(model, settings.optimizer),
            learning_rate=settings.optimizer.learning_rate,
            max_gradient_norm=settings.optimizer.max_gradient_norm,
            pace=Pace(
                total_steps=total_steps,
                warmup_steps=int(total_steps * settings.warmup_share),
                log_every=steps_per_epoch,
                evaluate_every=0,
                save_every=0,
                keep_checkpoints=1,
            ),
            seed=settings.seed,
            state=state,
            run=run,
            evaluate=lambda: {"accuracy": accuracy(held_out.labels, predictions())},
            progress=progress,
        )
    description = Description(start.config, ClassificationModel.architecture, labels, start.tokenizer)
    save_model(run.model_directory, model, description, _card(labels, len(training.texts)))
    return predictions()


@torch.inference_mode()
def predict_classes(
    model: ClassificationModel, encoding: Encoding, batch_tokens: int
) -> npt.NDArray[np.int64]:
    """The likeliest class of each text: int64 (n,)."""
    model.eval()
    classes = np.empty(len(encoding), dtype=np.int64)
    for chosen in token_budget_batches(encoding.bounds, batch_tokens):
        batch = pack_selected(encoding.input_ids, encoding.token_type_ids, encoding.bounds, chosen)
        classes[chosen] = model(batch).argmax(-1).numpy()
    return classes


def _global_batches(
    encoded: Encoding, labels: npt.NDArray[np.int64], settings: FinetuningSettings
) -> Iterator[GlobalBatch]:
    """The batches of all epochs, each epoch in an order of its own."""
    for epoch in range(settings.epochs):
        order = permutation(len(encoded), settings.seed, epoch)
        for first in range(0, len(order), settings.batch_size):
            chosen = order[first : first + settings.batch_size]
            batch = pack_selected(encoded.input_ids, encoded.token_type_ids, encoded.bounds, chosen, labels)
            yield GlobalBatch([batch], {"epoch": epoch, "position": first + len(chosen)}, phase=0)


def _card(labels: tuple[str, ...], examples: int) -> str:
    """The model directory's README.md."""
    return f"""---
library_name: transformers
tags: [bert, text-classification]
---
# A BERT classifier fine-tuned with bertie

On {examples:,} labelled texts of {len(labels)} classes: {", ".join(labels)}.
"""
