"""Predict with several fine-tuned models, by averaging their predictions.

Table 2 has an ensemble.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bertie.base.arrays import Float32s, Float64s
from bertie.base.errors import ModelError
from bertie.model.engines.loading import Precision
from bertie.tasks.classification import TextClassification, list_labels
from bertie.tasks.evaluation import FineTunedModel, compute_logits, load_for_task
from bertie.tasks.ner import WordWindows
from bertie.tasks.squad.averaging import average_answers
from bertie.tasks.task import Task


def load_ensemble(
    task: Task[Any, Any],
    paths: Sequence[Path],
    device: str = "auto",
    precision: Precision = "float32",
    max_seq_length: int | None = None,
) -> list[FineTunedModel]:
    """Load models that were fine-tuned for the same task; their tokenizers may differ.

    It takes the arguments of `load_for_task`, and raises the same errors.

    Raises:
        ModelError: the models have different labels or problem types, only some of them can reject a
            question, or one of several is an encoder without a head.
    """
    models = [load_for_task(task, path, device, precision, max_seq_length) for path in paths]
    first = models[0].task
    for path, model in zip(paths, models, strict=True):
        if model.task.head == "embedding" and len(models) > 1:
            raise ModelError(f"{path}: vectors of several encoders are not averaged; give one model")
        own_type, first_type = (t.problem_type.replace("_", " ") for t in (model.task, first))
        if own_type != first_type:
            raise ModelError(
                f"{path}: the model was fine-tuned for {own_type}, but {paths[0]} for {first_type}; "
                f"give models that were fine-tuned on the same task"
            )
        if (model.task.null_threshold is None) != (first.null_threshold is None):
            raise ModelError(
                f"{path}: only one of this model and {paths[0]} was fine-tuned on questions without an "
                f"answer; give models that were fine-tuned on the same task"
            )
        if set(model.task.labels) != set(first.labels):
            raise ModelError(
                f"{path}: its labels are {list_labels(model.task.labels)}, but {paths[0]} has "
                f"{list_labels(first.labels)}; give models that were fine-tuned on the same task"
            )
    return models


def predict_ensemble(models: Sequence[FineTunedModel], examples: Any, part: str = "data") -> Any:
    """Return the averaged predictions of one or more models for a task's examples.

    `part` is the name of the examples in messages.

    Classes, tags, labels and choices have the mean of the models' probabilities; a regression the mean
    of the scores; answers the mean of the probabilities in the n-best lists. Each model's probabilities
    are scaled by its temperature, and the thresholds of a decision are the means of the models'.
    """
    if len(models) == 1:
        return models[0].predict(examples, part)
    task = models[0].task
    if task.head == "spans":
        return average_answers(examples, [model.predict(examples, part) for model in models])
    inputs = [model.task.encode(examples, model.tokenizer, model.max_seq_length) for model in models]
    logits = []
    for model, encoded in zip(models, inputs, strict=True):
        model.report_truncated(encoded, part)
        columns = [model.task.labels.index(label) for label in task.labels] or slice(None)
        own = compute_logits(model.engine, encoded)[:, columns]
        if isinstance(model.task, TextClassification):
            own = own / np.float32(model.task.applied_temperature or 1)
        logits.append(own[encoded.word_positions] if isinstance(encoded, WordWindows) else own)
    averaged = _average(task, logits, inputs[0].group)
    first = inputs[0]
    if isinstance(first, WordWindows):  # decoding reads the logits of the words
        of_tokens = np.zeros((len(first.input_ids), averaged.shape[1]), np.float32)
        of_tokens[first.word_positions] = averaged
        averaged = of_tokens
    return _with_mean_thresholds([model.task for model in models]).decode(examples, first, averaged)


def _with_mean_thresholds(tasks: Sequence[Task[Any, Any]]) -> Task[Any, Any]:
    """Return the first task with the means of all decision thresholds.

    They apply to the ensemble's probabilities, which are already scaled.
    """
    task = tasks[0]
    if not isinstance(task, TextClassification):
        return task
    task = replace(task, is_calibrated=False)
    if all(other.decision_thresholds is None for other in tasks):
        return task
    thresholds = []
    for other in tasks:
        own = np.array(other.decision_thresholds or other.with_thresholds().decision_thresholds)
        if len(own) == len(task.labels):  # one for each of several labels
            own = own[[other.labels.index(label) for label in task.labels]]
        elif other.labels != task.labels:  # of the second class, which is the first one of the task
            own = 1 - own
        thresholds.append(own)
    return replace(task, decision_thresholds=tuple(np.mean(thresholds, axis=0).tolist()))


def _average(task: Task[Any, Any], logits: Sequence[Float32s], group: int) -> Float32s:
    """Return logits whose probabilities are the means of the models' probabilities.

    Args:
        task: the task, whose head says how logits become probabilities.
        logits: of each model, float32 (N, labels).
        group: the number of rows that are the choices of one example; 1 for other heads.
    """
    stacked = np.stack(logits).astype(np.float64)
    if task.problem_type == "regression":
        return np.asarray(stacked.mean(axis=0), np.float32)
    if task.problem_type == "multi_label_classification":  # two classes, with the logits x and 0, per label
        yes, no = (_log_mean(-np.logaddexp(0, sign * stacked)) for sign in (-1, 1))
        return np.asarray(yes - no, np.float32)
    if task.head == "choices":
        stacked = stacked.reshape(len(logits), -1, group)
    averaged = _log_mean(stacked - np.logaddexp.reduce(stacked, axis=2, keepdims=True))
    return np.asarray(averaged.reshape(logits[0].shape), np.float32)


def _log_mean(log_probabilities: Float64s) -> Float64s:
    """Return the logs of the probabilities' means over the models, the first axis."""
    mean: Float64s = np.logaddexp.reduce(log_probabilities, axis=0) - np.log(len(log_probabilities))
    return mean
