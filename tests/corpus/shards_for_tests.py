"""Shards and vocabularies to make examples from."""

import itertools
import random
from collections.abc import Collection
from functools import lru_cache

import numpy as np
from tests.corpus.google_oracle import Document

from bertie.corpus.examples import Examples
from bertie.corpus.shards import Shard
from bertie.text.vocabulary import Vocabulary

FIRST_WORD = 5  # the ids before it are [PAD] [UNK] [CLS] [SEP] [MASK], as in the oracle


@lru_cache(maxsize=1)  # some tests make the same one of 600,000 entries
def make_vocabulary(size: int, continuation_ids: Collection[int] = ()) -> Vocabulary:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    ids = range(len(special), size)
    return Vocabulary(special + [f"{'##' * (token_id in continuation_ids)}{token_id}" for token_id in ids])


def make_shard(documents: list[Document], dtype: type = np.uint16) -> Shard:
    sentences = [sentence for document in documents for sentence in document]
    return Shard(
        np.array([token for sentence in sentences for token in sentence], dtype=dtype),
        np.cumsum([len(sentence) for sentence in sentences], dtype=np.int64),
        np.cumsum([len(document) for document in documents], dtype=np.int64),
    )


def list_documents(shard: Shard) -> list[Document]:
    sentences = np.split(shard.tokens, shard.sentence_ends)[:-1]
    starts = [0, *shard.document_ends.tolist()]
    return [[sentence.tolist() for sentence in sentences[a:b]] for a, b in itertools.pairwise(starts)]


def random_documents(count: int, seed: int, vocabulary_size: int, sentences: int = 20) -> list[Document]:
    """Make documents of random lengths, with sentences of random lengths."""
    rng = random.Random(seed)
    return [
        [
            [rng.randrange(FIRST_WORD, vocabulary_size) for _ in range(1 + int(rng.lognormvariate(3, 0.6)))]
            for _ in range(rng.randint(1, 2 * sentences))
        ]
        for _ in range(count)
    ]


def numbered_shard(sentence_lengths: list[list[int]], first: int = FIRST_WORD) -> Shard:
    """Make a shard in which the id of each token is its position plus `first`."""
    ends = np.cumsum([length for document in sentence_lengths for length in document])
    document_ends = np.cumsum([len(document) for document in sentence_lengths])
    return Shard(np.arange(first, first + ends[-1], dtype=np.uint32), ends, document_ends)


def numbered_corpus() -> tuple[list[Shard], Vocabulary]:
    """Make two shards of several blocks each, without repeated tokens."""
    rng = random.Random(7)
    lengths = [
        [[rng.randint(3, 60) for _ in range(rng.randint(1, 80))] for _ in range(150)] for _ in range(2)
    ]
    first = numbered_shard(lengths[0])
    second = numbered_shard(lengths[1], FIRST_WORD + len(first.tokens))
    return [first, second], make_vocabulary(FIRST_WORD + len(first.tokens) + len(second.tokens))


def original_tokens(examples: Examples) -> list[list[int]]:
    """Return the tokens of each example as they were before masking."""
    ids = examples.input_ids.copy()
    ids[examples.masked_positions] = examples.masked_labels
    return [ids[start:end].tolist() for start, end in itertools.pairwise(examples.bounds)]
