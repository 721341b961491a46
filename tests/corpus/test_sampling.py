"""The stream of examples: exact properties, and the oracle's distributions at fixed seeds."""

import hashlib
import itertools
import json
import random
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from scipy.stats import chi2_contingency, chisquare, ks_2samp
from tests.corpus.google_oracle import CLS, MASK, SEP, Document, Example, Pair, document_examples

from bertie.base.errors import DataError, SettingsError
from bertie.base.settings import resolve
from bertie.corpus import sampling
from bertie.corpus.sampling import (
    LANES,
    Examples,
    ExampleSettings,
    ExampleStream,
    cut_blocks,
    held_out_examples,
)
from bertie.corpus.shards import Shard
from bertie.text.vocabulary import Vocabulary

FIRST_WORD = 5  # [PAD] [UNK] [CLS] [SEP] [MASK] come before, as in the oracle


def vocabulary_of(size: int) -> Vocabulary:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    return Vocabulary(special + [str(token_id) for token_id in range(len(special), size)])


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


@pytest.fixture(scope="module")
def numbered() -> tuple[list[Shard], Vocabulary]:
    """Two shards of some blocks, no token twice."""
    rng = random.Random(7)
    lengths = [
        [[rng.randint(3, 60) for _ in range(rng.randint(1, 80))] for _ in range(150)] for _ in range(2)
    ]
    first = numbered_shard(lengths[0])
    second = numbered_shard(lengths[1], FIRST_WORD + len(first.tokens))
    return [first, second], vocabulary_of(FIRST_WORD + len(first.tokens) + len(second.tokens))


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


def unmasked(examples: Examples) -> list[list[int]]:
    """The tokens of each example as they were before masking."""
    ids = examples.input_ids.copy()
    ids[examples.masked_positions] = examples.masked_labels
    return [ids[start:end].tolist() for start, end in itertools.pairwise(examples.bounds)]


SETTINGS = ExampleSettings(max_seq_length=64)


@hypothesis_settings(max_examples=25)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=6))
def test_calls_do_not_change_the_stream(numbered, counts):
    parts = ExampleStream(*numbered_arguments(numbered), seed=1)
    whole = ExampleStream(*numbered_arguments(numbered), seed=1)
    assert joined(*(parts.next(count) for count in counts)) == joined(whole.next(sum(counts)))


def numbered_arguments(
    numbered: tuple[list[Shard], Vocabulary], settings: ExampleSettings = SETTINGS
) -> tuple:
    shards, vocabulary = numbered
    return shards, settings, vocabulary


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


@pytest.mark.parametrize("settings", [SETTINGS, ExampleSettings(max_seq_length=512)])
def test_an_example_shows_its_documents(numbered, settings):
    shards, _ = numbered
    document_ends = np.concatenate([[0], shards[0].sentence_ends[shards[0].document_ends - 1]])
    second_ends = shards[1].sentence_ends[shards[1].document_ends - 1]
    ends = FIRST_WORD + np.concatenate([document_ends, len(shards[0].tokens) + second_ends])
    examples = ExampleStream(*numbered_arguments(numbered, settings), seed=3).next(3000)
    assert examples.bounds[-1] == len(examples.input_ids) == len(examples.token_type_ids)
    assert not np.isin(examples.masked_labels, (CLS, SEP)).any()
    rows = zip(
        unmasked(examples), examples.next_sentence_labels, itertools.pairwise(examples.bounds), strict=True
    )
    for tokens, label, (start, end) in rows:
        separator = tokens.index(SEP)
        a, b = tokens[1:separator], tokens[separator + 1 : -1]
        assert (tokens[0], tokens[-1]) == (CLS, SEP)
        assert len(tokens) <= settings.max_seq_length
        assert a == list(range(a[0], a[-1] + 1))
        assert b == list(range(b[0], b[-1] + 1))
        assert examples.token_type_ids[start:end].tolist() == [0] * (len(a) + 2) + [1] * (len(b) + 1)
        document_a, document_b = np.searchsorted(ends, [a[0], b[0]], side="right")
        assert document_a == np.searchsorted(ends, a[-1], side="right")
        assert document_b == np.searchsorted(ends, b[-1], side="right")
        assert (document_a == document_b) == (label == 0), (
            "60 documents: the same one by chance is one in 10¹⁷"
        )
        if label == 0:
            assert b[0] > a[-1]
            assert b[0] == a[-1] + 1 or len(tokens) == settings.max_seq_length


def test_without_next_sentences_an_example_is_one_segment(numbered):
    settings = ExampleSettings(max_seq_length=64, pairs="none", short_sequence_probability=0)
    examples = ExampleStream(*numbered_arguments(numbered, settings), seed=3).next(1000)
    assert (examples.token_type_ids == 0).all()
    assert examples.next_sentence_labels is None
    assert len(examples) == 1000
    for tokens in unmasked(examples):
        assert tokens[1:-1] == list(range(tokens[1], tokens[1] + len(tokens) - 2))
    assert np.mean(np.diff(examples.bounds) == 64) > 0.9


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
    assert abs(stream.examples_per_epoch() / len(everything) - 1) < 0.1

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


def test_settings():
    assert ExampleSettings(max_seq_length=128).max_predictions == 20
    assert ExampleSettings(max_seq_length=512).max_predictions == 77
    assert ExampleSettings(max_predictions_per_sequence=5).max_predictions == 5
    with pytest.raises(SettingsError, match="more than 1 together"):
        resolve(ExampleSettings, {"mask_share": 0.8, "keep_share": 0.3})


