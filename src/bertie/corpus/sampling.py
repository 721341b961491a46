"""The endless stream of pre-training examples, in an order fixed by the seed.

The unit of order is a block: a run of whole documents of one shard. A keyed permutation orders the
blocks of an epoch, and the examples of each block are shuffled. Lanes go through the sequence of
blocks side by side, so that a batch mixes examples of many blocks. A stream resumes from its cursor
at the cost of one block per lane.

Processes that train together share the rows of each batch. With as many lanes as rows, each process
makes only the blocks of its lanes; the order of the examples does not depend on the number of
processes.

In a corpus of several languages, `language_smoothing` repeats blocks of the smaller ones. Each
language has separate epochs, and repeats a block only after all its other blocks.

For a given corpus, vocabulary and settings, an example depends only on the seed, the phase, the
epoch, the block and the position in the block.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np

from bertie.base.arrays import Int64s
from bertie.base.errors import DataError
from bertie.base.random import open_stream, permutation, stream_key
from bertie.corpus.examples import Examples, ExampleSettings, close_gaps, measure_examples, write_examples
from bertie.corpus.input_languages import oversampling_factors
from bertie.corpus.masking import continuation_mask
from bertie.corpus.sentence_pairs import NO_LIMIT, PAIR, Pairs, cut_documents, pair_sentences, start_of
from bertie.corpus.shards import Shard, cut_blocks
from bertie.text.vocabulary import Vocabulary

# The numbers of lanes determine the order of examples, as BLOCK_TOKENS does.
LANES = 16  # at least
MIN_LANE_BLOCKS = 8  # of an epoch, so that the lanes come to its end at about the same time
POSITION_BITS = 32  # a cursor is one number: the index of the block, then the position in it

# The independent streams of random numbers of a block.
PAIRING, ORDER, MASKING = range(3)


@dataclass(frozen=True)
class Block:
    """The examples of a block before they are written.

    Attributes:
        shard: the shard that holds the tokens.
        pairs: the pairs of the block, in their final order.
        masking_key: the key of the random numbers for masking.
    """

    shard: Shard
    pairs: Pairs
    masking_key: np.uint64


@dataclass(frozen=True)
class BlockSlice:
    """Pairs start … stop - 1 of a block, for rows row, row + stride, … of a batch."""

    block: Block
    start: int
    stop: int
    row: int
    stride: int


def count_lanes(batch_size: int, block_count: int) -> int:
    """Return the number of lanes for batches of a size.

    The corpus has `block_count` blocks. It divides the batch size, so that each row of a batch always comes
    from the same lane. Where that leaves a lane too few blocks, it is LANES.
    """
    most = min(batch_size, block_count // MIN_LANE_BLOCKS)
    return next((lanes for lanes in range(most, LANES, -1) if batch_size % lanes == 0), LANES)


def as_read_only(shard: Shard) -> Shard:
    """Return the shard with its arrays as plain read-only views.

    Memory-mapped and writable arrays would each make numba compile the kernels again.
    """
    tokens = shard.tokens.view(np.ndarray)
    sentence_ends = shard.sentence_ends.view(np.ndarray)
    document_ends = shard.document_ends.view(np.ndarray)
    for view in (tokens, sentence_ends, document_ends):
        view.flags.writeable = False
    return Shard(tokens, sentence_ends, document_ends, shard.block_ends)


@lru_cache(maxsize=4)  # lanes cross from one epoch to the next at different times
def block_order(block_count: int, seed: int, phase: int, epoch: int) -> Int64s:
    """Return the order of the blocks in an epoch: int64 (block_count,)."""
    return permutation(block_count, seed, phase, epoch)


class LanguageBlocks(NamedTuple):
    """The blocks of one language, and how many of them an epoch of the stream takes.

    Attributes:
        shards: the indices of its shards.
        bounds: how many of its blocks are before each of these shards; the last entry is their number.
        first_slot: the first of its places in an epoch.
        slots: the number of its places.
    """

    shards: list[int]
    bounds: list[int]
    first_slot: int
    slots: int


class StreamPosition(NamedTuple):
    """Where a stream continues.

    Attributes:
        taken: the number of examples taken, modulo the number of lanes.
        cursors: see `ExampleStream`, int64 (lanes,).
    """

    taken: int
    cursors: Int64s

    def to_json(self) -> dict[str, Any]:
        """Return the position as a value for JSON, which `ExampleStream.restore` takes."""
        numbers, positions = np.divmod(self.cursors, 1 << POSITION_BITS)
        return {"taken": self.taken, "lanes": np.stack([numbers, positions], axis=1).tolist()}


class ExampleStream:
    """An endless stream of examples of a corpus.

    Args:
        shards: the corpus. A random second segment comes from the same shard as the first one.
        settings: the settings of the examples.
        vocabulary: has the ids of [CLS], [SEP] and [MASK], and the number of ids.
        seed: identifies the stream together with `phase`; all streams are independent.
        phase: the number of the phase in a run; each phase has another stream.
        languages: the language of each shard, for `settings.language_smoothing`; if not given, all
            have the same.
        batch_size: the number of examples that `next` will be asked for, which determines the number
            of lanes; 0 for LANES.

    Attributes:
        block_count: the number of blocks in an epoch, repeated ones included.
        cursors: the cursor of each lane, int64 (lanes,): the number of the current block, counted over
            the blocks of all epochs, times 2^POSITION_BITS, plus the examples already taken from it. Of
            several processes, a process that never visits a lane has an earlier cursor of the lane.

    Raises:
        DataError: there is no shard, or a shard has too few documents.
    """

    def __init__(
        self,
        shards: Iterable[Shard],
        settings: ExampleSettings,
        vocabulary: Vocabulary,
        seed: int,
        phase: int = 0,
        languages: Sequence[str] | None = None,
        batch_size: int = 0,
    ) -> None:
        self.shards = [as_read_only(shard) for shard in shards]
        self.settings = settings
        self.vocabulary = vocabulary
        self.seed = seed
        self.phase = phase
        check_documents(self.shards, settings)
        self._is_continuation = continuation_mask(vocabulary) if settings.whole_word_masking else None
        self._block_ends = [
            cut_blocks(shard) if shard.block_ends is None else shard.block_ends for shard in self.shards
        ]
        self._first_blocks = np.cumsum([0, *map(len, self._block_ends)]).tolist()  # of each shard
        self._languages = self._divide_epoch(languages or [""] * len(self.shards))
        self.block_count: int = sum(language.slots for language in self._languages)
        lanes = count_lanes(batch_size, self.block_count)
        self._taken = 0  # see StreamPosition
        self.cursors = np.arange(lanes) << POSITION_BITS
        self._blocks: dict[int, Block] = {}  # of the lanes, as far as they were needed

    def next(self, count: int, rank: int = 0, world_size: int = 1) -> Examples:
        """Return the next `count` examples, or one process's part of them.

        The examples do not depend on how the stream is divided into calls, nor among processes.

        Args:
            count: the number of examples of all processes.
            rank, world_size: make only rows rank, rank + world_size, … of them. All calls must have the
                same arguments then.
        """
        lanes = len(self.cursors)
        own_rows = range(rank, count, world_size)
        is_aligned = count % lanes == 0  # then a row comes from the same lane in each call
        lanes_to_visit = sorted({row % lanes for row in own_rows}) if is_aligned else range(lanes)
        slices = []
        for lane in lanes_to_visit:
            number, position = divmod(int(self.cursors[lane]), 1 << POSITION_BITS)
            block = self._blocks.get(lane) or self.block(number)
            row = (lane - self._taken) % lanes
            while row < count:
                stop = min(position + len(range(row, count, lanes)), len(block.pairs))
                slices += _rows_of_rank(BlockSlice(block, position, stop, row, lanes), rank, world_size)
                row += (stop - position) * lanes
                position = stop
                if stop == len(block.pairs):
                    number, position = number + lanes, 0
                    block = self.block(number)
            self._blocks[lane] = block
            self.cursors[lane] = number << POSITION_BITS | position
        self._taken = (self._taken + count) % lanes
        return self.assemble(slices, len(own_rows))

    def position(self) -> StreamPosition:
        """Return where this stream continues.

        Later calls of `next` do not change the value.
        """
        return StreamPosition(self._taken, self.cursors.copy())

    def restore(self, position: dict[str, Any]) -> None:
        """Continue at a position of a stream of the same corpus, settings, seed and phase.

        Args:
            position: from `StreamPosition.to_json`. It costs one block per lane.
        """
        self._taken = position["taken"]
        numbers, positions = np.array(position["lanes"]).T
        self.cursors = numbers << POSITION_BITS | positions
        self._blocks.clear()

    def block(self, number: int) -> Block:
        """Make block `number`, counted over the blocks of all epochs."""
        epoch, rank = divmod(number, self.block_count)
        slot = int(block_order(self.block_count, self.seed, self.phase, epoch)[rank])
        language = next(part for part in reversed(self._languages) if part.first_slot <= slot)
        # The epoch of the language, in which each of its blocks occurs once.
        taken = epoch * language.slots + slot - language.first_slot
        epoch, index = divmod(taken, language.bounds[-1])
        place = bisect_right(language.bounds, index) - 1
        shard_index, index_in_shard = language.shards[place], index - language.bounds[place]
        shard, block_ends = self.shards[shard_index], self._block_ends[shard_index]
        block = self._first_blocks[shard_index] + index_in_shard
        first_document, stop_document = start_of(block_ends, index_in_shard), int(block_ends[index_in_shard])
        start_token, stop_token = (
            start_of(shard.sentence_ends, start_of(shard.document_ends, document))
            for document in (first_document, stop_document)
        )
        settings, key = self.settings, (self.seed, self.phase, epoch, block)
        pairs = np.empty(stop_token - start_token, dtype=PAIR)
        documents = (shard.sentence_ends, shard.document_ends, first_document, stop_document)
        stream, short = open_stream(*key, PAIRING), settings.short_sequence_probability
        if settings.pairs == "none":  # two special tokens: [CLS] and one [SEP]
            count = cut_documents(stream, *documents, settings.max_seq_length - 2, short, pairs)
        else:
            max_tokens = settings.max_seq_length - 3  # create_pretraining_data.py:230
            near_distance = settings.near_distance or NO_LIMIT
            count = pair_sentences(
                stream, *documents, max_tokens, short, settings.pairs, near_distance, pairs
            )
        return Block(shard, pairs[permutation(count, *key, ORDER)], stream_key(*key, MASKING))

    def _divide_epoch(self, languages: Sequence[str]) -> list[LanguageBlocks]:
        """Divide the places of an epoch among the languages of the shards."""
        sizes, shards = dict.fromkeys(languages, 0), {language: list[int]() for language in languages}
        for index, (language, shard) in enumerate(zip(languages, self.shards, strict=True)):
            sizes[language] += len(shard.tokens)
            shards[language].append(index)
        parts, first_slot = [], 0
        for language, factor in oversampling_factors(sizes, self.settings.language_smoothing).items():
            bounds = [0, *accumulate(len(self._block_ends[index]) for index in shards[language])]
            slots = round(factor * bounds[-1])
            parts.append(LanguageBlocks(shards[language], bounds, first_slot, slots))
            first_slot += slots
        return parts

    def assemble(self, slices: Sequence[BlockSlice], count: int) -> Examples:
        """Write the examples of `slices`, which together fill rows 0 … count - 1."""
        settings, vocabulary = self.settings, self.vocabulary
        pairs = np.empty(count, dtype=PAIR)
        for part in slices:
            rows = slice(part.row, part.row + (part.stop - part.start) * part.stride, part.stride)
            pairs[rows] = part.block.pairs[part.start : part.stop]
        bounds, masked_bounds = measure_examples(pairs, settings.masking_rate, settings.max_predictions)
        input_ids, token_type_ids = (np.empty(bounds[-1], dtype=np.int32) for _ in range(2))
        masked_positions, masked_labels = (np.empty(masked_bounds[-1], dtype=np.int64) for _ in range(2))
        mask_counts = np.empty(count, dtype=np.int64)
        for part in slices:
            write_examples(
                part.block.shard.tokens,
                part.block.pairs,
                part.block.masking_key,
                part.start,
                part.stop,
                part.row,
                part.stride,
                (vocabulary.cls_id, vocabulary.sep_id, vocabulary.mask_id),
                len(vocabulary),
                (settings.mask_probability, settings.keep_probability),
                self._is_continuation,
                bounds,
                masked_bounds,
                input_ids,
                token_type_ids,
                masked_positions,
                masked_labels,
                mask_counts,
            )
        if settings.whole_word_masking:
            masked_bounds = close_gaps(masked_bounds, mask_counts, masked_positions, masked_labels)
        return Examples(
            input_ids=input_ids,
            token_type_ids=token_type_ids,
            bounds=bounds,
            masked_positions=masked_positions[: masked_bounds[-1]],
            masked_labels=masked_labels[: masked_bounds[-1]],
            masked_bounds=masked_bounds,
            next_sentence_labels=None if settings.pairs == "none" else pairs["label"].copy(),
        )


def _rows_of_rank(part: BlockSlice, rank: int, world_size: int) -> list[BlockSlice]:
    """Return the rows rank, rank + world_size, … of a slice.

    Their numbers are positions in the batch of that rank.
    """
    if world_size == 1:
        return [part]
    rows = range(part.row, part.row + (part.stop - part.start) * part.stride, part.stride)
    return [
        BlockSlice(part.block, position, position + 1, row // world_size, 1)
        for position, row in enumerate(rows, part.start)
        if row % world_size == rank
    ]


def check_documents(shards: Sequence[Shard], settings: ExampleSettings) -> None:
    """Check that every shard has enough documents to make examples of.

    Raises:
        DataError: there is no shard, or a shard has too few documents.
    """
    fewest = min((len(shard.document_ends) for shard in shards), default=0)
    if fewest == 0:
        raise DataError("the corpus, or a shard of it, contains no documents; prepare it from more text")
    if fewest == 1 and settings.pairs != "none":
        raise DataError(
            "a shard of the corpus contains only one document, but a random next sentence needs another "
            'one; prepare more documents or set examples.pairs = "none"'
        )


def draw_held_out_examples(
    shards: Iterable[Shard], settings: ExampleSettings, vocabulary: Vocabulary, seed: int, count: int
) -> Examples:
    """Make a fixed set of examples for evaluation.

    Every block contributes its first examples, in proportion to how many it has, so that no long
    document dominates the set.

    Args:
        shards: the held-out split of a corpus.
        settings: the settings of the examples.
        vocabulary: as in `ExampleStream`.
        seed: identifies the set.
        count: the number of examples. If an epoch has fewer, the set is all of them.

    Raises:
        DataError: there is no shard, or a shard has too few documents.
    """
    stream = ExampleStream(shards, settings, vocabulary, seed)
    blocks = [stream.block(number) for number in range(stream.block_count)]
    example_ends = np.cumsum([0, *(len(block.pairs) for block in blocks)])
    count = min(count, int(example_ends[-1]))
    rows = (example_ends * count // example_ends[-1]).tolist()
    slices = [
        BlockSlice(block, 0, stop - start, start, 1)
        for block, (start, stop) in zip(blocks, pairwise(rows), strict=True)
    ]
    return stream.assemble(slices, count)
