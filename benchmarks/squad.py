"""Time the decoding of SQuAD answers, beside loops over single examples.

    python benchmarks/squad.py

The input is 10,000 windows of real questions and paragraphs, with random logits. The peer is the
algorithm of `postprocess_qa_predictions` in the question-answering example of `transformers`,
written out here: for each question and window an argsort, two nested loops, a sort and a softmax.
Its inputs are prepared beforehand. Both return the answers, the null odds and the n-best entries.
bertie is timed twice: returning arrays of offsets, logits and probabilities, as an evaluation needs
them, and returning dictionaries with texts, as a file of predictions needs them. The data are in
BERTIE_DATA, or in ../shared/data.
"""

import gc
import math
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bertie.tasks.squad.decoding import SpanPredictions, n_best_entries
from bertie.tasks.squad.questions import Questions
from bertie.tasks.squad.task import SQUAD_TASKS
from bertie.tasks.squad.windows import ContextWindows
from bertie.text.tokenizer import Tokenizer

WINDOWS = 10_000
ROUNDS = 3
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


def main(data: Path) -> None:
    task = SQUAD_TASKS[1]
    tokenizer = Tokenizer.load(data / "vocab" / "uncased_en" / "vocab.txt")
    parts = [task.read(data / "squad" / name, False) for name in ("train-v1.1.json", "train-v2.0.json")]
    joined = Questions(
        [name for part in parts for name in part.ids],
        [text for part in parts for text in part.questions],
        [text for part in parts for text in part.contexts],
        np.concatenate([parts[0].context_indices, parts[1].context_indices + len(parts[0].contexts)]),
    )
    questions, windows = first_windows(joined, task.encode(joined, tokenizer, 384), WINDOWS)
    logits = np.random.default_rng(0).normal(0, 3, (len(windows.input_ids), 2)).astype(np.float32)
    features = features_of(windows)
    gc.freeze()  # otherwise the garbage collector searches these millions of objects during the timing

    def decode_to_dictionaries() -> tuple[SpanPredictions, list[list[dict[str, str | float]]]]:
        predictions = task.decode(questions, windows, logits)
        assert predictions.n_best is not None
        return predictions, n_best_entries(questions, predictions.n_best)

    decode_to_dictionaries()  # compiles the kernels
    ratios = []
    for _ in range(ROUNDS):
        (answers, _, _), loops = timed(lambda: decode_by_loops(questions, features, logits))
        _, arrays = timed(lambda: task.decode(questions, windows, logits))
        (predictions, _), dictionaries = timed(decode_to_dictionaries)
        ratios.append((loops / arrays, loops / dictionaries))
    same = sum(a == b for a, b in zip(answers, predictions.texts, strict=True))
    print(f"{len(windows):,} windows of {len(questions):,} questions; {same:,} answers are the same")
    arrays, dictionaries = (statistics.median(column) for column in zip(*ratios, strict=True))
    print(f"bertie is {arrays:.1f} times as fast as the loops; {dictionaries:.1f} times with dictionaries")


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """Call a function; return its result and the seconds it took."""
    begin = time.perf_counter()
    result = work()
    return result, time.perf_counter() - begin


if __name__ == "__main__":
    main(Path(os.environ.get("BERTIE_DATA") or Path(__file__).parents[2] / "shared" / "data"))
