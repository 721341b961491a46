"""SQuAD's files, labels, thresholds and files of predictions."""

import gzip
import json
from dataclasses import replace

import numpy as np
import pytest

from bertie.base.errors import DataError, ModelError, SettingsError
from bertie.model.formats.directory import ModelMetadata
from bertie.tasks.custom.questions import CustomQuestionAnswering
from bertie.tasks.squad.decoding import SpanPredictions
from bertie.tasks.squad.questions import Answer, Questions, read_questions
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
    def write_json(value, name="dev-v1.1.json"):
        path = tmp_path / name
        path.write_text(json.dumps(value))
        return path

    return write_json


@pytest.fixture(scope="module")
def tokenizer(shared_data):
    return Tokenizer.load(shared_data / "vocab" / "uncased_en" / "vocab.txt")


def gold_logits(windows):
    """Logits that predict the gold labels."""
    logits = np.zeros((len(windows.input_ids), 2), dtype=np.float32)
    logits[windows.bounds[:-1] + windows.labels[:, 0], 0] = 10
    logits[windows.bounds[:-1] + windows.labels[:, 1], 1] = 10
    return logits


def test_questions_are_read_with_contexts_and_answers(write):
    path = write(squad_json(question(), question("q2", []), context="Bern is a city."))
    questions = read_questions(path)
    assert (questions.ids, questions.questions, questions.contexts) == (
        ["q1", "q2"],
        ["What?"] * 2,
        ["Bern is a city."],
    )
    assert questions.answers == [[("Bern", 0)], []]
    assert questions.context_indices.tolist() == [0, 0]
    assert questions.is_impossible.tolist() == [False, True]
    assert read_questions(path, labelled=False).answers is None


def test_ids_may_be_numbers(write):
    assert read_questions(write(squad_json(question(7), question("8")))).ids == ["7", "8"]
    with pytest.raises(DataError, match="two questions have the id 7"):
        read_questions(write(squad_json(question(7), question("7"))))


def test_misplaced_answers_are_counted(write, capsys):
    elsewhere = {"text": "city", "answer_start": 0}
    path = write(squad_json(question("q1"), question("q2", [elsewhere]), question("q3", [elsewhere])))
    assert read_questions(path).is_misplaced.tolist() == [False, True, True]
    (line,) = capsys.readouterr().err.splitlines()
    assert "answers that are not at their answer_start" in line
    assert line.endswith(": 2 (first: question q2)")


def test_only_the_first_answer_needs_its_position(write):
    """It is the one that the model is trained on."""
    answers = [ANSWER, {"text": "city", "answer_start": 0}]
    path = write(squad_json(question("q1", answers), question("q2", answers[::-1])))
    assert read_questions(path).is_misplaced.tolist() == [False, True]


def test_training_needs_an_answer_at_its_position(write):
    elsewhere = question("q1", [{"text": "city", "answer_start": 0}])
    none = question("q2", [])
    message = "train.json: no answer is usable for training, as none is at its answer_start; correct"
    for task in (V2, CustomQuestionAnswering()):
        for misplaced in ([elsewhere], [elsewhere, none]):
            path = write(squad_json(*misplaced), "train.json")
            with pytest.raises(DataError, match=message):
                task.check_training(task.read(path, labelled=True), path)
        for usable in ([elsewhere, none, question("q3")], [none]):
            path = write(squad_json(*usable), "train.json")
            task.check_training(task.read(path, labelled=True), path)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({}, "no list 'data'"),
        (
            [{"context": "x"}],
            r"rows of a table; write each on a line of a .jsonl file \(jq --compact-output '\.\[\]'\)$",
        ),
        ({"data": [{}]}, "article 1: no list 'paragraphs'"),
        (
            {"data": [{"context": "x"}]},
            r"article 1: rows of a table; .* \(jq --compact-output '\.data\[\]'\)$",
        ),
        ({"data": [{"paragraphs": [{"qas": []}]}]}, "article 1, paragraph 1: no string 'context'"),
        (squad_json({"question": "What?"}), "article 1, paragraph 1: no string 'id'"),
        (squad_json({"id": "q9"}), "question q9: no string 'question'"),
        (squad_json({"id": "q9", "question": "What?"}), "question q9: no list 'answers'"),
        (squad_json(question("q9", [{"text": "Bern"}])), "question q9: no number 'answer_start'"),
        (squad_json(question("q9", [{**ANSWER, "text": 3}])), "question q9: no string 'text'"),
        (squad_json(question("q9"), question("q9")), "two questions have the id q9"),
        (squad_json(), "no questions"),
    ],
)
def test_malformed_files_are_reported_with_the_location(write, value, message):
    path = write(value)
    with pytest.raises(DataError, match=message) as error:
        V2.read(path, labelled=True)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("name", ["a.json.gz", "a.jsonl.gz"])
