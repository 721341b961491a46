"""The example stream: its order, its cursor, and its seeds, phases and epochs."""

import hashlib
import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tests.corpus.shards_for_tests import (
    FIRST_WORD,
    make_shard,
    make_vocabulary,
    numbered_corpus,
    numbered_shard,
    original_tokens,
    random_documents,
)

from bertie.base.errors import DataError
from bertie.corpus import shards
from bertie.corpus.examples import Examples, ExampleSettings
from bertie.corpus.sampling import LANES, ExampleStream, count_lanes, draw_held_out_examples
from bertie.corpus.shards import Shard, cut_blocks
from bertie.text.vocabulary import Vocabulary


def array_bytes(examples: Examples) -> tuple[bytes, ...]:
    return tuple(array.tobytes() for array in vars(examples).values())


def concatenate(*parts: Examples) -> tuple[list[int], ...]:
    """Join the examples of several calls; positions become relative to each example."""
    columns = zip(*map(to_lists, parts), strict=True)
    return tuple(list(itertools.chain.from_iterable(column)) for column in columns)


def to_lists(examples: Examples) -> tuple[list, ...]:
    masks = np.diff(examples.masked_bounds)
    starts = np.repeat(examples.bounds[:-1], masks)
    return (
        examples.input_ids.tolist(),
        examples.token_type_ids.tolist(),
        np.diff(examples.bounds).tolist(),
        (examples.masked_positions - starts).tolist(),
        examples.masked_labels.tolist(),
        masks.tolist(),
        examples.next_sentence_labels.tolist(),
    )


SETTINGS = ExampleSettings(max_seq_length=64)


@pytest.fixture(scope="module")
def numbered() -> tuple[list[Shard], Vocabulary]:
    return numbered_corpus()


def stream_arguments(numbered: tuple[list[Shard], Vocabulary], settings: ExampleSettings = SETTINGS) -> tuple:
    shards, vocabulary = numbered
    return shards, settings, vocabulary


@hypothesis_settings(max_examples=25)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=6))
def test_examples_do_not_depend_on_the_sizes_of_calls(numbered, counts):
    parts = ExampleStream(*stream_arguments(numbered), seed=1)
    whole = ExampleStream(*stream_arguments(numbered), seed=1)
    assert concatenate(*(parts.next(count) for count in counts)) == concatenate(whole.next(sum(counts)))


@hypothesis_settings(max_examples=25)
@given(st.integers(1, 48), st.integers(1, 9), st.integers(1, 3))
def test_ranks_share_the_rows_of_each_batch(numbered, batch_size, world_size, batches):
    whole = ExampleStream(*stream_arguments(numbered), seed=1, batch_size=batch_size)
    shares = [
        ExampleStream(*stream_arguments(numbered), seed=1, batch_size=batch_size) for _ in range(world_size)
    ]
    for _ in range(batches):
        expected = original_tokens(whole.next(batch_size))
        for rank, stream in enumerate(shares):
            share = original_tokens(stream.next(batch_size, rank, world_size))
            assert share == expected[rank::world_size]
    newest = np.max([stream.cursors for stream in shares], axis=0)
    assert newest.tolist() == whole.cursors.tolist()


def test_number_of_lanes():
    assert count_lanes(256, block_count=10**6) == 256  # a lane for each row
    assert count_lanes(256, block_count=1000) == 64  # the largest divisor that leaves a lane enough blocks
    assert count_lanes(257, block_count=1000) == LANES  # no divisor
    assert count_lanes(8, block_count=10**6) == LANES


class RecordingStream(ExampleStream):
    """Records which examples it draws, by the key of their block and their position in it."""

    def assemble(self, slices, count):
        self.drawn = [
            (int(part.block.masking_key), n) for part in slices for n in range(part.start, part.stop)
        ]


def test_many_ranks_draw_every_example_of_an_epoch_once(numbered):
    world_size, batch_size = 64, 128
    streams = [
        RecordingStream(*stream_arguments(numbered), seed=1, batch_size=batch_size) for _ in range(world_size)
    ]
    first = streams[0]
    epoch = {
        (int(block.masking_key), position)
        for block in map(first.block, range(first.block_count))
        for position in range(len(block.pairs))
    }
    drawn = []
    while len(drawn) < 3 * len(epoch):  # until the slowest lane has left the first epoch
        for rank, stream in enumerate(streams):
            stream.next(batch_size, rank, world_size)
            drawn += stream.drawn
    assert len(drawn) == len(set(drawn))
    assert epoch <= set(drawn)


