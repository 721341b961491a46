"""Evaluation of a model on labelled examples."""

import sys
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bertie.base.arrays import Float32s
from bertie.base.errors import ModelError, SettingsError
from bertie.model.config import BertConfig, ClassifierPooling
from bertie.model.engines.embeddings import embed
from bertie.model.engines.engine import Engine
from bertie.model.engines.loading import Precision, load_engine
from bertie.model.formats.directory import SEQUENCE_CLASSIFIER, ModelMetadata
from bertie.model.formats.sentence_transformers import EmbeddingConfig
from bertie.model.sequences import token_indices
from bertie.tasks.calibration import Calibration, describe_limit
from bertie.tasks.custom.tables import CustomFiles
from bertie.tasks.long_texts import TextWindows, describe_truncated
from bertie.tasks.pairs import for_embeddings
from bertie.tasks.task import Head, Inputs, Scores, Task
from bertie.text.tokenizer import Tokenizer

ARCHITECTURES: dict[Head, str] = {
    "classification": SEQUENCE_CLASSIFIER,
    "tagging": "BertForTokenClassification",
    "spans": "BertForQuestionAnswering",
    "choices": "BertForMultipleChoice",
    "embedding": "BertModel",
}
# The kind of custom data on which each model is fine-tuned.
_KINDS = {
    ARCHITECTURES["classification"]: "texts",
    ARCHITECTURES["tagging"]: "tags",
    ARCHITECTURES["spans"]: "questions",
    ARCHITECTURES["choices"]: "choices",
    ARCHITECTURES["embedding"]: "pairs",
}
PER_TOKEN = (ARCHITECTURES["tagging"], ARCHITECTURES["spans"])  # have logits for each token
DEFAULT_MAX_SEQ_LENGTH = 128  # run_classifier.py:60


class EncodedExamples(NamedTuple):
    """Labelled examples of a dev part, with the inputs that the model reads."""

    examples: Any
    inputs: Inputs


class Evaluation(NamedTuple):
    """Predictions of a model and their scores.

    task         the task, with the thresholds and the temperature that were tuned on the first part
    predictions  by part, as the task's `decode` returns them
    scores       by part
    confidence   by part, as the task's `confidence` returns it
    calibration  by part, as the task's `calibration` returns it; empty where it returns None
    """

    task: Task[Any, Any]
    predictions: dict[str, Any]
    scores: dict[str, Scores]
    confidence: dict[str, Any]
    calibration: dict[str, Calibration]


def evaluate(
    task: Task[Any, Any],
    engine: Engine,
    parts: Mapping[str, EncodedExamples],
    embedding: EmbeddingConfig | None = None,
) -> Evaluation:
    """Score a model on dev parts, and tune the task's thresholds on the first one.

    `embedding` is as in `compute_logits`.
    """
    predictions: dict[str, Any] = {}
    scores: dict[str, Scores] = {}
    confidence: dict[str, Any] = {}
    calibration: dict[str, Calibration] = {}
    for name, (examples, inputs) in parts.items():
        logits = compute_logits(engine, inputs, embedding)
        if not predictions:
            task = task.tuned(examples, inputs, logits)
        predictions[name] = task.decode(examples, inputs, logits)
        scores[name] = task.score(examples, predictions[name])
        confidence[name] = task.confidence(examples, inputs, logits)
        if measured := task.calibration(examples, inputs, logits):
            calibration[name] = measured
    return Evaluation(task, predictions, scores, confidence, calibration)


def majority_baselines(
    task: Task[Any, Any], training_examples: Any, parts: Mapping[str, Any]
) -> dict[str, Scores]:
    """Score the majority class of the training examples on each labelled part.

    Returns:
        The scores by part; empty for a task without such a baseline (see `Task.majority_baseline`).
    """
    baselines = {name: task.majority_baseline(training_examples, part) for name, part in parts.items()}
    return {name: scores for name, scores in baselines.items() if scores is not None}