def test_a_compressed_file_is_to_be_decompressed(tmp_path, name):
    (tmp_path / name).write_bytes(gzip.compress(b'{"data": []}'))
    with pytest.raises(DataError, match=f"{name}: SQuAD's JSON is not read compressed; decompress the file$"):
        read_questions(tmp_path / name)
    with pytest.raises(DataError, match=r"b\.json\.gz: no such file"):
        read_questions(tmp_path / "b.json.gz")


def test_a_file_that_is_no_json_may_be_a_table(tmp_path):
    path = tmp_path / "dev.json"
    for content, is_advised in ((None, False), ('{"id": 1}\n{"id": 2}\n', True)):
        if content:
            path.write_text(content)
        with pytest.raises(DataError) as error:
            V2.read(path, labelled=True)
        assert ("a table with a question on each line is a .jsonl file" in str(error.value)) == is_advised


def test_v1_rejects_a_question_without_an_answer(write):
    path = write(squad_json(question("q9", [])))
    with pytest.raises(DataError, match=r"question q9: no answer.*squad-v2"):
        V1.read(path, labelled=True)
    assert len(V1.read(path, labelled=False)) == 1


def test_official_files_are_read(shared_data):
    for task in SQUAD_TASKS:
        for part in ("train", *task.dev_parts):
            path = task.file(shared_data / "squad", part)
            assert len(task.read(path, labelled=True)) > 1000
            assert task.file(path, "dev") == path


@pytest.mark.parametrize("task", SQUAD_TASKS, ids=lambda task: task.name)
def test_gold_logits_decode_to_the_answers(shared_data, tokenizer, task):
    examples = task.read(task.file(shared_data / "squad", "dev"), labelled=True)
    windows = task.encode(examples, tokenizer, 384)
    predictions = task.decode(examples, windows, gold_logits(windows))
    pairs = zip(predictions.texts, examples.answers, strict=True)
    misses = {(text, answers[0][0][:34]) for text, answers in pairs if answers and text != answers[0][0]}
    assert misses == {
        ("7,000,000 square kilometres (2,700", "7,000,000 square kilometres (2,70"),  # ends inside a token
        ("During", "During the mid-Eocene, it is belie"),  # has more than 30 tokens
    }
    scores = task.score(examples, predictions)
    assert 99.8 < scores["exact_match"] < 100
    assert 99.9 < scores["f1"] < 100


def test_gold_logits_decode_to_answers_in_many_windows(shared_data, tokenizer):
    task = replace(V1, doc_stride=32)
    examples = task.read(task.file(shared_data / "squad", "dev"), labelled=True)
    windows = task.encode(examples, tokenizer, 128)
    assert len(windows) > 2.5 * len(examples)
    # The answer's start may have the most context in a window without the complete answer.
    logits = gold_logits(windows)
    logits[windows.bounds[:-1]] = 0
    assert task.score(examples, task.decode(examples, windows, logits))["f1"] > 99.5


def test_labels_of_real_questions_cover_their_answers(shared_data, tokenizer):
    examples = V1.read(V1.file(shared_data / "squad", "train"), labelled=True)
    windows = V1.encode(examples, tokenizer, 384)
    assert (windows.labels >= 0).all()
    question_of = np.repeat(np.arange(len(examples)), np.diff(windows.window_bounds))
    spans = windows.bounds[:-1, None] + windows.labels
    begins, ends = windows.offsets[spans[:, 0], 0], windows.offsets[spans[:, 1], 1]
    inside = windows.labels[:, 0] > 0
    assert set(question_of[inside]) == set(range(len(examples)))  # each answer is complete in some window
    widened = 0
    for window in np.flatnonzero(inside):
        text, start = examples.answers[question_of[window]][0]
        assert begins[window] <= start
        assert ends[window] >= start + len(text)
        widened += (begins[window], ends[window]) != (start, start + len(text))
    assert widened < 0.01 * inside.sum()  # annotations that begin or end inside a token


