"""Held-out figures of the pre-training objectives, beside what knowing only word frequencies would give."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from bertie.corpus.shards import Shard
from bertie.model.batch import PackedBatch
from bertie.model.heads import LanguageModel, MaskedLMModel, PreTrainingModel
from bertie.model.objectives import TOKEN_OBJECTIVES, token_objective

PretrainedModel = PreTrainingModel | MaskedLMModel | LanguageModel


def unigram_counts(shards: Sequence[Shard], vocab_size: int) -> npt.NDArray[np.int64]:
    """How often each id occurs: int64 (V,)."""
    counts = np.zeros(vocab_size, dtype=np.int64)
    for shard in shards:
        counts += np.bincount(shard.tokens, minlength=vocab_size)
    return counts


def majority_baseline(labels: npt.NDArray[np.int64] | None) -> dict[str, float]:
    """The accuracy of always giving the commoner next-sentence label; nothing where there are no labels."""
    return {} if labels is None else {"majority_accuracy": float(np.bincount(labels).max() / len(labels))}


def unigram_baseline(counts: npt.NDArray[np.int64], labels: npt.NDArray[np.int64]) -> dict[str, float]:
    """Loss (nats) and accuracy on `labels` of the best guess that ignores the context.

    The guess is the ids' frequencies in training, one added to each count so that none is impossible.
    """
    probabilities = (counts + 1) / (counts.sum() + len(counts))
    return {
        "unigram_loss": float(-np.log(probabilities[labels]).mean()),
        "unigram_accuracy": float((labels == counts.argmax()).mean()),
    }


@torch.inference_mode()
def evaluate_pretraining(model: PretrainedModel, batches: Sequence[PackedBatch]) -> dict[str, float]:
    """Loss and accuracy of each objective over `batches`, and the words' perplexity (Section 5.2)."""
    device = next(model.parameters()).device
    sums: dict[str, list[float]] = {}
    for batch in batches:
        for name, objective in model.losses(batch.to(device)).items():
            total = sums.setdefault(name, [0.0, 0, 0])
            assert objective.correct is not None
            total[0] += objective.loss_sum.item()
            total[1] += objective.correct.item()
            total[2] += objective.targets
    figures = {}
    for name, (loss, correct, targets) in sums.items():
        figures[f"{name}_loss"] = loss / targets
        figures[f"{name}_accuracy"] = correct / targets
        figures[f"{name}_targets"] = targets
    figures["perplexity"] = math.exp(min(figures[f"{token_objective(figures)}_loss"], 100.0))
    return figures


def format_metrics(figures: dict[str, float]) -> str:
    """The held-out figures in words, each beside what knows no context."""
    objective = token_objective(figures)
    format_metrics = (
        f"loss {figures[f'{objective}_loss']:.2f} (word frequencies {figures['unigram_loss']:.2f}), "
        f"perplexity {figures['perplexity']:,.0f}, "
        f"{TOKEN_OBJECTIVES[objective]} {figures[f'{objective}_accuracy']:.1%} "
        f"(commonest {figures['unigram_accuracy']:.1%})"
    )
    if "next_sentence_accuracy" in figures:
        format_metrics += (
            f", next sentence {figures['next_sentence_accuracy']:.1%} "
            f"(commoner label {figures['majority_accuracy']:.1%})"
        )
    return format_metrics
