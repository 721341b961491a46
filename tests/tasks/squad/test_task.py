import json
from dataclasses import replace

import numpy as np
import pytest

from bertie.base.errors import DataError
from bertie.tasks.squad.decoding import SpanPredictions
from bertie.tasks.squad.questions import read_questions
from bertie.tasks.squad.task import SQUAD_TASKS
from bertie.text.tokenizer import Tokenizer

V1, V2 = SQUAD_TASKS
ANSWER = {"text": "Bern", "answer_start": 0}


def squad_json(*questions, context="Bern is a city."):
    return {
        "version": "v2.0",
        "data": [{"title": "x", "paragraphs": [{"context": context, "qas": questions}]}],
    }


def question(name="q1", answers=(ANSWER,), **more):
    return {"id": name, "question": "What?", "answers": list(answers), **more}


@pytest.fixture
def write(tmp_path):
    def written(value, name="dev-v1.1.json"):
        path = tmp_path / name
        path.write_text(json.dumps(value))
        return path

    return written


@pytest.fixture(scope="module")
def tokenizer(shared_data):
    return Tokenizer.load(shared_data / "vocab" / "uncased_en" / "vocab.txt")


def gold_logits(windows):
    """Logits of a model that knows the labels."""
    logits = np.zeros((len(windows.input_ids), 2), dtype=np.float32)
    logits[windows.bounds[:-1] + windows.labels[:, 0], 0] = 10
    logits[windows.bounds[:-1] + windows.labels[:, 1], 1] = 10
    return logits


def test_reading(write):
    path = write(squad_json(question(), question("q2", []), context="Bern is a city."))
    found = read_questions(path)
    assert (found.ids, found.questions, found.contexts) == (["q1", "q2"], ["What?"] * 2, ["Bern is a city."])
    assert found.answers == [[("Bern", 0)], []]
    assert found.context_of_question.tolist() == [0, 0]
    assert found.impossible.tolist() == [False, True]
    assert read_questions(path, labelled=False).answers is None


def test_answers_that_are_not_at_their_place_are_counted(write, capsys):
    elsewhere = {"text": "city", "answer_start": 0}
    path = write(squad_json(question("q1"), question("q2", [elsewhere]), question("q3", [elsewhere])))
    assert read_questions(path).unlocated.tolist() == [False, True, True]
    (line,) = capsys.readouterr().err.splitlines()
    assert "2 answers are not at their answer_start (first: question q2)" in line


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "no list 'data'"),
        ({"data": [{}]}, "article 1: no list 'paragraphs'"),
        ({"data": [{"paragraphs": [{"qas": []}]}]}, "article 1, paragraph 1: no string 'context'"),
        (squad_json({"question": "What?"}), "article 1, paragraph 1: no string 'id'"),
        (squad_json({"id": "q9"}), "question q9: no string 'question'"),
        (squad_json({"id": "q9", "question": "What?"}), "question q9: no list 'answers'"),
        (squad_json(question("q9", [{"text": "Bern"}])), "question q9: no number 'answer_start'"),
        (squad_json(question("q9", [{**ANSWER, "text": 3}])), "question q9: no string 'text'"),
        (squad_json(question("q9"), question("q9")), "question q9 is there twice"),
        (squad_json(), "no questions"),
    ],
)
def test_what_cannot_be_read_is_named(write, value, message):
    path = write(value)
    with pytest.raises(DataError, match=message) as error:
        V2.read(path, labelled=True)
    assert str(path) in str(error.value)


def test_a_question_without_answer_is_refused_in_v1(write):
    path = write(squad_json(question("q9", [])))
    with pytest.raises(DataError, match=r"question q9 has no answer.*squad-v2"):
        V1.read(path, labelled=True)
    assert len(V1.read(path, labelled=False)) == 1


def test_the_official_files(shared_data):
    for task in SQUAD_TASKS:
        for part in ("train", *task.dev_parts):
            path = task.file(shared_data / "squad", part)
            assert len(task.read(path, labelled=True)) > 1000
            assert task.file(path, "dev") == path


@pytest.mark.parametrize("task", SQUAD_TASKS, ids=lambda task: task.name)
def test_the_labels_decode_to_the_answers(shared_data, tokenizer, task):
    examples = task.read(task.file(shared_data / "squad", "dev"), labelled=True)
    windows = task.encode(examples, tokenizer, 384)
    predictions = task.decode(examples, windows, gold_logits(windows))
    pairs = zip(predictions.texts, examples.answers, strict=True)
    misses = {(text, answers[0][0][:34]) for text, answers in pairs if answers and text != answers[0][0]}
    assert misses == {
        ("7,000,000 square kilometres (2,700", "7,000,000 square kilometres (2,70"),  # ends within a piece
        ("During", "During the mid-Eocene, it is belie"),  # has more than 30 pieces
    }
    scores = task.score(examples, predictions)
    assert 99.8 < scores["exact_match"] < 100
    assert 99.9 < scores["f1"] < 100


def test_the_labels_decode_to_the_answers_over_many_windows(shared_data, tokenizer):
    task = replace(V1, doc_stride=32)
    examples = task.read(task.file(shared_data / "squad", "dev"), labelled=True)
    windows = task.encode(examples, tokenizer, 128)
    assert len(windows) > 2.5 * len(examples)
    # A window that has not the whole answer may be the one where its start has most context.
    logits = gold_logits(windows)
    logits[windows.bounds[:-1]] = 0
    assert task.score(examples, task.decode(examples, windows, logits))["f1"] > 99.5


