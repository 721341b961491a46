"""Average the n-best answers of several models, as an ensemble does (Table 2)."""

from collections.abc import Sequence

import numpy as np

from bertie.base.arrays import Float64s
from bertie.tasks.squad.decoding import NO_SPAN_NULL_ODDS, NBest, SpanPredictions
from bertie.tasks.squad.questions import Questions

NULL_SPAN = (0, 0)


def average_answers(questions: Questions, members: Sequence[SpanPredictions]) -> SpanPredictions:
    """Average the probabilities that models give to spans of the contexts.

    A span that is not among a model's n best has the probability 0 there. Null odds are the log of the
    averaged probability of "no answer" over the averaged probability of the best answer, and the null
    threshold is the models' mean. The averaged predictions of one model are its own, up to rounding. The
    logits of a span are their mean over the models that list the span.

    Args:
        questions: the questions.
        members: the predictions of each model, with their n-best lists.
    """
    lists = [member.n_best for member in members if member.n_best is not None]
    log_probabilities = [_log_probabilities(n_best) for n_best in lists]
    size = max(n_best.offsets.shape[1] for n_best in lists)
    n = len(questions)
    averaged = NBest(
        np.ones(n, np.int64),
        np.zeros((n, size, 2), np.int64),
        np.zeros((n, size, 2), np.float32),
        np.zeros((n, size)),
    )
    has_null = members[0].null_odds is not None
    null_odds = np.zeros(n)
    answers: list[str | None] = []
    for i in range(n):
        by_span: dict[tuple[int, int], list[tuple[int, int]]] = {}  # span -> (model, rank), … in its list
        for model, n_best in enumerate(lists):
            for rank, (begin, end) in enumerate(n_best.offsets[i, : n_best.counts[i]].tolist()):
                by_span.setdefault((begin, end), []).append((model, rank))
        logs = {
            span: float(np.logaddexp.reduce([log_probabilities[model][i, rank] for model, rank in listed]))
            for span, listed in by_span.items()
        }
        ranked = sorted(logs, key=lambda span: -logs[span])
        best = next((span for span in ranked if span != NULL_SPAN), NULL_SPAN)
        answers.append(questions.contexts[questions.context_indices[i]][slice(*best)])
        null_odds[i] = NO_SPAN_NULL_ODDS if best == NULL_SPAN else logs.get(NULL_SPAN, -np.inf) - logs[best]
        ranked = ranked[:size]
        averaged.counts[i] = len(ranked)
        averaged.offsets[i, : len(ranked)] = ranked
        averaged.probabilities[i, : len(ranked)] = np.exp([logs[span] for span in ranked]) / len(members)
        for rank, span in enumerate(ranked):
            averaged.logits[i, rank] = np.mean([lists[m].logits[i, r] for m, r in by_span[span]], axis=0)
    if not has_null:
        return SpanPredictions(answers, n_best=averaged)
    threshold = float(np.mean([member.null_threshold for member in members]))
    return SpanPredictions(answers, null_odds, threshold, averaged)


def _log_probabilities(n_best: NBest) -> Float64s:
    """Return the log-probability of each listed span: float64 (n, k).

    There is no underflow.
    """
    is_listed = np.arange(n_best.offsets.shape[1]) < n_best.counts[:, None]
    scores = np.where(is_listed, n_best.logits.sum(-1, dtype=np.float64), -np.inf)
    logs: Float64s = scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)
    return logs
