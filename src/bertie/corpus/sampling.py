"""Shards -> an endless stream of pre-training examples, in an order that is a function of the seed.

The unit of order is a block: a run of whole documents of one shard. A keyed permutation orders the blocks
of an epoch, and a block's examples are shuffled. `LANES` lanes work through that sequence side by side, so
that a batch mixes many blocks, and a stream goes on from its cursor at the cost of one block a lane. An
example is a function of (seed, phase, epoch, block, position in the block) alone.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from bertie.base.errors import DataError
from bertie.base.random import open_stream, permutation, stream_key
from bertie.corpus.examples import Examples, ExampleSettings, Int64s, close_gaps, measure, write_examples
from bertie.corpus.masking import continuation_mask
from bertie.corpus.sentence_pairs import PAIR, Pairs, cut_documents, pair_sentences, run_start
from bertie.corpus.shards import Shard
from bertie.text.vocabulary import Vocabulary

# Part of the order of examples: a change gives every seed another stream.
BLOCK_TOKENS = 16_384  # some 200 examples of length 128: small beside a corpus, large beside a call
LANES = 16

# The sub-streams of a block's random numbers.
PAIRING, ORDER, MASKING = range(3)


@dataclass(frozen=True)
class Block:
    """A block's examples, as yet without their tokens: the pairs in their final order."""

    shard: Shard
    pairs: Pairs
    masking_key: np.uint64


@dataclass(frozen=True)
class Run:
    """Pairs start … stop of a block: rows row, row + stride, … of the examples asked for."""

    block: Block
    start: int
    stop: int
    row: int
    stride: int


@dataclass
class Lane:
    """Where a lane stands: the number in the sequence of blocks, and the examples taken of that block."""

    number: int
    position: int
    block: Block


def read_only(shard: Shard) -> Shard:
    """The shard with its arrays as plain read-only views, so that a kernel is compiled for one kind only."""
    tokens = shard.tokens.view(np.ndarray)
    sentence_ends = shard.sentence_ends.view(np.ndarray)
    document_ends = shard.document_ends.view(np.ndarray)
    for view in (tokens, sentence_ends, document_ends):
        view.flags.writeable = False
    return Shard(tokens, sentence_ends, document_ends)


def cut_blocks(shard: Shard) -> Int64s:
    """Where the shard's blocks end in `document_ends`, exclusive: int64 (blocks,).

    A block ends with the document that reaches the next multiple of BLOCK_TOKENS, counted from the shard's
    beginning; so a long document is a block of its own, or one with what stood before it.
    """
    multiples = np.arange(BLOCK_TOKENS, len(shard.tokens), BLOCK_TOKENS)
    sentences = np.searchsorted(shard.sentence_ends, multiples)
    documents = np.searchsorted(shard.document_ends, sentences, side="right")
    return np.unique(np.append(documents + 1, len(shard.document_ends)))


@lru_cache(maxsize=4)  # lanes cross from one epoch to the next at different times
def block_order(blocks: int, seed: int, phase: int, epoch: int) -> Int64s:
    """The order of an epoch's blocks: int64 (blocks,)."""
    return permutation(blocks, seed, phase, epoch)


