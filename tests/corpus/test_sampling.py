"""The stream of examples: their order, the cursor, and what makes each epoch and seed its own."""

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
    make_documents,
    make_shard,
    numbered_corpus,
    numbered_shard,
    unmasked,
    vocabulary_of,
)

from bertie.base.errors import DataError
from bertie.corpus import sampling
from bertie.corpus.examples import Examples, ExampleSettings
from bertie.corpus.sampling import LANES, ExampleStream, cut_blocks, held_out_examples
from bertie.corpus.shards import Shard
from bertie.text.vocabulary import Vocabulary


def arrays(examples: Examples) -> tuple[bytes, ...]:
    return tuple(array.tobytes() for array in vars(examples).values())


def joined(*parts: Examples) -> tuple[list[int], ...]:
    """The examples of several calls as lists, their indices made relative to each example."""
    return tuple(
        list(itertools.chain.from_iterable(column)) for column in zip(*map(relative, parts), strict=True)
    )


def relative(examples: Examples) -> tuple[list, ...]:
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


def numbered_arguments(
    numbered: tuple[list[Shard], Vocabulary], settings: ExampleSettings = SETTINGS
) -> tuple:
    shards, vocabulary = numbered
    return shards, settings, vocabulary


@hypothesis_settings(max_examples=25)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=6))
def test_calls_do_not_change_the_stream(numbered, counts):
    parts = ExampleStream(*numbered_arguments(numbered), seed=1)
    whole = ExampleStream(*numbered_arguments(numbered), seed=1)
    assert joined(*(parts.next(count) for count in counts)) == joined(whole.next(sum(counts)))


@pytest.mark.parametrize("taken", [0, 1, 15, 16, 1000, 30_000])  # the last is more than an epoch
def test_a_restored_stream_goes_on_byte_for_byte(numbered, taken):
    stream = ExampleStream(*numbered_arguments(numbered), seed=1)
    stream.next(taken)
    state = json.loads(json.dumps(stream.state()))
    restored = ExampleStream(*numbered_arguments(numbered), seed=1)
    restored.next(37)
    restored.restore(state)
    assert arrays(restored.next(700)) == arrays(stream.next(700))


def test_every_seed_phase_and_epoch_has_its_own_examples():
    shard = numbered_shard([[10] * 9] * 9)
    streams = [
        ExampleStream([shard], SETTINGS, vocabulary_of(1000), seed, phase)
        for seed in (1, 2)
        for phase in (0, 1)
    ]
    assert streams[0].blocks == 1, "so the order of blocks makes no difference"
    epochs = [stream.block(epoch) for stream in streams for epoch in (0, 1)]
    assert len({block.pairs.tobytes() for block in epochs}) == len(epochs)
    assert len({block.masking_key for block in epochs}) == len(epochs)


def test_every_epoch_has_the_same_blocks_in_another_order(numbered):
    settings = ExampleSettings(pairs="none", short_sequence_probability=0)
    stream = ExampleStream(*numbered_arguments(numbered, settings), seed=1)
    first, second = (
        [stream.block(e * stream.blocks + place) for place in range(stream.blocks)] for e in (0, 1)
    )
    tokens_of = [
        [block.shard.tokens[block.pairs["a_start"]].tolist() for block in epoch] for epoch in (first, second)
    ]
    assert [sorted(block) for block in tokens_of[0]] != [sorted(block) for block in tokens_of[1]]
    same_order = [sorted(epoch, key=min) for epoch in tokens_of]
    assert [sorted(block) for block in same_order[0]] == [sorted(block) for block in same_order[1]]
    assert same_order[0] != same_order[1], "a block's examples are shuffled anew"
    assert {block.masking_key for block in first}.isdisjoint(block.masking_key for block in second)


def test_every_document_is_in_each_epoch_once(numbered):
    shards, _ = numbered
    stream = ExampleStream(*numbered_arguments(numbered, ExampleSettings(pairs="none")), seed=1)
    assert stream.blocks > LANES
    for epoch in range(2):
        pieces = []
        for number in range(epoch * stream.blocks, (epoch + 1) * stream.blocks):
            block = stream.block(number)
            pieces += [
                (int(block.shard.tokens[start]), int(end - start)) for start, end in runs_of(block.pairs)
            ]
        covered = [token for first, length in pieces for token in range(first, first + length)]
        assert sorted(covered) == list(range(FIRST_WORD, FIRST_WORD + sum(len(s.tokens) for s in shards)))


