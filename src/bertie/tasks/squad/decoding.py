"""Decode start and end logits to answers, as write_predictions of run_squad.py.

There are two differences from google-research/bert. An answer is a slice of the original context,
from the first character of its first token to the end of its last one; get_final_text aligns two
tokenizations instead, and returns whole words where accents make these differ in length. And the
entries of an n-best list are distinct spans of the context, which may have the same text.

The null threshold (Section 4.3's τ) is applied here; `best_threshold` in scores.py chooses it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from bertie.base.arrays import Bools, Float32s, Float64s, Int64s
from bertie.base.kernels import kernel
from bertie.model.sequences import cumulative_bounds
from bertie.tasks.squad.questions import Questions
from bertie.tasks.squad.windows import ContextWindows

NO_SPAN_NULL_ODDS = 1e6  # where no span is possible: "large and positive" in run_squad.py


@dataclass(frozen=True)
class NBest:
    """The k best spans of each of n questions, best first.

    counts         int64 (n,)         number of spans, at least 1; entries after these are void
    offsets        int64 (n, k, 2)    start and end in the context, in characters; (0, 0) for the
                                      null span, "no answer"
    logits         float32 (n, k, 2)  start and end logit
    probabilities  float64 (n, k)     softmax over the spans of the sum of both logits
    """

    counts: Int64s
    offsets: Int64s
    logits: Float32s
    probabilities: Float64s


@dataclass(frozen=True)
class SpanPredictions:
    """The answers to n questions.

    answers         the best answer of each question except "no answer"; None without a prediction
    null_odds       float64 (n,), the score of "no answer" minus the answer's score; None where
                    every question has an answer
    null_threshold  a question has no answer where its null odds are above this
    n_best          the best spans of each question; None where unknown
    """

    answers: Sequence[str | None]
    null_odds: Float64s | None = None
    null_threshold: float = 0.0
    n_best: NBest | None = None

    @property
    def texts(self) -> list[str | None]:
        """The answers after the threshold is applied; "" where there is no answer."""
        if self.null_odds is None:
            return list(self.answers)
        is_null = self.null_odds > self.null_threshold
        return ["" if null else answer for null, answer in zip(is_null, self.answers, strict=True)]


def decode_spans(
    questions: Questions,
    windows: ContextWindows,
    logits: Float32s,
    n_best: int,
    max_answer_length: int,
    null_threshold: float | None,
) -> SpanPredictions:
    """Find the best spans over all windows of each question.

    Args:
        questions: the questions of the windows.
        windows: the result of `encode_windows`.
        logits: float32 (T, 2), start and end.
        n_best: the number of best starts and ends of a window that are paired, and of spans that
            are kept for a question.
        max_answer_length: in tokens.
        null_threshold: see `SpanPredictions`; None if every question has an answer.
    """
    tokens = np.diff(windows.bounds[windows.window_bounds]).max(initial=1)  # of the longest question
    spans, counts, nulls, best = best_spans(
        logits,
        windows.bounds,
        windows.max_context,
        windows.window_bounds,
        min(n_best, int(tokens) * max_answer_length),  # there are not more spans; room for all is allocated
        max_answer_length,
        null_threshold is not None,
    )
    offsets = _character_offsets(spans, windows)
    span_logits = np.stack([logits[spans[..., 0], 0], logits[spans[..., 1], 1]], axis=-1)
    is_listed = np.arange(spans.shape[1]) < counts[:, None]
    scores = np.where(is_listed, span_logits.sum(-1, dtype=np.float64), -np.inf)
    exponentials = np.exp(scores - scores[:, :1])
    candidates = NBest(counts, offsets, span_logits, exponentials / exponentials.sum(1, keepdims=True))
    answers = [
        questions.contexts[context][begin:end]
        for context, (begin, end) in zip(
            questions.context_indices, _character_offsets(best, windows).tolist(), strict=True
        )
    ]
    if null_threshold is None:
        return SpanPredictions(answers, n_best=candidates)
    has_span = best[:, 0] != nulls
    null_odds = _span_scores(logits, nulls, nulls) - _span_scores(logits, best[:, 0], best[:, 1])
    null_odds = np.where(has_span, null_odds, NO_SPAN_NULL_ODDS)
    return SpanPredictions(answers, null_odds, null_threshold, candidates)


def n_best_entries(questions: Questions, n_best: NBest) -> list[list[dict[str, str | float]]]:
    """Return the n-best list of each question, in the form of nbest_predictions.json."""
    is_listed = np.arange(n_best.probabilities.shape[1]) < n_best.counts[:, None]
    contexts = np.repeat(questions.context_indices, n_best.counts).tolist()
    entries: list[dict[str, str | float]] = [
        {
            "text": questions.contexts[context][begin:end],
            "probability": probability,
            "start_logit": start_logit,
            "end_logit": end_logit,
        }
        for context, (begin, end), probability, (start_logit, end_logit) in zip(
            contexts,
            n_best.offsets[is_listed].tolist(),
            n_best.probabilities[is_listed].tolist(),
            n_best.logits[is_listed].tolist(),
            strict=True,
        )
    ]
    bounds = cumulative_bounds(n_best.counts)
    return [entries[first:last] for first, last in pairwise(bounds.tolist())]


def _character_offsets(spans: Int64s, windows: ContextWindows) -> Int64s:
    """Convert spans of tokens (..., 2) to character offsets; null spans to (0, 0)."""
    begins, ends = windows.offsets[spans[..., 0], 0], windows.offsets[spans[..., 1], 1]
    return np.stack([begins, ends], axis=-1).astype(np.int64)


def _span_scores(logits: Float32s, starts: Int64s, ends: Int64s) -> Float64s:
    scores: Float64s = logits[starts, 0].astype(np.float64) + logits[ends, 1]
    return scores


@kernel
def best_spans(
    logits: Float32s,
    bounds: Int64s,
    max_context: Bools,
    window_bounds: Int64s,
    n_best: int,
    max_answer_length: int,
    with_null: bool,
) -> tuple[Int64s, Int64s, Int64s, Int64s]:
    """Find the best spans of n questions, as indices of their first and last token.

    The null span, "no answer", is the [CLS] of a window as first and last token.

    Returns:
        spans: int64 (n, n_best + 1, 2), best first. With `with_null`, or where no span is possible,
            the null span is among them, if need be as the last one.
        counts: int64 (n,), the number of spans.
        nulls: int64 (n,), the [CLS] with the lowest null score of all windows.
        best: int64 (n, 2), the best span that is not null, or the null span if there is no other.
    """
    n = len(window_bounds) - 1
    spans, scores = np.zeros((n, n_best + 1, 2), np.int64), np.empty(n_best + 1)
    counts, nulls, best = np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros((n, 2), np.int64)
    starts, ends = np.empty(n_best, np.int64), np.empty(n_best, np.int64)
    start_logits, end_logits = np.empty(n_best, np.float32), np.empty(n_best, np.float32)
    for question in range(n):
        count, null_score = 0, np.inf
        nulls[question] = bounds[window_bounds[question]]
        for window in range(window_bounds[question], window_bounds[question + 1]):
            begin, end = bounds[window], bounds[window + 1]
            score = np.float64(logits[begin, 0]) + np.float64(logits[begin, 1])
            if score < null_score:
                null_score, nulls[question] = score, begin
            start_count = find_top_k(logits[:, 0], begin, end, starts, start_logits)
            end_count = find_top_k(logits[:, 1], begin, end, ends, end_logits)
            for i in range(start_count):
                start = starts[i]
                if not max_context[start]:  # false for question and special tokens too
                    continue
                for j in range(end_count):
                    last, score = ends[j], np.float64(start_logits[i]) + np.float64(end_logits[j])
                    if count == n_best and score <= scores[count - 1]:
                        break  # the other ends have no higher logits
                    # The window's last token is [SEP].
                    if start <= last < min(start + max_answer_length, end - 1):
                        count = insert_span(spans[question, :n_best], scores, count, start, last, score)
        best[question] = nulls[question]
        if count > 0:
            best[question] = spans[question, 0]
        if with_null or count == 0:
            # If it is one of the n_best, it replaces the last of these; otherwise it comes after them.
            size = n_best + (count == n_best and null_score <= scores[count - 1])
            null = nulls[question]
            count = insert_span(spans[question, :size], scores, count, null, null, null_score)
        counts[question] = count
    return spans, counts, nulls, best


@kernel
def insert_span(spans: Int64s, scores: Float64s, count: int, start: int, last: int, score: float) -> int:
    """Insert a span into a list by descending score, and return the new length.

    It goes after spans of the same score. If the list is full, its last span is dropped.

    Args:
        spans: the list, int64 (capacity, 2), of which the first `count` entries are used.
        scores: the scores of the spans.
        count: the length of the list.
        start: the first token of the new span.
        last: its last token.
        score: its score.
    """
    index = count
    while index > 0 and not scores[index - 1] >= score:
        index -= 1
    count = min(count + 1, len(spans))
    for i in range(count - 1, index, -1):
        spans[i] = spans[i - 1]
        scores[i] = scores[i - 1]
    if index < count:
        spans[index, 0], spans[index, 1], scores[index] = start, last, score
    return count


@kernel
def find_top_k(values: Float32s, begin: int, end: int, indices: Int64s, top_values: Float32s) -> int:
    """Find the k highest of values[begin:end], and return their number, at most k.

    Writes their indices and values to `indices` and `top_values`, arrays of length k, in descending
    order; of equal values, the first comes first.
    """
    count, k = 0, len(indices)
    for i in range(begin, end):
        value = values[i]
        if count == k and value <= top_values[k - 1]:
            continue
        rank = min(count, k - 1)
        while rank > 0 and top_values[rank - 1] < value:
            indices[rank], top_values[rank] = indices[rank - 1], top_values[rank - 1]
            rank -= 1
        indices[rank], top_values[rank] = i, value
        count = min(count + 1, k)
    return count
