"""The scores of single examples, and the outcomes that they give."""

import numpy as np
import pytest

from bertie.reproduction.example_scores import read_example_scores, score_of, write_example_scores


def test_scores_read_back_as_written(tmp_path):
    scores = {
        "sst-2/dev/accuracy": np.array([[1], [0], [1]], np.float32),
        "ner/dev/f1@2e-05": np.array([[1, 2, 3], [0, 0, 1]], np.int32),
    }
    write_example_scores(tmp_path, scores)
    read = read_example_scores(tmp_path)
    assert read.keys() == scores.keys()
    for name, array in scores.items():
        assert read[name].dtype == array.dtype
        assert np.array_equal(read[name], array)


def test_cell_without_a_file_has_no_scores(tmp_path):
    assert read_example_scores(tmp_path) == {}


@pytest.mark.parametrize(
    ("outcome", "scores", "expected"),
    [
        pytest.param("sst-2/dev/accuracy", [[1], [0], [1], [1]], 75.0, id="accuracy"),
        pytest.param("held_out/masked_language_model_loss", [[2.5], [3.5]], 3.0, id="loss"),
        # precision 3/4, recall 3/6
        pytest.param("ner/dev/f1", [[1, 1, 4], [2, 3, 2]], 60.0, id="f1"),
        pytest.param("ner/dev/f1", [[0, 0, 0]], 0.0, id="f1 of nothing"),
    ],
)
def test_outcome_follows_from_its_examples(outcome, scores, expected):
    assert score_of(outcome, np.array(scores, np.float32)) == pytest.approx(expected)
