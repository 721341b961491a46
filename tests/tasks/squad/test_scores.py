"""Scores of SQuAD agree with the definitions and the official scripts."""

import functools
import json
import operator
import random
import re
import string
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertie.tasks.squad.questions import read_questions
from bertie.tasks.squad.scores import (
    best_threshold,
    normalize_answer,
    question_scores,
    score_v1,
    score_v2,
    threshold_curve,
)
from bertie.tasks.squad.task import SQUAD_TASKS

# Words that are equal or not after normalization.
TEXTS = st.lists(
    st.sampled_from(["a", "An", "the", "cat", "Cat", "dog", "cat's", "-", "a-b", "U.S.", "", "  ", "é", "“"]),
    max_size=5,
).map(" ".join)
GOLDS = st.lists(TEXTS, max_size=3)
# Texts that do not normalize to nothing.
WORDS = st.lists(st.sampled_from(["the cat", "Cat", "dog", "cat's", "a-b", "é"]), min_size=1, max_size=5)
WORDS = WORDS.map(" ".join)


def f1_of_words(gold, answer):
    remaining, common = Counter(gold), 0
    for word in answer:
        if remaining[word] > 0:
            remaining[word] -= 1
            common += 1
    return 2 * common / (len(gold) + len(answer)) if common else 0.0


@given(TEXTS)
def test_normalization_removes_articles_and_punctuation(text):
    normal = normalize_answer(text)
    assert normal == normalize_answer(normal.upper())
    assert not set(normal) & set(string.punctuation)
    words = text.lower().translate(str.maketrans("", "", string.punctuation)).split()
    assert normal.split() == [word for word in words if word not in ("a", "an", "the")]


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Cat's\tAN end.", "cats end"),
        ("a-b", "ab"),
        ("“the” sea", "“ ” sea"),  # only ASCII punctuation is removed, and articles next to other punctuation
        ("theatre", "theatre"),
        ("The, a!", ""),
    ],
)
def test_normalization_of_cases_worked_by_hand(text, normal):
    assert normalize_answer(text) == normal


@pytest.mark.parametrize(
    ("golds", "answer", "exact", "f1"),
    [
        (["the cat sat"], "Cat sat.", 100, 100),
        (["the cat sat", "a dog"], "cat", 0, 2 / 3 * 100),
        (["dog dog cat"], "dog dog dog", 0, 2 / 3 * 100),
        (["cat"], "", 0, 0),
        (["cat"], None, 0, 0),
        (["the"], "", 100, 0),  # both normalize to nothing: equal, but without a common word
    ],
)
def test_v1_scores_of_cases_worked_by_hand(golds, answer, exact, f1):
    assert score_v1([golds], [answer]) == pytest.approx({"exact_match": exact, "f1": f1})


@pytest.mark.parametrize(
    ("golds", "answer", "exact", "f1"),
    [
        ([], "", 100, 100),
        ([], "The", 100, 100),  # normalizes to nothing
        ([], "cat", 0, 0),
        (["the"], "", 100, 100),  # a gold answer that normalizes to nothing does not count
        (["the", "cat"], "", 0, 0),
        (["cat"], "a cat", 100, 100),
    ],
)
def test_v2_scores_of_cases_worked_by_hand(golds, answer, exact, f1):
    scores = score_v2([golds], [answer])
    part = "HasAns" if golds else "NoAns"
    assert scores == {
        "exact_match": exact,
        **{"exact": exact, "f1": f1, "total": 1},
        **{f"{part}_exact": exact, f"{part}_f1": f1, f"{part}_total": 1},
    }


def test_a_missing_answer_is_not_an_empty_one():
    """In v1.1 it scores 0, even where an answer that normalizes to nothing is right."""
    golds, answers = [["the"], ["the"]], [None, "a"]
    v1, v2 = (question_scores(golds, answers, allow_no_answer) for allow_no_answer in (False, True))
    assert [scores.tolist() for scores in v1] == [[0, 100], [0, 0]]
    assert [scores.tolist() for scores in v2] == [[100, 100], [100, 100]]


