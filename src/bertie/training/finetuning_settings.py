"""Settings of fine-tuning, and the steps of a run that follow from them."""

import math
from collections.abc import Mapping
from numbers import Real
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import pydantic

from bertie.base.arrays import Int64s
from bertie.base.random import permutation
from bertie.base.settings import Seed, read_toml
from bertie.model.config import ClassifierPooling
from bertie.model.engines.hardware import Hardware, default_micro_batch_tokens
from bertie.tasks.evaluation import DEFAULT_MAX_SEQ_LENGTH
from bertie.tasks.label_types import label_name
from bertie.tasks.task import Inputs
from bertie.training.loop import LoopSchedule
from bertie.training.optimizers import OptimizerSettings

# Settings that may change on resume: the hardware, and the size of micro-batches.
MAY_CHANGE = {"device", "precision", "gradient_checkpointing", "micro_batch_tokens"}

# Settings that runs of earlier versions lack; without them, such runs resume as they started.
ADDED = ("batch_unit", "dropout", "attention_dropout")

# Defaults of contrastive training: SetFit's batch, rate and number of passes over its pairs.
CONTRASTIVE_DEFAULTS: dict[str, Any] = {
    "batch_size": 16,
    "epochs": 1,
    "optimizer": {"learning_rate": 2e-5},
}

LOG_EVERY = 50  # steps


def _parse_class_weights(value: Any) -> Any:
    if value is None or value == "balanced":
        return value
    if isinstance(value, Mapping) and all(
        isinstance(weight, Real) and 0 <= float(weight) < math.inf for weight in value.values()
    ):
        return {label_name(label): float(weight) for label, weight in value.items()}
    raise ValueError('use balanced, or a weight for each label, such as {"no" = 1, "yes" = 4.5}')


class FinetuningSettings(Hardware):
    """Settings of a fine-tuning run, with the defaults of Section 4.1.

    Unlike the paper's code, fine-tuning corrects Adam's bias, which small training sets need.

    Attributes:
        seed: seed of the new head, dropout and the order of the examples.
        batch_size: examples per step; in tagging, sentences.
        batch_unit: what `batch_size` counts in tagging: sentences, or windows over documents. Runs of
            earlier versions have None, which means windows.
        epochs: passes over the training examples.
        warmup_ratio: the fraction of the steps in which the learning rate rises from 0.
        max_seq_length: the maximum number of tokens of a sequence, with [CLS] and [SEP].
        long_texts: how a classifier or a regression reads a single text that is longer than
            `max_seq_length`.
        window_stride: with the long texts "windows", tokens from the start of a window to the start of
            the next one; 0 for a whole window.
        window_pooling: how the logits of a text's windows are combined.
        max_training_examples: train on this many examples (windows, in question answering and tagging),
            the same for every seed; 0 for all.
        micro_batch_tokens: about how many tokens are in memory at a time; fewer need less memory. 0 is
            4,096 on a CPU and 16,384 on a GPU.
        dropout: dropout of the network's layers, whatever the initial model was pre-trained with
            (Appendix A.3: "always 0.1"). None, in runs of earlier versions, keeps the initial model's.
        attention_dropout: the same for the attention weights.
        class_weights: weights of the labels in the loss: "balanced", or a number for each label. Labels
            without a number have weight 1.
        frozen_layers: do not train the embeddings and this many of the lowest layers.
        layer_decay: layer l of L learns at the learning rate times `layer_decay`^(L - l), where the
            embeddings are layer 0. 1 is no decay.
        contrastive_pairs: with few labels, train the encoder on this many pairs of texts for each text
            in an epoch, then fit a logistic regression; SetFit's number is 40. `batch_size` counts
            pairs. 0 is ordinary fine-tuning.
        bilstm: put a BiLSTM with random weights under the head (Section 5.1).
        keep_best: keep the epoch with the best score on the first dev part. With false, the last epoch
            is kept, and only it is evaluated, unless `patience` needs the others.
        patience: stop after this many epochs without a better main score on the first dev part; 0 never
            stops early.
        main_metric: the score that selects the epoch; None for the task's own.
        tune_threshold: tune the decision thresholds of two classes or of several labels on the first
            dev part.
        calibrate: divide logits by a temperature that is fitted on the first dev part.
        training_fingerprint: hash of the training data, filled in when the run starts and checked on
            resume.
        dev_fingerprint: the same for the dev data.
        labels_fingerprint: the same for the names of the labels.
        initial_model_fingerprint: the same for the initial weights.
        optimizer: the optimizer.
    """

    seed: Seed = 0
    batch_size: int = pydantic.Field(32, gt=0)
    batch_unit: Literal["sentences", "windows"] | None = "sentences"
    epochs: int = pydantic.Field(3, gt=0)
    warmup_ratio: float = pydantic.Field(0.1, ge=0, le=1)  # run_classifier.py:843-845
    max_seq_length: int = pydantic.Field(DEFAULT_MAX_SEQ_LENGTH, gt=2)
    long_texts: Literal["truncate", "head-tail", "windows"] = "truncate"  # see `LongTexts`
    window_stride: int = pydantic.Field(0, ge=0)
    window_pooling: Literal["mean", "max"] = "mean"
    max_training_examples: int = pydantic.Field(0, ge=0)
    micro_batch_tokens: int = pydantic.Field(0, ge=0)
    dropout: float | None = pydantic.Field(0.1, ge=0, lt=1)
    attention_dropout: float | None = pydantic.Field(0.1, ge=0, lt=1)
    class_weights: Annotated[
        Literal["balanced"] | dict[str, float] | None, pydantic.PlainValidator(_parse_class_weights)
    ] = None
    frozen_layers: int = pydantic.Field(0, ge=0)
    layer_decay: float = pydantic.Field(1.0, gt=0, le=1)
    contrastive_pairs: int = pydantic.Field(0, ge=0)
    bilstm: bool = False
    keep_best: bool = True
    patience: int = pydantic.Field(0, ge=0)
    main_metric: str | None = None
    tune_threshold: bool = False
    calibrate: bool = False
    training_fingerprint: str = ""
    dev_fingerprint: str = ""
    labels_fingerprint: str = ""
    initial_model_fingerprint: str = ""
    optimizer: OptimizerSettings = OptimizerSettings(learning_rate=5e-5, bias_correction=True)

    def resolved(self) -> Self:
        """Return these settings with values for this machine.

        They replace `auto`, and 0 micro-batch tokens.

        Raises:
            SettingsError: this machine does not have the device.
        """
        resolved = super().resolved()
        tokens = self.micro_batch_tokens or default_micro_batch_tokens(resolved.device)
        return resolved.model_copy(update={"micro_batch_tokens": tokens})

    @property
    def classifier_pooling(self) -> ClassifierPooling:
        """The input of a text classifier, as in `ModelMetadata`."""
        return "mean" if self.contrastive_pairs else "pooler"

    renamed: ClassVar[Mapping[str, str]] = {
        "warmup_share": "warmup_ratio",
        "training_set": "training_fingerprint",
        "dev_sets": "dev_fingerprint",
        "start": "initial_model_fingerprint",
    }


