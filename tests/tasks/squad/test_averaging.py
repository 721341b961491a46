"""Averaged answers of several models; test_ensemble.py has the cases of full lists."""

import numpy as np
import pytest

from bertie.tasks.squad.averaging import average_answers
from bertie.tasks.squad.decoding import NBest, SpanPredictions
from bertie.tasks.squad.questions import Questions

QUESTIONS = Questions(["q"], ["who?"], ["Ada met Bob"], np.array([0]))


def predictions(spans, probabilities, null_odds=None):
    """Return the predictions of a model with room for one more span."""
    offsets = np.array([[*spans, (7, 7)]])
    logits = np.array([[[np.log(p), 0] for p in [*probabilities, 1]]], np.float32)
    n_best = NBest(np.array([len(spans)]), offsets, logits, np.array([[*probabilities, 0]]))
    return SpanPredictions(["?"], null_odds, n_best=n_best)


@pytest.mark.parametrize("null_odds", [None, np.zeros(1)])
def test_the_answer_is_the_best_span_that_is_not_null(null_odds):
    members = [predictions([(0, 0), (0, 3)], [0.75, 0.25], null_odds)] * 2
    averaged = average_answers(QUESTIONS, members)
    assert averaged.answers == ["Ada"]
    assert averaged.n_best.counts.tolist() == [2]
    assert averaged.n_best.offsets[0].tolist() == [[0, 0], [0, 3], [0, 0]]
    if null_odds is None:
        assert averaged.null_odds is None
    else:
        assert averaged.null_odds == pytest.approx([np.log(0.75 / 0.25)])