def test_labels_of_real_questions_are_at_their_words(shared_data, tokenizer):
    examples = V1.read(V1.file(shared_data / "squad", "train"), labelled=True)
    windows = V1.encode(examples, tokenizer, 384)
    assert (windows.labels >= 0).all()
    question_of = np.repeat(np.arange(len(examples)), np.diff(windows.window_bounds))
    spans = windows.bounds[:-1, None] + windows.labels
    begins, ends = windows.offsets[spans[:, 0], 0], windows.offsets[spans[:, 1], 1]
    inside = windows.labels[:, 0] > 0
    assert set(question_of[inside]) == set(range(len(examples)))  # each answer is whole in some window
    widened = 0
    for number in np.flatnonzero(inside):
        text, start = examples.answers[question_of[number]][0]
        assert begins[number] <= start
        assert ends[number] >= start + len(text)
        widened += (begins[number], ends[number]) != (start, start + len(text))
    assert widened < 0.01 * inside.sum()  # annotations that begin or end within a piece


def test_predictions_out_and_in(write, tokenizer, shared_data, tmp_path):
    examples = V2.read(V2.file(shared_data / "squad", "dev"), labelled=True)
    windows = V2.encode(examples, tokenizer, 384)
    noise = np.random.default_rng(0).normal(0, 5, (len(windows.input_ids), 2))
    logits = (gold_logits(windows) + noise).astype(np.float32)
    task = V2.with_tuned_threshold(examples, V2.decode(examples, windows, logits))
    predictions = task.decode(examples, windows, logits)
    path = tmp_path / "predictions.json"
    task.write_predictions(examples, predictions, path)

    read = task.read_predictions(examples, path, tmp_path / "null_odds.json")
    assert read.texts == predictions.texts
    assert np.array_equal(read.null_odds, predictions.null_odds)
    n_best = json.loads((tmp_path / "nbest_predictions.json").read_text())
    assert list(n_best) == examples.ids
    for entries in n_best.values():
        assert sum(entry["probability"] for entry in entries) == pytest.approx(1)
        assert "" in [entry["text"] for entry in entries]
    # A tuned threshold is the best one, and the written files, scored by themselves, say the same. (The
    # search counts any text as an answer, where the score finds nothing in "the".)
    scores, alone = task.score(examples, predictions), V2.score(examples, V2.read_predictions(examples, path))
    assert scores["best_f1"] <= scores["f1"] < scores["best_f1"] + 0.2
    assert scores["f1"] > V2.score(examples, V2.decode(examples, windows, logits))["f1"]
    assert alone == {name: score for name, score in scores.items() if "best" not in name}


def test_v1_writes_no_null_odds(tmp_path, write):
    examples = V1.read(write(squad_json(question())), labelled=True)
    V1.write_predictions(examples, SpanPredictions(["Bern"]), tmp_path / "p.json")
    assert V1.score(examples, V1.read_predictions(examples, tmp_path / "p.json"))["exact_match"] == 100
    assert not (tmp_path / "null_odds.json").exists()
    assert V1.with_tuned_threshold(examples, SpanPredictions(["Bern"])) is V1


def test_a_question_left_out_scores_0_in_v1_and_is_refused_in_v2(write, capsys):
    examples = V1.read(write(squad_json(question("q1"), question("q2"))), labelled=True)
    path = write({"q1": "Bern", "another": "x"}, "p.json")
    assert V1.score(examples, V1.read_predictions(examples, path)) == {"exact_match": 50, "f1": 50}
    assert "1 questions have no prediction and score 0 (first: q2)" in capsys.readouterr().err
    with pytest.raises(DataError, match="no prediction for question q2"):
        V2.read_predictions(examples, path)


def test_odds_in_a_file_count_as_in_the_official_script(write):
    examples = V2.read(write(squad_json(question("q1"), question("q2", []))), labelled=True)
    path = write({"q1": "Bern", "q2": "Bern"}, "p.json")
    odds = write({"q1": 1.0, "q2": 1.5}, "null_odds.json")
    read = V2.read_predictions(examples, path, odds)
    assert read.texts == ["Bern", ""]  # --na-prob-thresh is 1.0
    assert V2.score(examples, read)["exact"] == 100
    assert V2.score(examples, replace(read, null_odds=None))["exact"] == 50


@pytest.mark.parametrize(
    ("texts", "odds", "message"),
    [
        ([], None, "p.json: not a JSON object"),
        ({"q1": 3}, None, "p.json: question q1: 3 is not a string"),
        ({"q1": "x"}, {"q1": "high"}, 'odds.json: question q1: "high" is not a number'),
        ({"q1": "x"}, {}, "odds.json: nothing for question q1"),
    ],
)
def test_predictions_that_cannot_be_read_are_named(write, texts, odds, message):
    examples = V2.read(write(squad_json(question())), labelled=True)
    with pytest.raises(DataError, match=message):
        V2.read_predictions(
            examples, write(texts, "p.json"), None if odds is None else write(odds, "odds.json")
        )