def find_constant_answers(
    task: Task[Any, Any],
    parts: Mapping[str, Any],
    predictions: Mapping[str, Any],
    scores: Mapping[str, Scores],
) -> list[str]:
    """Return a warning for each part with the same answer to every example.

    Args:
        task: the task.
        parts: the labelled examples of each part.
        predictions: the predictions for each part.
        scores: the scores of each part; there is no warning where the only answer is always right.
    """
    warnings = []
    for name, examples in parts.items():
        answer = task.constant_answer(examples, predictions[name])
        if answer is not None and len(examples) > 1 and scores[name][task.main_metric] < 100:
            shown = f"close to {answer}" if task.problem_type == "regression" else repr(answer)
            warnings.append(
                f"{name}: the answer is {shown} for every example, so the model has learnt nothing; try "
                f"another learning rate, more epochs or another seed"
            )
    return warnings


def find_failures(
    task: Task[Any, Any],
    parts: Mapping[str, Any],
    predictions: Mapping[str, Any],
    scores: Mapping[str, Scores],
) -> list[str]:
    """Return warnings about constant answers and extreme temperatures.

    It takes the arguments of `find_constant_answers`; the task has its temperature.
    """
    warnings = find_constant_answers(task, parts, predictions, scores)
    temperature = task.applied_temperature
    limit = describe_limit(temperature) if temperature is not None else None
    return warnings + ([limit] if limit else [])


def compute_logits(engine: Engine, inputs: Inputs, embedding: EmbeddingConfig | None = None) -> Float32s:
    """Compute the model's logits in batches of similar length.

    Args:
        engine: the model.
        inputs: N sequences with T tokens in all.
        embedding: compute a vector for each sequence in this way, instead of logits.

    Returns:
        float32, in the order of the inputs: (T, labels) for heads with logits for each token,
        otherwise (N, labels), pooled for each text of `TextWindows`; vectors (N, H).

    Raises:
        ModelError: a number is not finite.
    """
    if embedding is not None:
        return _check_finite(embed(engine, inputs.sequences, embedding))
    per_token = engine.architecture in PER_TOKEN
    logits = np.empty((0, 0), dtype=np.float32)
    batches = inputs.sequences.batches(engine.max_batch_tokens, group_size=inputs.group)
    for indices, batch in batches:
        batch_logits = engine.logits(batch)
        if not len(logits):
            size = inputs.bounds[-1] if per_token else len(inputs)
            logits = np.empty((size, batch_logits.shape[1]), np.float32)
        logits[token_indices(inputs.bounds, indices) if per_token else indices] = batch_logits
    _check_finite(logits)
    return inputs.pool(logits) if isinstance(inputs, TextWindows) else logits


def _check_finite(results: Float32s) -> Float32s:
    if not np.isfinite(results).all():
        raise ModelError(
            "the model computes numbers that are not finite (NaN or infinite), so its training has diverged; "
            "train it again with a lower optimizer.learning_rate"
        )
    return results


class FineTunedModel(NamedTuple):
    """A model that was fine-tuned for a task.

    task            the task, with the model's labels and threshold
    engine          runs the model
    tokenizer       the model's tokenizer
    max_seq_length  longer inputs are truncated or split into windows
    embedding       how the model embeds texts; None for a model with a head
    classifier_pooling  the input of a classifier of texts, as in `ModelMetadata`
    """

    task: Task[Any, Any]
    engine: Engine
    tokenizer: Tokenizer
    max_seq_length: int
    embedding: EmbeddingConfig | None = None
    classifier_pooling: ClassifierPooling = "pooler"

    def predict(self, examples: Any, part: str = "data") -> Any:
        """Return predictions for the task's examples, labelled or not; `part` is their name in messages."""
        inputs = self.task.encode(examples, self.tokenizer, self.max_seq_length)
        self.report_truncated(inputs, part)
        return self.task.decode(examples, inputs, compute_logits(self.engine, inputs, self.embedding))

    def report_truncated(self, inputs: Inputs, part: str) -> None:
        """Print how many of the encoded texts are truncated, if there are any."""
        report_truncated(part, self.task, inputs, self.max_seq_length, self.classifier_pooling)


