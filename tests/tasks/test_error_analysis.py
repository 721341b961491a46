"""Figures are scikit-learn's, the best threshold is the official scorer's, mistakes are mistakes."""

import json

import numpy as np
import pytest
import sklearn.metrics
from hypothesis import given
from hypothesis import strategies as st

from bertie.tasks import error_analysis
from bertie.tasks.classification import LabelledTexts
from bertie.tasks.custom import CustomClassification, CustomTagging
from bertie.tasks.entities import entity_scores
from bertie.tasks.error_analysis import Mistake, analyze_errors
from bertie.tasks.ner import NER, TaggedSentences
from bertie.tasks.registry import find_task
from bertie.tasks.squad.decoding import NBest, SpanPredictions
from bertie.tasks.squad.questions import Questions
from bertie.tasks.swag import SWAG, Choices

V1, V2 = find_task("squad-v1"), find_task("squad-v2")


def classified(gold, classes):
    """Texts with such labels, and their task."""
    names = [f"label {i}" for i in range(classes)]
    task = CustomClassification("own", tuple(names)).settled("single_label_classification")
    return task, LabelledTexts([f"text {i}" for i in range(len(gold))], labels=[names[i] for i in gold])


def assert_figures_are_sklearns(by_label, gold, predicted, classes):
    expected = sklearn.metrics.precision_recall_fscore_support(
        gold, predicted, labels=range(classes), zero_division=0
    )
    figures = np.array(list(by_label.values()))
    np.testing.assert_allclose(figures[:, :3] / 100, np.array(expected[:3]).T, atol=1e-12)
    np.testing.assert_array_equal(figures[:, 3], expected[3])


@given(st.data(), st.integers(2, 6))
def test_figures_of_classes_are_sklearns(data, classes):
    labels = st.integers(0, classes - 1)
    pairs = data.draw(st.lists(st.tuples(labels, labels), min_size=1, max_size=60))
    gold, predicted = np.array(pairs).T
    task, examples = classified(gold, classes)
    found = analyze_errors(task, examples, predicted)
    assert_figures_are_sklearns(found.by_label, gold, predicted, classes)
    expected = sklearn.metrics.confusion_matrix(gold, predicted, labels=range(classes))
    np.testing.assert_array_equal(found.confusion, expected)
    assert len(found.mistakes) == min(error_analysis.MISTAKES, (gold != predicted).sum())
    for mistake in found.mistakes:
        i = int(mistake.text.removeprefix("text "))
        assert mistake[1:] == (task.labels[gold[i]], task.labels[predicted[i]])
        assert gold[i] != predicted[i]


@given(st.data(), st.integers(2, 5), st.integers(1, 30))
def test_figures_of_several_labels_are_sklearns(data, count, n):
    gold, predicted = (
        np.array(data.draw(st.lists(st.booleans(), min_size=n * count, max_size=n * count))).reshape(n, count)
        for _ in range(2)
    )
    names = np.array([f"label {i}" for i in range(count)], dtype=object)
    task = CustomClassification("own", tuple(names)).settled("multi_label_classification")
    examples = LabelledTexts([f"text {i}" for i in range(n)], labels=[tuple(names[row]) for row in gold])
    found = analyze_errors(task, examples, predicted)
    assert_figures_are_sklearns(found.by_label, gold, predicted, count)
    assert found.confusion is None
    assert len(found.mistakes) == min(error_analysis.MISTAKES, (gold != predicted).any(axis=1).sum())


def test_many_classes_have_their_most_confused_pairs_instead_of_a_matrix():
    gold = np.array([0] * 5 + [1] * 3 + [24, 24])
    predicted = np.array([0, 0, 2, 2, 2, 3, 1, 1, 1, 1])
    found = analyze_errors(*classified(gold, 25), predicted)
    assert found.confusion is None
    assert found.confused == [
        ("label 0", "label 2", 3),
        ("label 24", "label 1", 2),
        ("label 1", "label 3", 1),
    ]
    assert len(found.by_label) == 25
    assert "confusion_matrix" not in found.as_json()


def test_each_confusion_comes_in_turn_the_commonest_first():
    gold, predicted = np.array([1, 0, 0, 0, 1, 1]), np.array([0, 1, 1, 1, 0, 1])
    found = analyze_errors(*classified(gold, 2), predicted)
    assert [mistake.text for mistake in found.mistakes] == ["text 1", "text 0", "text 2", "text 4", "text 3"]


