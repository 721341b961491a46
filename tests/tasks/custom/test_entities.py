"""Custom texts with entities: the forms of annotation tools, words, and errors in rows."""

import pytest
from tests.tasks.custom.tables import write

from bertie.base.errors import DataError, ModelError, SettingsError
from bertie.tasks.custom.entities import CustomEntities

TEXT = "Ada lived\u00a0in Saint-Denis."
FORMS = [
    [[0, 3, "PER"], [13, 24, "LOC"]],
    [{"start": 0, "end": 3, "label": "PER"}, {"start": 13, "end": 24, "label": "LOC", "text": "Saint-Denis"}],
    [{"start_offset": 0, "end_offset": 3, "label": "PER"}, {"start": 12, "end": 24, "labels": ["LOC "]}],
]


@pytest.mark.parametrize("entities", FORMS)
def test_entities_become_tags_of_words(tmp_path, entities):
    path = write(tmp_path / "a.jsonl", {"note": [TEXT, "Ada"], "label": [entities, []]})
    task = CustomEntities(text="note", entities="label")
    examples = task.read(path, labelled=True)
    assert examples.words == [["Ada", "lived", "in", "Saint", "-", "Denis", "."], ["Ada"]]
    assert examples.tags == [["B-PER", "O", "O", "B-LOC", "I-LOC", "I-LOC", "O"], ["O"]]
    assert examples.document_bounds.tolist() == [0, 1, 2]
    assert task.fitted(examples).labels == ("O", "B-LOC", "B-PER", "I-LOC")
    assert task.read(path, labelled=False).tags is None
    assert task.input_columns | task.label_columns == {"text": "note", "entities": "label"}


def test_white_space_in_the_label_of_an_entity_becomes_a_space(tmp_path):
    table = {"text": ["Ada"], "entities": [[[0, 3, "a\tfirst\n name"]]]}
    examples = CustomEntities().read(write(tmp_path / "a.jsonl", table), labelled=True)
    assert CustomEntities().fitted(examples).labels == ("O", "B-a first name")


def test_marks_before_a_word_do_not_belong_to_it(tmp_path):
    table = {"text": ["\u203c\ufe0fAda"], "entities": [[[2, 5, "PER"]]]}
    examples = CustomEntities().read(write(tmp_path / "a.jsonl", table), labelled=True)
    assert (examples.words, examples.tags) == ([["\u203c", "Ada"]], [["O", "B-PER"]])


def test_entities_are_read_from_parquet(tmp_path):
    path = write(tmp_path / "a.parquet", {"text": [TEXT], "entities": [FORMS[1]]})
    assert CustomEntities().read(path, labelled=True).tags[0][:1] == ["B-PER"]


@pytest.mark.parametrize(
    ("entities", "message"),
    [
        (
            [[1, 3, "PER"]],
            r"line 2: the entity 'da' \(1-3\) begins or ends inside a word of 'Ada'; correct or",
        ),
        ([[13, 20, "LOC"]], "begins or ends inside a word of 'Saint-Denis'"),
        ([[0, 9, "PER"], [4, 9, "X"]], "the entity 'lived' .* overlaps another one, but a word has one tag"),
        ([[9, 10, "X"]], r"the entity '\\xa0' \(9-10\) has no word; correct or delete it"),
        ([[0, 99, "X"]], r"\(0-99\) is not a part of the text, which has 25 characters"),
        ([[3, 0, "X"]], r"\(3-0\) is not a part of the text"),
        ([[-3, 3, "X"]], r"\(-3-3\) is not a part of the text"),
        ([[0, 3]], r"line 2, column 'entities': \[0, 3\] is not an entity; write it as \[0, 3, \"PER\"\] or"),
        ([[0, 3, " "]], "is not an entity"),
        ([{"start": 0, "end": 3, "labels": ["A", "B"]}], "is not an entity"),
        (None, "line 2: None in the column 'entities' is not a list of entities; write one, such as "),
    ],
)
def test_bad_entities_are_reported_or_skipped(tmp_path, capsys, entities, message):
    path = write(
        tmp_path / "a.jsonl", {"text": ["Ada", TEXT, "Bob"], "entities": [[], entities, FORMS[0][:1]]}
    )
    with pytest.raises(DataError, match=message):
        CustomEntities().read(path, labelled=True)
    examples = CustomEntities(on_error="skip").read(path, labelled=True)
    assert (examples.words, examples.tags) == ([["Ada"], ["Bob"]], [["O"], ["B-PER"]])
    assert capsys.readouterr().err.endswith("a.jsonl: skipped 1 of 3 rows\n")


def test_missing_columns_and_blank_texts_of_entities_are_reported(tmp_path):
    with pytest.raises(SettingsError, match="pass --text NAME --column entities=NAME"):
        CustomEntities().read(write(tmp_path / "a.jsonl", {"x": ["Ada"]}), labelled=True)
    with pytest.raises(DataError, match="line 1: no text in the column 'text'"):
        CustomEntities().read(
            write(tmp_path / "b.jsonl", {"text": ["\u200b"], "entities": [[]]}), labelled=True
        )


def test_entities_need_tags_that_mark_entities():
    assert CustomEntities().with_labels(["O", "B-PER"]).labels == ("O", "B-PER")
    with pytest.raises(ModelError, match="the model's label 0 does not suit entities: 'NOUN' is not the tag"):
        CustomEntities().with_labels(["NOUN"])
