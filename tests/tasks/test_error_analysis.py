"""Error analysis agrees with scikit-learn and the official scorers."""

import json
import math

import numpy as np
import pytest
import sklearn.metrics
from hypothesis import given
from hypothesis import strategies as st

from bertie.tasks import error_analysis
from bertie.tasks.classification import LabelledTexts
from bertie.tasks.conll import TaggedSentences
from bertie.tasks.custom.classification import CustomClassification
from bertie.tasks.custom.tagging import CustomTagging
from bertie.tasks.entities import entity_scores
from bertie.tasks.error_analysis import Mistake
from bertie.tasks.ner import NER
from bertie.tasks.registry import find_task
from bertie.tasks.squad.decoding import NBest, SpanPredictions
from bertie.tasks.squad.questions import Questions
from bertie.tasks.swag import SWAG, Choices

V1, V2 = find_task("squad-v1"), find_task("squad-v2")


def labelled_texts(gold, classes):
    """Return a task with so many classes, and texts with these gold labels."""
    names = [f"label {i}" for i in range(classes)]
    task = CustomClassification("custom", tuple(names)).with_problem_type("single_label_classification")
    return task, LabelledTexts([f"text {i}" for i in range(len(gold))], labels=[names[i] for i in gold])


def assert_scores_match_sklearn(by_label, gold, predicted, classes):
    expected = sklearn.metrics.precision_recall_fscore_support(
        gold, predicted, labels=range(classes), zero_division=0
    )
    scores = np.array(list(by_label.values()))
    np.testing.assert_allclose(scores[:, :3] / 100, np.array(expected[:3]).T, atol=1e-12)
    np.testing.assert_array_equal(scores[:, 3], expected[3])


@given(st.data(), st.integers(2, 6))
def test_scores_of_classes_match_sklearn(data, classes):
    labels = st.integers(0, classes - 1)
    pairs = data.draw(st.lists(st.tuples(labels, labels), min_size=1, max_size=60))
    gold, predicted = np.array(pairs).T
    task, examples = labelled_texts(gold, classes)
    analysis = task.analyze_errors(examples, predicted)
    assert_scores_match_sklearn(analysis.by_label, gold, predicted, classes)
    expected = sklearn.metrics.confusion_matrix(gold, predicted, labels=range(classes))
    np.testing.assert_array_equal(analysis.confusion_matrix, expected)
    assert len(analysis.mistakes) == min(error_analysis.MAX_MISTAKES, (gold != predicted).sum())
    for mistake in analysis.mistakes:
        i = int(mistake.text.removeprefix("text "))
        assert mistake == (mistake.text, task.labels[gold[i]], task.labels[predicted[i]], None)
        assert gold[i] != predicted[i]


@given(st.data(), st.integers(2, 5), st.integers(1, 30))
def test_scores_of_multilabel_texts_match_sklearn(data, count, n):
    gold, predicted = (
        np.array(data.draw(st.lists(st.booleans(), min_size=n * count, max_size=n * count))).reshape(n, count)
        for _ in range(2)
    )
    names = np.array([f"label {i}" for i in range(count)], dtype=object)
    task = CustomClassification("custom", tuple(names)).with_problem_type("multi_label_classification")
    examples = LabelledTexts([f"text {i}" for i in range(n)], labels=[tuple(names[row]) for row in gold])
    analysis = task.analyze_errors(examples, predicted)
    assert_scores_match_sklearn(analysis.by_label, gold, predicted, count)
    assert analysis.confusion_matrix is None
    assert len(analysis.mistakes) == min(error_analysis.MAX_MISTAKES, (gold != predicted).any(axis=1).sum())


def test_many_classes_have_confused_pairs_instead_of_a_matrix():
    gold = np.array([0] * 5 + [1] * 3 + [24, 24])
    predicted = np.array([0, 0, 2, 2, 2, 3, 1, 1, 1, 1])
    task, examples = labelled_texts(gold, 25)
    analysis = task.analyze_errors(examples, predicted)
    assert analysis.confusion_matrix is None
    assert analysis.confused_pairs == [
        ("label 0", "label 2", 3),
        ("label 24", "label 1", 2),
        ("label 1", "label 3", 1),
    ]
    assert len(analysis.by_label) == 25
    assert "confusion_matrix" not in analysis.as_json()


