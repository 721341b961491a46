"""Results: their repr, and the tables that rich and notebooks show."""

import subprocess
import sys
from dataclasses import FrozenInstanceError
from io import StringIO

import pytest
from rich.console import Console

from bertie.inference.results import Answer, Label, MaskPrediction, Results, TaggedWord

LABELS = Results([Label("good", 0.8531100471233323), Label("bad", 0.14688995287666778)])


def shown(value) -> str:
    """Return the output of rich on a terminal 80 characters wide."""
    file = StringIO()
    Console(file=file, width=80, color_system=None).print(value)
    return file.getvalue()


def test_repr_rounds_scores():
    assert repr(Answer("Paris", 3, 8, 1 / 3)) == "Answer(text='Paris', start=3, end=8, score=0.3333)"
    assert repr(LABELS) == "(Label(label='good', score=0.8531), Label(label='bad', score=0.1469))"


def test_results_are_immutable_and_compare_by_value():
    labels = (Label("good", 0.8531100471233323), Label("bad", 0.14688995287666778))
    assert labels == LABELS
    with pytest.raises(FrozenInstanceError):
        LABELS[0].score = 1.0
    with pytest.raises(TypeError):
        LABELS[0] = LABELS[1]


def test_a_table_has_a_row_for_each_result():
    lines = shown(LABELS).splitlines()
    assert [line.split() for line in (lines[1], *lines[3:5])] == [
        ["┃", "label", "┃", "score", "┃"],
        ["│", "good", "│", "0.8531", "│"],
        ["│", "bad", "│", "0.1469", "│"],
    ]
    assert shown(LABELS[0]).splitlines()[3].split() == ["│", "good", "│", "0.8531", "│"]


def test_brackets_in_a_text_are_not_markup():
    assert "[red]" in shown(TaggedWord("[red]", "O", 1.0))
    assert "[MASK] [b]" in shown(MaskPrediction(0.5, 7, "cat", "[MASK] [b]"))


def test_each_mask_has_a_table():
    predictions = [Results([MaskPrediction(0.5, i, token, token)]) for i, token in enumerate(("cat", "mat"))]
    assert shown(Results(predictions)).count("token_str") == 2
    assert shown(Results()) == "no results\n"


def test_a_notebook_shows_html():
    bundle = LABELS._repr_mimebundle_([], [])
    assert "<pre" in bundle["text/html"]
    assert "0.8531" in bundle["text/html"]
    assert "0.1469" in bundle["text/plain"]


def test_importing_the_predictor_draws_no_random_numbers():
    code = "import random; state = random.getstate(); import bertie.inference.predictor; "
    check = "raise SystemExit(random.getstate() != state)"
    assert subprocess.run([sys.executable, "-c", code + check], check=False).returncode == 0
