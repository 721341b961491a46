"""Score every dev example of a task, and the minimal pairs of BLiMP."""

from collections.abc import Mapping, Sequence
from itertools import starmap
from typing import Any

import numpy as np

from bertie.base.progress import Progress
from bertie.inference.likelihood import count_scored_tokens, encode_sentences, log_likelihoods
from bertie.model.engines.hardware import Hardware
from bertie.model.engines.torch_engine import TorchEngine
from bertie.model.formats.weights import load_model, load_weights
from bertie.reproduction.example_scores import ExampleScores
from bertie.reproduction.pretrained_models import PretrainedModel
from bertie.tasks.blimp import Paradigm
from bertie.tasks.classification import TextClassification
from bertie.tasks.conll import TaggedSentences
from bertie.tasks.entities import find_entities
from bertie.tasks.ner import Tagging
from bertie.tasks.task import Task


def score_examples(
    task: Task[Any, Any], dev: Mapping[str, Any], predictions: Mapping[str, Any]
) -> dict[str, ExampleScores]:
    """Score the examples of each dev part, for accuracies and F1 of entities.

    Args:
        task: the task.
        dev: the labelled examples of each part.
        predictions: the predictions for each part.

    Returns:
        Arrays as in `example_scores`, by outcome name without the task: PART/METRIC.
    """
    scores: dict[str, ExampleScores] = {}
    for part, examples in dev.items():
        if isinstance(task, TextClassification) and task.problem_type == "single_label_classification":
            is_right = task.gold(examples) == predictions[part]
            scores[f"{part}/accuracy"] = is_right[:, None].astype(np.int32)
        elif isinstance(task, Tagging) and examples.scheme != "plain":
            scores[f"{part}/f1"] = _count_entities(examples, predictions[part])
    return scores


def _count_entities(examples: TaggedSentences, predictions: Sequence[Sequence[str]]) -> ExampleScores:
    """Count the matched, predicted and gold entities of each sentence: int32 (n, 3)."""
    assert examples.tags is not None

    def count(gold: Sequence[str], predicted: Sequence[str]) -> tuple[int, int, int]:
        gold_entities, predicted_entities = {*find_entities(gold)}, {*find_entities(predicted)}
        return len(gold_entities & predicted_entities), len(predicted_entities), len(gold_entities)

    return np.array([*starmap(count, zip(examples.tags, predictions, strict=True))], dtype=np.int32)


def score_minimal_pairs(
    model: PretrainedModel, paradigms: Sequence[Paradigm], device: str, title: str
) -> ExampleScores:
    """Return whether a model prefers each acceptable sentence, int32 (n, 1).

    The model has not been fine-tuned. See `inference.likelihood` for the likelihoods of masked and
    left-to-right models.
    """
    network, metadata = load_model(model.directory)
    load_weights(model.weights, network)
    hardware = Hardware(device=device).resolved()
    engine = TorchEngine(network.to(hardware.device), hardware)
    sentences = [sentence for paradigm in paradigms for sentence in (*paradigm.good, *paradigm.bad)]
    is_good = np.concatenate([np.repeat([True, False], len(paradigm.good)) for paradigm in paradigms])
    sequences = encode_sentences(sentences, metadata.tokenizer, metadata.config.max_position_embeddings)
    with Progress(title, int(count_scored_tokens(sequences).sum()), "tokens") as progress:
        values = log_likelihoods(engine, sequences, metadata.tokenizer.vocabulary.mask_id, progress)
    is_right: ExampleScores = (values[is_good] > values[~is_good])[:, None].astype(np.int32)
    return is_right
