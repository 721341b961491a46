"""BLiMP's files: read, scored, and rejected."""

import json
import lzma
import re

import numpy as np
import pytest

from bertie.base.errors import DataError, SettingsError
from bertie.tasks.blimp import Paradigm, read_blimp, score

PAIR = {"sentence_good": "The cat sat.", "sentence_bad": "The cat sit.", "linguistics_term": "agreement"}


def test_ties_are_wrong_and_phenomena_join_their_paradigms():
    paradigms = [
        Paradigm("a", "binding", ["x"] * 3, ["y"] * 3),
        Paradigm("b", "ellipsis", ["x"], ["y"]),
        Paradigm("c", "binding", ["x"], ["y"]),
    ]
    values = np.array([-1.0, -2.0, -3.0, -2.0, -2.0, -2.0, -1.0, -5.0, -7.0, -5.0])
    scores = score(paradigms, values)
    assert (scores.accuracy, scores.pairs) == (40, 5)
    assert scores.paradigms == {"a": pytest.approx(100 / 3), "b": 100, "c": 0}
    assert scores.phenomena == {"binding": 25, "ellipsis": 100}


def test_accuracy_has_no_rounding_error():
    values = np.repeat([1.0, 0.0], [11, 29])  # 11 of the 20 good sentences are better
    assert score([Paradigm("a", "binding", ["x"] * 20, ["y"] * 20)], values).accuracy == 55


def test_compressed_files_are_read_beside_plain_ones(tmp_path):
    (tmp_path / "one.jsonl").write_text(json.dumps(PAIR))
    with lzma.open(tmp_path / "two.jsonl.xz", "wt") as file:
        file.write(f"{json.dumps(PAIR)}\n" * 2)
    (tmp_path / "README.md").write_text("not data")
    paradigms = read_blimp(tmp_path)
    assert [(paradigm.name, len(paradigm.good)) for paradigm in paradigms] == [("one", 1), ("two", 2)]
    assert read_blimp(tmp_path / "one.jsonl") == paradigms[:1]


@pytest.mark.parametrize(
    ("line", "error", "message"),
    [
        ("{", DataError, "a.jsonl, line 2: not valid JSON"),
        (
            json.dumps(PAIR | {"sentence_bad": 3}),
            DataError,
            "a.jsonl, line 2: sentence_bad is not a text",
        ),
        (
            json.dumps(PAIR | {"sentence_good": " "}),
            DataError,
            "a.jsonl, line 2: sentence_good is not a",
        ),
        ('{"sentence_good": "x"}', SettingsError, "a.jsonl, line 2: no column 'sentence_bad'"),
    ],
)
def test_malformed_line_is_an_error_with_its_number(tmp_path, line, error, message):
    (tmp_path / "a.jsonl").write_text(f"{json.dumps(PAIR)}\n{line}\n")
    with pytest.raises(error, match=re.escape(message)):
        read_blimp(tmp_path)
    (tmp_path / "a.jsonl").write_text(f"{json.dumps(PAIR)}\n")  # the line is removed
    assert len(read_blimp(tmp_path)) == 1


def test_folder_without_files_or_with_one_twice_is_an_error(tmp_path):
    with pytest.raises(DataError, match=r"no \.jsonl files; give the folder data of"):
        read_blimp(tmp_path)
    for name in ("a.jsonl", "a.jsonl.xz"):
        (tmp_path / name).touch()
    (tmp_path / "a.jsonl").write_text(json.dumps(PAIR))
    with lzma.open(tmp_path / "a.jsonl.xz", "wt") as file:
        file.write(json.dumps(PAIR))
    with pytest.raises(DataError, match=r"a\.jsonl\.xz: a second file of a; remove one"):
        read_blimp(tmp_path)
    (tmp_path / "a.jsonl").unlink()
    assert len(read_blimp(tmp_path)) == 1


def test_real_files_have_1000_pairs_each(shared_data):
    paradigms = read_blimp(shared_data / "blimp")
    assert {len(paradigm.good) for paradigm in paradigms} == {1000}
    assert {"binding", "island_effects"} <= {paradigm.phenomenon for paradigm in paradigms}
