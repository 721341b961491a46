"""The pairs of halves: which belong together, and where they are cut."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.corpus.shards_for_tests import FIRST_WORD, numbered_corpus, numbered_shard, vocabulary_of

from bertie.base.errors import DataError
from bertie.corpus.shards import Shard
from bertie.reproduction.split_pairs import PIECES, SPLIT_PAIRS_TASK, draw_pairs, draw_split_pairs
from bertie.text.tokenizer import Tokenizer


class TwoSplits(NamedTuple):
    """What is read of a corpus."""

    train: list[Shard]
    held_out: list[Shard]


@pytest.fixture(scope="module")
def corpus() -> tuple[TwoSplits, Tokenizer]:
    """One in which no token comes twice, so a token tells its place."""
    (train, held_out), vocabulary = numbered_corpus()
    return TwoSplits([train], [held_out]), Tokenizer(vocabulary)


def test_what_belongs_together_stood_together_and_is_judged_on_unseen_text(corpus):
    splits, tokenizer = corpus
    training, dev = draw_split_pairs(splits, tokenizer.vocabulary, training=300, dev=200)
    assert (len(training), len(dev)) == (300, 200)
    special = {tokenizer.vocabulary.cls_id, tokenizer.vocabulary.sep_id}
    assert set(training.input_ids) & set(dev.input_ids) == special
    rows = training.input_ids.reshape(300, 2 * PIECES + 3)
    first, second = rows[:, 1 : PIECES + 1], rows[:, PIECES + 2 : -1]
    assert (np.diff(first) == 1).all()
    assert (np.diff(second) == 1).all()
    labels = SPLIT_PAIRS_TASK.gold(training)
    assert ((second[:, 0] == first[:, -1] + 1) == (labels == 0)).all()
    assert labels.mean() == 0.5
    types = training.token_type_ids.reshape(rows.shape)
    assert (types == [0] * (PIECES + 2) + [1] * (PIECES + 1)).all()


lengths = st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=6), min_size=4, max_size=12)


@given(lengths, st.integers(0, 2**32))
def test_cut_between_words_of_a_sentence_inside_a_document(sentence_lengths, seed):
    shard = numbered_shard(sentence_lengths)
    pieces = set(range(FIRST_WORD, FIRST_WORD + len(shard.tokens), 3))  # every third goes on with a word
    vocabulary = vocabulary_of(FIRST_WORD + len(shard.tokens), continuation_mask=pieces)
    document_ends = shard.sentence_ends[shard.document_ends - 1].tolist()
    starts = {0, *document_ends}
    fitting = [
        place
        for place in range(PIECES, len(shard.tokens) - PIECES + 1)
        if place not in {0, *shard.sentence_ends.tolist()}
        and place + FIRST_WORD not in pieces
        and not any(place - PIECES < start < place + PIECES for start in starts)
    ]
    if len(fitting) < 4:
        with pytest.raises(DataError, match=f"only {len(fitting)} places"):
            draw_pairs([shard], vocabulary, len(fitting) + 1, seed)
        return
    pairs = draw_pairs([shard], vocabulary, len(fitting), seed)
    rows = pairs.input_ids.reshape(len(pairs), 2 * PIECES + 3)
    assert sorted(rows[:, PIECES] + 1 - FIRST_WORD) == fitting
    assert sorted(rows[:, PIECES + 2] - FIRST_WORD) == fitting


def test_the_same_pairs_every_time(corpus):
    splits, tokenizer = corpus
    once, again = (draw_split_pairs(splits, tokenizer.vocabulary, training=50, dev=20) for _ in range(2))
    for one, other in zip(once, again, strict=True):
        assert np.array_equal(one.input_ids, other.input_ids)


def test_encoded_as_they_are(corpus):
    splits, tokenizer = corpus
    _, dev = draw_split_pairs(splits, tokenizer.vocabulary, training=10, dev=50)
    inputs = SPLIT_PAIRS_TASK.encode(dev, tokenizer, 64)
    assert len(inputs) == 50
    logits = np.eye(2, dtype=np.float32)[inputs.labels]
    assert SPLIT_PAIRS_TASK.score(dev, SPLIT_PAIRS_TASK.decode(dev, inputs, logits))["accuracy"] == 100


def test_predictions_are_written_as_labels(corpus, tmp_path: Path):
    splits, tokenizer = corpus
    _, dev = draw_split_pairs(splits, tokenizer.vocabulary, training=10, dev=4)
    SPLIT_PAIRS_TASK.write_predictions(dev, np.array([0, 1, 0, 0]), tmp_path / "predictions.tsv")
    assert (tmp_path / "predictions.tsv").read_text().split() == (
        "index prediction 0 together 1 apart 2 together 3 together".split()  # noqa: SIM905
    )
