"""Exact match and F1 of answers, as in evaluate-v1.1.py and evaluate-v2.0.py."""

import re
import string
from collections import Counter
from collections.abc import Sequence

import numpy as np

from bertie.base.arrays import Bools, Float64s
from bertie.tasks.error_analysis import ThresholdCurve
from bertie.tasks.task import Scores

ARTICLES = re.compile(r"\b(a|an|the)\b")
NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Lower the case, remove ASCII punctuation and articles and extra spaces."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(NO_PUNCTUATION)).split())


def exact_match_and_f1(gold: str, answer: str) -> tuple[float, float]:
    """Compare two normalized answers.

    Returns:
        1.0 if they are equal, else 0.0; and the F1 of their words, 0.0 if they share none.
    """
    gold_words, words = gold.split(), answer.split()
    common = (Counter(gold_words) & Counter(words)).total()
    if common == 0:
        return float(gold == answer), 0.0
    precision, recall = common / len(words), common / len(gold_words)
    return float(gold == answer), 2 * precision * recall / (precision + recall)


def score_v1(golds: Sequence[Sequence[str]], answers: Sequence[str | None]) -> Scores:
    """Score as evaluate-v1.1.py does: the best match with any gold answer counts.

    Args:
        golds: the gold answers of each question.
        answers: None for a question without a prediction, which scores 0.
    """
    exact = f1 = 0.0
    for texts, answer in zip(golds, answers, strict=True):
        if answer is not None:
            normalized = normalize_answer(answer)
            scores = [exact_match_and_f1(normalize_answer(text), normalized) for text in texts]
            exact += max((score[0] for score in scores), default=0.0)
            f1 += max((score[1] for score in scores), default=0.0)
    return {"exact_match": 100 * exact / len(answers), "f1": 100 * f1 / len(answers)}


def score_v2(
    golds: Sequence[Sequence[str]],
    answers: Sequence[str],
    null_odds: Float64s | None = None,
    null_threshold: float = 1.0,
) -> Scores:
    """Score as evaluate-v2.0.py does, with its --na-prob-file and --na-prob-thresh.

    Args:
        golds: the gold answers of each question, empty where it has none.
        answers: "" for no answer.
        null_odds: float64 (n,), how confident the model is that a question has no answer.
        null_threshold: an answer counts as "" if its null odds are above this.

    Returns:
        The scores by their official names; `exact` is also returned as `exact_match`.
    """
    has_answer = np.array([bool(texts) for texts in golds])
    pairs = [_match_v2(texts, answer) for texts, answer in zip(golds, answers, strict=True)]
    # Plain lists: numpy sums in another order, so the last digit would differ.
    raw: dict[str, list[float]] = {"exact": [pair[0] for pair in pairs], "f1": [pair[1] for pair in pairs]}
    is_null = np.zeros(len(golds), np.bool_) if null_odds is None else null_odds > null_threshold
    scored = {
        name: [
            float(not has) if null else score
            for null, has, score in zip(is_null, has_answer, values, strict=True)
        ]
        for name, values in raw.items()
    }
    scores = _averages(scored, np.ones_like(has_answer), "")
    scores |= _averages(scored, has_answer, "HasAns_") | _averages(scored, ~has_answer, "NoAns_")
    if null_odds is not None:
        for name, values in raw.items():
            best, threshold = best_threshold(values, has_answer, answers, null_odds)
            scores |= {f"best_{name}": best, f"best_{name}_thresh": threshold}
    return {"exact_match": scores["exact"], **scores}


def _match_v2(texts: Sequence[str], answer: str) -> tuple[float, float]:
    """Return exact match and F1 with the best of the gold answers.

    Unlike in v1.1, gold answers that normalize to nothing are ignored; without gold answers, only
    an answer that normalizes to nothing is right.
    """
    normalized = normalize_answer(answer)
    golds = [gold for text in texts if (gold := normalize_answer(text))]
    if not golds:
        return float(not normalized), float(not normalized)
    scores = [exact_match_and_f1(gold, normalized) for gold in golds]
    return max(score[0] for score in scores), max(score[1] for score in scores)


def _averages(scored: dict[str, list[float]], chosen: Bools, prefix: str) -> Scores:
    """Return the mean scores of the chosen questions; empty if there are none."""
    indices = np.flatnonzero(chosen).tolist()
    if not indices:
        return {}
    means = {
        f"{prefix}{name}": 100 * sum(values[i] for i in indices) / len(indices)
        for name, values in scored.items()
    }
    return means | {f"{prefix}total": len(indices)}


def best_threshold(
    scores: Sequence[float],
    has_answer: Bools,
    answers: Sequence[str],
    null_odds: Float64s,
) -> tuple[float, float]:
    """Find the null threshold with the highest mean score.

    This is find_best_thresh of evaluate-v2.0.py: first no question is answered, then one more at a
    time, in ascending order of the null odds. Equal odds are in the order of the questions.

    Returns:
        The mean score in percent, and the threshold.
    """
    score = best = float(np.count_nonzero(~has_answer))
    threshold = 0.0
    for i in np.argsort(null_odds, kind="stable").tolist():
        score += scores[i] if has_answer[i] else -float(bool(answers[i]))
        if score > best:
            best, threshold = score, float(null_odds[i])
    return 100 * best / len(scores), threshold


def question_scores(
    golds: Sequence[Sequence[str]], answers: Sequence[str | None], allow_no_answer: bool
) -> tuple[Float64s, Float64s]:
    """Score each question separately, as v2.0 (`allow_no_answer`) or v1.1 does.

    Returns:
        Exact match and F1 in percent, float64 (n,) each.
    """
    scores = [
        score_v2([texts], [answer or ""]) if allow_no_answer else score_v1([texts], [answer])
        for texts, answer in zip(golds, answers, strict=True)
    ]
    return np.array([row["exact_match"] for row in scores]), np.array([row["f1"] for row in scores])


def threshold_curve(
    golds: Sequence[Sequence[str]],
    answers: Sequence[str | None],
    null_odds: Float64s,
    null_threshold: float,
) -> ThresholdCurve:
    """Score answers of SQuAD v2.0 at every null threshold, as `best_threshold` does."""
    order = np.argsort(null_odds, kind="stable")
    has_answer = np.array([bool(texts) for texts in golds])
    # Answering a question that has no answer loses the point that "" scores.
    losses = -np.array([bool(answer) for answer in answers]).astype(np.float64)
    score_unanswered = float(np.count_nonzero(~has_answer))
    exact_match, f1 = (
        100 * np.cumsum([score_unanswered, *np.where(has_answer, scores / 100, losses)[order]]) / len(golds)
        for scores in question_scores(golds, answers, allow_no_answer=True)
    )
    thresholds = null_odds[order]
    return ThresholdCurve(np.concatenate([thresholds[:1], thresholds]), exact_match, f1, null_threshold)