def test_numbers_of_a_regression_and_the_gravest_mistakes():
    task = find_task("sts-b")
    examples = LabelledTexts(["a", "b", "c"], ["x", "y", "z"], labels=[1.0, 2.0, 3.0])
    found = analyze_errors(task, examples, np.array([1.0, 4.25, 2.5]))
    np.testing.assert_array_equal(found.numbers, [[1.0, 2.0, 3.0], [1.0, 4.25, 2.5]])
    assert found.mistakes == [Mistake("b ‖ y", "2", "4.25"), Mistake("c ‖ z", "3", "2.5")]
    assert found.as_json() == {}


def test_choices_are_told_by_their_numbers():
    endings = [(f"one {i}", f"two {i}", f"three {i}", f"four {i}") for i in range(3)]
    examples = Choices(["It"] * 3, ["went"] * 3, endings, np.array([0, 3, 2]), list("abc"))
    found = analyze_errors(SWAG, examples, np.array([0, 1, 2]))
    np.testing.assert_array_equal(found.confusion, [[1, 0, 0, 0], [0] * 4, [0, 0, 1, 0], [0, 1, 0, 0]])
    assert list(found.by_label) == ["0", "1", "2", "3"]
    assert found.mistakes == [Mistake("It went", "four 1", "two 1")]


def test_entities_have_the_figures_of_conlleval_in_any_scheme():
    words = [["Ada", "Lovelace", "in", "London"], ["Oslo"], ["no", "one"]]
    gold = [["S-PER", "S-PER", "O", "S-LOC"], ["S-LOC"], ["O", "O"]]
    predicted = [["B-PER", "E-PER", "O", "S-LOC"], ["S-ORG"], ["O", "O"]]
    examples = TaggedSentences.of(words, gold, np.array([0, 3]))
    found = analyze_errors(NER, examples, predicted)
    scores = entity_scores(gold, predicted)
    assert {kind: figures.f1 for kind, figures in found.by_label.items()} == {
        kind: scores[f"f1 {kind}"] for kind in ("LOC", "ORG", "PER")
    }
    assert found.by_label["LOC"] == (100.0, 50.0, pytest.approx(200 / 3), 2)
    assert found.mistakes == [
        Mistake(
            "Ada Lovelace in London",
            "Ada (PER), Lovelace (PER), London (LOC)",
            "Ada Lovelace (PER), London (LOC)",
        ),
        Mistake("Oslo", "Oslo (LOC)", "Oslo (ORG)"),
    ]


def test_plain_tags_are_classes_of_words():
    gold = [["PRON", "VERB"], ["NOUN", "VERB"]]
    predicted = [["PRON", "NOUN"], ["NOUN", "VERB"]]
    examples = TaggedSentences.of([["I", "run"], ["Cats", "run"]], gold, np.array([0, 2]))
    found = analyze_errors(CustomTagging().with_labels(["NOUN", "PRON", "VERB"]), examples, predicted)
    assert list(found.by_label) == ["NOUN", "PRON", "VERB"]
    assert found.by_label["VERB"] == (100.0, 50.0, pytest.approx(200 / 3), 2)
    np.testing.assert_array_equal(found.confusion, [[1, 0, 0], [0, 1, 0], [1, 0, 1]])
    assert found.mistakes == [Mistake("run ‖ I run", "VERB", "NOUN")]


def asked(golds):
    """A question for each list of gold answers."""
    names = [f"question {i}" for i in range(len(golds))]
    answers = [[(text, 0) for text in texts] for texts in golds]
    return Questions(names, names, ["context"], np.zeros(len(golds), dtype=np.int64), answers)


TEXTS = st.sampled_from(["", "the", "cat", "a cat sat", "dog"])
ODDS = st.sampled_from([-2.0, -0.5, 0.0, 1.0, 1e6])  # with ties


