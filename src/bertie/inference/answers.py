"""Find answers: the most likely spans of a context, widened to whole words."""

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from operator import itemgetter

import numpy as np

from bertie.inference.results import Answer
from bertie.tasks.squad.decoding import SpanPredictions
from bertie.tasks.squad.questions import Questions
from bertie.text.tokenizer import Tokenizer
from bertie.text.unicode import UNSPACED
from bertie.text.words import Span, word_spans

_UNSPACED = re.compile(UNSPACED)


def unanswered_questions(questions: Sequence[str], contexts: Sequence[str]) -> Questions:
    """Return questions, each with its context, as examples."""
    indices = np.arange(len(questions))
    return Questions([*map(str, indices)], questions, contexts, indices)


def rank_answers(
    contexts: Sequence[str], predictions: SpanPredictions, tokenizer: Tokenizer
) -> list[list[Answer]]:
    """Return the answers to each question, best first, snapped to whole words.

    The empty answer is included only if it is the prediction. If several answers become equal, only
    the best remains.
    """
    n_best = predictions.n_best
    assert n_best is not None
    results = []
    words = word_spans(contexts, tokenizer)
    for i, (context, prediction) in enumerate(zip(contexts, predictions.texts, strict=True)):
        count = n_best.counts[i]
        spans, scores = (
            map(tuple, n_best.offsets[i, :count].tolist()),
            n_best.probabilities[i, :count].tolist(),
        )
        answers: dict[Span, Answer] = {}
        for (start, end), score in zip(spans, scores, strict=True):
            if end > 0:
                start, end = snap_to_words(context, (start, end), words[i])
            answers.setdefault((start, end), Answer(context[start:end], start, end, score))
        empty = answers.pop((0, 0), None)
        results.append([*([empty] if empty and prediction == "" else []), *answers.values()])
    return results


def snap_to_words(text: str, span: Span, words: Sequence[Span]) -> Span:
    """Widen a span of tokens to whole words.

    In scripts that write no spaces, a span grows only over the marks of its letters, such as the
    voicing mark of a decomposed が.

    Args:
        text: the text.
        span: the span, which begins and ends at tokens of the text.
        words: the offsets of the words of the text, from `word_spans`.
    """
    start, end = span
    word_start = words[bisect_right(words, start, key=itemgetter(0)) - 1][0]
    word_end = words[bisect_left(words, end, key=itemgetter(1))][1]
    while start > word_start and not _may_begin(text, start):
        start -= 1
    while end < word_end and not _may_begin(text, end):
        end += 1
    return start, end


def _may_begin(text: str, index: int) -> bool:
    """Whether a span may begin at this character in the middle of a word, or end before it."""
    is_unspaced = _UNSPACED.search(text, index - 1, index + 1) is not None
    return is_unspaced and not unicodedata.category(text[index]).startswith("M")
