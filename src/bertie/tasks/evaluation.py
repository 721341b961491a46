"""A model against gold labels."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bertie.base.errors import ModelError, SettingsError
from bertie.model.config import BertConfig
from bertie.model.engines.engine import Engine, Float32s
from bertie.model.engines.loading import Precision, load_engine
from bertie.model.formats.directory import SEQUENCE_CLASSIFIER
from bertie.model.sequences import Sequences, token_indices
from bertie.tasks.custom import CustomClassification, CustomQuestionAnswering
from bertie.tasks.squad.task import QuestionAnswering
from bertie.tasks.task import Head, Inputs, Scores, Task
from bertie.text.tokenizer import Tokenizer

ARCHITECTURES: dict[Head, str] = {
    "classification": SEQUENCE_CLASSIFIER,
    "tagging": "BertForTokenClassification",
    "spans": "BertForQuestionAnswering",
    "choices": "BertForMultipleChoice",
}
PER_TOKEN = (ARCHITECTURES["tagging"], ARCHITECTURES["spans"])
DEFAULT_MAX_SEQ_LENGTH = 128  # run_classifier.py:60


class Part(NamedTuple):
    """Examples with gold labels, and what a model reads of them."""

    examples: Any
    inputs: Inputs


class Evaluation(NamedTuple):
    """What a model says, and what that is worth.

    task         with what it chose on the first part, a threshold
    predictions  for each part, as the task's `decode` gives them
    scores       of each part, by the metrics' names
    """

    task: Task[Any, Any]
    predictions: dict[str, Any]
    scores: dict[str, Scores]


def evaluate(task: Task[Any, Any], engine: Engine, parts: Mapping[str, Part]) -> Evaluation:
    """Score a model on every part; on the first one the task chooses its threshold."""
    predictions: dict[str, Any] = {}
    scores: dict[str, Scores] = {}
    for name, (examples, inputs) in parts.items():
        logits = compute_logits(engine, inputs)
        if not predictions:
            task = task.with_tuned_threshold(examples, task.decode(examples, inputs, logits))
        predictions[name] = task.decode(examples, inputs, logits)
        scores[name] = task.score(examples, predictions[name])
    return Evaluation(task, predictions, scores)


def compute_logits(engine: Engine, inputs: Inputs) -> Float32s:
    """What the model says of each sequence or token, in order: float32 (N, labels) or (T, labels)."""
    per_token = engine.architecture in PER_TOKEN
    sequences = Sequences(inputs.input_ids, inputs.token_type_ids, inputs.bounds)
    logits = np.empty((0, 0), dtype=np.float32)
    for chosen, batch in sequences.batches(engine.max_tokens, inputs.group):
        answers = engine.logits(batch)
        if not len(logits):
            logits = np.empty((inputs.bounds[-1] if per_token else len(inputs), answers.shape[1]), np.float32)
        logits[token_indices(inputs.bounds, chosen) if per_token else chosen] = answers
    return logits


class LoadedTask(NamedTuple):
    """A fine-tuned model, its task with its labels and threshold, and the longest sequence it has learnt."""

    task: Task[Any, Any]
    engine: Engine
    tokenizer: Tokenizer
    max_seq_length: int


def load_for_task(
    task: Task[Any, Any],
    path: Path,
    device: str = "auto",
    precision: Precision = "float32",
    max_seq_length: int | None = None,
) -> LoadedTask:
    """Read a model directory for a task; `max_seq_length` is that of its fine-tuning if not given.

    Raises:
        ModelError: the model has another head than the task needs, or other labels; or as `load_engine`.
        SettingsError: there is no such device, or `max_seq_length` is more than the model's positions.
    """
    engine, metadata = load_engine(path, device, precision)
    needed = ARCHITECTURES[task.head]
    if engine.architecture != needed:
        raise ModelError(f"{path}: {engine.architecture}, but {task.name} needs {needed}; fine-tune it first")
    if isinstance(task, CustomClassification) and task.detect:
        task = task.settled(metadata.problem_type)
    if isinstance(task, CustomQuestionAnswering):
        task = replace(task, version="1.1" if metadata.null_threshold is None else "2.0")
    if metadata.problem_type != task.problem_type:
        raise ModelError(
            f"{path}: made for {metadata.problem_type.replace('_', ' ')}, but {task.name} is "
            f"{task.problem_type.replace('_', ' ')}"
        )
    if metadata.labels:
        task = task.with_labels(metadata.labels)
    if isinstance(task, QuestionAnswering) and metadata.null_threshold is not None:
        task = replace(task, null_threshold=metadata.null_threshold)
    usual = task.defaults.get("max_seq_length", DEFAULT_MAX_SEQ_LENGTH)
    usual = metadata.max_seq_length or min(usual, metadata.config.max_position_embeddings)
    length = max_seq_length or usual
    check_length(length, metadata.config)
    return LoadedTask(task, engine, metadata.tokenizer, length)


def check_length(max_seq_length: int, config: BertConfig) -> None:
    """Raise SettingsError where sequences would be longer than the model's positions."""
    if max_seq_length > config.max_position_embeddings:
        raise SettingsError(
            f"max_seq_length {max_seq_length} is longer than the model's positions: "
            f"{config.max_position_embeddings} at most"
        )


def answer(loaded: LoadedTask, examples: Any) -> Any:
    """What a model says of examples, labelled or not, in the task's form."""
    task, engine, tokenizer, max_seq_length = loaded
    inputs = task.encode(examples, tokenizer, max_seq_length)
    return task.decode(examples, inputs, compute_logits(engine, inputs))


def null_threshold_of(task: Task[Any, Any]) -> float | None:
    """The null threshold that belongs into the model's directory, if the task has one."""
    return task.null_threshold if isinstance(task, QuestionAnswering) and task.allow_no_answer else None