def lacking_settings(file: Path, section: str = "") -> set[str]:
    """Return the settings in ADDED that an existing run's file does not have.

    Args:
        file: the settings file; if there is none, nothing is lacking.
        section: the section of the file that has the settings of fine-tuning; "" for the whole file.
    """
    if not file.exists():
        return set()
    tree = read_toml(file)
    return set(ADDED) - (tree.get(section, {}) if section else tree).keys()


def loop_schedule(inputs: Inputs, settings: FinetuningSettings) -> LoopSchedule:
    """Return the schedule of a run.

    It saves after every epoch, and evaluates each that may be kept.
    """
    steps_per_epoch = len(step_bounds(inputs, settings)) - 1
    total_steps = steps_per_epoch * settings.epochs
    return LoopSchedule(
        total_steps=total_steps,
        warmup_steps=int(total_steps * settings.warmup_ratio),
        log_every=min(steps_per_epoch, LOG_EVERY),
        evaluate_every=steps_per_epoch if settings.keep_best or settings.patience else total_steps,
        save_every=steps_per_epoch,
        keep_checkpoints=1,
    )


def step_bounds(inputs: Inputs, settings: FinetuningSettings) -> Int64s:
    """Return which training examples of a shuffled epoch each step reads.

    Step i reads the examples from bounds[i] to before bounds[i + 1]. Usually these are `batch_size`
    examples, fewer in the last step. In tagging, an example is a window over a document, and `batch_size`
    counts sentences: an epoch over n sentences has n / batch_size steps, rounded up, and the windows are
    divided evenly among them. A step reads at least one window. In contrastive training, an example is a
    pair.

    Returns:
        int64 (steps + 1,), from 0 to the number of examples.
    """
    num_examples = len(training_indices(inputs, settings)) * (settings.contrastive_pairs or 1)
    num_units = num_examples
    if settings.batch_unit == "sentences":  # of the examples to train on
        num_units = -(-inputs.num_batch_units * num_examples // inputs.num_examples)
    batch_size = max(settings.batch_size, -(-num_units // num_examples))
    units = np.append(np.arange(0, num_units, batch_size), num_units)
    return units * num_examples // num_units


def training_indices(inputs: Inputs, settings: FinetuningSettings) -> Int64s:
    """Return the indices of the training examples: int64 (n,), ascending."""
    chosen = permutation(inputs.num_examples, 0)[: settings.max_training_examples or None]
    return np.sort(chosen)
