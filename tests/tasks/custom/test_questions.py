"""Custom questions: tables, SQuAD's JSON, and errors in rows."""

import gzip
import json
from dataclasses import replace

import pytest
from tests.tasks.custom.tables import write

from bertie.base.errors import DataError, SettingsError
from bertie.base.memory import as_source
from bertie.tasks.custom.questions import CustomQuestionAnswering
from bertie.tasks.squad.decoding import SpanPredictions
from bertie.tasks.squad.questions import read_questions
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary


def question_table(questions, as_lists):
    answers = [
        {"text": [text for text, _ in row], "answer_start": [start for _, start in row]}
        if as_lists
        else [{"text": text, "answer_start": start} for text, start in row]
        for row in questions.answers
    ]
    contexts = [questions.contexts[index] for index in questions.context_indices]
    return {
        "id": questions.ids,
        "question": questions.questions,
        "context": contexts,
        "answers": answers,
    }


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_table_gives_the_same_questions_as_squads_json(tmp_path, shared_data, suffix):
    source = next((shared_data / "squad").glob("dev*2.0.json"))
    expected = read_questions(source)
    table = {name: column[:500] for name, column in question_table(expected, suffix == ".parquet").items()}
    questions = CustomQuestionAnswering().read(write(tmp_path / f"a{suffix}", table), labelled=True)
    assert questions.ids == expected.ids[:500]
    assert questions.answers == expected.answers[:500]
    for i in range(500):
        context = questions.contexts[questions.context_indices[i]]
        assert context == expected.contexts[expected.context_indices[i]]
    assert len(set(questions.contexts)) == len(questions.contexts)
    assert CustomQuestionAnswering().fitted(questions).null_threshold == 0
    assert CustomQuestionAnswering().read(tmp_path / f"a{suffix}", labelled=False).answers is None
    assert CustomQuestionAnswering().read(source, labelled=True).ids == expected.ids


@pytest.mark.parametrize("suffix", [".jsonl", ".json"])
def test_a_question_without_room_is_an_error_with_its_file(tmp_path, suffix):
    tokenizer, task = Tokenizer(Vocabulary([*SPECIAL_TOKENS, "a", "b"])), CustomQuestionAnswering()
    answers = [{"text": "a", "answer_start": 0}]
    texts = [{"id": "q1", "question": "b"}, {"id": "q2", "question": "a b a b a b"}]
    if suffix == ".jsonl":
        table = [{**text, "context": "a b", "answers": answers} for text in texts]
        (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in table))
    else:
        paragraph = {"context": "a b", "qas": [{**text, "answers": answers} for text in texts]}
        (tmp_path / "a.json").write_text(json.dumps({"data": [{"paragraphs": [paragraph]}]}))
    questions = task.read(tmp_path / f"a{suffix}", labelled=True)
    message = rf"a\{suffix}, question q2: the question 'a b a b a b', with 6 tokens .* in max_seq_length=8"
    with pytest.raises(DataError, match=message):
        task.encode(task.select(questions, [1]), tokenizer, 8)


ONE_QUESTION = {
    "id": 7,
    "question": "Who?",
    "context": "It was Ada.",
    "answers": [{"text": "Ada", "answer_start": 7}],
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": 7}, "line 2: a second question has the id '7'"),
        ({"question": " "}, "line 2: no text in the column 'question'; add it or delete the row"),
        ({"context": "\u200b"}, "line 2: no text in the column 'context'; add it or delete the row"),
        ({"question": None}, "line 2: no text in the column 'question'; add it or delete the row"),
        ({"question": 0}, "line 2: 0 is not text in the column 'question'; write it as a string"),
        (
            {"answers": [{"text": "Ada", "answer_start": 6}]},
            "line 2: the answer 'Ada' is not at character 6",
        ),
        ({"answers": [{"text": "Ada"}]}, "line 2: the answers have another form than"),
        (
            {"answers": [{"text": "It", "answer_start": 3}, {"text": "Ada", "answer_start": 7}]},
            "line 2: the answer 'It' is not at character 3",
        ),
        ({"answers": [{"text": 3, "answer_start": 7}]}, r"line 2: the answers .*; write them so$"),
        ({"answers": "Eva"}, "line 2: the answer 'Eva' is not in the context; correct or delete the row"),
        ({"answers": ["Eva", "Ada"]}, "line 2: the answer 'Eva' is not in the context"),
        ({"answers": ["Ada", None]}, "line 2: the answers have another form than"),
        ({"answers": 7}, r"line 2: the answers .* or a text \(\"\" if there is none\); write them so$"),
        ({"answers": None}, "line 2: the answers have another form than"),
        ({"answers": {"text": "Ada", "answer_start": 7}}, "line 2: the answers have another form than"),
        ({"answers": {"text": "Ada", "answer_start": [7]}}, "line 2: the answers have another form than"),
        (
            {"answers": {"text": ["Ada", "A"], "answer_start": [7]}},
            "line 2: the answers have another form than",
        ),
    ],
)
def test_bad_rows_of_questions_are_reported_or_skipped(tmp_path, capsys, change, message):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(ONE_QUESTION) + "\n" + json.dumps(ONE_QUESTION | {"id": 8} | change))
    with pytest.raises(DataError, match=message):
        CustomQuestionAnswering().read(path, labelled=True)
    assert CustomQuestionAnswering(on_error="skip").read(path, labelled=True).ids == ["7"]
    assert capsys.readouterr().err.endswith("a.jsonl: skipped 1 of 2 rows\n")


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet", "memory"])
def test_answers_may_be_texts_and_ids_may_be_missing(tmp_path, suffix):
    table = {
        "question": ["Who?", "Where?", "When?"],
        "context": ["It was Ada, not Adam.", "It was Ada, not Adam.", "Ada and I met in May."],
        "answers": [" Ada ", "", "May"],
    }
    source = as_source(table, "train") if suffix == "memory" else write(tmp_path / f"a{suffix}", table)
    questions = CustomQuestionAnswering().read(source, labelled=True)
    assert questions.ids == (["2", "3", "4"] if suffix == ".csv" else ["1", "2", "3"])
    assert questions.answers == [[("Ada", 7)], [], [("May", 17)]]
    assert CustomQuestionAnswering().fitted(questions).null_threshold == 0


