"""Exact match and F1 of answers, as the official evaluate-v1.1.py and evaluate-v2.0.py count them."""

import re
import string
from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from bertie.tasks.task import Scores

ARTICLES = re.compile(r"\b(a|an|the)\b")
NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Lower case, without ASCII punctuation and articles, one space between words."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(NO_PUNCTUATION)).split())


def exact_match_and_f1(gold: str, answer: str) -> tuple[float, float]:
    """How well two normalised answers agree: 0 or 1, and the F1 of their words, 0 where they share none."""
    gold_words, words = gold.split(), answer.split()
    common = (Counter(gold_words) & Counter(words)).total()
    if common == 0:
        return float(gold == answer), 0.0
    precision, recall = common / len(words), common / len(gold_words)
    return float(gold == answer), 2 * precision * recall / (precision + recall)


def score_v1(golds: Sequence[Sequence[str]], answers: Sequence[str | None]) -> Scores:
    """evaluate-v1.1.py: the best agreement with any gold answer; a question without a prediction scores 0."""
    exact = f1 = 0.0
    for texts, answer in zip(golds, answers, strict=True):
        if answer is not None:
            normal = normalize_answer(answer)
            scores = [exact_match_and_f1(normalize_answer(text), normal) for text in texts]
            exact += max((score[0] for score in scores), default=0.0)
            f1 += max((score[1] for score in scores), default=0.0)
    return {"exact_match": 100 * exact / len(answers), "f1": 100 * f1 / len(answers)}


def score_v2(
    golds: Sequence[Sequence[str]],
    answers: Sequence[str],
    null_odds: npt.NDArray[np.float64] | None = None,
    null_threshold: float = 1.0,
) -> Scores:
    """evaluate-v2.0.py with its --na-prob-file and --na-prob-thresh, and `exact` also as `exact_match`.

    Args:
        golds: the gold answers of each question, none where it has none.
        answers: "" says that there is none.
        null_odds: how sure it is, for each question, that there is none; float64 (n,).
        null_threshold: the answer counts as "" where the odds are above it.
    """
    has_answer = np.array([bool(texts) for texts in golds])
    pairs = [_agreement_v2(texts, answer) for texts, answer in zip(golds, answers, strict=True)]
    # Plain lists: numpy would sum in another order, and the last digit would differ.
    raw: dict[str, list[float]] = {"exact": [pair[0] for pair in pairs], "f1": [pair[1] for pair in pairs]}
    none = np.zeros(len(golds), np.bool_) if null_odds is None else null_odds > null_threshold
    scored = {
        name: [
            float(not has) if null else score
            for null, has, score in zip(none, has_answer, values, strict=True)
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


def _agreement_v2(texts: Sequence[str], answer: str) -> tuple[float, float]:
    """As in v1.1, but golds that normalise to nothing are left out, and nothing agrees with nothing."""
    normal = normalize_answer(answer)
    golds = [gold for text in texts if (gold := normalize_answer(text))]
    if not golds:
        return float(not normal), float(not normal)
    scores = [exact_match_and_f1(gold, normal) for gold in golds]
    return max(score[0] for score in scores), max(score[1] for score in scores)


def _averages(scored: dict[str, list[float]], chosen: npt.NDArray[np.bool_], prefix: str) -> Scores:
    """The means over the chosen questions; no entries where there are none."""
    numbers = np.flatnonzero(chosen).tolist()
    if not numbers:
        return {}
    means = {
        f"{prefix}{name}": 100 * sum(values[i] for i in numbers) / len(numbers)
        for name, values in scored.items()
    }
    return means | {f"{prefix}total": len(numbers)}


def best_threshold(
    scores: Sequence[float],
    has_answer: npt.NDArray[np.bool_],
    answers: Sequence[str],
    null_odds: npt.NDArray[np.float64],
) -> tuple[float, float]:
    """The highest mean score in percent that a threshold of the null odds gives, and that threshold.

    Answers are given in the order of their odds, from none of them on; those of equal odds one by one, in the
    order of the questions.
    """
    score = best = float(np.count_nonzero(~has_answer))
    threshold = 0.0
    for i in np.argsort(null_odds, kind="stable").tolist():
        score += scores[i] if has_answer[i] else -float(bool(answers[i]))
        if score > best:
            best, threshold = score, float(null_odds[i])
    return 100 * best / len(scores), threshold
