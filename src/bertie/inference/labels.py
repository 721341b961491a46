"""Rank the labels of classified texts."""

import numpy as np

from bertie.base.arrays import Float32s
from bertie.inference.results import Label, Results
from bertie.model.formats.directory import ModelMetadata
from bertie.tasks.probabilities import label_probabilities, rank


def rank_labels(logits: Float32s, metadata: ModelMetadata, top_k: int | None) -> list[Results[Label]]:
    """Return the labels of each text with probabilities, the predicted one first.

    Args:
        logits: the logits of a classifier, float32 (n, labels), before any temperature.
        metadata: has the labels, the temperature, and the threshold of two classes.
        top_k: the number of labels to return for each text; None for all.
    """
    is_multilabel = metadata.problem_type == "multi_label_classification"
    limits = np.zeros(len(metadata.labels))
    if not is_multilabel and (tuned := metadata.decision_thresholds):
        limits = np.array([1 - tuned[0], tuned[0]])
    return [
        Results(Label(metadata.labels[i], score) for i, score in rank(row, limits)[:top_k])
        for row in label_probabilities(logits, is_multilabel, metadata.temperature)
    ]