@given(st.lists(st.tuples(st.lists(TEXTS, min_size=1, max_size=3), st.none() | TEXTS), min_size=1))
def test_v1_scores_match_the_definition(rows):
    exact, f1 = [], []
    for golds, answer in rows:
        words = normalize_answer(answer or "").split()
        normals = [normalize_answer(gold).split() for gold in golds]
        exact.append(answer is not None and words in normals)
        f1.append(0 if answer is None else max(f1_of_words(gold, words) for gold in normals))
    expected = {"exact_match": 100 * np.mean(exact), "f1": 100 * np.mean(f1)}
    assert score_v1(*zip(*rows, strict=True)) == pytest.approx(expected)


@given(st.lists(st.tuples(GOLDS, TEXTS, st.integers(-5, 5)), min_size=1), st.integers(-5, 5))
def test_v2_scores_match_the_definition(rows, threshold):
    golds, answers, odds = zip(*rows, strict=True)
    exact, f1 = [], []
    for texts, answer, odd in rows:
        normals = [normal for text in texts if (normal := normalize_answer(text).split())] or [[]]
        words = normalize_answer(answer).split()
        if odd > threshold:
            exact.append(not texts)
            f1.append(not texts)
        else:
            exact.append(words in normals)
            f1.append(max(f1_of_words(gold, words) if gold and words else gold == words for gold in normals))
    scores = score_v2(golds, answers, np.array(odds, dtype=float), threshold)
    has = np.array([bool(texts) for texts in golds])
    for prefix, chosen in (("", has | ~has), ("HasAns_", has), ("NoAns_", ~has)):
        if chosen.any():
            assert scores[f"{prefix}exact"] == pytest.approx(100 * np.mean(np.array(exact)[chosen]))
            assert scores[f"{prefix}f1"] == pytest.approx(100 * np.mean(np.array(f1, dtype=float)[chosen]))
            assert scores[f"{prefix}total"] == chosen.sum()
        else:
            assert f"{prefix}exact" not in scores
    assert scores["exact_match"] == scores["exact"]


@given(
    st.lists(st.tuples(st.lists(WORDS, max_size=2), st.just("") | WORDS), min_size=1, max_size=8),
    st.randoms(),
)
def test_no_threshold_beats_the_best_threshold(rows, random):
    """evaluate-v2.0.py counts any text but "" as an answer here, even one that normalizes to nothing."""
    golds, answers = zip(*rows, strict=True)
    odds = np.array(random.sample(range(-50, 50), len(rows)), dtype=float)
    scores = score_v2(golds, answers, odds)
    others = [score_v2(golds, answers, odds, threshold) for threshold in (-51, *odds)]
    for name in ("exact", "f1"):
        assert scores[f"best_{name}"] == pytest.approx(max(other[name] for other in others))
        if scores[f"best_{name}_thresh"] != 0.0:  # reported where no answer at all is best
            scores_at_best = score_v2(golds, answers, odds, scores[f"best_{name}_thresh"])
            assert scores_at_best[name] == pytest.approx(scores[f"best_{name}"])


def test_best_threshold_of_cases_worked_by_hand():
    has = np.array([True, False, True])
    odds = np.array([-2.0, -1.0, 3.0])
    assert best_threshold([1.0, 0.0, 0.0], has, ["x", "y", "z"], odds) == (100 * 2 / 3, -2.0)
    assert best_threshold([1.0, 1.0, 1.0], has, ["x", "", "z"], odds) == (100.0, 3.0)
    assert best_threshold([0.0, 0.0, 0.0], has, ["x", "y", "z"], odds) == (100 / 3, 0.0)


def perturbed_answers(questions):
    """Return right, wrong and partly right answers, and null odds."""
    answers = []
    for i, (golds, context) in enumerate(zip(questions.answers, questions.context_indices, strict=True)):
        gold, text = golds[i % len(golds)][0] if golds else "", questions.contexts[context]
        forms = (gold, f"The {gold}.", gold[: i % 9], f"{gold} {text[:20]}", text[: i % 50], "")
        answers.append(forms[i % 7 % 6])
    return answers, np.array([(i * 7919 % 1000) / 100 - 5 for i in range(len(answers))])


SIGNS = ["the", "A an", "é", "北京", "–", "!", "\u00a0", "", "\n", "THE-sea", "U.S.", "'s"]