class ExampleStream:
    """The endless stream of examples of a corpus.

    Args:
        shards: the corpus; a second sentence from another document comes from the shard of the first.
        settings: how examples are made.
        vocabulary: the ids of [CLS], [SEP] and [MASK], and the number of ids.
        seed, phase: name the stream; streams of another seed or phase are independent of it.

    Raises:
        DataError: there is no shard, or one has too few documents.
    """

    def __init__(
        self,
        shards: Iterable[Shard],
        settings: ExampleSettings,
        vocabulary: Vocabulary,
        seed: int,
        phase: int = 0,
    ) -> None:
        self.shards = [read_only(shard) for shard in shards]
        self.settings = settings
        self.vocabulary = vocabulary
        self.seed = seed
        self.phase = phase
        check_documents(self.shards, settings)
        self._is_continuation = continuation_mask(vocabulary) if settings.whole_word_masking else None
        self._block_ends = [cut_blocks(shard) for shard in self.shards]
        self._first_blocks = np.cumsum([0, *map(len, self._block_ends)]).tolist()
        self.blocks: int = self._first_blocks[-1]
        self._taken = 0  # examples, modulo LANES
        self._lanes = [Lane(number, 0, self.block(number)) for number in range(LANES)]

    def next(self, count: int) -> Examples:
        """The next `count` examples; how a stream is cut into calls does not change them."""
        runs = []
        for row in range(min(count, LANES)):
            lane = self._lanes[(self._taken + row) % LANES]
            while row < count:
                start = lane.position
                stop = min(start + len(range(row, count, LANES)), len(lane.block.pairs))
                runs.append(Run(lane.block, start, stop, row, LANES))
                row += (stop - start) * LANES
                lane.position = stop
                if stop == len(lane.block.pairs):
                    lane.number += LANES
                    lane.position = 0
                    lane.block = self.block(lane.number)
        self._taken = (self._taken + count) % LANES
        return self.assemble(runs, count)

    def state(self) -> dict[str, Any]:
        """The cursor, for JSON: all that `restore` needs on the same corpus, settings, seed and phase."""
        return {"taken": self._taken, "lanes": [[lane.number, lane.position] for lane in self._lanes]}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken; costs one block a lane."""
        self._taken = state["taken"]
        self._lanes = [Lane(number, position, self.block(number)) for number, position in state["lanes"]]

    def block(self, number: int) -> Block:
        """Block `number` of the sequence of all epochs."""
        epoch, place = divmod(number, self.blocks)
        block = int(block_order(self.blocks, self.seed, self.phase, epoch)[place])
        shard_number = bisect_right(self._first_blocks, block) - 1
        shard, ends = self.shards[shard_number], self._block_ends[shard_number]
        place_in_shard = block - self._first_blocks[shard_number]
        first_document, last_document = run_start(ends, place_in_shard), int(ends[place_in_shard])
        first_token, last_token = (
            run_start(shard.sentence_ends, run_start(shard.document_ends, document))
            for document in (first_document, last_document)
        )
        settings, key = self.settings, (self.seed, self.phase, epoch, block)
        pairs = np.empty(last_token - first_token, dtype=PAIR)
        documents = (shard.sentence_ends, shard.document_ends, first_document, last_document)
        if settings.pairs == "none":  # [CLS] and one [SEP] beside the tokens, where a pair has two
            lengths = (settings.max_seq_length - 2, settings.short_sequence_probability)
            count = cut_documents(open_stream(*key, PAIRING), *documents, *lengths, pairs)
        else:
            lengths = (settings.max_seq_length - 3, settings.short_sequence_probability)
            count = pair_sentences(open_stream(*key, PAIRING), *documents, *lengths, settings.pairs, pairs)
        return Block(shard, pairs[permutation(count, *key, ORDER)], stream_key(*key, MASKING))

    def assemble(self, runs: Sequence[Run], count: int) -> Examples:
        """The examples of `runs`, which together fill rows 0 … count - 1."""
        settings = self.settings
        pairs = np.empty(count, dtype=PAIR)
        for run in runs:
            rows = slice(run.row, run.row + (run.stop - run.start) * run.stride, run.stride)
            pairs[rows] = run.block.pairs[run.start : run.stop]
        bounds, masked_bounds = measure(pairs, settings.masking_rate, settings.max_predictions)
        input_ids, token_type_ids = (np.empty(bounds[-1], dtype=np.int32) for _ in range(2))
        masked_positions, masked_labels = (np.empty(masked_bounds[-1], dtype=np.int64) for _ in range(2))
        masks = np.empty(count, dtype=np.int64)
        for run in runs:
            write_examples(
                run.block.shard.tokens,
                run.block.pairs,
                run.block.masking_key,
                run.start,
                run.stop,
                run.row,
                run.stride,
                (self.vocabulary.cls_id, self.vocabulary.sep_id, self.vocabulary.mask_id),
                len(self.vocabulary),
                (settings.mask_probability, settings.keep_probability),
                self._is_continuation,
                bounds,
                masked_bounds,
                input_ids,
                token_type_ids,
                masked_positions,
                masked_labels,
                masks,
            )
        if settings.whole_word_masking:
            masked_bounds = close_gaps(masked_bounds, masks, masked_positions, masked_labels)
        return Examples(
            input_ids=input_ids,
            token_type_ids=token_type_ids,
            bounds=bounds,
            masked_positions=masked_positions[: masked_bounds[-1]],
            masked_labels=masked_labels[: masked_bounds[-1]],
            masked_bounds=masked_bounds,
            next_sentence_labels=None if settings.pairs == "none" else pairs["label"].copy(),
        )


def check_documents(shards: Sequence[Shard], settings: ExampleSettings) -> None:
    """Raise DataError where there is no shard, or one has too few documents to make examples of."""
    fewest = min((len(shard.document_ends) for shard in shards), default=0)
    if fewest == 0:
        raise DataError("the corpus, or a shard of it, holds no documents: prepare it from more text")
    if fewest == 1 and settings.pairs != "none":
        raise DataError(
            "a shard of the corpus holds one document, and a false next sentence may need another one: "
            'prepare more documents or set examples.pairs = "none"'
        )


def held_out_examples(
    shards: Iterable[Shard], settings: ExampleSettings, vocabulary: Vocabulary, seed: int, count: int
) -> Examples:
    """A fixed set of examples for evaluation: `count` of one epoch, or all of them where they are fewer.

    Each block gives its first examples, in proportion to what it has, so that a long document does not
    stand for all.

    Raises:
        DataError: there is no shard, or one has too few documents.
    """
    stream = ExampleStream(shards, settings, vocabulary, seed)
    blocks = [stream.block(number) for number in range(stream.blocks)]
    ends = np.cumsum([0, *(len(block.pairs) for block in blocks)])
    count = min(count, int(ends[-1]))
    rows = (ends * count // ends[-1]).tolist()
    places = zip(blocks, pairwise(rows), strict=True)
    runs = [Run(block, 0, end - row, row, 1) for block, (row, end) in places]
    return stream.assemble(runs, count)
