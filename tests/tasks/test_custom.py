"""Custom files: how they are read, their labels, and errors in rows."""

import csv
import itertools
import json
from dataclasses import replace

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import sklearn.metrics
from hypothesis import given
from hypothesis import strategies as st

from bertie.base.errors import DataError, ModelError, SettingsError
from bertie.model.formats.directory import ModelMetadata
from bertie.tasks.classification import LabelledTexts
from bertie.tasks.conll import TaggedSentences
from bertie.tasks.custom import (
    CustomClassification,
    CustomMultipleChoice,
    CustomQuestionAnswering,
    CustomTagging,
)
from bertie.tasks.squad.decoding import SpanPredictions
from bertie.tasks.squad.questions import read_questions
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary


def write(path, table):
    rows = list(zip(*table.values(), strict=True))
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.table(table), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(dict(zip(table, row, strict=True))) + "\n" for row in rows))
    else:
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([table, *rows])
    return path


def texts_and_labels(labels):
    return {"text": [f"text {i}" for i in range(len(labels))], "label": labels}


def fit(path, task=None):
    """Return the task fitted to a file, and the gold labels as an array."""
    task = task or CustomClassification()
    examples = task.read(path, labelled=True)
    task = task.fitted(examples)
    task.check_training(examples, path)
    return task, task.gold(examples).tolist()


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_classes_are_inferred_from_training_labels(tmp_path, suffix):
    path = write(tmp_path / f"a{suffix}", texts_and_labels(["good", "bad", "bad", "good", " good  "]))
    task, gold = fit(path)
    assert (task.labels, task.problem_type, task.main_metric) == (
        ("bad", "good"),
        "single_label_classification",
        "accuracy",
    )
    assert gold == [1, 0, 0, 1, 1]
    assert task.label_counts(task.read(path, labelled=True)) == {"bad": 2, "good": 3}
    assert CustomClassification().read(path, labelled=False).labels is None


def test_whole_numbers_are_classes_and_fractions_a_regression(tmp_path):
    stars = ["10", "9", "10", "9", "1", "1"]
    assert fit(write(tmp_path / "stars.csv", texts_and_labels(stars)))[0].labels == ("1", "9", "10")
    floats = write(tmp_path / "floats.parquet", texts_and_labels([1.0, 2.0, 1.0, 2.0]))
    assert fit(floats)[0].labels == ("1", "2")
    for suffix in (".csv", ".jsonl", ".parquet"):
        task, gold = fit(write(tmp_path / f"a{suffix}", texts_and_labels([3.5, 4.0, -1.25])))
        assert (task.problem_type, task.labels, gold) == ("regression", (), [3.5, 4, -1.25])
        assert task.main_metric in task.metrics


def test_the_problem_type_can_be_set(tmp_path):
    path = write(tmp_path / "a.csv", texts_and_labels(["1", "2", "2", "1"]))
    assert fit(path, CustomClassification().with_problem_type("regression"))[1] == [1, 2, 2, 1]
    path = write(tmp_path / "b.csv", texts_and_labels(["1.1", "2.1", "2.1", "1.1"]))
    assert fit(path, CustomClassification().with_problem_type("single_label_classification"))[0].labels == (
        "1.1",
        "2.1",
    )


def test_lists_of_labels_are_multilabel(tmp_path):
    labels = [["sport", "news"], [], ["news"], ["news", "sport"]]
    for suffix in (".jsonl", ".parquet"):
        task, gold = fit(write(tmp_path / f"a{suffix}", texts_and_labels(labels)))
        assert (task.labels, task.problem_type) == (("news", "sport"), "multi_label_classification")
        assert gold == [[True, True], [False, False], [True, False], [True, True]]
    joined = write(tmp_path / "a.csv", texts_and_labels(["sport | news", "", "news", "news|sport|"]))
    assert fit(joined, CustomClassification(separator="|"))[1] == gold
    assert task.label_counts(task.read(tmp_path / "a.jsonl", labelled=True)) == {"news": 3, "sport": 2}


def test_columns_can_be_named(tmp_path):
    table = {"b": ["x", "y", "z"], "a": ["1", "2", "3"], "stars": ["p", "q", "p"], "other": ["", "", ""]}
    path = write(tmp_path / "a.csv", table)
    examples = CustomClassification(text="a", pair="b", label="stars").read(path, labelled=True)
    assert (examples.texts, examples.pairs, examples.labels) == (table["a"], table["b"], table["stars"])


names = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1)