def runs_of(pairs: np.ndarray) -> list[tuple[int, int]]:
    return list(zip(pairs["a_start"].tolist(), pairs["a_end"].tolist(), strict=True))


def test_the_stream_takes_its_examples_from_the_lanes_in_turn(numbered):
    stream = ExampleStream(*numbered_arguments(numbered), seed=1)
    lanes: list[list[int]] = []
    for lane in range(LANES):
        blocks = [stream.block(number) for number in range(lane, 4 * stream.blocks, LANES)]
        lanes.append([int(token) for block in blocks for token in block.shard.tokens[block.pairs["a_start"]]])
    rounds = 1000  # more than a block has
    expected = list(itertools.chain.from_iterable(itertools.islice(zip(*lanes, strict=False), rounds)))
    assert [tokens[1] for tokens in unmasked(stream.next(rounds * LANES))] == expected


@hypothesis_settings(max_examples=50)
@given(st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=5), min_size=1, max_size=30))
def test_a_block_ends_with_the_document_that_reaches_a_multiple(lengths):
    expected, tokens, reached = [], 0, 0
    for number, document in enumerate(lengths):
        tokens += sum(document)
        if tokens // 64 > reached or number == len(lengths) - 1:
            expected.append(number + 1)
        reached = tokens // 64
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "BLOCK_TOKENS", 64)
        assert cut_blocks(numbered_shard(lengths)).tolist() == expected


def test_a_small_corpus_is_repeated():
    shard = numbered_shard([[3], [4]])
    stream = ExampleStream([shard], SETTINGS, vocabulary_of(20), seed=1)
    assert stream.blocks == 1
    examples = stream.next(100)
    assert len(examples) == 100
    assert (examples.next_sentence_labels == 1).all()


def test_memory_mapped_tokens_and_wider_ids_give_the_same_examples(tmp_path):
    documents = make_documents(20, 1, 1000)
    narrow, wide = make_shard(documents), make_shard(documents, np.uint32)
    narrow.tokens.tofile(tmp_path / "tokens.bin")
    mapped = np.memmap(tmp_path / "tokens.bin", dtype=np.uint16, mode="r")
    shards = (narrow, wide, Shard(mapped, narrow.sentence_ends, narrow.document_ends))
    made = {
        arrays(ExampleStream([shard], SETTINGS, vocabulary_of(1000), seed=1).next(50)) for shard in shards
    }
    assert len(made) == 1


def test_the_stream_of_a_seed_is_the_same_everywhere():
    shard = make_shard(make_documents(200, 5, 1000))
    stream = ExampleStream([shard], ExampleSettings(), vocabulary_of(1000), seed=1)
    digest = hashlib.sha256(b"".join(arrays(stream.next(2000)))).hexdigest()
    assert digest[:16] == "b6c394ebd8ef994e", "every run of every user would learn other examples from now on"


def test_held_out_examples_are_fixed_and_spread_over_all_blocks(numbered):
    shards, vocabulary = numbered
    everything = held_out_examples(shards, SETTINGS, vocabulary, 1, 10**9)
    stream = ExampleStream(shards, SETTINGS, vocabulary, 1)
    blocks = [stream.block(number) for number in range(stream.blocks)]
    assert len(everything) == sum(len(block.pairs) for block in blocks)

    some = held_out_examples(shards, SETTINGS, vocabulary, 1, 100)
    assert len(some) == 100
    assert arrays(some) == arrays(held_out_examples(shards, SETTINGS, vocabulary, 1, 100))
    all_starts = [tokens[1] for tokens in unmasked(everything)]
    places = [all_starts.index(tokens[1]) for tokens in unmasked(some)]
    owners = np.searchsorted(np.cumsum([len(block.pairs) for block in blocks]), places, side="right")
    shares = np.array([len(block.pairs) for block in blocks]) * 100 / len(everything)
    assert np.abs(np.bincount(owners, minlength=len(blocks)) - shares).max() < 1


def test_a_corpus_of_one_document_has_no_random_next_sentence():
    shard = numbered_shard([[10, 10, 10]])
    with pytest.raises(DataError, match="holds one document"):
        ExampleStream([shard], SETTINGS, vocabulary_of(50), seed=1)
    without = ExampleSettings(max_seq_length=64, pairs="none")
    assert len(ExampleStream([shard], without, vocabulary_of(50), seed=1).next(3)) == 3


def test_an_empty_corpus_is_an_error():
    with pytest.raises(DataError, match="no documents"):
        ExampleStream([], SETTINGS, vocabulary_of(50), seed=1)