def test_written_predictions_are_read_back(write, tokenizer, shared_data, tmp_path):
    examples = V2.read(V2.file(shared_data / "squad", "dev"), labelled=True)
    examples = V2.select(examples, range(0, len(examples), 4))
    windows = V2.encode(examples, tokenizer, 384)
    noise = np.random.default_rng(0).normal(0, 5, (len(windows.input_ids), 2))
    logits = (gold_logits(windows) + noise).astype(np.float32)
    task = V2.with_tuned_threshold(examples, V2.decode(examples, windows, logits))
    predictions = task.decode(examples, windows, logits)
    path = tmp_path / "predictions.json"
    task.write_predictions(examples, predictions, path)

    read = task.read_predictions(examples, path)
    read = task.with_null_odds(examples, read, tmp_path / "null_odds.json")
    assert read.texts == predictions.texts
    assert np.array_equal(read.null_odds, predictions.null_odds)
    n_best = json.loads((tmp_path / "nbest_predictions.json").read_text())
    assert list(n_best) == examples.ids
    for entries in n_best.values():
        assert sum(entry["probability"] for entry in entries) == pytest.approx(1)
        assert "" in [entry["text"] for entry in entries]
    # The tuned threshold is the best one, and the written answers have the same scores. (The search for
    # the best threshold counts any text as an answer; the score normalizes "the" to no answer.)
    scores = task.score(examples, predictions)
    scores_of_file = V2.score(examples, V2.read_predictions(examples, path))
    assert -1e-9 < scores["f1"] - scores["best_f1"] < 0.2  # their sums are in different orders
    assert scores["f1"] > V2.score(examples, V2.decode(examples, windows, logits))["f1"]
    assert scores_of_file == {name: score for name, score in scores.items() if "best" not in name}


@pytest.mark.parametrize("seed", range(10))
def test_the_tuned_threshold_reaches_the_best_f1(seed):
    """Answers that are partly right: the sum of their F1 depends on the order of the additions."""
    random = np.random.default_rng(seed)
    words = random.choice(["red", "green", "blue", "big", "house"], (200, 5))
    sizes = random.integers(1, 6, 200)
    has_answer = random.random(200) < 0.5
    golds = [[Answer(" ".join(row), 0)] if has else [] for row, has in zip(words, has_answer, strict=True)]
    texts = [" ".join(row[:size]) for row, size in zip(words, sizes, strict=True)]
    odds = np.where(has_answer, -2, 2) + random.normal(size=200)
    ids = [str(i) for i in range(200)]
    examples = Questions(ids, ["?"] * 200, ["c"], np.zeros(200, np.int64), golds)
    predictions = SpanPredictions(texts, odds)
    tuned = V2.with_tuned_threshold(examples, predictions)
    f1 = V2.score(examples, replace(predictions, null_threshold=tuned.null_threshold))["f1"]
    assert f1 == pytest.approx(V2.score(examples, predictions)["best_f1"])
    assert f1 > 60


def test_the_tuned_threshold_allows_no_answer_if_that_is_best():
    examples = Questions(["1", "2"], ["?"] * 2, ["c"], np.zeros(2, np.int64), [[], []])
    predictions = SpanPredictions(["a", "b"], np.array([-1.0, -2.0]))
    assert V2.with_tuned_threshold(examples, predictions).null_threshold == -3


def test_a_gold_answer_that_normalizes_to_nothing_counts_as_an_answer():
    """Rejecting the first answer is as wrong as giving it, so the second decides."""
    golds = [[Answer("the", 0)], [Answer("red", 4)]]
    examples = Questions(["1", "2"], ["?"] * 2, ["the red"], np.zeros(2, np.int64), golds)
    predictions = SpanPredictions(["x", "red"], np.array([1.0, -1.0]))
    assert V2.with_tuned_threshold(examples, predictions).null_threshold == -1


def test_questions_with_the_same_null_odds_are_answered_together():
    """evaluate-v2.0.py reports 100, as if only the first were answered; all give 25, and none 75."""
    golds = [[Answer("red", 0)], [], [], []]
    examples = Questions(list("1234"), ["?"] * 4, ["red"], np.zeros(4, np.int64), golds)
    predictions = SpanPredictions(["red", "a", "b", "c"], np.array([0.5] * 4))
    assert V2.score(examples, predictions)["best_f1"] == 100
    assert V2.with_tuned_threshold(examples, predictions).null_threshold == -0.5


def test_v1_writes_no_null_odds(tmp_path, write):
    examples = V1.read(write(squad_json(question())), labelled=True)
    V1.write_predictions(examples, SpanPredictions(["Bern"]), tmp_path / "p.json")
    assert V1.score(examples, V1.read_predictions(examples, tmp_path / "p.json"))["exact_match"] == 100
    assert not (tmp_path / "null_odds.json").exists()
    assert V1.with_tuned_threshold(examples, SpanPredictions(["Bern"])) is V1