@given(st.lists(names, min_size=2, unique=True))
def test_every_label_has_its_own_class_index(labels):
    labels = labels * 2
    examples = LabelledTexts(["text"] * len(labels), labels=labels)
    task = CustomClassification().with_problem_type("single_label_classification").fitted(examples)
    assert sorted(task.labels) == sorted(set(labels))
    assert [task.labels[index] for index in task.gold(examples)] == labels


def training_csv(lines):
    return "text,label\n" + "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("task", "content", "message"),
    [
        (
            CustomClassification(),
            training_csv(["a,x", "b,y", "c,x", "d,z"]),
            r"line 3: no other example has the label 'y' \(",
        ),
        (
            CustomClassification(),
            training_csv(["a,x", '"b\nb",x', "c,z", "d,x"]),
            "line 5: no other example has .* 'z'; add",
        ),
        (
            CustomClassification(),
            training_csv(["a,x", "b,x"]),
            "line 2: all examples have the label 'x'; add examples with other labels",
        ),
        (
            CustomClassification(),
            training_csv(["a,1.5", "b,nan", "c,2.5"]),
            "line 3: 'nan' is a non-numeric label, so labels are class names; class '1.5' has only one",
        ),
        (CustomClassification(), training_csv(["a,0.5", "b,0.5"]), "line 2: all examples have the label"),
        (
            CustomClassification(),
            training_csv(["a,x", ",y"]),
            "line 3: no text in the column 'text'; add it or delete the row",
        ),
        (
            CustomClassification(),
            training_csv(["a,x", " ,y"]),
            "line 3: ' ' is not text in the column 'text'",
        ),
        (
            CustomClassification(),
            training_csv(["a,x", "b,"]),
            "line 3: no label in the column 'label'; add it or delete",
        ),
        (
            CustomClassification().with_problem_type("regression"),
            training_csv(["a,1", "b,high"]),
            "line 3: 'high' is not a number",
        ),
        (
            CustomClassification().with_problem_type("multi_label_classification"),
            training_csv(["a,x|y", "b,x"]),
            r"line 2: 'x\|y' is not a list of labels, as other rows have; write a list, or name the",
        ),
        (CustomClassification(), "text,label\n", "empty"),
        (CustomClassification(), "", "empty"),
    ],
)
def test_bad_training_files_are_rejected(tmp_path, task, content, message):
    path = tmp_path / "train.csv"
    path.write_text(content)
    with pytest.raises(DataError, match=r"train\.csv[,:] " + message):
        fit(path, task)


@pytest.mark.parametrize("label", [{"a": 1}, [["a"]]])
def test_labels_must_be_strings_numbers_or_lists(tmp_path, label):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": "a", "label": label}))
    with pytest.raises(DataError, match=r"line 1: .* in the column 'label' is not a label; write a string"):
        CustomClassification().read(path, labelled=True)


@pytest.mark.parametrize(
    ("gold", "predicted", "labels", "scores"),
    [
        # These files cannot be trained on, but predictions can be scored with them.
        (["a", "b", "a"], ["a", "b", "c"], ("a", "b", "c"), {"accuracy": 200 / 3, "f1_macro": 500 / 9}),
        (["a", "a", "a"], ["a", "a", "a"], ("a",), {"accuracy": 100, "f1_macro": 100}),
        (["1", "2", "3"], ["1.5", "2.5", "3.5"], (), {"spearmanr": 100, "pearson": 100}),
        (["1.5", "2.5", "3.5"], ["1", "2", "3"], (), {"spearmanr": 100, "pearson": 100}),
        (
            [["a"], [], ["a"]],
            ['["a"]', '["b"]', "[]"],
            ("a", "b"),
            {"f1_micro": 50, "f1_macro": 100 / 3, "accuracy": 100 / 3},
        ),
    ],
)
def test_predictions_are_scored_without_training_examples(tmp_path, gold, predicted, labels, scores):
    path = write(tmp_path / "gold.jsonl", texts_and_labels(gold))
    rows = [f"{i}\t{label}\n" for i, label in enumerate(predicted)]
    (tmp_path / "predictions.tsv").write_text("index\tprediction\n" + "".join(rows))
    examples = CustomClassification().read(path, labelled=True)
    task = CustomClassification().fitted_to_predictions(examples, tmp_path / "predictions.tsv")
    assert task.labels == labels
    predictions = task.read_predictions(examples, tmp_path / "predictions.tsv")
    assert task.score(examples, predictions) == pytest.approx(scores)


@pytest.mark.parametrize("separator", ["\t", "\n", " ", "  "])
def test_white_space_can_separate_labels(tmp_path, separator):
    path = write(tmp_path / "a.jsonl", texts_and_labels([f"x{separator} y", 3]))
    assert CustomClassification(separator=separator).read(path, labelled=True).labels == [("x", "y"), ("3",)]


