"""Results of a model that has diverged are an error, and not a score."""

import numpy as np
import pytest

from bertie.base.errors import ModelError
from bertie.model.formats.sentence_transformers import EmbeddingConfig
from bertie.tasks.evaluation import compute_logits
from bertie.tasks.task import Inputs


class Diverged:
    """An engine whose last result is `value`."""

    architecture = "BertForSequenceClassification"
    max_batch_tokens = 100
    num_hidden_layers = 1
    hidden_size = 2

    def __init__(self, value):
        self.value = value

    def logits(self, batch):
        return self.results(len(batch.bounds) - 1)

    def hidden_states(self, batch, layers):
        return [self.results(len(batch.input_ids)) for _ in layers]

    def results(self, count):
        results = np.zeros((count, 2), np.float32)
        results[-1, 1] = self.value
        return results


@pytest.mark.parametrize("embedding", [None, EmbeddingConfig("mean")])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_results_that_are_not_finite_are_an_error(value, embedding):
    ids = np.zeros(6, np.int32)
    inputs = Inputs(ids, ids, np.array([0, 3, 6]), labels=None)
    assert np.isfinite(compute_logits(Diverged(1.0), inputs, embedding)).all()
    with pytest.raises(ModelError, match=r"not finite .* lower optimizer.learning_rate"):
        compute_logits(Diverged(value), inputs, embedding)