def random_answers(questions, seed):
    """Yield parts of contexts and gold answers with punctuation and articles."""
    generator = random.Random(seed)
    for golds, context in zip(questions.answers, questions.context_indices, strict=True):
        text = questions.contexts[context]
        start = generator.randrange(len(text))
        gold = golds[0][0] if golds else ""
        part = generator.choice([text[start : start + 20], gold, gold.upper(), ""])
        yield generator.choice([part, f"{generator.choice(SIGNS)} {part}{generator.choice(SIGNS)}"])


def normalized_words(text):
    kept = "".join(sign for sign in text.lower() if sign not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", kept).split()


@pytest.mark.parametrize("version", ["1.1", "2.0"])
def test_real_questions_score_as_by_the_definitions(shared_data, tmp_path, version):
    """Scores agree to the last digit, even with missing and surplus predictions."""
    task = next(task for task in SQUAD_TASKS if task.version == version)
    questions = task.read(shared_data / "squad" / f"dev-v{version}.json", labelled=True)
    for seed in range(3):
        predictions = dict(zip(questions.ids, random_answers(questions, seed), strict=True)) | {
            "no question": "x"
        }
        if version == "1.1":
            predictions = {name: text for i, (name, text) in enumerate(predictions.items()) if i % 7}
        path = tmp_path / "predictions.json"
        path.write_text(json.dumps(predictions))
        exact, f1 = [], []
        for name, golds in zip(questions.ids, questions.answers, strict=True):
            if name in predictions:
                words = normalized_words(predictions[name])
                normals = [normalized_words(text) for text, _ in golds]
                if version == "2.0":
                    normals = [normal for normal in normals if normal] or [[]]
                exact.append(words in normals)
                empty_is_right = version == "2.0" and not words
                f1.append(max(float(empty_is_right and not gold) or word_f1(gold, words) for gold in normals))
        scores = task.score(questions, task.read_predictions(questions, path))
        # evaluate-v2.0.py calls `sum`, which compensates rounding since Python 3.12; evaluate-v1.1.py adds.
        total = sum(f1) if version == "2.0" else functools.reduce(operator.add, f1)
        assert scores["exact_match"] == 100 * sum(exact) / len(questions)
        assert scores["f1"] == 100 * total / len(questions)


def word_f1(gold, words):
    """Compute F1 in the order of operations of the official scripts."""
    common = sum((Counter(words) & Counter(gold)).values())
    if not common:
        return 0
    precision, recall = common / len(words), common / len(gold)
    return 2 * precision * recall / (precision + recall)


def test_v1_scores_match_evaluate_v1_1_py_on_real_questions(shared_data):
    questions = read_questions(shared_data / "squad" / "dev-v1.1.json")
    answers, _ = perturbed_answers(questions)
    golds = [[text for text, _ in answers] for answers in questions.answers]
    # The output of the official script for these answers.
    assert score_v1(golds, answers) == {"exact_match": 44.38731790916881, "f1": 54.942045379432706}


def test_v2_scores_match_evaluate_v2_0_py_on_real_questions(shared_data):
    questions = read_questions(shared_data / "squad" / "dev-v2.0.json")
    answers, odds = perturbed_answers(questions)
    golds = [[text for text, _ in answers] for answers in questions.answers]
    expected = {  # the output of the official script with --na-prob-file
        "exact": 52.49299719887955,
        "f1": 55.76282086489694,
        "total": 1785,
        "HasAns_exact": 27.60041194644696,
        "HasAns_f1": 33.61136482372929,
        "HasAns_total": 971,
        "NoAns_exact": 82.18673218673219,
        "NoAns_f1": 82.18673218673219,
        "NoAns_total": 814,
        "best_exact": 50.53221288515406,
        "best_exact_thresh": 4.699999999999999,
        "best_f1": 55.99214721859302,
        "best_f1_thresh": 4.93,
    }
    # From Python 3.12 on, `sum` rounds differently, in the script too.
    assert score_v2(golds, answers, odds) == pytest.approx(
        {"exact_match": expected["exact"], **expected}, rel=1e-13
    )
    curve = threshold_curve(golds, answers, odds, null_threshold=0.0)
    for name, values in (("exact", curve.exact_match), ("f1", curve.f1)):
        assert values.max() == pytest.approx(expected[f"best_{name}"])
        assert curve.thresholds[values.argmax()] == expected[f"best_{name}_thresh"]