def load_for_task(
    task: Task[Any, Any],
    path: Path,
    device: str = "auto",
    precision: Precision = "float32",
    max_seq_length: int | None = None,
) -> FineTunedModel:
    """Load a fine-tuned model for a task.

    Args:
        task: the task; its labels are replaced by the model's. For an encoder without a head,
            STS-B becomes the comparison of its vectors (`for_embeddings`).
        path: the model directory.
        device: where to compute.
        precision: precision of the computation.
        max_seq_length: the longest sequence; if not given, the length used in fine-tuning, or the
            task's default where the directory does not record it.

    Raises:
        ModelError: the model has another head than the task needs, or other labels, or cannot be
            loaded (see `load_engine`).
        SettingsError: there is no such device, or the model has fewer positions than
            `max_seq_length`.
    """
    engine, metadata = load_engine(path, device, precision)
    if engine.architecture == ARCHITECTURES["embedding"]:
        task = for_embeddings(task)
    architecture = ARCHITECTURES[task.head]
    if engine.architecture != architecture:
        raise ModelError(
            f"{path}: the model is a {engine.architecture}, but {task.name} needs a {architecture}; "
            + _advise_on_model(task, engine.architecture, metadata)
        )
    try:
        task = task.fitted_to_model(metadata)
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from None
    default_length = task.defaults.get("max_seq_length", DEFAULT_MAX_SEQ_LENGTH)
    default_length = min(default_length, metadata.config.max_position_embeddings)
    embedding = (metadata.embedding or EmbeddingConfig()) if task.head == "embedding" else None
    recorded_length = embedding.max_seq_length if embedding else metadata.max_seq_length
    length = max_seq_length or recorded_length or default_length
    check_length(length, metadata.config)
    return FineTunedModel(task, engine, metadata.tokenizer, length, embedding, metadata.classifier_pooling)


def _advise_on_model(task: Task[Any, Any], architecture: str, metadata: ModelMetadata) -> str:
    """Return what to do about a model that has another head than the task."""
    kind = _KINDS.get(architecture)
    if kind == "pairs" and "label" in metadata.label_columns:
        kind = "scored-pairs"
    if kind == "tags" and "entities" in metadata.label_columns:
        kind = "entities"
    is_fine_tuned = architecture != ARCHITECTURES["embedding"] or metadata.embedding is not None
    if isinstance(task, CustomFiles) and kind and is_fine_tuned:
        return f"pass --kind {kind} (kind={kind!r})"
    return f"fine-tune it on {task.name} first"


def report_truncated(
    name: str,
    task: Task[Any, Any],
    inputs: Inputs,
    max_seq_length: int,
    pooling: ClassifierPooling = "pooler",
) -> None:
    """Print how many texts, or pairs of texts, are truncated, if there are any."""
    if inputs.num_truncated:
        number = f"{inputs.num_truncated:,} of {len(inputs):,}"
        is_single = task.head == "classification" and not inputs.token_type_ids.any()
        note = describe_truncated(number, max_seq_length, task.long_texts if is_single else None, pooling)
        print(f"{name}: {note}", file=sys.stderr)


def report_shared(name: str, inputs: Inputs, training: Inputs) -> None:
    """Print how many inputs of a part are also training inputs, if there are any."""
    seen = set(_hash_examples(training))
    hashes = _hash_examples(inputs)
    shared = sum(value in seen for value in hashes)
    if shared:
        print(
            f"{name}: {shared:,} of {len(hashes):,} {inputs.unit} are also training {inputs.unit}; the "
            f"scores on them do not show how the model does on new texts",
            file=sys.stderr,
        )


def _hash_examples(inputs: Inputs) -> list[int]:
    """Return a hash of the tokens of each of the `unit_bounds`."""
    bounds = pairwise(inputs.unit_bounds.tolist())
    return [hash(inputs.input_ids[start:end].tobytes()) for start, end in bounds]


def check_length(max_seq_length: int, config: BertConfig) -> None:
    """Raise SettingsError if `max_seq_length` exceeds the positions of a model."""
    if max_seq_length > config.max_position_embeddings:
        raise SettingsError(
            f"max_seq_length {max_seq_length} exceeds the model's "
            f"{config.max_position_embeddings} positions; use {config.max_position_embeddings} or less"
        )
