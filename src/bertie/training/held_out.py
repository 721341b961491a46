"""Evaluate pre-training on held-out documents, beside context-free baselines."""

import math
from collections.abc import Sequence

import numpy as np
import torch

from bertie.base.arrays import Int64s
from bertie.base.errors import DataError
from bertie.base.progress import Progress
from bertie.corpus.assembly import HELD_OUT_ADVICE
from bertie.corpus.examples import Examples
from bertie.corpus.sampling import draw_held_out_examples
from bertie.corpus.shards import Shard
from bertie.model.batch import PackedBatch
from bertie.model.objectives import TOKEN_OBJECTIVES, token_objective
from bertie.text.vocabulary import Vocabulary
from bertie.training.distributed import LossFunction, Ranks
from bertie.training.pretraining_setup import PretrainingSetup, pack_examples

MAX_COUNTED_TOKENS = 1 << 28  # a second's work; enough for the frequency of the rarest tokens that matter


class HeldOut:
    """The fixed held-out examples of each phase, and the baselines on them.

    Raises:
        DataError: the corpus has no held-out documents.
    """

    def __init__(self, setup: PretrainingSetup) -> None:
        corpus, vocabulary = setup.corpus, setup.tokenizer.vocabulary
        settings = self._settings = setup.settings
        if not corpus.held_out:
            raise DataError(
                f"{corpus.path}: no held-out documents to evaluate the model on; {HELD_OUT_ADVICE}"
            )
        counts = unigram_counts(corpus.train, len(vocabulary))
        self._batches: list[list[PackedBatch]] = []
        self._baselines: list[dict[str, float]] = []
        for phase in range(len(settings.phases)):
            examples = draw_held_out_examples(
                corpus.held_out,
                settings.examples_of(phase),
                vocabulary,
                settings.seed,
                settings.held_out_examples,
            )
            self._batches.append(pack_examples(examples, settings.micro_batch_tokens))
            is_decoder = settings.model.is_decoder
            labels = _next_tokens(examples, vocabulary) if is_decoder else examples.masked_labels
            known = _with_separators(counts, labels, vocabulary.sep_id) if is_decoder else counts
            next_sentence_labels = examples.next_sentence_labels if settings.learns_next_sentences else None
            self._baselines.append(unigram_baseline(known, labels) | majority_baseline(next_sentence_labels))

    def evaluate(
        self, compute_losses: LossFunction, step: int, progress: Progress, ranks: Ranks
    ) -> dict[str, float]:
        """Evaluate a model after `step` steps, on the examples of that step's phase.

        All ranks must call it together.

        Returns:
            The metrics of `evaluate_pretraining` and the baselines, for a row of metrics.jsonl.
        """
        phase = self._settings.phase_at(step - 1)
        with self._settings.autocast():
            metrics = evaluate_pretraining(compute_losses, self._batches[phase], ranks)
        metrics |= self._baselines[phase]
        progress.print(f"step {step:,}, held out: {format_metrics(metrics)}")
        return metrics


def _next_tokens(examples: Examples, vocabulary: Vocabulary) -> Int64s:
    """Return the targets of a left-to-right model, all tokens but [CLS]: int64 (n,)."""
    is_target = examples.input_ids != vocabulary.cls_id
    targets: Int64s = examples.input_ids[is_target].astype(np.int64)
    return targets


def _with_separators(counts: Int64s, labels: Int64s, sep_id: int) -> Int64s:
    """Give [SEP] the frequency that it has among the labels.

    Shards do not contain it.
    """
    separators = int((labels == sep_id).sum())
    counts = counts.copy()
    counts[sep_id] = counts.sum() * separators // max(len(labels) - separators, 1)
    return counts


def unigram_counts(shards: Sequence[Shard], vocab_size: int) -> Int64s:
    """Count the occurrences of each token id: int64 (V,).

    At most MAX_COUNTED_TOKENS tokens are counted. In a larger corpus, the first tokens of each shard are
    counted, in proportion to its size.
    """
    fraction = min(1.0, MAX_COUNTED_TOKENS / max(1, sum(len(shard.tokens) for shard in shards)))
    counts = np.zeros(vocab_size, dtype=np.int64)
    for shard in shards:
        counts += np.bincount(shard.tokens[: int(fraction * len(shard.tokens))], minlength=vocab_size)
    return counts


def unigram_baseline(counts: Int64s, labels: Int64s) -> dict[str, float]:
    """Return the loss (nats) and accuracy on `labels` of token frequencies.

    The probability of a token is its frequency in training, with one added to each count, so that
    no probability is 0. For the accuracy, the most frequent token is predicted everywhere.
    """
    probabilities = (counts + 1) / (counts.sum() + len(counts))
    return {
        "unigram_loss": float(-np.log(probabilities[labels]).mean()),
        "unigram_accuracy": float((labels == counts.argmax()).mean()),
    }


def majority_baseline(labels: Int64s | None) -> dict[str, float]:
    """Return the accuracy of the majority class; an empty dict without labels."""
    return {} if labels is None else {"majority_accuracy": float(np.bincount(labels).max() / len(labels))}


@torch.no_grad()  # in inference mode, FSDP cannot gather parameters that are trained later
def evaluate_pretraining(
    compute_losses: LossFunction, batches: Sequence[PackedBatch], ranks: Ranks
) -> dict[str, float]:
    """Compute loss and accuracy of each objective, and perplexity (Section 5.2).

    The ranks share the batches.

    Returns:
        `NAME_loss` (nats), `NAME_accuracy` and `NAME_targets` for each objective, and the
        `perplexity` of the predicted tokens.
    """
    device = next(compute_losses.parameters()).device
    shares: dict[str, list[float]] = {}  # of this rank
    for first in range(0, len(batches), ranks.world_size):
        index = first + ranks.rank
        # Sharded models need every rank for every forward pass, so some compute a batch that does not count.
        weight = int(index < len(batches))
        for name, objective in compute_losses(batches[min(index, len(batches) - 1)].to(device)).items():
            assert objective.num_correct is not None
            total = shares.setdefault(name, [0.0, 0, 0])
            total[0] += weight * objective.loss_sum.item()
            total[1] += weight * objective.num_correct.item()
            total[2] += weight * objective.num_targets
    sums = ranks.sum(torch.tensor(list(shares.values()), dtype=torch.float64)).tolist()
    metrics = {}
    for name, (loss, correct, targets) in zip(shares, sums, strict=True):
        metrics[f"{name}_loss"] = loss / targets
        metrics[f"{name}_accuracy"] = correct / targets
        metrics[f"{name}_targets"] = int(targets)
    metrics["perplexity"] = math.exp(min(metrics[f"{token_objective(metrics)}_loss"], 100.0))
    return metrics


def format_metrics(metrics: dict[str, float]) -> str:
    """Format held-out metrics in one line, each beside its baseline."""
    objective = token_objective(metrics)
    line = (
        f"loss {metrics[f'{objective}_loss']:.2f} (unigram baseline {metrics['unigram_loss']:.2f}), "
        f"perplexity {metrics['perplexity']:,.0f}, "
        f"{TOKEN_OBJECTIVES[objective]} {metrics[f'{objective}_accuracy']:.1%} "
        f"(unigram baseline {metrics['unigram_accuracy']:.1%})"
    )
    if "next_sentence_accuracy" in metrics:
        line += (
            f", next-sentence accuracy {metrics['next_sentence_accuracy']:.1%} "
            f"(majority baseline {metrics['majority_accuracy']:.1%})"
        )
    return line
