"""Examples: exact properties, and the oracle's distributions at fixed seeds."""

import itertools
import random
import re
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import chi2_contingency, chisquare, ks_2samp
from tests.corpus.google_oracle import (
    CLS,
    MASK,
    SEP,
    Document,
    Example,
    Pair,
    document_pairs,
    group_words,
    make_example,
)
from tests.corpus.shards_for_tests import (
    FIRST_WORD,
    make_shard,
    make_vocabulary,
    numbered_corpus,
    original_tokens,
    random_documents,
)

from bertie.base.errors import SettingsError
from bertie.base.settings import resolve
from bertie.corpus.examples import Examples, ExampleSettings
from bertie.corpus.sampling import ExampleStream
from bertie.corpus.shards import Shard
from bertie.text.vocabulary import Vocabulary

SETTINGS = ExampleSettings(max_seq_length=64)


@pytest.fixture(scope="module")
def numbered() -> tuple[list[Shard], Vocabulary]:
    return numbered_corpus()


def make_examples(
    numbered: tuple[list[Shard], Vocabulary], settings: ExampleSettings, count: int
) -> Examples:
    shards, vocabulary = numbered
    return ExampleStream(shards, settings, vocabulary, seed=3).next(count)


@pytest.mark.parametrize("settings", [SETTINGS, ExampleSettings(max_seq_length=512)])
def test_segments_and_labels_fit_the_documents(numbered, settings):
    shards, _ = numbered
    document_ends = np.concatenate([[0], shards[0].sentence_ends[shards[0].document_ends - 1]])
    second_ends = shards[1].sentence_ends[shards[1].document_ends - 1]
    ends = FIRST_WORD + np.concatenate([document_ends, len(shards[0].tokens) + second_ends])
    examples = make_examples(numbered, settings, 3000)
    assert examples.bounds[-1] == len(examples.input_ids) == len(examples.token_type_ids)
    assert not np.isin(examples.masked_labels, (CLS, SEP)).any()
    bounds = itertools.pairwise(examples.bounds)
    rows = zip(original_tokens(examples), examples.next_sentence_labels, bounds, strict=True)
    for tokens, label, (start, end) in rows:
        first_sep = tokens.index(SEP)
        a, b = tokens[1:first_sep], tokens[first_sep + 1 : -1]
        assert (tokens[0], tokens[-1]) == (CLS, SEP)
        assert len(tokens) <= settings.max_seq_length
        assert a == list(range(a[0], a[-1] + 1))
        assert b == list(range(b[0], b[-1] + 1))
        assert examples.token_type_ids[start:end].tolist() == [0] * (len(a) + 2) + [1] * (len(b) + 1)
        document_a, document_b = np.searchsorted(ends, [a[0], b[0]], side="right")
        assert document_a == np.searchsorted(ends, a[-1], side="right")
        assert document_b == np.searchsorted(ends, b[-1], side="right")
        assert (document_a == document_b) == (label == 0), (
            "of 60 documents, the same one by chance is one in 10¹⁷"
        )
        if label == 0:
            assert b[0] > a[-1]
            assert b[0] == a[-1] + 1 or len(tokens) == settings.max_seq_length


def test_examples_without_pairs_have_one_segment(numbered):
    settings = ExampleSettings(max_seq_length=64, pairs="none", short_sequence_probability=0)
    examples = make_examples(numbered, settings, 1000)
    assert (examples.token_type_ids == 0).all()
    assert examples.next_sentence_labels is None
    assert len(examples) == 1000
    for tokens in original_tokens(examples):
        assert tokens[1:-1] == list(range(tokens[1], tokens[1] + len(tokens) - 2))
    assert np.mean(np.diff(examples.bounds) == 64) > 0.9


@pytest.mark.parametrize("kind", ["near", "order"])
def test_setting_pairs_selects_the_kind_of_pairs(numbered, kind):
    settings = ExampleSettings(max_seq_length=64, pairs=kind)
    examples = make_examples(numbered, settings, 3000)
    gaps = []
    for tokens, label in zip(original_tokens(examples), examples.next_sentence_labels, strict=True):
        first_sep = tokens.index(SEP)
        gaps.append((tokens[first_sep + 1] - tokens[first_sep - 1], label))
    is_before = np.array([gap < 0 for gap, label in gaps if label == 1])
    is_close = np.array([abs(gap) < 2500 for gap, label in gaps if label == 1])
    assert all(gap > 0 for gap, label in gaps if label == 0)
    # A document has up to 2500 tokens, and chunks of one sentence have no second segment to swap
    # with.
    assert is_close.mean() > 0.8
    assert is_before.mean() > 0.8 if kind == "order" else 0.4 < is_before.mean() < 0.6


