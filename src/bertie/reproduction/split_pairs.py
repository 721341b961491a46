"""A pair set of any size, of a corpus's own documents: do the two halves belong together?

Dev sets of some hundred examples do not show differences of a point. Running text is cut between two words of
a sentence, and every other cut gets the second half of another one. The words at the cut tell, which is what
a network learns first; no way of pre-training is taught this very task.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from bertie.base.errors import DataError
from bertie.corpus.masking import Bools, continuation_mask
from bertie.corpus.shards import Corpus, Shard
from bertie.tasks.classification import Values
from bertie.tasks.custom import CustomClassification
from bertie.tasks.task import Inputs
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import Vocabulary

PIECES = 6  # of a half; with [CLS] and [SEP] twice fewer than the shortest sequences of the laptop scale
SEEDS = {"train": 0, "held_out": 1}  # the same pairs for all models, whatever their seed


class SplitPairsTask(CustomClassification):
    """The task, on examples that are word pieces already."""

    def gold(self, examples: Inputs) -> Values:  # type: ignore[override]
        """0 where the second half is that of the first, 1 where it is another's: int64 (n,)."""
        assert examples.labels is not None
        return examples.labels

    def encode(  # type: ignore[override]
        self, examples: Inputs, tokenizer: Tokenizer, max_seq_length: int
    ) -> Inputs:
        """The examples as they are."""
        return examples


SPLIT_PAIRS_TASK = SplitPairsTask("halves", ("together", "apart")).settled("single_label_classification")


def draw_split_pairs(
    corpus: Corpus, vocabulary: Vocabulary, training: int, dev: int
) -> tuple[Inputs, Inputs]:
    """Pairs of the corpus's training documents to learn from, and of its held-out ones to be judged by.

    Raises:
        DataError: a split has no documents, or too few places to cut at.
    """
    learnt = draw_pairs(corpus.train, vocabulary, training, SEEDS["train"])
    return learnt, draw_pairs(corpus.held_out, vocabulary, dev, SEEDS["held_out"])


def draw_pairs(shards: Sequence[Shard], vocabulary: Vocabulary, count: int, seed: int) -> Inputs:
    """`count` pairs, as many of each kind, `[CLS] first half [SEP] second half [SEP]` each.

    Raises:
        DataError: there are no documents, or not so many places to cut at.
    """
    if not shards:
        raise DataError("halves: the corpus has no held-out documents; set held_out above 0")
    random = np.random.default_rng(seed)
    is_continuation = continuation_mask(vocabulary)
    windows = np.concatenate([cut_windows(shard, is_continuation, count, random) for shard in shards])
    if len(windows) < count:
        raise DataError(
            f"halves: {count:,} pairs wanted, and only {len(windows):,} places to cut at; prepare more text, "
            "or ask for fewer under [halves] in a copy of the scale"
        )
    windows = random.permutation(windows)[:count]
    labels = np.arange(count) % 2
    windows[1::2, PIECES:] = np.roll(windows[1::2, PIECES:], 1, axis=0)

    length = 2 * PIECES + 3
    input_ids = np.full((count, length), vocabulary.sep_id, dtype=np.int32)
    input_ids[:, 0] = vocabulary.cls_id
    input_ids[:, 1 : PIECES + 1] = windows[:, :PIECES]
    input_ids[:, PIECES + 2 : -1] = windows[:, PIECES:]
    token_type_ids = np.tile(np.arange(length) > PIECES + 1, count).astype(np.int32)
    return Inputs(input_ids.ravel(), token_type_ids, np.arange(count + 1) * length, labels)


def cut_windows(
    shard: Shard, is_continuation: Bools, count: int, random: np.random.Generator
) -> npt.NDArray[np.int32]:
    """The pieces on both sides of places drawn from a shard: int32 (at most count, 2 · PIECES).

    A place is the beginning of a word that does not begin a sentence, with PIECES of its document before and
    after it.
    """
    may_cut = ~is_continuation[shard.tokens]
    may_cut[shard.sentence_ends[:-1]] = False
    for end in shard.sentence_ends[shard.document_ends - 1]:  # too near to where a document ends, or begins
        may_cut[max(end - PIECES + 1, 0) : end + PIECES] = False
    may_cut[:PIECES] = False
    cuts = np.flatnonzero(may_cut)
    cuts = random.choice(cuts, size=min(count, len(cuts)), replace=False)
    windows: npt.NDArray[np.int32] = shard.tokens[cuts[:, None] + np.arange(-PIECES, PIECES)].astype(np.int32)
    return windows
