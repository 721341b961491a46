"""SWAG: files, sequences of the choices, decoding, and files of predictions."""

import csv
from pathlib import Path

import numpy as np
import pytest

from bertie.base.errors import DataError, SettingsError
from bertie.tasks.swag import SWAG, Choices
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary

COLUMNS = ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label"
ROW = '0,v,1,"He sits. He","He sits.",He,gold,"eats, and drinks",walks,"says ""no""",sleeps,2'
WORDS = ["he", "she", "sits", "eats", "walks", "sleeps", "."]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(Vocabulary([*SPECIAL_TOKENS, *WORDS]))


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def four_choices(labels: list[int] | None = None) -> Choices:
    """Three examples with four choices each."""
    gold = None if labels is None else np.array(labels)
    return Choices(["he"] * 3, ["she"] * 3, [["sits", "eats", "walks", "."]] * 3, gold, ["0", "1", "2"])


def test_a_labelled_file_is_read(tmp_path):
    examples = SWAG.read(write(tmp_path / "val.csv", COLUMNS, ROW), labelled=True)
    assert (examples.contexts, examples.starts) == (["He sits."], ["He"])
    assert list(examples.endings[0]) == ["eats, and drinks", "walks", 'says "no"', "sleeps"]
    assert examples.labels.tolist() == [2]
    assert examples.labels.dtype == np.int64
    assert SWAG.file(tmp_path, *SWAG.dev_parts) == tmp_path / "val.csv"


def test_the_test_file_is_read_without_labels(tmp_path):
    path = write(tmp_path / "test.csv", COLUMNS.removesuffix(",label"), ROW.removesuffix(",2"))
    assert SWAG.read(path, labelled=False).labels is None
    with pytest.raises(SettingsError, match="no column 'label'"):
        SWAG.read(path, labelled=True)


@pytest.mark.parametrize("label", ["4", "-1", "", "two", "1.0"])
def test_label_must_be_the_index_of_a_choice(tmp_path, label):
    path = write(tmp_path / "train.csv", COLUMNS, ROW, f"{ROW[:-1]}{label}")
    with pytest.raises(DataError, match=rf"train\.csv, line 3: label '{label}'; use one of 0, 1, 2, 3"):
        SWAG.read(path, labelled=True)


def test_each_choice_is_its_own_sequence(tokenizer):
    examples = Choices(
        ["he sits .", "she eats ."],
        ["she", ""],
        [("walks", "eats"), ("he walks", "sleeps")],
        None,
        ["a", "b"],
    )
    inputs = SWAG.encode(examples, tokenizer, 128)
    assert (inputs.group, inputs.num_examples, len(inputs), inputs.labels) == (2, 2, 4, None)
    sequences = [
        (
            " ".join(tokenizer.convert_ids_to_tokens(inputs.input_ids[first:end])),
            inputs.token_type_ids[first:end].tolist(),
        )
        for first, end in zip(inputs.bounds, inputs.bounds[1:], strict=False)
    ]
    assert sequences == [
        ("[CLS] he sits . [SEP] she walks [SEP]", [0] * 5 + [1] * 3),
        ("[CLS] he sits . [SEP] she eats [SEP]", [0] * 5 + [1] * 3),
        ("[CLS] she eats . [SEP] he walks [SEP]", [0] * 5 + [1] * 3),
        ("[CLS] she eats . [SEP] sleeps [SEP]", [0] * 5 + [1] * 2),
    ]


def test_a_long_pair_is_truncated_at_its_longer_text(tokenizer):
    inputs = SWAG.encode(Choices(["he " * 9], ["she"], [["eats", "walks"]], None, ["0"]), tokenizer, 8)
    assert np.diff(inputs.bounds).tolist() == [8, 8]
    assert (
        " ".join(tokenizer.convert_ids_to_tokens(inputs.input_ids[8:]))
        == "[CLS] he he he [SEP] she walks [SEP]"
    )


def test_decode_returns_the_choice_with_the_highest_score(tokenizer):
    examples = four_choices([1, 3, 0])
    inputs = SWAG.encode(examples, tokenizer, 16)
    assert inputs.labels.tolist() == [1, 3, 0]
    logits = np.array([0, 2, 1, 0, -3, -2, -4, -1, 0, 1, 5, 4], dtype=np.float32)
    predictions = SWAG.decode(examples, inputs, logits)
    assert predictions.tolist() == [1, 3, 2]
    assert SWAG.score(examples, predictions) == {"accuracy": pytest.approx(200 / 3)}


def test_majority_baseline_is_the_most_frequent_choice_in_training():
    assert SWAG.majority_baseline(four_choices([1, 3, 3]), four_choices([1, 1, 3])) == {
        "accuracy": pytest.approx(100 / 3)
    }


def test_selected_examples_keep_their_ids():
    assert SWAG.select(four_choices([1, 3, 0]), [0, 2]).ids == ["0", "2"]


def test_written_predictions_are_read_back(tmp_path):
    path = tmp_path / "predictions" / "val"
    SWAG.write_predictions(four_choices(), np.array([3, 0, 1]), path)
    assert path.read_text() == ",pred\n0,3\n1,0\n2,1\n"
    assert SWAG.read_predictions(four_choices(), path).tolist() == [3, 0, 1]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["id,pred", "0,1", "1,1", "2,1"], "line 1: not ',pred'"),
        ([",pred", "0,1", "2,1", "1,1"], "line 3: id '2', but the example is '1'"),
        ([",pred", "0,1", "1,4", "2,1"], "line 3: '4' is not a choice; use one of 0, 1, 2, 3"),
        ([",pred", "0,1", "1,", "2,1"], "line 3: '' is not a choice"),
        ([",pred", "0,1"], "1 prediction for 3 examples"),
        ([",pred", "0,1", "1,1"], "2 predictions for 3 examples"),
        ([",pred", "0,1", "1,1", "2,1", "3,1"], "4 predictions for 3 examples"),
    ],
)
def test_predictions_for_other_examples_are_rejected(tmp_path, lines, message):
    with pytest.raises(DataError, match=message):
        SWAG.read_predictions(four_choices(), write(tmp_path / "predictions.csv", *lines))


@pytest.mark.parametrize(("part", "examples"), [("train", 1665), ("val", 556)])
def test_real_files_are_read_and_encoded(shared_data, part, examples):
    path = SWAG.file(shared_data / "swag-layout", part)
    read = SWAG.read(path, labelled=True)
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(read) == len(rows) == examples
    assert [list(endings) for endings in read.endings] == [
        [row[f"ending{i}"] for i in range(4)] for row in rows
    ]
    assert read.labels.tolist() == [int(row["label"]) for row in rows]

    tokenizer = Tokenizer.load(shared_data / "vocab" / "uncased_en")
    inputs = SWAG.encode(read, tokenizer, 48)
    assert (inputs.num_examples, inputs.group) == (examples, 4)
    for i in range(0, examples, 97):
        row = rows[i]
        for choice in range(4):
            sequence = 4 * i + choice
            expected = tokenizer.encode(
                row["sent1"], f"{row['sent2']} {row[f'ending{choice}']}", max_length=48
            )
            ids = inputs.input_ids[inputs.bounds[sequence] : inputs.bounds[sequence + 1]]
            assert ids.tolist() == expected.input_ids.tolist()
    assert SWAG.score(read, read.labels) == {"accuracy": 100}