def test_whole_word_masking_changes_only_the_masks(numbered):
    shards, vocabulary = numbered
    continuation_ids = range(0, len(vocabulary), 2)
    whole_words = SETTINGS.model_copy(update={"whole_word_masking": True})
    stream = ExampleStream(shards, whole_words, make_vocabulary(len(vocabulary), continuation_ids), seed=3)
    parts = [stream.next(count) for count in (700, 1, 0, 299)]
    token_masking = make_examples(numbered, SETTINGS, 1000)
    tokens = list(itertools.chain.from_iterable(map(original_tokens, parts)))
    assert tokens == original_tokens(token_masking)
    for part in parts:
        masks = itertools.pairwise(part.masked_bounds)
        for example, start, (begin, end) in zip(original_tokens(part), part.bounds[:-1], masks, strict=True):
            positions = set((part.masked_positions[begin:end] - start).tolist())
            words = group_words(example, continuation_ids)
            assert all(positions.issuperset(word) or positions.isdisjoint(word) for word in words)
    masks = np.concatenate([np.diff(part.masked_bounds) for part in parts])
    budgets = np.diff(token_masking.masked_bounds)
    assert (masks <= budgets).all()
    assert 0 < (budgets - masks).sum() < 0.05 * budgets.sum()


def test_masks_follow_the_example_settings():
    assert ExampleSettings(max_seq_length=128).max_predictions == 20
    assert ExampleSettings(max_seq_length=512).max_predictions == 77
    assert ExampleSettings(max_predictions_per_sequence=5).max_predictions == 5
    assert resolve(ExampleSettings, {"mask_share": 0.7}).mask_probability == 0.7
    with pytest.raises(SettingsError, match="add up to more than 1"):
        resolve(ExampleSettings, {"mask_probability": 0.8, "keep_probability": 0.3})


@pytest.mark.parametrize("changes", [{}, {"max_predictions_per_sequence": 3}, {"whole_word_masking": True}])
def test_without_masks_gives_the_same_tokens(numbered, changes):
    settings = SETTINGS.model_copy(update=changes)
    examples = make_examples(numbered, settings.without_masks(), 300)
    assert original_tokens(make_examples(numbered, settings, 300)) == original_tokens(examples)
    assert not len(examples.masked_positions)
    assert not examples.masked_bounds.any()


def test_max_predictions_per_sequence_caps_the_masks(numbered):
    settings = ExampleSettings(max_seq_length=64, max_predictions_per_sequence=3)
    examples = make_examples(numbered, settings, 200)
    assert np.diff(examples.masked_bounds).max() == 3


# Examples of one document share its target length, so only one example in ONE_IN is compared, and
# the documents are short. This leaves the samples nearly independent. With a divisor of the number of
# lanes, all examples of some documents would be compared, and none of the others.
ONE_IN = 5
MIN_P_VALUE = 0.001


def measure(example: Example) -> dict[str, float]:
    """Compute the figures of an example, for comparing their distributions."""
    replaced = [(example.masked[p], example.original[p]) for p in example.positions]
    masked = sum(new == MASK for new, _ in replaced)
    same = sum(new == old for new, old in replaced)
    relative_positions = [p / len(example.original) for p in example.positions] or [-1]
    return {
        "length": len(example.original),
        "segment A": len(example.pair.a),
        "segment B": len(example.pair.b),
        "not next": example.pair.is_random_next,
        "masks": len(replaced),
        "first mask": relative_positions[0],
        "last mask": relative_positions[-1],
        "to [MASK]": masked,
        "same": same,
        "to another": len(replaced) - masked - same,
    }


