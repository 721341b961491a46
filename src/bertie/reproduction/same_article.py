"""Same article, a task drawn from a corpus: are two passages from one document?

The passages are not adjacent, so their topics decide the answer, not the words at a boundary as in
`split_pairs`. Next-sentence prediction is a related task, but its second segment follows the first.
"""

from collections.abc import Sequence

import numpy as np

from bertie.base.arrays import Int32s, Int64s
from bertie.base.errors import DataError
from bertie.corpus.prepared import Corpus
from bertie.corpus.shards import Shard
from bertie.reproduction.split_pairs import DrawnPairsTask
from bertie.tasks.task import Inputs
from bertie.text.vocabulary import Vocabulary

SAME_ARTICLE = "same_article"  # the task's name in tables and scales
PASSAGE_LENGTH = 30  # tokens; with [CLS] and two [SEP], a pair is shorter than 64
MIN_DISTANCE = 30  # tokens between two passages of one document
SEEDS = {"train": 0, "held_out": 1}  # all models get the same pairs, whatever their seed

SAME_ARTICLE_TASK = DrawnPairsTask(SAME_ARTICLE, ("same", "different")).with_problem_type(
    "single_label_classification"
)


def draw_same_article(
    corpus: Corpus, vocabulary: Vocabulary, training: int, dev: int
) -> tuple[Inputs, Inputs]:
    """Draw training pairs from the training documents, dev pairs from held-out ones.

    Raises:
        DataError: a part of the corpus has fewer than two documents with two passages.
    """
    training_pairs = draw_passages(corpus.train, vocabulary, training, SEEDS["train"])
    return training_pairs, draw_passages(corpus.held_out, vocabulary, dev, SEEDS["held_out"])


def draw_passages(shards: Sequence[Shard], vocabulary: Vocabulary, count: int, seed: int) -> Inputs:
    """Draw `count` pairs, half of them of each class.

    A document may be drawn several times. A pair is encoded as `[CLS] passage [SEP] passage [SEP]`. Both
    classes draw their documents and positions in the same way, so one passage says nothing about the label.

    Raises:
        DataError: fewer than two documents have two passages.
    """
    random = np.random.default_rng(seed)
    shard_of, first_token, slack = _find_documents(shards)
    num_documents = len(slack)
    if num_documents < 2:
        raise DataError(
            f"{SAME_ARTICLE}: {num_documents} of the corpus's documents for training or held-out documents "
            f"have {2 * PASSAGE_LENGTH + MIN_DISTANCE} tokens, but two are needed; prepare more or longer "
            f"texts, or raise held_out in a copy of the scale"
        )
    labels = np.arange(count) % 2
    first_document = random.integers(num_documents, size=count)
    other_document = (first_document + random.integers(1, num_documents, size=count)) % num_documents
    documents = first_document, np.where(labels == 0, first_document, other_document)

    # The positions of two passages in each of the documents, of which one is used.
    earlier = [random.integers(slack[document] + 1) for document in documents]
    earlier[1] = np.where(labels == 0, earlier[0], earlier[1])
    later = earlier[1] + random.integers(slack[documents[1]] - earlier[1] + 1)
    starts = first_token[documents[0]] + earlier[0], first_token[documents[1]] + later
    starts = starts[0], starts[1] + PASSAGE_LENGTH + MIN_DISTANCE

    length = 2 * PASSAGE_LENGTH + 3
    input_ids = np.full((count, length), vocabulary.sep_id, dtype=np.int32)
    input_ids[:, 0] = vocabulary.cls_id
    for column, document, start in zip((1, PASSAGE_LENGTH + 2), documents, starts, strict=True):
        passages = _read_passages(shards, shard_of[document], start)
        input_ids[:, column : column + PASSAGE_LENGTH] = passages
    token_type_ids = np.tile(np.arange(length) > PASSAGE_LENGTH + 1, count).astype(np.int32)
    return Inputs(input_ids.ravel(), token_type_ids, np.arange(count + 1) * length, labels)


def _find_documents(shards: Sequence[Shard]) -> tuple[Int64s, Int64s, Int64s]:
    """Find the documents that have two passages.

    Returns:
        For each document its shard, the index of its first token there, and the number of tokens
        that it has beyond two passages and their distance: int64 (n,) each.
    """
    found: list[tuple[Int64s, Int64s, Int64s]] = [(np.zeros(0, np.int64),) * 3]
    for number, shard in enumerate(shards):
        ends = shard.sentence_ends[shard.document_ends - 1]
        starts = np.concatenate([[0], ends[:-1]])
        slack = ends - starts - (2 * PASSAGE_LENGTH + MIN_DISTANCE)
        kept = slack >= 0
        found.append((np.full(kept.sum(), number), starts[kept], slack[kept]))
    shard_of, first_token, slack = (np.concatenate(values) for values in zip(*found, strict=True))
    return shard_of, first_token, slack


def _read_passages(shards: Sequence[Shard], shard_of: Int64s, starts: Int64s) -> Int32s:
    """Return the tokens of passages that begin at `starts`, int32 (n, PASSAGE_LENGTH)."""
    passages = np.empty((len(starts), PASSAGE_LENGTH), np.int32)
    for number, shard in enumerate(shards):
        chosen = shard_of == number
        passages[chosen] = shard.tokens[starts[chosen, None] + np.arange(PASSAGE_LENGTH)]
    return passages
