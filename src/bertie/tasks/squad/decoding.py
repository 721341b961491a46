"""Logits of start and end -> answers (google-research/bert run_squad.py, write_predictions).

Two differences from run_squad.py. An answer is a slice of the context as it was written, from the first
character of its first piece to the end of its last; get_final_text aligns two tokenizations instead, and
gives whole words where accents make them differ in length. And n-best entries are different places of the
context, which may read the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from bertie.base.kernels import kernel
from bertie.tasks.squad.questions import Questions
from bertie.tasks.squad.windows import Windows

Float32s = npt.NDArray[np.float32]
Float64s = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]

NO_SPAN = 1e6  # the null odds where no span is possible: "large and positive", run_squad.py


@dataclass(frozen=True)
class NBest:
    """The likeliest places of each question's answer, best first; at least one, at most k.

    counts         int64 (n,)         how many there are; what is beyond them means nothing
    offsets        int64 (n, k, 2)    first character and end in the context; (0, 0) is "no answer"
    logits         float32 (n, k, 2)  of start and end
    probabilities  float64 (n, k)     softmax of the sums of the logits
    """

    counts: Int64s
    offsets: Int64s
    logits: Float32s
    probabilities: Float64s


@dataclass(frozen=True)
class SpanPredictions:
    """The answers to n questions.

    answers         the best of each that is not "no answer"; None where there is no prediction
    null_odds       float64 (n,)  the score of "no answer" less that of the answer; None where not asked for
    null_threshold  no answer is given where the odds are above it
    n_best          None where unknown
    """

    answers: Sequence[str | None]
    null_odds: Float64s | None = None
    null_threshold: float = 0.0
    n_best: NBest | None = None

    @property
    def texts(self) -> list[str | None]:
        """The answers given: "" where there is none."""
        if self.null_odds is None:
            return list(self.answers)
        none = self.null_odds > self.null_threshold
        return ["" if null else answer for null, answer in zip(none, self.answers, strict=True)]


def decode_spans(
    questions: Questions,
    windows: Windows,
    logits: Float32s,
    n_best: int,
    max_answer_length: int,
    null_threshold: float | None,
) -> SpanPredictions:
    """The best spans over all windows of each question.

    Args:
        questions: those that the windows are of.
        windows: what `encode_windows` gave.
        logits: float32 (T, 2), start and end.
        n_best: how many starts and ends of a window are paired, and how many spans kept.
        max_answer_length: the most pieces of an answer.
        null_threshold: as in `SpanPredictions`; None where every question has an answer.
    """
    spans, counts, nulls, best = best_spans(
        logits,
        windows.bounds,
        windows.max_context,
        windows.window_bounds,
        n_best,
        max_answer_length,
        null_threshold is not None,
    )
    offsets = _characters(spans, windows)
    span_logits = np.stack([logits[spans[..., 0], 0], logits[spans[..., 1], 1]], axis=-1)
    listed = np.arange(spans.shape[1]) < counts[:, None]
    scores = np.where(listed, span_logits.sum(-1, dtype=np.float64), -np.inf)
    exponentials = np.exp(scores - scores[:, :1])
    candidates = NBest(counts, offsets, span_logits, exponentials / exponentials.sum(1, keepdims=True))
    answers = [
        questions.contexts[context][begin:end]
        for context, (begin, end) in zip(
            questions.context_of_question, _characters(best, windows).tolist(), strict=True
        )
    ]
    if null_threshold is None:
        return SpanPredictions(answers, n_best=candidates)
    possible = best[:, 0] != nulls
    null_odds = _score(logits, nulls, nulls) - _score(logits, best[:, 0], best[:, 1])
    return SpanPredictions(answers, np.where(possible, null_odds, NO_SPAN), null_threshold, candidates)


def n_best_entries(questions: Questions, n_best: NBest) -> list[list[dict[str, str | float]]]:
    """The n-best of each question as run_squad.py's nbest_predictions.json has them."""
    listed = np.arange(n_best.probabilities.shape[1]) < n_best.counts[:, None]
    contexts = np.repeat(questions.context_of_question, n_best.counts).tolist()
    entries: list[dict[str, str | float]] = [
        {
            "text": questions.contexts[context][begin:end],
            "probability": probability,
            "start_logit": start_logit,
            "end_logit": end_logit,
        }
        for context, (begin, end), probability, (start_logit, end_logit) in zip(
            contexts,
            n_best.offsets[listed].tolist(),
            n_best.probabilities[listed].tolist(),
            n_best.logits[listed].tolist(),
            strict=True,
        )
    ]
    bounds = [0, *np.cumsum(n_best.counts).tolist()]
    return [entries[first:last] for first, last in pairwise(bounds)]