def test_masks_are_capped(numbered):
    settings = ExampleSettings(max_seq_length=64, max_predictions_per_sequence=3)
    examples = ExampleStream(*numbered_arguments(numbered, settings), seed=1).next(200)
    assert np.diff(examples.masked_bounds).max() == 3


# The oracle's distributions. Examples of one document share its target length: one in so many is compared,
# and the documents are short, which leaves the samples nearly independent.
ONE_IN = 4
LEAST_P = 0.001


def oracle_examples(
    documents: list[Document], max_seq_length: int, vocabulary_size: int, count: int
) -> list[Example]:
    rng = random.Random(11)
    cap = ExampleSettings(max_seq_length=max_seq_length).max_predictions
    made: list[Example] = []
    while len(made) < count:  # whole epochs, as the stream below
        for index in range(len(documents)):
            made += document_examples(documents, index, max_seq_length, cap, vocabulary_size, rng)
    return made


def stream_examples(
    documents: list[Document], max_seq_length: int, vocabulary_size: int, count: int
) -> list[Example]:
    """At least `count` examples of whole epochs, in the oracle's form."""
    settings = ExampleSettings(max_seq_length=max_seq_length)
    made: list[Example] = []
    for seed in itertools.count():
        examples = held_out_examples(
            [make_shard(documents)], settings, vocabulary_of(vocabulary_size), seed, 10**9
        )
        starts = examples.bounds[:-1].tolist()
        masks = [slice(*bounds) for bounds in itertools.pairwise(examples.masked_bounds)]
        rows = zip(unmasked(examples), examples.next_sentence_labels, starts, masks, strict=True)
        for original, label, start, places in rows:
            separator = original.index(SEP)
            made.append(
                Example(
                    original,
                    examples.input_ids[start : start + len(original)].tolist(),
                    (examples.masked_positions[places] - start).tolist(),
                    Pair(original[1:separator], original[separator + 1 : -1], label == 1),
                )
            )
        if len(made) >= count:
            return made
    raise AssertionError


def compare(ours: list[Example], theirs: list[Example], max_seq_length: int, vocabulary_size: int) -> None:
    """Every distribution the two make."""
    ours, theirs = (random.Random(5).sample(made, len(made) // ONE_IN) for made in (ours, theirs))
    measures = {
        "length": lambda e: len(e.original),
        "segment A": lambda e: len(e.pair.a),
        "segment B": lambda e: len(e.pair.b),
        "segment B of random pairs": lambda e: len(e.pair.b) if e.pair.is_random_next else None,
        "masks": lambda e: len(e.positions),
        "first mask": lambda e: e.positions[0] / len(e.original),
        "last mask": lambda e: e.positions[-1] / len(e.original),
    }
    for name, measure in measures.items():
        samples = [[value for e in made if (value := measure(e)) is not None] for made in (ours, theirs)]
        assert ks_2samp(*samples).pvalue > LEAST_P, name

    def table(classify) -> np.ndarray:
        kinds = [[classify(e) for e in made] for made in (ours, theirs)]
        return np.array([[sum(column) for column in zip(*rows, strict=True)] for rows in kinds])

    full = table(lambda e: (len(e.original) == max_seq_length, len(e.original) < max_seq_length))
    labels = table(lambda e: (e.pair.is_random_next, not e.pair.is_random_next))
    shares = table(mask_kinds)
    for counts in (full, labels, shares):
        assert chi2_contingency(counts).pvalue > LEAST_P, counts
    random_share = 0.1 / vocabulary_size
    expected = np.array([0.8 + random_share, 0.1 + random_share, 0.1 - 2 * random_share]) * shares[0].sum()
    assert chisquare(shares[0], expected).pvalue > LEAST_P, shares


def mask_kinds(example: Example) -> tuple[int, int, int]:
    """How many of the chosen tokens became [MASK], stayed, and became another."""
    pairs = [(example.masked[p], example.original[p]) for p in example.positions]
    masked = sum(new == MASK for new, _ in pairs)
    same = sum(new == old for new, old in pairs)
    return masked, same, len(pairs) - masked - same


@pytest.mark.parametrize("max_seq_length", [128, 512])
@pytest.mark.parametrize("count", [8000, pytest.param(50_000, marks=pytest.mark.slow)])
def test_the_distributions_are_those_of_the_oracle(max_seq_length, count):
    documents = make_documents(count // 4, 1, 500, sentences=max_seq_length // 20)
    ours = stream_examples(documents, max_seq_length, 500, count)
    theirs = oracle_examples(documents, max_seq_length, 500, count)
    compare(ours, theirs, max_seq_length, 500)


@pytest.fixture(scope="module")
def sample_documents(shared_data: Path) -> tuple[list[Document], int]:
    """google's sample text with an id for every word, and the number of ids."""
    ids: dict[str, int] = {}
    text = (shared_data / "text" / "google-bert-sample_text.txt").read_text(encoding="utf-8")
    documents = [
        [
            [ids.setdefault(word, FIRST_WORD + len(ids)) for word in re.findall(r"\w+|[^\w\s]", line)]
            for line in document.splitlines()
        ]
        for document in text.strip().split("\n\n")
    ]
    return documents, FIRST_WORD + len(ids)


@pytest.mark.parametrize("max_seq_length", [128, 512])
def test_the_sample_of_the_original_release(sample_documents, max_seq_length):
    documents, vocabulary_size = sample_documents
    ours = stream_examples(documents, max_seq_length, vocabulary_size, 8000)
    theirs = oracle_examples(documents, max_seq_length, vocabulary_size, 8000)
    compare(ours, theirs, max_seq_length, vocabulary_size)
