"""Logits -> answers, against per-example loops: python benchmarks/squad.py

10,000 windows of real questions and paragraphs with random logits. The peer is the algorithm of the
`postprocess_qa_predictions` in the question-answering example of `transformers`, written out here: for each
question and window argsort, two nested loops, a sort, a softmax. Its inputs are made beforehand. Both give
the answers, the null odds and the n-best: ours as arrays of places, logits and probabilities, which is what
an evaluation takes, and then as dictionaries with texts too, which is what is written to a file. The data:
BERTIE_DATA, or ../shared/data.
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
from bertie.tasks.squad.windows import Windows
from bertie.text.tokenizer import Tokenizer

WINDOWS = 10_000
ROUNDS = 3
N_BEST, MAX_ANSWER_LENGTH = 20, 30


def features_of(windows: Windows) -> list[list[dict[str, Any]]]:
    """What the loops take: each question's windows, with offsets or None, and the places of max context."""
    features = []
    for question in range(len(windows.window_bounds) - 1):
        of_question = []
        for window in range(*windows.window_bounds[question : question + 2]):
            begin, end = windows.bounds[window : window + 2]
            offsets = windows.offsets[begin:end].tolist()
            max_context = windows.max_context[begin:end].tolist()
            of_question.append(
                {
                    "tokens": slice(begin, end),
                    "offset_mapping": [pair if pair[1] else None for pair in offsets],
                    "token_is_max_context": {str(i): most for i, most in enumerate(max_context)},
                }
            )
        features.append(of_question)
    return features


def decode_by_loops(
    questions: Questions, features: list[list[dict[str, Any]]], logits: npt.NDArray[np.float32]
) -> tuple[list[str], list[float], list[list[dict[str, Any]]]]:
    """The answers, the null odds and the n-best, one question after the other."""
    answers, null_odds, n_best = [], [], []
    for number, windows in enumerate(features):
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
                    places = (offsets[start][0], offsets[end][1])
                    spans.append(entry(places, start_logits[start], end_logits[end]))
        best = sorted([*spans, null], key=lambda span: span["score"], reverse=True)[:N_BEST]
        if not any(span["offsets"] == (0, 0) for span in best):
            best.append(null)
        context = questions.contexts[questions.context_of_question[number]]
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


def first_windows(questions: Questions, windows: Windows, count: int) -> tuple[Questions, Windows]:
    """So many of the first questions that there are at least `count` windows, if there are so many."""
    n = min(int(np.searchsorted(windows.window_bounds, count)), len(questions))
    last = windows.window_bounds[n]
    total = windows.bounds[last]
    about = questions.context_of_question[:n]
    return (
        replace(
            questions, ids=questions.ids[:n], questions=questions.questions[:n], context_of_question=about
        ),
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
        np.concatenate([parts[0].context_of_question, parts[1].context_of_question + len(parts[0].contexts)]),
    )
    questions, windows = first_windows(joined, task.encode(joined, tokenizer, 384), WINDOWS)
    logits = np.random.default_rng(0).normal(0, 3, (len(windows.input_ids), 2)).astype(np.float32)
    features = features_of(windows)
    gc.freeze()  # else these millions of objects would be searched for garbage in the times of both

    def ours() -> tuple[SpanPredictions, list[list[dict[str, str | float]]]]:
        predictions = task.decode(questions, windows, logits)
        assert predictions.n_best is not None
        return predictions, n_best_entries(questions, predictions.n_best)

    ours()  # compiles
    rows = []
    for _ in range(ROUNDS):
        (answers, _, _), theirs = timed(lambda: decode_by_loops(questions, features, logits))
        _, alone = timed(lambda: task.decode(questions, windows, logits))
        (predictions, _), written = timed(ours)
        rows.append((theirs / alone, theirs / written))
    same = sum(a == b for a, b in zip(answers, predictions.texts, strict=True))
    print(f"{len(windows):,} windows of {len(questions):,} questions; {same:,} answers are the same")
    alone, written = (statistics.median(column) for column in zip(*rows, strict=True))
    print(
        f"bertie against the loops: {alone:.1f} times; {written:.1f} with a dictionary for each n-best entry"
    )


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    begin = time.perf_counter()
    result = work()
    return result, time.perf_counter() - begin


if __name__ == "__main__":
    main(Path(os.environ.get("BERTIE_DATA") or Path(__file__).parents[2] / "shared" / "data"))
