"""What examples look like: exact properties, and the oracle's distributions at fixed seeds."""

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
    document_examples,
    words_of,
)
from tests.corpus.shards_for_tests import (
    FIRST_WORD,
    make_documents,
    make_shard,
    numbered_corpus,
    unmasked,
    vocabulary_of,
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


def examples_of(numbered: tuple[list[Shard], Vocabulary], settings: ExampleSettings, count: int) -> Examples:
    shards, vocabulary = numbered
    return ExampleStream(shards, settings, vocabulary, seed=3).next(count)


@pytest.mark.parametrize("settings", [SETTINGS, ExampleSettings(max_seq_length=512)])
def test_an_example_shows_its_documents(numbered, settings):
    shards, _ = numbered
    document_ends = np.concatenate([[0], shards[0].sentence_ends[shards[0].document_ends - 1]])
    second_ends = shards[1].sentence_ends[shards[1].document_ends - 1]
    ends = FIRST_WORD + np.concatenate([document_ends, len(shards[0].tokens) + second_ends])
    examples = examples_of(numbered, settings, 3000)
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
    examples = examples_of(numbered, settings, 1000)
    assert (examples.token_type_ids == 0).all()
    assert examples.next_sentence_labels is None
    assert len(examples) == 1000
    for tokens in unmasked(examples):
        assert tokens[1:-1] == list(range(tokens[1], tokens[1] + len(tokens) - 2))
    assert np.mean(np.diff(examples.bounds) == 64) > 0.9


@pytest.mark.parametrize("kind", ["near", "order"])
def test_the_kind_of_pairs_is_a_setting(numbered, kind):
    settings = ExampleSettings(max_seq_length=64, pairs=kind)
    examples = examples_of(numbered, settings, 3000)
    gaps = []
    for tokens, label in zip(unmasked(examples), examples.next_sentence_labels, strict=True):
        separator = tokens.index(SEP)
        gaps.append((tokens[separator + 1] - tokens[separator - 1], label))
    passed_back = np.array([gap < 0 for gap, label in gaps if label == 1])
    close = np.array([abs(gap) < 2500 for gap, label in gaps if label == 1])
    assert all(gap > 0 for gap, label in gaps if label == 0)
    # One document is as long, and some chunks are one sentence, which has nothing to be swapped with.
    assert close.mean() > 0.8
    assert passed_back.mean() > 0.8 if kind == "order" else 0.4 < passed_back.mean() < 0.6


def test_whole_word_masking_is_a_setting(numbered):
    shards, vocabulary = numbered
    within = range(0, len(vocabulary), 2)
    whole_words = SETTINGS.model_copy(update={"whole_word_masking": True})
    stream = ExampleStream(shards, whole_words, vocabulary_of(len(vocabulary), within), seed=3)
    parts = [stream.next(count) for count in (700, 1, 0, 299)]
    plain = examples_of(numbered, SETTINGS, 1000)
    tokens = list(itertools.chain.from_iterable(map(unmasked, parts)))
    assert tokens == unmasked(plain), "only the choice of masks is another"
    for part in parts:
        masks = itertools.pairwise(part.masked_bounds)
        for example, start, (begin, end) in zip(unmasked(part), part.bounds[:-1], masks, strict=True):
            places = set((part.masked_positions[begin:end] - start).tolist())
            assert all(
                places.issuperset(word) or places.isdisjoint(word) for word in words_of(example, within)
            )
    masks = np.concatenate([np.diff(part.masked_bounds) for part in parts])
    budgets = np.diff(plain.masked_bounds)
    assert (masks <= budgets).all()
    assert 0 < (budgets - masks).sum() < 0.05 * budgets.sum()


def test_settings():
    assert ExampleSettings(max_seq_length=128).max_predictions == 20
    assert ExampleSettings(max_seq_length=512).max_predictions == 77
    assert ExampleSettings(max_predictions_per_sequence=5).max_predictions == 5
    assert resolve(ExampleSettings, {"mask_share": 0.7}).mask_probability == 0.7
    with pytest.raises(SettingsError, match="more than 1 together"):
        resolve(ExampleSettings, {"mask_probability": 0.8, "keep_probability": 0.3})


@pytest.mark.parametrize("changes", [{}, {"max_predictions_per_sequence": 3}, {"whole_word_masking": True}])
def test_unmasked_examples_are_the_same_ones_with_nothing_to_predict(numbered, changes):
    settings = SETTINGS.model_copy(update=changes)
    examples = examples_of(numbered, settings.unmasked(), 300)
    assert unmasked(examples_of(numbered, settings, 300)) == unmasked(examples)
    assert not len(examples.masked_positions)
    assert not examples.masked_bounds.any()


def test_masks_are_capped(numbered):
    settings = ExampleSettings(max_seq_length=64, max_predictions_per_sequence=3)
    examples = examples_of(numbered, settings, 200)
    assert np.diff(examples.masked_bounds).max() == 3


# The oracle's distributions. Examples of one document share its target length: one in so many is compared,
# and the documents are short, which leaves the samples nearly independent.
ONE_IN = 4
LEAST_P = 0.001


def measured(example: Example) -> dict[str, float]:
    """What is compared of an example."""
    replaced = [(example.masked[p], example.original[p]) for p in example.positions]
    masked = sum(new == MASK for new, _ in replaced)
    same = sum(new == old for new, old in replaced)
    places = [p / len(example.original) for p in example.positions] or [-1]
    return {
        "length": len(example.original),
        "segment A": len(example.pair.a),
        "segment B": len(example.pair.b),
        "not next": example.pair.is_random_next,
        "masks": len(replaced),
        "first mask": places[0],
        "last mask": places[-1],
        "to [MASK]": masked,
        "same": same,
        "to another": len(replaced) - masked - same,
    }


def table_of(examples: Iterator[Example], count: int) -> dict[str, np.ndarray]:
    """The measures of `count` examples, one in ONE_IN."""
    rows = [measured(example) for example in itertools.islice(examples, 0, count * ONE_IN, ONE_IN)]
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def oracle_examples(
    documents: list[Document],
    max_seq_length: int,
    vocabulary_size: int,
    continuation_mask: Collection[int] = (),
) -> Iterator[Example]:
    """Epochs without end, each in another order."""
    rng = random.Random(11)
    cap = ExampleSettings(max_seq_length=max_seq_length).max_predictions
    while True:
        for index in rng.sample(range(len(documents)), len(documents)):
            yield from document_examples(
                documents, index, max_seq_length, cap, vocabulary_size, rng, continuation_mask
            )


def stream_examples(
    documents: list[Document],
    max_seq_length: int,
    vocabulary_size: int,
    continuation_mask: Collection[int] = (),
) -> Iterator[Example]:
    """The stream without end, in the oracle's form."""
    settings = ExampleSettings(max_seq_length=max_seq_length, whole_word_masking=len(continuation_mask) > 0)
    stream = ExampleStream(
        [make_shard(documents)], settings, vocabulary_of(vocabulary_size, continuation_mask), seed=1
    )
    while True:
        examples = stream.next(1000)
        starts = examples.bounds[:-1].tolist()
        masks = [slice(*bounds) for bounds in itertools.pairwise(examples.masked_bounds)]
        rows = zip(unmasked(examples), examples.next_sentence_labels, starts, masks, strict=True)
        for original, label, start, places in rows:
            separator = original.index(SEP)
            yield Example(
                original,
                examples.input_ids[start : start + len(original)].tolist(),
                (examples.masked_positions[places] - start).tolist(),
                Pair(original[1:separator], original[separator + 1 : -1], label == 1),
            )


def assert_same_distributions(
    documents: list[Document],
    max_seq_length: int,
    vocabulary_size: int,
    count: int,
    continuation_mask: Collection[int] = (),
) -> None:
    """Every distribution of `count` examples, beside the oracle's."""
    ours, theirs = (
        table_of(examples(documents, max_seq_length, vocabulary_size, continuation_mask), count)
        for examples in (stream_examples, oracle_examples)
    )
    for name in ("length", "segment A", "segment B", "masks", "first mask", "last mask"):
        assert ks_2samp(ours[name], theirs[name]).pvalue > LEAST_P, name
    random_b = [made["segment B"][made["not next"]] for made in (ours, theirs)]
    assert ks_2samp(*random_b).pvalue > LEAST_P

    full = [made["length"] == max_seq_length for made in (ours, theirs)]
    not_next = [made["not next"] for made in (ours, theirs)]
    for shares in (full, not_next):
        assert chi2_contingency([[share.sum(), (~share).sum()] for share in shares]).pvalue > LEAST_P
    replaced = [[made[kind].sum() for kind in ("to [MASK]", "same", "to another")] for made in (ours, theirs)]
    assert chi2_contingency(replaced).pvalue > LEAST_P, replaced
    random_share = 0.1 / vocabulary_size  # a random token may be [MASK], or the one that stood there
    expected = np.array([0.8 + random_share, 0.1 + random_share, 0.1 - 2 * random_share])
    assert chisquare(replaced[0], expected * sum(replaced[0])).pvalue > LEAST_P, replaced


@pytest.mark.parametrize("continuation_mask", [(), range(300, 500)], ids=["tokens", "whole words"])
@pytest.mark.parametrize("max_seq_length", [128, 512])
@pytest.mark.parametrize("count", [2000, pytest.param(50_000, marks=pytest.mark.slow)])
def test_the_distributions_are_those_of_the_oracle(max_seq_length, count, continuation_mask):
    documents = make_documents(2000, 1, 500, sentences=max_seq_length // 20)
    assert_same_distributions(documents, max_seq_length, 500, count, continuation_mask)


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
    assert_same_distributions(documents, max_seq_length, vocabulary_size, 2000)
