"""Compare the decoding of SQuAD answers with loops over single examples.

The input is windows of real questions and paragraphs, with random logits. The peer is the
algorithm of `postprocess_qa_predictions` in the question-answering example of `transformers`,
written out here: for each question and window an argsort, two nested loops, a sort and a softmax.
Its inputs are prepared beforehand. Both return the answers, the null odds and the n-best entries.
bertie is timed twice: returning arrays of offsets, logits and probabilities, as an evaluation needs
them, and returning dictionaries with texts, as a file of predictions needs them.
"""

import gc
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from bertie.tasks.squad.decoding import SpanPredictions, n_best_entries
from bertie.tasks.squad.questions import Questions
from bertie.tasks.squad.task import SQUAD_TASKS
from bertie.tasks.squad.windows import ContextWindows
from bertie.text.tokenizer import Tokenizer
from measure import DATA, UNCASED, Row, compare, take_turns

WINDOWS = 3_000
N_BEST, MAX_ANSWER_LENGTH = 20, 30


def features_of(windows: ContextWindows) -> list[list[dict[str, Any]]]:
    """Return the windows of each question, in the form that `decode_by_loops` takes.

    `offset_mapping` is None for tokens outside the context. `token_is_max_context` is true for
    tokens that have their maximal context in this window.
    """
    features = []
    for question in range(len(windows.window_bounds) - 1):
        question_windows = []
        for window in range(*windows.window_bounds[question : question + 2]):
            begin, end = windows.bounds[window : window + 2]
            offsets = windows.offsets[begin:end].tolist()
            max_context = windows.max_context[begin:end].tolist()
            question_windows.append(
                {
                    "tokens": slice(begin, end),
                    "offset_mapping": [pair if pair[1] else None for pair in offsets],
                    "token_is_max_context": {str(i): value for i, value in enumerate(max_context)},
                }
            )
        features.append(question_windows)
    return features


def decode_by_loops(
    questions: Questions, features: list[list[dict[str, Any]]], logits: npt.NDArray[np.float32]
) -> tuple[list[str], list[float], list[list[dict[str, Any]]]]:
    """Return the answers, null odds and n-best entries, question by question."""
    answers, null_odds, n_best = [], [], []
    for question, windows in enumerate(features):
        spans: list[dict[str, Any]] = []
        null: dict[str, Any] = {}
        for window in windows:
            start_logits, end_logits = logits[window["tokens"], 0], logits[window["tokens"], 1]
            offsets, max_context = window["offset_mapping"], window["token_is_max_context"]
            null_score = float(start_logits[0]) + float(end_logits[0])
            if not null or null_score < null["score"]:
                null = entry((0, 0), start_logits[0], end_logits[0])
            starts = np.argsort(-start_logits, kind="stable")[:N_BEST].tolist()
            ends = np.argsort(-end_logits, kind="stable")[:N_BEST].tolist()
            for start in starts:
                for end in ends:
                    if offsets[start] is None or offsets[end] is None:
                        continue
                    if end < start or end - start + 1 > MAX_ANSWER_LENGTH:
                        continue
                    if not max_context.get(str(start), False):
                        continue
                    span_offsets = (offsets[start][0], offsets[end][1])
                    spans.append(entry(span_offsets, start_logits[start], end_logits[end]))
        best = sorted([*spans, null], key=lambda span: span["score"], reverse=True)[:N_BEST]
        if not any(span["offsets"] == (0, 0) for span in best):
            best.append(null)
        context = questions.contexts[questions.context_indices[question]]
        for span in best:
            begin, end = span.pop("offsets")
            span["text"] = context[begin:end]
        exponentials = [math.exp(span["score"] - best[0]["score"]) for span in best]
        for span, exponential in zip(best, exponentials, strict=True):
            span["probability"] = exponential / sum(exponentials)
        answer = next((span for span in best if span["text"]), None)
        odds = 1e6 if answer is None else null["score"] - answer["score"]
        answers.append("" if answer is None or odds > 0 else answer["text"])
        null_odds.append(odds)
        n_best.append(best)
    return answers, null_odds, n_best


def entry(offsets: tuple[int, int], start_logit: np.float32, end_logit: np.float32) -> dict[str, Any]:
    return {
        "offsets": offsets,
        "score": float(start_logit) + float(end_logit),
        "start_logit": float(start_logit),
        "end_logit": float(end_logit),
    }


def first_windows(
    questions: Questions, windows: ContextWindows, count: int
) -> tuple[Questions, ContextWindows]:
    """Return the first questions with `count` windows, or all if they have fewer."""
    n = min(int(np.searchsorted(windows.window_bounds, count)), len(questions))
    last = windows.window_bounds[n]
    total = windows.bounds[last]
    about = questions.context_indices[:n]
    return (
        replace(questions, ids=questions.ids[:n], questions=questions.questions[:n], context_indices=about),
        replace(
            windows,
            input_ids=windows.input_ids[:total],
            token_type_ids=windows.token_type_ids[:total],
            bounds=windows.bounds[: last + 1],
            window_bounds=windows.window_bounds[: n + 1],
            offsets=windows.offsets[:total],
            max_context=windows.max_context[:total],
        ),
    )


def rows(rounds: int) -> Iterator[Row]:
    """Compare arrays and dictionaries with the loops."""
    task = SQUAD_TASKS[1]
    questions = task.read(DATA / "squad" / "train-v1.1.json", False)
    windows = task.encode(questions, Tokenizer.load(UNCASED), 384)
    questions, windows = first_windows(questions, windows, WINDOWS)
    logits = np.random.default_rng(0).normal(0, 3, (len(windows.input_ids), 2)).astype(np.float32)
    features = features_of(windows)
    gc.freeze()  # otherwise the garbage collector searches these objects during the timing

    def decode_to_dictionaries() -> tuple[SpanPredictions, list[list[dict[str, str | float]]]]:
        predictions = task.decode(questions, windows, logits)
        assert predictions.n_best is not None
        return predictions, n_best_entries(questions, predictions.n_best)

    answers, _, _ = decode_by_loops(questions, features, logits)
    predictions, _ = decode_to_dictionaries()
    same = sum(a == b for a, b in zip(answers, predictions.texts, strict=True))
    seconds = take_turns(
        {
            "loops": lambda: decode_by_loops(questions, features, logits),
            "arrays": lambda: task.decode(questions, windows, logits),
            "dictionaries": decode_to_dictionaries,
        },
        rounds,
    )
    for form in ("arrays", "dictionaries"):
        yield compare(
            f"squad-{form}",
            f"SQuAD answers with their n-best as {form}",
            "the loops of run_qa.py",
            "windows/s",
            len(windows.bounds) - 1,
            seconds[form],
            seconds["loops"],
            note=f"{same:,} of {len(answers):,} answers are the same.",
        )