@pytest.mark.parametrize(("classes", "has_matrix"), [(20, True), (21, False)])
def test_twenty_classes_have_a_matrix(classes, has_matrix):
    gold = np.repeat(np.arange(classes), 2)
    predicted = (gold + np.arange(len(gold)) % 2) % classes  # one of the two is wrong
    task, examples = labelled_texts(gold, classes)
    analysis = task.analyze_errors(examples, predicted)
    assert (analysis.confusion_matrix is not None) == has_matrix
    assert len(analysis.confused_pairs) == (0 if has_matrix else error_analysis.MAX_CONFUSED_PAIRS)


def test_the_most_confident_mistakes_of_classes_come_first():
    gold, predicted = np.array([0, 0, 1, 0, 1]), np.array([1, 1, 0, 0, 1])
    confidence = np.array([0.6, 0.9, 0.8, 0.95, 0.55])
    task, examples = labelled_texts(gold, 2)
    mistakes = task.analyze_errors(examples, predicted, confidence).mistakes
    assert mistakes == [
        Mistake("text 1", "label 0", "label 1", 0.9),
        Mistake("text 2", "label 1", "label 0", 0.8),
        Mistake("text 0", "label 0", "label 1", 0.6),
    ]


def test_each_kind_of_mistake_has_its_most_confident_one():
    """There are 11 mistakes of one kind, which are more confident than the mistake of another kind."""
    gold, predicted = np.array([0] * 11 + [1]), np.array([1] * 11 + [0])
    task, examples = labelled_texts(gold, 2)
    mistakes = task.analyze_errors(examples, predicted, np.linspace(0.99, 0.6, 12)).mistakes
    assert [mistake.text for mistake in mistakes] == [*(f"text {i}" for i in range(9)), "text 11"]


def test_mistakes_of_several_labels_are_sorted_by_errors_and_confidence():
    gold = np.array([[True, False], [False, False], [True, True], [True, True]])
    predicted = np.array([[False, False], [True, False], [False, False], [True, True]])
    task = CustomClassification("custom", ("a", "b")).with_problem_type("multi_label_classification")
    examples = LabelledTexts([f"text {i}" for i in range(4)], labels=[("a",), (), ("a", "b"), ("a", "b")])
    assert (task.gold(examples) == gold).all()
    assert task.analyze_errors(examples, predicted, np.array([0.5, 0.75, 0.25, 1])).mistakes == [
        Mistake("text 2", "a, b", "nothing", 0.25),
        Mistake("text 1", "nothing", "a", 0.75),
        Mistake("text 0", "a", "nothing", 0.5),
    ]


def test_mistakes_alternate_between_confused_pairs():
    gold, predicted = np.array([1, 0, 0, 0, 1, 1]), np.array([0, 1, 1, 1, 0, 1])
    task, examples = labelled_texts(gold, 2)
    analysis = task.analyze_errors(examples, predicted)
    assert [mistake.text for mistake in analysis.mistakes] == [
        "text 1",
        "text 0",
        "text 2",
        "text 4",
        "text 3",
    ]


def test_regression_has_its_values_and_largest_errors():
    task = find_task("sts-b")
    examples = LabelledTexts(["a", "b", "c"], ["x", "y", "z"], labels=[1.0, 2.0, 3.0])
    analysis = task.analyze_errors(examples, np.array([1.0, 4.25, 2.5]))
    np.testing.assert_array_equal(analysis.gold_and_predicted, [[1.0, 2.0, 3.0], [1.0, 4.25, 2.5]])
    assert analysis.mistakes == [Mistake("b ‖ y", "2", "4.25"), Mistake("c ‖ z", "3", "2.5")]
    assert analysis.as_json() == {}


def test_choices_are_labelled_by_their_indices():
    endings = [(f"one {i}", f"two {i}", f"three {i}", f"four {i}") for i in range(3)]
    examples = Choices(["It"] * 3, ["went"] * 3, endings, np.array([0, 3, 2]), list("abc"))
    analysis = SWAG.analyze_errors(examples, np.array([0, 1, 2]))
    np.testing.assert_array_equal(
        analysis.confusion_matrix, [[1, 0, 0, 0], [0] * 4, [0, 0, 1, 0], [0, 1, 0, 0]]
    )
    assert list(analysis.by_label) == ["0", "1", "2", "3"]
    assert analysis.mistakes == [Mistake("It went", "four 1", "two 1")]


