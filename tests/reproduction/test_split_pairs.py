"""Split pairs: the labels of the halves, and the positions of the splits."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.corpus.shards_for_tests import FIRST_WORD, make_vocabulary, numbered_corpus, numbered_shard

from bertie.base.errors import DataError
from bertie.corpus.shards import Shard
from bertie.reproduction.split_pairs import HALF_LENGTH, SPLIT_PAIRS_TASK, draw_pairs, draw_split_pairs
from bertie.text.tokenizer import Tokenizer

PAIR_LENGTH = 2 * HALF_LENGTH + 3


class TwoSplits(NamedTuple):
    """The attributes of a `Corpus` that `draw_split_pairs` reads."""

    train: list[Shard]
    held_out: list[Shard]


@pytest.fixture(scope="module")
def corpus() -> tuple[TwoSplits, Tokenizer]:
    """A corpus in which every token is unique, so that its id gives its position."""
    (train, held_out), vocabulary = numbered_corpus()
    return TwoSplits([train], [held_out]), Tokenizer(vocabulary)


def test_halves_that_belong_together_were_adjacent(corpus):
    splits, tokenizer = corpus
    training, dev = draw_split_pairs(splits, tokenizer.vocabulary, training=300, dev=200)
    assert (len(training), len(dev)) == (300, 200)
    special = {tokenizer.vocabulary.cls_id, tokenizer.vocabulary.sep_id}
    assert set(training.input_ids) & set(dev.input_ids) == special  # dev is unseen text
    rows = training.input_ids.reshape(300, PAIR_LENGTH)
    first, second = rows[:, 1 : HALF_LENGTH + 1], rows[:, HALF_LENGTH + 2 : -1]
    assert (np.diff(first) == 1).all()
    assert (np.diff(second) == 1).all()
    labels = SPLIT_PAIRS_TASK.gold(training)
    assert ((second[:, 0] == first[:, -1] + 1) == (labels == 0)).all()
    assert labels.mean() == 0.5
    types = training.token_type_ids.reshape(rows.shape)
    assert (types == [0] * (HALF_LENGTH + 2) + [1] * (HALF_LENGTH + 1)).all()


lengths = st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=6), min_size=4, max_size=12)


@given(lengths, st.integers(0, 2**32))
def test_texts_are_split_between_words_of_a_sentence(sentence_lengths, seed):
    shard = numbered_shard(sentence_lengths)
    continuation_ids = frozenset(range(FIRST_WORD, FIRST_WORD + len(shard.tokens), 3))  # every third token
    vocabulary = make_vocabulary(FIRST_WORD + len(shard.tokens), continuation_ids=continuation_ids)
    document_starts = {0, *shard.sentence_ends[shard.document_ends - 1].tolist()}
    expected = [
        position
        for position in range(HALF_LENGTH, len(shard.tokens) - HALF_LENGTH + 1)
        if position not in {0, *shard.sentence_ends.tolist()}
        and position + FIRST_WORD not in continuation_ids
        and not any(position - HALF_LENGTH < start < position + HALF_LENGTH for start in document_starts)
    ]
    if len(expected) < 4:
        with pytest.raises(DataError, match=f"only {len(expected)} positions"):
            draw_pairs([shard], vocabulary, len(expected) + 1, seed)
        return
    pairs = draw_pairs([shard], vocabulary, len(expected), seed)
    rows = pairs.input_ids.reshape(len(pairs), PAIR_LENGTH)
    assert sorted(rows[:, HALF_LENGTH] + 1 - FIRST_WORD) == expected
    assert sorted(rows[:, HALF_LENGTH + 2] - FIRST_WORD) == expected


def test_the_same_pairs_are_drawn_every_time(corpus):
    splits, tokenizer = corpus
    first, second = (draw_split_pairs(splits, tokenizer.vocabulary, training=50, dev=20) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        assert np.array_equal(one.input_ids, other.input_ids)


def test_encode_returns_the_examples_unchanged(corpus):
    splits, tokenizer = corpus
    _, dev = draw_split_pairs(splits, tokenizer.vocabulary, training=10, dev=50)
    inputs = SPLIT_PAIRS_TASK.encode(dev, tokenizer, 64)
    assert len(inputs) == 50
    logits = np.eye(2, dtype=np.float32)[inputs.labels]
    assert SPLIT_PAIRS_TASK.score(dev, SPLIT_PAIRS_TASK.decode(dev, inputs, logits))["accuracy"] == 100


def test_predictions_are_written_as_label_names(corpus, tmp_path: Path):
    splits, tokenizer = corpus
    _, dev = draw_split_pairs(splits, tokenizer.vocabulary, training=10, dev=4)
    SPLIT_PAIRS_TASK.write_predictions(dev, np.array([0, 1, 0, 0]), tmp_path / "predictions.tsv")
    assert (tmp_path / "predictions.tsv").read_text().split() == (
        "index prediction 0 together 1 apart 2 together 3 together".split()  # noqa: SIM905
    )
