"""Pairs of passages of one document, or of two."""

import numpy as np
import pytest

from bertie.base.errors import DataError
from bertie.corpus.shards import Shard
from bertie.reproduction.same_article import (
    MIN_DISTANCE,
    PASSAGE_LENGTH,
    SAME_ARTICLE_TASK,
    draw_passages,
)
from bertie.text.vocabulary import Vocabulary

NEEDED = 2 * PASSAGE_LENGTH + MIN_DISTANCE
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LENGTHS = [(NEEDED, NEEDED - 1, 400), (300, 20, 150)]  # of the documents of two shards


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary([*SPECIAL, *(f"w{i}" for i in range(2000))])


@pytest.fixture(scope="module")
def shards() -> list[Shard]:
    """Return shards in which each token occurs once: its id gives its position."""
    first = np.cumsum([len(SPECIAL), *map(sum, LENGTHS)])
    return [
        Shard(
            np.arange(start, start + sum(lengths), dtype=np.uint16),
            np.cumsum(lengths),
            np.arange(1, len(lengths) + 1),
        )
        for start, lengths in zip(first, LENGTHS, strict=False)
    ]


def test_pairs_are_passages_of_one_document_or_of_two(shards, vocabulary):
    pairs = draw_passages(shards, vocabulary, 1000, seed=0)
    rows = pairs.input_ids.reshape(1000, -1)
    assert rows.shape[1] == 2 * PASSAGE_LENGTH + 3
    assert (rows[:, [0, PASSAGE_LENGTH + 1, -1]] == [vocabulary.cls_id, *[vocabulary.sep_id] * 2]).all()
    first, second = rows[:, 1 : PASSAGE_LENGTH + 1], rows[:, PASSAGE_LENGTH + 2 : -1]
    for passages in (first, second):
        assert (np.diff(passages, axis=1) == 1).all()
    document_ends = len(SPECIAL) + np.cumsum(sum(LENGTHS, ()))
    documents = [np.searchsorted(document_ends, passages, side="right") for passages in (first, second)]
    assert all((owner == owner[:, :1]).all() for owner in documents)
    assert set(documents[0][:, 0]) == set(documents[1][:, 0]) == {0, 2, 3, 5}
    same = documents[0][:, 0] == documents[1][:, 0]
    assert np.array_equal(SAME_ARTICLE_TASK.gold(pairs), np.where(same, 0, 1))
    assert same.sum() == 500
    assert (second[same, 0] - first[same, -1] > MIN_DISTANCE).all()
    token_types = pairs.token_type_ids.reshape(1000, -1)
    assert (token_types[0] == [*[0] * (PASSAGE_LENGTH + 2), *[1] * (PASSAGE_LENGTH + 1)]).all()


def test_one_passage_says_nothing_about_the_label(shards, vocabulary):
    pairs = draw_passages(shards, vocabulary, 8000, seed=1)
    rows, labels = pairs.input_ids.reshape(8000, -1), SAME_ARTICLE_TASK.gold(pairs)
    for column in (1, PASSAGE_LENGTH + 2):
        means = [rows[labels == label, column].mean() for label in (0, 1)]
        assert abs(means[0] - means[1]) < 4 * rows[:, column].std() * np.sqrt(2 / 4000)


def test_pairs_are_a_function_of_the_seed(shards, vocabulary):
    one, again, other = (draw_passages(shards, vocabulary, 50, seed=seed).input_ids for seed in (2, 2, 3))
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)


@pytest.mark.parametrize("num_shards", [0, 1])
def test_too_few_long_documents_are_an_error(vocabulary, num_shards):
    shard = Shard(np.full(NEEDED, 5, np.uint16), np.array([NEEDED]), np.array([1]))
    with pytest.raises(DataError, match="have 90 tokens, but two are needed; prepare more or longer texts"):
        draw_passages([shard] * num_shards, vocabulary, 8, seed=0)
