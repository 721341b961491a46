"""Shards and vocabularies to make examples of, and what stood in an example before masking."""

import itertools
import random
from collections.abc import Collection

import numpy as np
from tests.corpus.google_oracle import Document

from bertie.corpus.examples import Examples
from bertie.corpus.shards import Shard
from bertie.text.vocabulary import Vocabulary

FIRST_WORD = 5  # [PAD] [UNK] [CLS] [SEP] [MASK] come before, as in the oracle


def vocabulary_of(size: int, continuation_mask: Collection[int] = ()) -> Vocabulary:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    ids = range(len(special), size)
    return Vocabulary(special + [f"{'##' * (token_id in continuation_mask)}{token_id}" for token_id in ids])


def make_shard(documents: list[Document], dtype: type = np.uint16) -> Shard:
    sentences = [sentence for document in documents for sentence in document]
    return Shard(
        np.array([token for sentence in sentences for token in sentence], dtype=dtype),
        np.cumsum([len(sentence) for sentence in sentences]),
        np.cumsum([len(document) for document in documents]),
    )


def make_documents(count: int, seed: int, vocabulary_size: int, sentences: int = 20) -> list[Document]:
    """Documents of random lengths, in sentences of random lengths."""
    rng = random.Random(seed)
    return [
        [
            [rng.randrange(FIRST_WORD, vocabulary_size) for _ in range(1 + int(rng.lognormvariate(3, 0.6)))]
            for _ in range(rng.randint(1, 2 * sentences))
        ]
        for _ in range(count)
    ]


def numbered_shard(sentence_lengths: list[list[int]], first: int = FIRST_WORD) -> Shard:
    """A shard in which no token comes twice: an id is its place plus `first`."""
    ends = np.cumsum([length for document in sentence_lengths for length in document])
    document_ends = np.cumsum([len(document) for document in sentence_lengths])
    return Shard(np.arange(first, first + ends[-1], dtype=np.uint32), ends, document_ends)


def numbered_corpus() -> tuple[list[Shard], Vocabulary]:
    """Two shards of some blocks, no token twice."""
    rng = random.Random(7)
    lengths = [
        [[rng.randint(3, 60) for _ in range(rng.randint(1, 80))] for _ in range(150)] for _ in range(2)
    ]
    first = numbered_shard(lengths[0])
    second = numbered_shard(lengths[1], FIRST_WORD + len(first.tokens))
    return [first, second], vocabulary_of(FIRST_WORD + len(first.tokens) + len(second.tokens))


def unmasked(examples: Examples) -> list[list[int]]:
    """The tokens of each example as they were before masking."""
    ids = examples.input_ids.copy()
    ids[examples.masked_positions] = examples.masked_labels
    return [ids[start:end].tolist() for start, end in itertools.pairwise(examples.bounds)]
