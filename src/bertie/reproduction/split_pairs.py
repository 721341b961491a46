"""Split pairs, a task drawn from a corpus: do two halves belong to the same text?

Dev sets of a few hundred examples cannot show differences of one point; this task may have any size.
Running text is split between two words of a sentence, and every other first half gets the second
half of another text. The words next to the split decide the answer, and a network learns relations
between neighbouring words first. No pre-training objective is the same task.
"""

from collections.abc import Sequence

import numpy as np

from bertie.base.arrays import Bools, Int32s
from bertie.base.errors import DataError
from bertie.corpus.masking import continuation_mask
from bertie.corpus.prepared import Corpus
from bertie.corpus.shards import Shard
from bertie.tasks.custom.classification import CustomClassification
from bertie.tasks.metrics import LabelArray
from bertie.tasks.task import Inputs
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import Vocabulary

SPLIT_PAIRS = "split_pairs"  # the task's name in tables and scales
# Tokens of each half. With [CLS] and two [SEP], a pair is shorter than the laptop scale's shortest sequences.
HALF_LENGTH = 6
SEEDS = {"train": 0, "held_out": 1}  # all models get the same pairs, whatever their seed


class DrawnPairsTask(CustomClassification):
    """A task on pairs that are drawn from a corpus; its examples are already encoded."""

    def gold(self, examples: Inputs) -> LabelArray:  # type: ignore[override]
        """Return the labels, int64 (n,): 0 for parts of one text, 1 for parts of two."""
        assert examples.labels is not None
        return examples.labels

    def encode(  # type: ignore[override]
        self, examples: Inputs, tokenizer: Tokenizer, max_seq_length: int
    ) -> Inputs:
        """Return the examples unchanged."""
        return examples


SPLIT_PAIRS_TASK = DrawnPairsTask(SPLIT_PAIRS, ("together", "apart")).with_problem_type(
    "single_label_classification"
)


def draw_split_pairs(
    corpus: Corpus, vocabulary: Vocabulary, training: int, dev: int
) -> tuple[Inputs, Inputs]:
    """Draw training pairs from the training documents, dev pairs from held-out ones.

    Raises:
        DataError: a part of the corpus has no documents, or too few positions where it can be split.
    """
    training_pairs = draw_pairs(corpus.train, vocabulary, training, SEEDS["train"])
    return training_pairs, draw_pairs(corpus.held_out, vocabulary, dev, SEEDS["held_out"])


def draw_pairs(shards: Sequence[Shard], vocabulary: Vocabulary, count: int, seed: int) -> Inputs:
    """Draw `count` pairs, half of them of each class.

    A pair is encoded as `[CLS] first half [SEP] second half [SEP]`.

    Raises:
        DataError: there are no documents, or too few positions where they can be split.
    """
    if not shards:
        raise DataError(f"{SPLIT_PAIRS}: the corpus has no held-out documents; set held_out above 0")
    random = np.random.default_rng(seed)
    is_continuation = continuation_mask(vocabulary)
    windows = np.concatenate([draw_windows(shard, is_continuation, count, random) for shard in shards])
    if len(windows) < count:
        raise DataError(
            f"{SPLIT_PAIRS}: {count:,} pairs are needed, but the text can be split at only "
            f"{len(windows):,} positions; prepare more text, or lower the counts under [{SPLIT_PAIRS}] in "
            f"a copy of the scale"
        )
    windows = random.permutation(windows)[:count]
    labels = np.arange(count) % 2
    windows[1::2, HALF_LENGTH:] = np.roll(windows[1::2, HALF_LENGTH:], 1, axis=0)

    length = 2 * HALF_LENGTH + 3
    input_ids = np.full((count, length), vocabulary.sep_id, dtype=np.int32)
    input_ids[:, 0] = vocabulary.cls_id
    input_ids[:, 1 : HALF_LENGTH + 1] = windows[:, :HALF_LENGTH]
    input_ids[:, HALF_LENGTH + 2 : -1] = windows[:, HALF_LENGTH:]
    token_type_ids = np.tile(np.arange(length) > HALF_LENGTH + 1, count).astype(np.int32)
    return Inputs(input_ids.ravel(), token_type_ids, np.arange(count + 1) * length, labels)


def draw_windows(shard: Shard, is_continuation: Bools, count: int, random: np.random.Generator) -> Int32s:
    """Draw windows of a shard around positions where it can be split.

    Such a position is the start of a word that does not begin a sentence, with HALF_LENGTH tokens
    of its document on either side.

    Args:
        shard: the documents.
        is_continuation: whether a token id continues a word, bool (V,).
        count: the number of windows; fewer are returned if the shard has fewer positions.
        random: generator that draws the positions, without replacement.

    Returns:
        The tokens, HALF_LENGTH before and HALF_LENGTH after each position:
        int32 (windows, 2 · HALF_LENGTH).
    """
    can_split = ~is_continuation[shard.tokens]
    can_split[shard.sentence_ends[:-1]] = False
    for end in shard.sentence_ends[shard.document_ends - 1]:  # too close to a document's end or start
        can_split[max(end - HALF_LENGTH + 1, 0) : end + HALF_LENGTH] = False
    can_split[:HALF_LENGTH] = False
    positions = np.flatnonzero(can_split)
    positions = random.choice(positions, size=min(count, len(positions)), replace=False)
    offsets = np.arange(-HALF_LENGTH, HALF_LENGTH)
    windows: Int32s = shard.tokens[positions[:, None] + offsets].astype(np.int32)
    return windows
