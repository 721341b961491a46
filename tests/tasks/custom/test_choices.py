"""Custom choices: endings in columns or lists, and errors in rows."""

import numpy as np
import pytest
from tests.tasks.custom.tables import write

from bertie.base.errors import DataError, SettingsError
from bertie.tasks.custom.choices import CustomMultipleChoice
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary


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


def test_indices_may_be_floats_in_csv(tmp_path):
    path = write(
        tmp_path / "a.csv", {"context": ["x", "y"], "a": ["b", "c"], "d": ["e", "f"], "label": [1.0, 0.0]}
    )
    task = CustomMultipleChoice(endings=("a", "d"))
    assert task.read(path, labelled=True).labels.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("endings", "label", "message"),
    [
        ([["a", "b"], ["c"]], [0, 0], "line 2: 1 ending; every row needs the same number"),
        ([["a"], ["c"]], [0, 0], "line 1: 1 ending; every row needs the same number, at least two"),
        ([["a", "b"], []], [0, 0], "line 2: no endings in the column 'endings'; add them or delete the row"),
        ([["a", "b"], ["c", " "]], [0, 0], "line 2: an ending is not text; add it or delete the row"),
        ([["a", "b"], ["c", "d"]], [0, 2], "line 2: label '2'; use one of 0, 1"),
        ([["a", "b"], ["c", "d"]], [0, None], "line 2: label ''; use one of 0, 1"),
    ],
)
def test_bad_rows_of_choices_are_reported(tmp_path, endings, label, message):
    path = write(tmp_path / "a.jsonl", {"context": ["x", "y"], "endings": endings, "label": label})
    with pytest.raises(DataError, match=message):
        CustomMultipleChoice().read(path, labelled=True)


@pytest.mark.parametrize("first", [["a"], "a", ["a", "b", " "]])
def test_a_skipped_row_does_not_set_the_number_of_endings(tmp_path, capsys, first):
    rows = {
        "context": ["x"] * 5,
        "endings": [first, ["c", "d"], ["e", "f", "g"], ["h", "i"], ["j", "k"]],
        "label": [0, 0, 0, 2, 1],
    }
    examples = CustomMultipleChoice(on_error="skip").read(write(tmp_path / "a.jsonl", rows), labelled=True)
    assert (examples.endings, examples.labels.tolist()) == ([["c", "d"], ["j", "k"]], [0, 1])
    assert "a.jsonl: skipped 3 of 5 rows" in capsys.readouterr().err


def test_missing_texts_of_choices_are_reported(tmp_path):
    task = CustomMultipleChoice(endings=("a", "b"))
    for column, message in (
        ("context", "line 1: no text in the column 'context'; add it or delete the row"),
        ("b", "line 1: an ending is not text; add it or delete the row"),
    ):
        path = write(tmp_path / "a.jsonl", {"context": ["x"], "a": ["y"], "b": ["z"]} | {column: [None]})
        with pytest.raises(DataError, match=message):
            task.read(path, labelled=False)


def test_missing_columns_of_choices_name_their_options(tmp_path):
    path = write(tmp_path / "a.csv", {"text": ["x"]})
    advice = (
        r"pass --column context=NAME --column endings=NAME --label NAME \(label='NAME', columns={'context'"
    )
    with pytest.raises(SettingsError, match=advice):
        CustomMultipleChoice(endings=("a", "b")).read(path, labelled=True)