def test_scores_of_entities_are_conllevals_in_any_scheme():
    words = [["Ada", "Lovelace", "in", "London"], ["Oslo"], ["no", "one"]]
    gold = [["S-PER", "S-PER", "O", "S-LOC"], ["S-LOC"], ["O", "O"]]
    predicted = [["B-PER", "E-PER", "O", "S-LOC"], ["S-ORG"], ["O", "O"]]
    examples = TaggedSentences.from_tags(words, gold, np.array([0, 3]))
    analysis = NER.analyze_errors(examples, predicted)
    scores = entity_scores(gold, predicted)
    assert {name: label_scores.f1 for name, label_scores in analysis.by_label.items()} == {
        name: scores[f"f1 {name}"] for name in ("LOC", "ORG", "PER")
    }
    assert list(analysis.by_label) == ["LOC", "ORG", "PER"]
    assert analysis.by_label["LOC"] == (100.0, 50.0, pytest.approx(200 / 3), 2)
    assert analysis.mistakes == [
        Mistake(
            "Ada Lovelace in London",
            "Ada (PER), Lovelace (PER), London (LOC)",
            "Ada Lovelace (PER), London (LOC)",
        ),
        Mistake("Oslo", "Oslo (LOC)", "Oslo (ORG)"),
    ]


def test_a_sentence_is_as_certain_as_its_least_certain_wrong_word():
    words = [["in", "Oslo"], ["Ada", "Lovelace", "met", "Bob"]]
    gold = [["O", "B-LOC"], ["B-PER", "I-PER", "O", "B-PER"]]
    predicted = [["O", "B-PER"], ["B-PER", "O", "O", "B-PER"]]
    examples = TaggedSentences(words, gold, np.array([0, 2]))
    confidence = np.array([0.1, 0.8, 0.9, 0.6, 0.2, 0.3])
    first, second = NER.analyze_errors(examples, predicted, confidence).mistakes
    assert (first.text, first.probability) == ("in Oslo", 0.8)
    assert (second.text, second.probability) == ("Ada Lovelace met Bob", 0.6)


def test_plain_tags_are_analyzed_as_classes_of_words():
    gold = [["PRON", "VERB"], ["NOUN", "VERB"]]
    predicted = [["PRON", "NOUN"], ["NOUN", "VERB"]]
    examples = TaggedSentences.from_tags([["I", "run"], ["Cats", "run"]], gold, np.array([0, 2]))
    analysis = CustomTagging().with_labels(["NOUN", "PRON", "VERB"]).analyze_errors(examples, predicted)
    assert list(analysis.by_label) == ["NOUN", "PRON", "VERB"]
    assert analysis.by_label["VERB"] == (100.0, 50.0, pytest.approx(200 / 3), 2)
    np.testing.assert_array_equal(analysis.confusion_matrix, [[1, 0, 0], [0, 1, 0], [1, 0, 1]])
    assert analysis.mistakes == [Mistake("run ‖ I run", "VERB", "NOUN")]


def questions_with(golds):
    """Return a question for each list of gold answers."""
    names = [f"question {i}" for i in range(len(golds))]
    answers = [[(text, 0) for text in texts] for texts in golds]
    return Questions(names, names, ["context"], np.zeros(len(golds), dtype=np.int64), answers)


TEXTS = st.sampled_from(["", "the", "cat", "a cat sat", "dog"])
ODDS = st.sampled_from([-2.0, -0.5, 0.0, 1.0, 1e6])  # few values, so that there are ties


@given(st.lists(st.tuples(st.lists(TEXTS, max_size=2), TEXTS, ODDS), min_size=1, max_size=12))
def test_threshold_curve_peaks_at_the_scorers_best(rows):
    golds, answers, odds = zip(*rows, strict=True)
    questions, predictions = questions_with(golds), SpanPredictions(answers, np.array(odds), 0.5)
    curve = V2.analyze_errors(questions, predictions).threshold_curve
    scores = V2.score(questions, predictions)
    assert curve.exact_match.max() == pytest.approx(scores["best_exact"], abs=1e-9)
    assert curve.f1.max() == pytest.approx(scores["best_f1"], abs=1e-9)
    assert curve.chosen == 0.5
    assert len(curve.thresholds) == len(curve.f1) == len(rows) + 1
    assert (np.diff(curve.thresholds) >= 0).all()