def test_labels_with_one_example_are_counted(tmp_path):
    path = write(tmp_path / "a.csv", texts_and_labels(["x", "y", "z", "x", "u"]))
    with pytest.raises(
        DataError, match=r"line 3: no other .* 'y' \(and 2 other labels have only one example\); add"
    ):
        fit(path)


def test_missing_column_is_reported_with_the_nearest(tmp_path):
    path = write(tmp_path / "a.csv", texts_and_labels(["x", "y"]))
    with pytest.raises(
        SettingsError, match=r"no column 'texts'; did you mean 'text'\? the columns are text, label"
    ):
        CustomClassification(text="texts").read(path, labelled=True)


def test_single_labels_and_lists_cannot_be_mixed(tmp_path):
    path = write(tmp_path / "a.jsonl", texts_and_labels([["x"], "y", ["x"]]))
    with pytest.raises(DataError, match=r"line 1: \['x'\] is not a single label, as other rows have"):
        fit(path)
    for value in (None, [None], 7):
        bad = {"text": ["a", "b"], "label": [["x"], value]}
        with pytest.raises(DataError, match=r"a\.jsonl, line"):
            fit(write(tmp_path / "a.jsonl", bad))


def test_dev_labels_must_be_among_the_training_labels(tmp_path):
    task, _ = fit(write(tmp_path / "train.csv", texts_and_labels(["x", "y", "y", "x"])))
    assert task.read(write(tmp_path / "dev.csv", texts_and_labels(["y"])), labelled=True).labels == ["y"]
    dev = write(tmp_path / "dev.csv", texts_and_labels(["x", "z"]))
    with pytest.raises(DataError, match=r"dev\.csv, line 3: unknown label 'z'; known: x, y"):
        task.read(dev, labelled=True)
    multilabel, _ = fit(write(tmp_path / "train.jsonl", texts_and_labels([["x"], ["y"], ["y", "x"]])))
    dev = write(tmp_path / "dev.jsonl", texts_and_labels(["x"]))
    with pytest.raises(DataError, match=r"dev\.jsonl, line 1: 'x' is not a list of labels"):
        multilabel.read(dev, labelled=True)
    regression, _ = fit(write(tmp_path / "numbers.csv", texts_and_labels(["0.5", "1.5"])))
    with pytest.raises(DataError, match=r"dev\.csv, line 2: 'x' is not a number"):
        regression.read(write(tmp_path / "dev.csv", texts_and_labels(["x"])), labelled=True)


def test_a_models_labels_replace_training_examples(tmp_path):
    task = CustomClassification().with_problem_type("single_label_classification").with_labels(["y", "x"])
    examples = task.read(write(tmp_path / "a.csv", texts_and_labels(["x", "x"])), labelled=True)
    assert task.gold(examples).tolist() == [1, 1]


def test_fitted_to_model_takes_the_problem_type_and_labels():
    model = ModelMetadata(None, "", ("y", "x"), None, "multi_label_classification")
    task = CustomClassification().fitted_to_model(model)
    assert (task.problem_type, task.labels) == ("multi_label_classification", ("y", "x"))
    assert task.main_metric == "f1_micro"
    with pytest.raises(ModelError, match=r"fine-tuned for multi label classification, but .* is regression"):
        CustomClassification().with_problem_type("regression").fitted_to_model(model)


SENTENCES = {"words": [["Ada", "Lovelace", "wrote"], ["London"]], "tags": [["B-P", "I-P", "O"], ["B-L"]]}


def test_tags_are_read_from_tables_and_conll_files(tmp_path):
    for suffix in (".jsonl", ".parquet"):
        path = write(tmp_path / f"a{suffix}", SENTENCES)
        task = CustomTagging()
        examples = task.read(path, labelled=True)
        assert (examples.words, examples.tags) == (SENTENCES["words"], SENTENCES["tags"])
        assert examples.document_bounds.tolist() == [0, 1, 2]
        assert task.fitted(examples).labels == ("O", "B-L", "B-P", "I-P")
        assert task.read(path, labelled=False).tags is None
    (tmp_path / "a.txt").write_text("Ada B-P\nwrote O\n")
    assert CustomTagging().read(tmp_path / "a.txt", labelled=True).tags == [["B-P", "O"]]


PARTS_OF_SPEECH = [["PROPN", "PROPN", "VERB"], ["PROPN"]]


