"""The pairs of passages: whose they are, and that they are the same for every model."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from tests.corpus.shards_for_tests import numbered_corpus

from bertie.corpus.shards import Shard
from bertie.reproduction.passages import PASSAGE_PAIRS, passage_pairs
from bertie.text.tokenizer import Tokenizer


class TwoSplits(NamedTuple):
    """What is read of a corpus."""

    train: list[Shard]
    held_out: list[Shard]


@pytest.fixture(scope="module")
def corpus() -> tuple[TwoSplits, Tokenizer]:
    """One in which no token comes twice, so a token tells its document."""
    (train, held_out), vocabulary = numbered_corpus()
    return TwoSplits([train], [held_out]), Tokenizer(vocabulary)


def test_what_follows_is_of_the_same_document_and_judged_on_unseen_ones(corpus):
    splits, tokenizer = corpus
    training, dev = passage_pairs(splits, tokenizer, 64, training=300, dev=200)
    assert (len(training), len(dev)) == (300, 200)
    special = {tokenizer.vocabulary.cls_id, tokenizer.vocabulary.sep_id}
    assert set(training.input_ids) & set(dev.input_ids) == special
    first_ids = [5 + shard.sentence_ends[shard.document_ends - 1] for shard in splits.train]
    same = []
    for start, end in zip(training.bounds[:-1], training.bounds[1:], strict=True):
        ids, segments = training.input_ids[start:end], training.token_type_ids[start:end]
        words = [ids[1 : (segments == 0).sum() - 1], ids[(segments == 0).sum() : -1]]
        a, b = (np.searchsorted(first_ids[0], part[0], side="right") for part in words)
        same.append(a == b)
    labels = PASSAGE_PAIRS.gold(training)
    same = np.array(same)
    assert same[labels == 0].all()
    assert same[labels == 1].mean() < 0.1  # google's algorithm may draw the same document ten times


def test_encoded_as_they_are(corpus):
    splits, tokenizer = corpus
    _, dev = passage_pairs(splits, tokenizer, 64, training=10, dev=50)
    inputs = PASSAGE_PAIRS.encode(dev, tokenizer, 64)
    assert np.diff(inputs.bounds).max() <= 64
    assert len(inputs) == 50
    assert set(inputs.labels) == {0, 1}
    assert tokenizer.vocabulary.mask_id not in inputs.input_ids
    logits = np.eye(2, dtype=np.float32)[inputs.labels]
    assert PASSAGE_PAIRS.score(dev, PASSAGE_PAIRS.decode(dev, inputs, logits))["accuracy"] == 100


def test_predictions_are_written_as_labels(corpus, tmp_path: Path):
    splits, tokenizer = corpus
    _, dev = passage_pairs(splits, tokenizer, 64, training=10, dev=3)
    PASSAGE_PAIRS.write_predictions(dev, np.array([0, 1, 0]), tmp_path / "predictions.tsv")
    assert (tmp_path / "predictions.tsv").read_text().split() == (
        "index prediction 0 follows 1 elsewhere 2 follows".split()  # noqa: SIM905
    )