def test_threshold_curve_of_real_questions(shared_data):
    questions = V2.read(V2.file(shared_data / "squad", "dev"), labelled=True)
    random = np.random.default_rng(0)
    answers = [texts[0][0] if texts else "something" for texts in questions.answers]
    odds = np.where(questions.is_impossible, 1.0, -1.0) + 2 * random.normal(size=len(questions))
    tuned = V2.with_tuned_threshold(questions, SpanPredictions(answers, odds))
    predictions = SpanPredictions(answers, odds, tuned.null_threshold)
    curve = tuned.analyze_errors(questions, predictions).threshold_curve
    scores = tuned.score(questions, predictions)
    assert curve.f1.max() == pytest.approx(scores["best_f1"])
    assert scores["best_f1"] > 60
    chosen = np.searchsorted(curve.thresholds, curve.chosen, side="right") - 1
    assert curve.f1[chosen] == pytest.approx(scores["f1"])
    assert curve.exact_match[chosen] == pytest.approx(scores["exact_match"])


def test_wrong_answers_are_sorted_by_confidence():
    golds = [["a cat"], [], ["dog"], ["the"], ["cat"]]
    answers = ["cat sat", "cat", "cat", "the", "cat"]
    predictions = SpanPredictions(answers, np.array([-1.0, -2.0, -4.0, -1.0, 3.0]))
    # The answer to question 0 shares a word with the gold one, so it is not listed.
    assert V2.analyze_errors(questions_with(golds), predictions).mistakes == [
        Mistake("question 2", "dog", "cat", pytest.approx(1 / (1 + math.exp(-4)))),
        Mistake("question 4", "cat", "nothing", pytest.approx(1 / (1 + math.exp(-3)))),
        Mistake("question 1", "nothing", "cat", pytest.approx(1 / (1 + math.exp(-2)))),
    ]


def test_without_null_odds_confidence_is_the_probability():
    questions, answers = questions_with([["cat"], ["cat", "cat", "owl"], ["cat"]]), ["dog", "dog", None]
    analysis = V1.analyze_errors(questions, SpanPredictions(answers))
    assert analysis.threshold_curve is None
    assert [mistake.text for mistake in analysis.mistakes] == ["question 0", "question 1", "question 2"]
    assert analysis.mistakes[1:] == [
        Mistake("question 1", "cat | owl", "dog"),
        Mistake("question 2", "cat", "nothing"),
    ]
    probabilities = np.array([[0.2, 0.1], [0.9, 0.1], [0.5, 0.1]])
    zeros = np.zeros((3, 2, 2))
    n_best = NBest(np.full(3, 2), zeros.astype(np.int64), zeros.astype(np.float32), probabilities)
    mistakes = V1.analyze_errors(questions, SpanPredictions(answers, n_best=n_best)).mistakes
    assert [mistake.text for mistake in mistakes] == ["question 1", "question 2", "question 0"]


def test_mistakes_are_shortened_to_one_line():
    task, examples = labelled_texts([0], 2)
    long = LabelledTexts(["one\n\ttwo " + "x" * 500], ["y " * 500], labels=examples.labels)
    (mistake,) = task.analyze_errors(long, np.array([1])).mistakes
    assert mistake.text.startswith("one two xxx")
    assert mistake.text.count("…") == 2
    assert len(mistake.text) == error_analysis.MISTAKE_LENGTH + len(" ‖ ")
    assert error_analysis.shorten("x" * 200) == "x" * 200
    assert error_analysis.shorten("x" * 201) == "x" * 199 + "…"


def test_scores_and_confusions_as_json():
    task, examples = labelled_texts([0, 1, 1], 2)
    values = json.loads(json.dumps(task.analyze_errors(examples, np.array([0, 1, 0])).as_json()))
    assert values == {
        "by_label": {
            "label 0": {"precision": 50, "recall": 100, "f1": pytest.approx(200 / 3), "support": 1},
            "label 1": {"precision": 100, "recall": 50, "f1": pytest.approx(200 / 3), "support": 2},
        },
        "confusion_matrix": [[1, 0], [1, 1]],
    }