def write_tags(tmp_path, name, tags, words=SENTENCES["words"]):
    if name.endswith(".jsonl"):
        return write(tmp_path / name, {"words": words, "tags": tags})
    lines = [zip(*sentence, strict=True) for sentence in zip(words, tags, strict=True)]
    (tmp_path / name).write_text("\n\n".join("\n".join(map("\t".join, rows)) for rows in lines))
    return tmp_path / name


@pytest.mark.parametrize("suffix", [".jsonl", ".txt"])
def test_plain_tags_do_not_mix_with_tags_of_entities(tmp_path, suffix):
    path = write_tags(tmp_path, f"train{suffix}", PARTS_OF_SPEECH)
    examples = CustomTagging().read(path, labelled=True)
    assert (examples.tags, examples.scheme) == (PARTS_OF_SPEECH, "plain")
    task = CustomTagging().fitted(examples)
    assert (task.labels, task.main_metric) == (("PROPN", "VERB"), "accuracy")
    assert CustomTagging().with_labels(["VERB", "PROPN"]).main_metric == "accuracy"

    dev = task.read(write_tags(tmp_path, f"dev{suffix}", [["NOUN", "VERB", "VERB"], ["VERB"]]), labelled=True)
    task.write_predictions(dev, PARTS_OF_SPEECH, tmp_path / "predictions.conll")
    predictions = task.read_predictions(dev, tmp_path / "predictions.conll")
    assert predictions == PARTS_OF_SPEECH
    assert task.main_metric in task.score(dev, predictions)

    mixed = write_tags(tmp_path, f"mixed{suffix}", [["VERB", "VERB", "VERB"], ["B-PER"]])
    line = 2 if suffix == ".jsonl" else 5
    with pytest.raises(DataError, match=f"line {line}: 'B-PER' is not a plain tag"):
        task.read(mixed, labelled=True)
    with pytest.raises(DataError, match="line 1: 'VERB' is not the tag of an entity"):
        CustomTagging().read(mixed, labelled=True)
    with pytest.raises(DataError, match="line 1: 'PROPN' is not the tag of an entity"):
        CustomTagging().with_labels(["O", "B-PER"]).read(path, labelled=True)
    with pytest.raises(ModelError, match="label 0 does not suit tagging: 'O' is not a plain tag"):
        task.with_labels(["O", "B-PER"])


@pytest.mark.parametrize("suffix", [".jsonl", ".txt"])
def test_tags_unknown_to_training_are_reported_and_scored(tmp_path, capsys, suffix):
    task = CustomTagging().with_labels(["O", "B-L"])
    path = write_tags(tmp_path, f"dev{suffix}", SENTENCES["tags"][::-1], SENTENCES["words"][::-1])
    examples = task.read(path, labelled=True)
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"{path}, sentence 2: tags that are not in the training data")
    assert err.endswith(": B-P, I-P\n")
    assert task.score(examples, [["B-L"], ["O", "O", "O"]])["recall"] == 50
    CustomTagging().read(path, labelled=True)  # without labels, no tag is unknown
    assert capsys.readouterr() == ("", "")


def test_training_rejects_tags_that_are_all_the_same(tmp_path):
    for tag in ("O", "NOUN"):
        path = write_tags(tmp_path, "train.txt", [[tag] * 3, [tag]])
        examples = CustomTagging().read(path, labelled=True)
        with pytest.raises(DataError, match=rf"train\.txt: all words have the tag '{tag}'; add"):
            CustomTagging().fitted(examples).check_training(examples, path)


gold_and_predicted = st.lists(st.tuples(st.sampled_from("NVAX"), st.sampled_from("NVA")), min_size=1)


@given(gold_and_predicted, st.data())
def test_scores_of_plain_tags_match_sklearn(pairs, data):
    bounds = sorted({0, len(pairs), data.draw(st.integers(0, len(pairs)))})
    sentences = [pairs[first:end] for first, end in itertools.pairwise(bounds)]
    gold, predicted = ([[pair[i] for pair in sentence] for sentence in sentences] for i in (0, 1))
    examples = TaggedSentences.from_tags(gold, gold, np.array([0, len(gold)]))
    scores = CustomTagging().with_labels("NVA").score(examples, predicted)
    columns = list(zip(*pairs, strict=True))
    assert scores == {
        "accuracy": pytest.approx(100 * sklearn.metrics.accuracy_score(*columns)),
        "f1_macro": pytest.approx(100 * sklearn.metrics.f1_score(*columns, average="macro", zero_division=0)),
    }


