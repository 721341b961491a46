"""Compare making pre-training examples with Google's algorithm in plain Python.

The time is from the stream's cursor over memory-mapped shards to the packed batches that a model takes,
with position ids, cu_seqlens and attention buckets. The peer is the oracle of the tests, which works on
lists of tokens in memory. Other rows compare statistics of the examples of both. The text is 10 MB of
Wikipedia under the original uncased vocabulary, prepared as `bertie prepare` does.
"""

import random
import runpy
import statistics
import tempfile
from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from bertie.corpus.examples import ExampleSettings
from bertie.corpus.masking import continuation_mask
from bertie.corpus.preparation import prepare
from bertie.corpus.prepared import Corpus
from bertie.corpus.sampling import ExampleStream
from bertie.corpus.shards import Shard
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import Vocabulary
from bertie.training.pretraining_settings import PretrainingSettings
from bertie.training.pretraining_setup import pack_examples
from measure import UNCASED, WIKIPEDIA, Row, take_turns

BATCH_SIZE = 256  # Appendix A.2
BATCHES = 50
ORACLE_DOCUMENTS = 100
COUNTED = 50_000  # examples whose statistics are compared

tests = Path(__file__).parents[1] / "tests"
google_oracle = runpy.run_path(str(tests / "corpus" / "google_oracle.py"))
SHORT_SEQUENCE_PROBABILITY = 0.1  # create_pretraining_data.py


def make_packed_batches(stream: ExampleStream) -> int:
    tokens = PretrainingSettings(device="cpu").resolved().micro_batch_tokens
    batches = (pack_examples(stream.next(BATCH_SIZE), tokens) for _ in range(BATCHES))
    return sum(len(micro_batch) for micro_batches in batches for micro_batch in micro_batches)


def to_lists(shard: Shard) -> list[list[list[int]]]:
    """Return the ids of the sentences of each document."""
    tokens = shard.tokens.tolist()
    sentences = iter([tokens[start:end] for start, end in pairwise([0, *shard.sentence_ends.tolist()])])
    return [
        list(islice(sentences, end - start)) for start, end in pairwise([0, *shard.document_ends.tolist()])
    ]


class Oracle:
    """google's algorithm in plain Python on lists of tokens."""

    def __init__(self, documents: list[list[list[int]]], settings: ExampleSettings, vocabulary: Vocabulary):
        self.documents = documents
        self.max_tokens = settings.max_seq_length - 3  # without [CLS] and [SEP]
        self.max_predictions, self.vocabulary_size = settings.max_predictions, len(vocabulary)
        self.continuation_ids: set[int] = set()
        if settings.whole_word_masking:
            self.continuation_ids = set(np.flatnonzero(continuation_mask(vocabulary)).tolist())
        self.rng = random.Random(1)

    def examples(self, count: int) -> list[Any]:
        """Return the examples of the first `count` documents."""
        document_pairs, make_example = google_oracle["document_pairs"], google_oracle["make_example"]
        settings = self.max_predictions, self.vocabulary_size, self.rng, self.continuation_ids
        return [
            make_example(pair, *settings)
            for index in range(count)
            for pair in document_pairs(
                self.documents, index, self.max_tokens, SHORT_SEQUENCE_PROBABILITY, self.rng
            )
        ]


def compare_rates(shards: list[Shard], vocabulary: Vocabulary, length: int, rounds: int) -> Row:
    """Compare packed batches with the oracle."""
    settings = ExampleSettings(max_seq_length=length)
    stream = ExampleStream(shards, settings, vocabulary, seed=1)
    oracle = Oracle(to_lists(shards[0]), settings, vocabulary)
    made = {"bertie": BATCHES * BATCH_SIZE, "oracle": len(oracle.examples(ORACLE_DOCUMENTS))}
    works = {
        "bertie": lambda: make_packed_batches(stream),
        "oracle": lambda: oracle.examples(ORACLE_DOCUMENTS),
    }
    seconds = take_turns(works, 2 * rounds + 1)
    rates = {name: [made[name] / taken.processor for taken in seconds[name]] for name in works}
    ratios = [ours / theirs for ours, theirs in zip(*rates.values(), strict=True)]
    return Row(
        f"examples-{length}",
        f"text to packed examples of {length} tokens",
        "Google's algorithm in plain Python",
        "examples/s",
        statistics.median(rates["bertie"]),
        statistics.median(rates["oracle"]),
        statistics.median(ratios),
        (min(ratios), max(ratios)),
    )


def compare_statistics(shards: list[Shard], vocabulary: Vocabulary, length: int) -> Iterator[Row]:
    """Compare the statistics of the stream with the oracle."""
    settings = ExampleSettings(max_seq_length=length)
    ours = ExampleStream(shards, settings, vocabulary, seed=1).next(COUNTED)
    documents = to_lists(shards[0])
    theirs = Oracle(documents, settings, vocabulary).examples(len(documents))
    assert ours.next_sentence_labels is not None
    for name, unit, one, other in (
        (
            "fill",
            "of the length",
            len(ours.input_ids) / len(ours) / length,
            statistics.mean(len(example.original) for example in theirs) / length,
        ),
        (
            "random-next",
            "of the pairs",
            float(ours.next_sentence_labels.mean()),
            statistics.mean(example.pair.is_random_next for example in theirs),
        ),
        (
            "masked",
            "tokens an example",
            len(ours.masked_positions) / len(ours),
            statistics.mean(len(example.positions) for example in theirs),
        ),
    ):
        ratio = one / other
        yield Row(
            f"examples-{length}-{name}",
            f"{name.replace('-', ' ')} of examples of {length} tokens, the same text",
            "Google's algorithm in plain Python",
            unit,
            one,
            other,
            ratio,
            (ratio, ratio),
        )


def rows(rounds: int) -> Iterator[Row]:
    """Compare speed and statistics for both lengths of the paper."""
    tokenizer = Tokenizer.load(UNCASED)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        tokenizer.save(folder / "tokenizer")
        prepare([WIKIPEDIA], folder / "tokenizer", folder / "corpus", workers=1)
        shards = Corpus.open(folder / "corpus").train
        for length in (128, 512):
            yield compare_rates(shards, tokenizer.vocabulary, length, rounds)
            yield from compare_statistics(shards, tokenizer.vocabulary, length)