def measure_all(examples: Iterator[Example], count: int) -> dict[str, np.ndarray]:
    """Compute the figures of `count` examples."""
    rows = [measure(example) for example in itertools.islice(examples, count)]
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def oracle_examples(
    documents: list[Document],
    max_seq_length: int,
    vocabulary_size: int,
    continuation_ids: Collection[int] = (),
) -> Iterator[Example]:
    """Yield one in ONE_IN examples of the oracle without end, each epoch in another order."""
    rng = random.Random(11)
    cap = ExampleSettings(max_seq_length=max_seq_length).max_predictions
    pairs = (
        pair
        for _ in itertools.count()
        for index in rng.sample(range(len(documents)), len(documents))
        for pair in document_pairs(documents, index, max_seq_length - 3, 0.1, rng)
    )
    for pair in itertools.islice(pairs, 0, None, ONE_IN):
        yield make_example(pair, cap, vocabulary_size, rng, continuation_ids)


def stream_examples(
    documents: list[Document],
    max_seq_length: int,
    vocabulary_size: int,
    continuation_ids: Collection[int] = (),
) -> Iterator[Example]:
    """Yield one in ONE_IN examples of `ExampleStream` without end, in the form of the oracle's."""
    settings = ExampleSettings(max_seq_length=max_seq_length, whole_word_masking=len(continuation_ids) > 0)
    vocabulary = make_vocabulary(vocabulary_size, continuation_ids)
    stream = ExampleStream([make_shard(documents)], settings, vocabulary, seed=1)
    while True:
        examples = stream.next(1000)
        starts = examples.bounds[:-1].tolist()
        masks = [slice(*bounds) for bounds in itertools.pairwise(examples.masked_bounds)]
        rows = zip(original_tokens(examples), examples.next_sentence_labels, starts, masks, strict=True)
        for original, label, start, mask_slice in itertools.islice(rows, 0, None, ONE_IN):
            first_sep = original.index(SEP)
            yield Example(
                original,
                examples.input_ids[start : start + len(original)].tolist(),
                (examples.masked_positions[mask_slice] - start).tolist(),
                Pair(original[1:first_sep], original[first_sep + 1 : -1], label == 1),
            )


def assert_same_distributions(
    documents: list[Document],
    max_seq_length: int,
    vocabulary_size: int,
    count: int,
    continuation_ids: Collection[int] = (),
) -> None:
    """Compare the distributions of `count` examples of the stream and of the oracle."""
    stream, oracle = (
        measure_all(examples(documents, max_seq_length, vocabulary_size, continuation_ids), count)
        for examples in (stream_examples, oracle_examples)
    )
    for name in ("length", "segment A", "segment B", "masks", "first mask", "last mask"):
        assert ks_2samp(stream[name], oracle[name]).pvalue > MIN_P_VALUE, name
    random_b = [figures["segment B"][figures["not next"]] for figures in (stream, oracle)]
    assert ks_2samp(*random_b).pvalue > MIN_P_VALUE

    is_full = [figures["length"] == max_seq_length for figures in (stream, oracle)]
    is_not_next = [figures["not next"] for figures in (stream, oracle)]
    for flags in (is_full, is_not_next):
        assert chi2_contingency([[flag.sum(), (~flag).sum()] for flag in flags]).pvalue > MIN_P_VALUE
    kinds = ("to [MASK]", "same", "to another")
    replaced = [[figures[kind].sum() for kind in kinds] for figures in (stream, oracle)]
    assert chi2_contingency(replaced).pvalue > MIN_P_VALUE, replaced
    by_chance = 0.1 / vocabulary_size  # a random token may be [MASK] or the original
    expected = np.array([0.8 + by_chance, 0.1 + by_chance, 0.1 - 2 * by_chance])
    assert chisquare(replaced[0], expected * sum(replaced[0])).pvalue > MIN_P_VALUE, replaced


@pytest.mark.parametrize("continuation_ids", [(), range(300, 500)], ids=["tokens", "whole words"])
@pytest.mark.parametrize("max_seq_length", [128, 512])
@pytest.mark.parametrize("count", [2000, pytest.param(50_000, marks=pytest.mark.slow)])
def test_distributions_equal_the_oracle(max_seq_length, count, continuation_ids):
    documents = random_documents(2000, 1, 500, sentences=max_seq_length // 20)
    assert_same_distributions(documents, max_seq_length, 500, count, continuation_ids)


@pytest.fixture(scope="module")
def sample_documents(shared_data: Path) -> tuple[list[Document], int]:
    """google's sample text with one id per word, and the number of ids."""
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
def test_distributions_equal_the_oracle_on_googles_sample(sample_documents, max_seq_length):
    documents, vocabulary_size = sample_documents
    assert_same_distributions(documents, max_seq_length, vocabulary_size, 2000)