@pytest.mark.parametrize(
    ("words", "tags", "message"),
    [
        ([["a"], ["b"]], [["O"], ["O", "O"]], "line 2: 2 tags for 1 words; give one for each"),
        ([["a"], []], [["O"], []], r"line 2: \[\] in the column 'words' is not a list of strings"),
        ([["a"], "b"], [["O"], ["O"]], "line 2: 'b' in the column 'words' is not a list of strings"),
        ([["a", "b"], ["c", "d"]], [["O", "O"], ["O", "P"]], "line 2: 'P' is not the tag of an entity"),
        ([["a"], ["c", "d"]], [["P"], ["O", "O"]], "line 1: 'P' is not the tag of an entity"),
        ([["a"], ["c", "d"]], [["P"], ["P", ""]], "line 2: '' is not a plain tag"),
    ],
)
def test_bad_rows_of_tags_are_reported(tmp_path, words, tags, message):
    path = write(tmp_path / "a.jsonl", {"words": words, "tags": tags})
    with pytest.raises(DataError, match=message):
        CustomTagging().read(path, labelled=True)


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
    assert CustomQuestionAnswering().fitted(questions).version == "2.0"
    assert CustomQuestionAnswering().read(tmp_path / f"a{suffix}", labelled=False).answers is None
    assert CustomQuestionAnswering().read(source, labelled=True).ids == expected.ids


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
        ({"question": " "}, "line 2: ' ' is not text in the column 'question'"),
        (
            {"answers": [{"text": "Ada", "answer_start": 6}]},
            "line 2: the answer 'Ada' is not at character 6",
        ),
        ({"answers": [{"text": "Ada"}]}, "line 2: the answers have another form than"),
        ({"answers": "Ada"}, "line 2: the answers have another form than"),
        ({"answers": None}, "line 2: the answers have another form than"),
        ({"answers": {"text": "Ada", "answer_start": 7}}, "line 2: the answers have another form than"),
        ({"answers": {"text": "Ada", "answer_start": [7]}}, "line 2: the answers have another form than"),
        (
            {"answers": {"text": ["Ada", "A"], "answer_start": [7]}},
            "line 2: the answers have another form than",
        ),
    ],
)
def test_bad_rows_of_questions_are_reported(tmp_path, change, message):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(ONE_QUESTION) + "\n" + json.dumps(ONE_QUESTION | {"id": 8} | change))
    with pytest.raises(DataError, match=message):
        CustomQuestionAnswering().read(path, labelled=True)


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


def test_endings_are_read_from_columns_or_lists(tmp_path):
    table = {
        "context": ["a", "b"],
        "one": ["c", "d"],
        "two": ["e", "f"],
        "three": ["g", "h"],
        "label": [2, 0],
    }
    task = CustomMultipleChoice(endings=("one", "two", "three"))
    expected = task.read(write(tmp_path / "a.csv", table), labelled=True)
    assert expected.endings == [["c", "e", "g"], ["d", "f", "h"]]
    assert expected.labels.tolist() == [2, 0]
    listed = {"context": table["context"], "endings": expected.endings, "label": table["label"]}
    for suffix in (".jsonl", ".parquet"):
        examples = CustomMultipleChoice().read(write(tmp_path / f"a{suffix}", listed), labelled=True)
        assert (examples.contexts, examples.endings) == (expected.contexts, expected.endings)
        assert examples.labels.tolist() == [2, 0]
    tokenizer = Tokenizer(Vocabulary([*SPECIAL_TOKENS, *"abcdefgh"]))
    inputs = task.encode(expected, tokenizer, 10)
    assert (len(inputs), inputs.group) == (6, 3)
    assert task.read(tmp_path / "a.csv", labelled=False).labels is None
    assert np.diff(inputs.bounds).tolist() == [5] * 6


@pytest.mark.parametrize(
    ("endings", "label", "message"),
    [
        ([["a", "b"], ["c"]], [0, 0], "line 2: 1 endings; every row needs the same number"),
        ([["a"], ["c"]], [0, 0], "line 1: 1 endings; every row needs the same number, at least two"),
        ([["a", "b"], ["c", " "]], [0, 0], "line 2: an ending is not text; add it or delete the row"),
        ([["a", "b"], ["c", "d"]], [0, 2], "line 2: label '2'; use one of 0, 1"),
        ([["a", "b"], ["c", "d"]], [0, None], "line 2: label ''; use one of 0, 1"),
    ],
)
def test_bad_rows_of_choices_are_reported(tmp_path, endings, label, message):
    path = write(tmp_path / "a.jsonl", {"context": ["x", "y"], "endings": endings, "label": label})
    with pytest.raises(DataError, match=message):
        CustomMultipleChoice().read(path, labelled=True)
