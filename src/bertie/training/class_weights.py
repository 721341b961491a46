"""Weights of labels in the loss, for labels that differ in frequency."""

from typing import Any

import numpy as np

from bertie.base.arrays import Float64s
from bertie.base.errors import SettingsError
from bertie.model.sequences import token_indices
from bertie.tasks.classification import list_labels
from bertie.tasks.label_types import unify_labels
from bertie.tasks.task import Inputs, Task
from bertie.training.finetuning_settings import FinetuningSettings, training_indices


def check_class_weights(task: Task[Any, Any], settings: FinetuningSettings) -> None:
    """Reject `class_weights` that do not fit a task.

    Raises:
        SettingsError: the task has no classes, or no label that `class_weights` names.
    """
    if settings.class_weights is not None and not task.labels:
        raise SettingsError("class_weights: this task has no classes; leave it out")
    for label in _chosen_weights(task, settings):
        if label not in task.labels:
            raise SettingsError(
                f"class_weights: {task.name} has no label {label!r}; its labels are "
                f"{list_labels(task.labels)}"
            )


def label_weights(task: Task[Any, Any], inputs: Inputs, settings: FinetuningSettings) -> dict[str, float]:
    """Return the weight of each label in the loss.

    The result is empty if `class_weights` is not set. A label that `class_weights` does not name has weight
    1.
    """
    chosen = settings.class_weights
    if chosen is None:
        return {}
    if chosen == "balanced":
        return dict(zip(task.labels, _balanced_weights(task, inputs, settings).tolist(), strict=True))
    given = _chosen_weights(task, settings)
    weights = {label: given.get(label, 1.0) for label in task.labels}
    if not any(weights.values()):
        raise SettingsError("class_weights: all labels have the weight 0; give some a larger one")
    return weights


def _chosen_weights(task: Task[Any, Any], settings: FinetuningSettings) -> dict[str, float]:
    """Return the weights in `class_weights`, by label as the task writes it.

    For example, 1 for 1.0.
    """
    if not isinstance(settings.class_weights, dict):
        return {}
    names = unify_labels(settings.class_weights, task.labels)
    return {names[label]: weight for label, weight in settings.class_weights.items()}


def _balanced_weights(task: Task[Any, Any], inputs: Inputs, settings: FinetuningSettings) -> Float64s:
    """Return the balanced weight of each label, (labels,).

    It is computed over the examples to train on. Of one class per text or word, the weight is n / (k · count)
    for k classes, as in scikit-learn. Of several labels per text, it is the number of texts without the label
    divided by the number with it. A label that no text has, or every text, has weight 1.
    """
    assert inputs.labels is not None
    indices = training_indices(inputs, settings)
    gold = inputs.labels[token_indices(inputs.bounds, indices) if task.labels_per_token else indices]
    if gold.ndim == 2:
        positives = gold.sum(axis=0, dtype=np.float64)
        negatives = len(gold) - positives
        return _divide(negatives, positives)
    counts = np.bincount(gold[gold >= 0], minlength=len(task.labels)).astype(np.float64)
    return _divide(np.full_like(counts, counts.sum() / np.count_nonzero(counts)), counts)


def _divide(numerators: Float64s, counts: Float64s) -> Float64s:
    """Divide element by element; the result is 1 where either is 0."""
    ratios: Float64s = np.divide(
        numerators, counts, out=np.ones_like(counts), where=(numerators > 0) & (counts > 0)
    )
    return ratios