def test_a_row_may_have_several_answers_as_texts_and_its_own_id(tmp_path):
    rows = [ONE_QUESTION | {"answers": ["Ada", "It was Ada", "Eve"]}, ONE_QUESTION | {"id": None}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    questions = CustomQuestionAnswering().read(tmp_path / "a.jsonl", labelled=True)
    assert questions.ids == ["7", "2"]
    assert questions.answers == [[("Ada", 7), ("It was Ada", 0), ("Eve", -1)], [("Ada", 7)]]
    (tmp_path / "a.csv").write_text(
        "id,question,context,answers\n,Who?,It was Ada.,Ada\n,Who?,It was Ada.,\n"
    )
    assert CustomQuestionAnswering().read(tmp_path / "a.csv", labelled=True).ids == ["2", "3"]


def test_questions_with_answers_are_fitted_as_squad_v1(tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps(ONE_QUESTION))
    questions = CustomQuestionAnswering().read(tmp_path / "a.jsonl", labelled=True)
    assert CustomQuestionAnswering().fitted(questions).version == "1.1"


@pytest.mark.parametrize("name", ["dev.jsonl", "dev.json"])
def test_unanswerable_question_scores_0_in_v1(tmp_path, capsys, name):
    questions = [ONE_QUESTION | {"id": "7"}, ONE_QUESTION | {"id": "8", "answers": []}]
    if name == "dev.json":
        document = {"data": [{"paragraphs": [{"context": "It was Ada.", "qas": questions}]}]}
        (tmp_path / name).write_text(json.dumps(document))
    else:
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in questions))
    unfitted = CustomQuestionAnswering()
    assert unfitted.read(tmp_path / name, labelled=True).ids == ["7", "8"]
    assert capsys.readouterr().err == ""
    task = replace(unfitted, null_threshold=None)
    examples = task.read(tmp_path / name, labelled=True)
    err = capsys.readouterr().err
    assert err.startswith(f"{tmp_path / name}: questions without an answer, which score 0, as all training ")
    assert err.endswith("questions have one: 1 (first: 8)\n")
    assert err.count("\n") == 1
    assert task.score(examples, SpanPredictions(["Ada", "Ada"])) == {"exact_match": 50, "f1": 50}


@pytest.mark.parametrize("null_threshold", [None, 0.0])
def test_answers_are_only_needed_where_they_are_read(tmp_path, null_threshold):
    task = CustomQuestionAnswering(null_threshold=null_threshold)
    path = write(tmp_path / "a.csv", {"id": [1], "question": ["Who?"], "context": ["It was Ada."]})
    assert task.read(path, labelled=False).answers is None
    with pytest.raises(SettingsError, match="pass --column answers=NAME"):
        task.read(path, labelled=True)


def test_missing_columns_of_questions_name_their_options(tmp_path):
    path = write(tmp_path / "a.csv", {"text": ["x"]})
    advice = "pass --column question=NAME --column context=NAME "
    with pytest.raises(SettingsError, match=advice):
        CustomQuestionAnswering().read(path, labelled=False)
    with pytest.raises(SettingsError, match="pass --column identifier=NAME --column question=NAME "):
        CustomQuestionAnswering(identifier="number").read(path, labelled=False)


def test_compressed_squad_with_the_name_of_a_table_is_to_be_decompressed(tmp_path):
    content = json.dumps({"version": "1.1", "data": [{"title": "Ada", "paragraphs": []}]}, indent=1)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(content.encode()))
    with pytest.raises(DataError, match=r"not a table; decompress it to a\.json, and pass --kind questions"):
        CustomQuestionAnswering().read(tmp_path / "a.jsonl.gz", labelled=True)