@pytest.mark.parametrize("taken", [0, 1, 15, 16, 1000, 30_000])  # an epoch has fewer than 30,000
def test_restored_stream_continues_byte_for_byte(numbered, taken):
    stream = ExampleStream(*stream_arguments(numbered), seed=1)
    stream.next(taken)
    state = json.loads(json.dumps(stream.position().to_json()))
    restored = ExampleStream(*stream_arguments(numbered), seed=1)
    restored.next(37)
    restored.restore(state)
    assert array_bytes(restored.next(700)) == array_bytes(stream.next(700))


def test_later_examples_do_not_change_a_position(numbered):
    stream = ExampleStream(*stream_arguments(numbered), seed=1)
    stream.next(100)
    position = stream.position()
    before = position.to_json()
    stream.next(100)
    assert position.to_json() == before != stream.position().to_json()


def test_each_process_makes_only_the_blocks_of_its_lanes(numbered):
    made = []

    class Recording(ExampleStream):
        def block(self, number):
            made.append(number)
            return super().block(number)

    stream = Recording(*stream_arguments(numbered), seed=1, batch_size=128)
    lanes = len(stream.cursors)
    for _ in range(3):
        stream.next(128, 3, 8)
    own = {row % lanes for row in range(3, 128, 8)}
    assert {number % lanes for number in made} == own
    assert len(own) < lanes


def test_seeds_phases_and_epochs_have_different_examples():
    shard = numbered_shard([[10] * 9] * 9)
    streams = [
        ExampleStream([shard], SETTINGS, make_vocabulary(1000), seed, phase)
        for seed in (1, 2)
        for phase in (0, 1)
    ]
    assert streams[0].block_count == 1, "the order of blocks must make no difference"
    epochs = [stream.block(epoch) for stream in streams for epoch in (0, 1)]
    assert len({block.pairs.tobytes() for block in epochs}) == len(epochs)
    assert len({block.masking_key for block in epochs}) == len(epochs)


def test_epochs_have_the_same_blocks_in_another_order(numbered):
    settings = ExampleSettings(pairs="none", short_sequence_probability=0)
    stream = ExampleStream(*stream_arguments(numbered, settings), seed=1)
    count = stream.block_count
    first, second = ([stream.block(epoch * count + index) for index in range(count)] for epoch in (0, 1))
    first_tokens = [
        [block.shard.tokens[block.pairs["a_start"]].tolist() for block in epoch] for epoch in (first, second)
    ]
    assert [sorted(block) for block in first_tokens[0]] != [sorted(block) for block in first_tokens[1]]
    same_order = [sorted(epoch, key=min) for epoch in first_tokens]
    assert [sorted(block) for block in same_order[0]] == [sorted(block) for block in same_order[1]]
    assert same_order[0] != same_order[1], "the examples of a block are shuffled differently"
    assert {block.masking_key for block in first}.isdisjoint(block.masking_key for block in second)


def test_every_token_is_in_each_epoch_once(numbered):
    shards, _ = numbered
    stream = ExampleStream(*stream_arguments(numbered, ExampleSettings(pairs="none")), seed=1)
    assert stream.block_count > LANES
    for epoch in range(2):
        covered = []
        for number in range(epoch * stream.block_count, (epoch + 1) * stream.block_count):
            block = stream.block(number)
            for start, end in zip(block.pairs["a_start"], block.pairs["a_end"], strict=True):
                covered += block.shard.tokens[start:end].tolist()
        assert sorted(covered) == list(range(FIRST_WORD, FIRST_WORD + sum(len(s.tokens) for s in shards)))


def test_examples_come_from_the_lanes_in_turn(numbered):
    stream = ExampleStream(*stream_arguments(numbered), seed=1)
    lanes: list[list[int]] = []
    for lane in range(LANES):
        blocks = [stream.block(number) for number in range(lane, 4 * stream.block_count, LANES)]
        lanes.append([int(token) for block in blocks for token in block.shard.tokens[block.pairs["a_start"]]])
    rounds = 1000  # more examples than a block has
    expected = list(itertools.chain.from_iterable(itertools.islice(zip(*lanes, strict=False), rounds)))
    assert [tokens[1] for tokens in original_tokens(stream.next(rounds * LANES))] == expected


