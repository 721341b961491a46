"""The endless stream of pre-training examples, in an order fixed by the seed.

The unit of order is a block: a run of whole documents of one shard. A keyed permutation orders the
blocks of an epoch, and the examples of each block are shuffled. `LANES` lanes go through the
sequence of blocks side by side, so that a batch mixes examples of many blocks. A stream resumes
from its cursor at the cost of one block per lane.

In a corpus of several languages, `language_smoothing` repeats blocks of the smaller ones. Each
language has separate epochs, and repeats a block only after all its other blocks.

For a given corpus, vocabulary and settings, an example depends only on the seed, the phase, the
epoch, the block and the position in the block.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from bertie.base.errors import DataError
from bertie.base.random import open_stream, permutation, stream_key
from bertie.corpus.examples import Examples, ExampleSettings, close_gaps, measure_examples, write_examples
from bertie.corpus.input_languages import oversampling_factors
from bertie.corpus.masking import Int64s, continuation_mask
from bertie.corpus.sentence_pairs import NO_LIMIT, PAIR, Pairs, cut_documents, pair_sentences, start_of
from bertie.corpus.shards import Shard, cut_blocks
from bertie.text.vocabulary import Vocabulary

LANES = 16  # it determines the order of examples, as BLOCK_TOKENS does

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


@dataclass
class Lane:
    """The cursor of a lane.

    Attributes:
        block_number: the current block, counted over the blocks of all epochs.
        position: the number of examples already taken from it.
        block: the block.
    """

    block_number: int
    position: int
    block: Block


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
        blocks: indices of the blocks of the corpus, int64 (blocks,).
        first_slot: the first of its places in an epoch.
        slots: the number of its places.
    """

    blocks: Int64s
    first_slot: int
    slots: int


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

    Attributes:
        block_count: the number of blocks in an epoch, repeated ones included.

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
        self._taken = 0  # the number of examples taken, modulo LANES
        self._lanes = [Lane(number, 0, self.block(number)) for number in range(LANES)]

    def next(self, count: int) -> Examples:
        """Return the next `count` examples.

        The examples do not depend on how the stream is divided into calls.
        """
        slices = []
        for row in range(min(count, LANES)):
            lane = self._lanes[(self._taken + row) % LANES]
            while row < count:
                start = lane.position
                stop = min(start + len(range(row, count, LANES)), len(lane.block.pairs))
                slices.append(BlockSlice(lane.block, start, stop, row, LANES))
                row += (stop - start) * LANES
                lane.position = stop
                if stop == len(lane.block.pairs):
                    lane.block_number += LANES
                    lane.position = 0
                    lane.block = self.block(lane.block_number)
        self._taken = (self._taken + count) % LANES
        return self.assemble(slices, count)

    def state(self) -> dict[str, Any]:
        """Return the cursor as a value for JSON.

        `restore` takes it in a stream of the same corpus, settings, seed and phase.
        """
        return {"taken": self._taken, "lanes": [[lane.block_number, lane.position] for lane in self._lanes]}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken, at the cost of one block per lane."""
        self._taken = state["taken"]
        self._lanes = [Lane(number, position, self.block(number)) for number, position in state["lanes"]]

    def block(self, number: int) -> Block:
        """Make block `number`, counted over the blocks of all epochs."""
        epoch, rank = divmod(number, self.block_count)
        slot = int(block_order(self.block_count, self.seed, self.phase, epoch)[rank])
        language = next(part for part in reversed(self._languages) if part.first_slot <= slot)
        # The epoch of the language, in which each of its blocks occurs once.
        taken = epoch * language.slots + slot - language.first_slot
        epoch, index = divmod(taken, len(language.blocks))
        block = int(language.blocks[index])
        shard_index = bisect_right(self._first_blocks, block) - 1
        shard, block_ends = self.shards[shard_index], self._block_ends[shard_index]
        index_in_shard = block - self._first_blocks[shard_index]
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
        sizes, blocks = dict.fromkeys(languages, 0), {language: list[int]() for language in languages}
        for language, shard, bounds in zip(languages, self.shards, pairwise(self._first_blocks), strict=True):
            sizes[language] += len(shard.tokens)
            blocks[language] += range(*bounds)
        parts, first_slot = [], 0
        for language, factor in oversampling_factors(sizes, self.settings.language_smoothing).items():
            slots = round(factor * len(blocks[language]))
            parts.append(LanguageBlocks(np.array(blocks[language]), first_slot, slots))
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