def test_missing_prediction_scores_0_in_v1_and_fails_in_v2(write, capsys):
    examples = V1.read(write(squad_json(question("q1"), question("q2"))), labelled=True)
    path = write({"q1": "Bern", "another": "x"}, "p.json")
    assert V1.score(examples, V1.read_predictions(examples, path)) == {"exact_match": 50, "f1": 50}
    assert "questions without a prediction, scored 0: 1 (first: q2)" in capsys.readouterr().err
    with pytest.raises(DataError, match="no prediction for question q2"):
        V2.read_predictions(examples, path)


def test_null_odds_of_a_file_use_the_official_threshold(write):
    examples = V2.read(write(squad_json(question("q1"), question("q2", []))), labelled=True)
    path = write({"q1": "Bern", "q2": "Bern"}, "p.json")
    odds = write({"q1": 1.0, "q2": 1.5}, "null_odds.json")
    read = V2.with_null_odds(examples, V2.read_predictions(examples, path), odds)
    assert read.texts == ["Bern", ""]  # --na-prob-thresh is 1.0
    assert V2.score(examples, read)["exact"] == 100
    assert V2.score(examples, replace(read, null_odds=None))["exact"] == 50
    with pytest.raises(SettingsError, match="null scores are for tasks whose questions may have no answer"):
        V1.with_null_odds(examples, read, odds)
    odds = write({"q1": 1.0, "q2": float("nan")}, "null_odds.json")
    with pytest.raises(DataError, match=r"null_odds\.json, question q2: nan is not a finite number; use"):
        V2.with_null_odds(examples, read, odds)


def metadata(null_threshold, problem_type="single_label_classification"):
    """A model's metadata, of which only these two are read."""
    return ModelMetadata(None, "", (), None, problem_type, null_threshold)


def test_fitted_to_model_takes_the_models_null_threshold():
    assert V2.fitted_to_model(metadata(1.5)).null_threshold == 1.5
    assert V2.fitted_to_model(metadata(None)).null_threshold == 0
    assert V1.fitted_to_model(metadata(1.5)) == V1
    custom = CustomQuestionAnswering()
    assert custom.fitted_to_model(metadata(1.5)).null_threshold == 1.5
    assert custom.fitted_to_model(metadata(None)).version == "1.1"
    with pytest.raises(ModelError, match="fine-tuned for regression, but squad-v2 is single label class"):
        V2.fitted_to_model(metadata(None, "regression"))


def test_selected_questions_have_only_their_contexts():
    answers = [[("a", 0)], [("b", 0)], [("c", 0)]]
    questions = Questions(["1", "2", "3"], ["x", "y", "z"], ["a", "b", "c"], np.array([2, 0, 1]), answers)
    selected = V1.select(questions, [2, 0])
    assert (selected.ids, selected.questions, selected.contexts) == (["3", "1"], ["z", "x"], ["b", "c"])
    assert (selected.context_indices.tolist(), selected.answers) == ([0, 1], [answers[2], answers[0]])
    assert V1.select(replace(questions, answers=None), [2, 0]).answers is None


def test_baselines_of_v2_answer_no_question():
    answers = [[], [], [], [("c", 0)]]
    questions = Questions(list("1234"), ["?"] * 4, ["c"], np.zeros(4, np.int64), answers)
    assert V2.majority_baseline(questions, questions)["f1"] == 75
    assert V1.majority_baseline(questions, questions) is None
    for answers, constant in ((["", ""], "no answer"), (["", "c"], None)):
        assert V2.constant_answer(questions, SpanPredictions(answers)) == constant


def test_flattened_predictions_are_the_texts_of_answers():
    predictions = SpanPredictions(["Bern", "Basel", None], np.array([0.0, 2.0, 0.0]), null_threshold=1.0)
    assert V2.flatten_predictions(predictions) == ["Bern", "", None]


@pytest.mark.parametrize(
    ("texts", "odds", "message"),
    [
        ([], None, "p.json: not a JSON object"),
        ({"q1": 3}, None, "p.json, question q1: 3 is not a string"),
        ({"q1": ["x"] * 99}, None, r'p.json, question q1: \["x", .{,200}… is not a string'),
        ({"q1": "x"}, {"q1": "high"}, 'odds.json, question q1: "high" is not a number'),
        ({"q1": "x"}, {}, "odds.json: no null odds for question q1"),
    ],
)
def test_malformed_predictions_are_rejected(write, texts, odds, message):
    examples = V2.read(write(squad_json(question())), labelled=True)
    path, odds_path = write(texts, "p.json"), write(odds, "odds.json")
    with pytest.raises(DataError, match=message):
        V2.with_null_odds(examples, V2.read_predictions(examples, path), odds_path)