@given(st.lists(st.tuples(st.lists(TEXTS, max_size=2), TEXTS, ODDS), min_size=1, max_size=12))
def test_the_maximum_of_the_threshold_curve_is_the_scorers_best(rows):
    golds, answers, odds = zip(*rows, strict=True)
    questions, predictions = asked(golds), SpanPredictions(answers, np.array(odds), 0.5)
    curve, scores = analyze_errors(V2, questions, predictions).thresholds, V2.score(questions, predictions)
    assert curve.exact_match.max() == pytest.approx(scores["best_exact"], abs=1e-9)
    assert curve.f1.max() == pytest.approx(scores["best_f1"], abs=1e-9)
    assert curve.chosen == 0.5
    assert len(curve.thresholds) == len(curve.f1) == len(rows) + 1
    assert (np.diff(curve.thresholds) >= 0).all()


def test_the_threshold_curve_of_real_questions(shared_data):
    questions = V2.read(V2.file(shared_data / "squad", "dev"), labelled=True)
    random = np.random.default_rng(0)
    answers = [texts[0][0] if texts else "something" for texts in questions.answers]
    odds = np.where(questions.impossible, 1.0, -1.0) + 2 * random.normal(size=len(questions))
    tuned = V2.with_tuned_threshold(questions, SpanPredictions(answers, odds))
    predictions = SpanPredictions(answers, odds, tuned.null_threshold)
    curve, scores = (
        analyze_errors(tuned, questions, predictions).thresholds,
        tuned.score(questions, predictions),
    )
    assert curve.f1.max() == pytest.approx(scores["best_f1"])
    assert scores["best_f1"] > 60
    at = np.searchsorted(curve.thresholds, curve.chosen, side="right") - 1
    assert curve.f1[at] == pytest.approx(scores["f1"])
    assert curve.exact_match[at] == pytest.approx(scores["exact_match"])


def test_mistakes_of_answers_come_surest_first_and_answers_that_share_a_word_are_none():
    golds = [["a cat"], [], ["dog"], ["the"], ["cat"]]
    answers = ["cat sat", "cat", "cat", "the", "cat"]
    found = analyze_errors(
        V2, asked(golds), SpanPredictions(answers, np.array([-1.0, -2.0, -4.0, -1.0, 3.0]))
    )
    assert found.mistakes == [
        Mistake("question 2", "dog", "cat"),
        Mistake("question 4", "cat", "nothing"),
        Mistake("question 1", "nothing", "cat"),
    ]


def test_without_odds_there_is_no_curve_and_the_likeliest_answer_is_the_surest():
    questions, answers = asked([["cat"], ["cat", "cat", "owl"], ["cat"]]), ["dog", "dog", None]
    found = analyze_errors(V1, questions, SpanPredictions(answers))
    assert found.thresholds is None
    assert [mistake.text for mistake in found.mistakes] == ["question 0", "question 1", "question 2"]
    assert found.mistakes[1:] == [
        Mistake("question 1", "cat | owl", "dog"),
        Mistake("question 2", "cat", "nothing"),
    ]
    probabilities = np.array([[0.2, 0.1], [0.9, 0.1], [0.5, 0.1]])
    none = np.zeros((3, 2, 2))
    n_best = NBest(np.full(3, 2), none.astype(np.int64), none.astype(np.float32), probabilities)
    surest = analyze_errors(V1, questions, SpanPredictions(answers, n_best=n_best)).mistakes
    assert [mistake.text for mistake in surest] == ["question 1", "question 2", "question 0"]


def test_texts_of_mistakes_are_short_and_in_one_line():
    task, examples = classified([0], 2)
    long = LabelledTexts(["one\n\ttwo " + "x" * 500], ["y " * 500], labels=examples.labels)
    (mistake,) = analyze_errors(task, long, np.array([1])).mistakes
    assert mistake.text.startswith("one two xxx")
    assert mistake.text.count("…") == 2
    assert len(mistake.text) == error_analysis.CHARACTERS + len(" ‖ ")


def test_figures_can_be_written_as_json():
    task, examples = classified([0, 1, 1], 2)
    found = json.loads(json.dumps(analyze_errors(task, examples, np.array([0, 1, 0])).as_json()))
    assert found == {
        "by_label": {
            "label 0": {"precision": 50, "recall": 100, "f1": pytest.approx(200 / 3), "support": 1},
            "label 1": {"precision": 100, "recall": 50, "f1": pytest.approx(200 / 3), "support": 2},
        },
        "confusion_matrix": [[1, 0], [1, 1]],
    }