def _characters(spans: Int64s, windows: Windows) -> Int64s:
    """First character and end in the context of spans of tokens (..., 2); [CLS] alone gives (0, 0)."""
    begins, ends = windows.offsets[spans[..., 0], 0], windows.offsets[spans[..., 1], 1]
    return np.stack([begins, ends], axis=-1).astype(np.int64)


def _score(logits: Float32s, starts: Int64s, ends: Int64s) -> Float64s:
    scores: Float64s = logits[starts, 0].astype(np.float64) + logits[ends, 1]
    return scores


@kernel
def best_spans(
    logits: Float32s,
    bounds: Int64s,
    max_context: npt.NDArray[np.bool_],
    window_bounds: Int64s,
    n_best: int,
    max_answer_length: int,
    with_null: bool,
) -> tuple[Int64s, Int64s, Int64s, Int64s]:
    """The best spans of n questions, as first and last token; "no answer" is a [CLS] twice.

    Returns:
        spans int64 (n, n_best + 1, 2), best first; with_null, or where no span is possible, "no answer" is
        among them, as the last of all if it has to be; counts (n,) of them; nulls (n,), the [CLS] of the
        window that is surest of an answer; best (n, 2), the best that is not "no answer", where there is one.
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
            start_count = highest(logits[:, 0], begin, end, starts, start_logits)
            end_count = highest(logits[:, 1], begin, end, ends, end_logits)
            for i in range(start_count):
                start = starts[i]
                if not max_context[start]:  # nor is it ever outside the context
                    continue
                for j in range(end_count):
                    last, score = ends[j], np.float64(start_logits[i]) + np.float64(end_logits[j])
                    if count == n_best and score <= scores[count - 1]:
                        break  # the ends to come are no better
                    # The window's last token is a [SEP].
                    if start <= last < min(start + max_answer_length, end - 1):
                        count = insert(spans[question, :n_best], scores, count, start, last, score)
        best[question] = nulls[question]
        if count > 0:
            best[question] = spans[question, 0]
        if with_null or count == 0:
            # Among n_best it takes the place of the last one; otherwise it is one more.
            room = n_best + (count == n_best and null_score <= scores[count - 1])
            null = nulls[question]
            count = insert(spans[question, :room], scores, count, null, null, null_score)
        counts[question] = count
    return spans, counts, nulls, best


@kernel
def insert(spans: Int64s, scores: Float64s, count: int, start: int, last: int, score: float) -> int:
    """Put a span behind those at least as good, pushing the worst one out of a full list; the new count."""
    at = count
    while at > 0 and not scores[at - 1] >= score:
        at -= 1
    count = min(count + 1, len(spans))
    for place in range(count - 1, at, -1):
        spans[place] = spans[place - 1]
        scores[place] = scores[place - 1]
    if at < count:
        spans[at, 0], spans[at, 1], scores[at] = start, last, score
    return count


@kernel
def highest(values: Float32s, begin: int, end: int, found: Int64s, heights: Float32s) -> int:
    """The places and heights of the highest of values[begin:end], best and then earliest first; how many."""
    count, n = 0, len(found)
    for place in range(begin, end):
        value = values[place]
        if count == n and value <= heights[n - 1]:
            continue
        at = min(count, n - 1)
        while at > 0 and heights[at - 1] < value:
            found[at], heights[at] = found[at - 1], heights[at - 1]
            at -= 1
        found[at], heights[at] = place, value
        count = min(count + 1, n)
    return count