@hypothesis_settings(max_examples=50)
@given(st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=5), min_size=1, max_size=30))
def test_block_ends_where_a_document_reaches_a_multiple(lengths):
    expected, tokens, multiple = [], 0, 0
    for index, document in enumerate(lengths):
        tokens += sum(document)
        if tokens // 64 > multiple or index == len(lengths) - 1:
            expected.append(index + 1)
        multiple = tokens // 64
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "BLOCK_TOKENS", 64)
        assert cut_blocks(numbered_shard(lengths)).tolist() == expected


def test_small_corpus_is_repeated():
    shard = numbered_shard([[3], [4]])
    stream = ExampleStream([shard], SETTINGS, make_vocabulary(20), seed=1)
    assert stream.block_count == 1
    examples = stream.next(100)
    assert len(examples) == 100
    assert (examples.next_sentence_labels == 1).all()


def test_memory_mapping_and_dtype_do_not_change_examples(tmp_path):
    documents = random_documents(20, 1, 1000)
    narrow, wide = make_shard(documents), make_shard(documents, np.uint32)
    narrow.tokens.tofile(tmp_path / "tokens.bin")
    mapped = np.memmap(tmp_path / "tokens.bin", dtype=np.uint16, mode="r")
    shards = (narrow, wide, Shard(mapped, narrow.sentence_ends, narrow.document_ends))
    streams = [ExampleStream([shard], SETTINGS, make_vocabulary(1000), seed=1) for shard in shards]
    assert len({array_bytes(stream.next(50)) for stream in streams}) == 1


def test_stream_of_a_seed_never_changes():
    shard = make_shard(random_documents(200, 5, 1000))
    stream = ExampleStream([shard], ExampleSettings(), make_vocabulary(1000), seed=1)
    digest = hashlib.sha256(b"".join(array_bytes(stream.next(2000)))).hexdigest()
    assert digest[:16] == "b6c394ebd8ef994e", "every run of every user would train on other examples"


def test_held_out_examples_are_fixed_and_cover_all_blocks(numbered):
    shards, vocabulary = numbered
    everything = draw_held_out_examples(shards, SETTINGS, vocabulary, 1, 10**9)
    stream = ExampleStream(shards, SETTINGS, vocabulary, 1)
    blocks = [stream.block(number) for number in range(stream.block_count)]
    assert len(everything) == sum(len(block.pairs) for block in blocks)

    some = draw_held_out_examples(shards, SETTINGS, vocabulary, 1, 100)
    assert len(some) == 100
    assert array_bytes(some) == array_bytes(draw_held_out_examples(shards, SETTINGS, vocabulary, 1, 100))
    all_starts = [tokens[1] for tokens in original_tokens(everything)]
    rows = [all_starts.index(tokens[1]) for tokens in original_tokens(some)]
    sizes = np.array([len(block.pairs) for block in blocks])
    block_of_row = np.searchsorted(np.cumsum(sizes), rows, side="right")
    expected_counts = sizes * 100 / len(everything)
    assert np.abs(np.bincount(block_of_row, minlength=len(blocks)) - expected_counts).max() < 1


def test_shard_of_one_document_needs_pairs_none():
    shard = numbered_shard([[10, 10, 10]])
    for corpus in ([shard], [numbered_shard([[10], [10]]), shard]):
        with pytest.raises(DataError, match="contains only one document"):
            ExampleStream(corpus, SETTINGS, make_vocabulary(50), seed=1)
    without = ExampleSettings(max_seq_length=64, pairs="none")
    assert len(ExampleStream([shard], without, make_vocabulary(50), seed=1).next(3)) == 3


def test_empty_corpus_is_rejected():
    with pytest.raises(DataError, match="no documents"):
        ExampleStream([], SETTINGS, make_vocabulary(50), seed=1)
    with pytest.raises(DataError, match="a shard of it, contains no documents"):
        ExampleStream([numbered_shard([[10], [10]]), make_shard([])], SETTINGS, make_vocabulary(50), seed=1)
