"""Measure pre-training examples per second on one thread.

    python benchmarks/examples.py

`stream` is the time from the stream's cursor over memory-mapped shards to arrays. `packed`
continues to the packed batches that a model takes, with position ids, cu_seqlens and attention
buckets. The baseline is the plain-Python oracle of the tests, which works on lists of tokens in
memory.

The text is 10 MB of Wikipedia under the original uncased vocabulary, prepared as `bertie prepare`
does. Seconds are CPU seconds of the thread, so that other work on the machine does not count. The
data are found in BERTIE_DATA, or in ../shared/data.
"""

import os
import random
import runpy
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from itertools import islice, pairwise
from pathlib import Path

import numpy as np

from bertie.corpus.examples import Examples, ExampleSettings
from bertie.corpus.masking import continuation_mask
from bertie.corpus.preparation import prepare
from bertie.corpus.sampling import ExampleStream
from bertie.corpus.shards import Corpus, Shard, read_shard, write_shard
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import Vocabulary
from bertie.training.pretraining_settings import PretrainingSettings
from bertie.training.pretraining_setup import pack_examples

BATCH_SIZE = 256  # Appendix A.2
BATCHES = 50
ORACLE_DOCUMENTS = 200
ROUNDS = 7
KINDS = ("random", "near", "order", "none")

tests = Path(__file__).parents[1] / "tests"
document_examples = runpy.run_path(str(tests / "corpus" / "google_oracle.py"))["document_examples"]


def measure_rate(make: Callable[..., int], *arguments: object) -> float:
    """Return examples per second; `make` returns how many examples it has made."""
    start = time.thread_time()
    examples = make(*arguments)
    return examples / (time.thread_time() - start)


def make_batches(stream: ExampleStream) -> int:
    return sum(len(stream.next(BATCH_SIZE)) for _ in range(BATCHES))


def make_packed_batches(stream: ExampleStream) -> int:
    tokens = PretrainingSettings().micro_batch_tokens
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
        self.sizes = (settings.max_seq_length, settings.max_predictions, len(vocabulary))
        self.continuation_ids: set[int] = set()
        if settings.whole_word_masking:
            self.continuation_ids = set(np.flatnonzero(continuation_mask(vocabulary)).tolist())
        self.rng = random.Random(1)

    def examples(self, count: int) -> list:
        """Return the examples of the first `count` documents."""
        return [
            example
            for index in range(count)
            for example in document_examples(
                self.documents, index, *self.sizes, self.rng, self.continuation_ids
            )
        ]

    def make_batches(self) -> int:
        return len(self.examples(ORACLE_DOCUMENTS))


def compare_rates(shards: list[Shard], vocabulary: Vocabulary) -> None:
    """Print examples per second, and the speed-up of packed batches over the oracle."""
    documents = to_lists(shards[0])
    print("length  pairs   whole words   stream   packed   packed / oracle")
    for max_seq_length in (128, 512):
        for kind, whole_words in [*((kind, False) for kind in KINDS), ("random", True)]:
            settings = ExampleSettings(
                max_seq_length=max_seq_length, pairs=kind, whole_word_masking=whole_words
            )
            stream = ExampleStream(shards, settings, vocabulary, seed=1)
            oracle = Oracle(documents, settings, vocabulary)
            make_packed_batches(stream)  # compile the kernels
            rates = [
                (
                    measure_rate(make_batches, stream),
                    measure_rate(make_packed_batches, stream),
                    measure_rate(oracle.make_batches),
                )
                for _ in range(ROUNDS)
            ]
            stream_rate, packed_rate, _ = (statistics.median(column) for column in zip(*rates, strict=True))
            line = f"{max_seq_length:6}  {kind:6}  {'yes' if whole_words else 'no':11}"
            line += f" {stream_rate:8,.0f} {packed_rate:8,.0f}"
            if kind == "random":  # the only kind that google's code has
                line += f"   {statistics.median(packed / oracle for _, packed, oracle in rates):.0f}"
            print(line, flush=True)


def describe(examples: Examples, max_seq_length: int) -> str:
    assert examples.next_sentence_labels is not None
    return format_statistics(
        len(examples.input_ids) / len(examples) / max_seq_length,
        float(examples.next_sentence_labels.mean()),
        len(examples.masked_positions) / len(examples),
    )


def format_statistics(fill: float, random_next: float, masks: float) -> str:
    return f"fill {fill:.3f}, random next {random_next:.3f}, masks per example {masks:.2f}"


def compare_statistics(shards: list[Shard], vocabulary: Vocabulary) -> None:
    """Print statistics of the examples of the stream and of the oracle."""
    documents = to_lists(shards[0])
    print("\nstatistics of the examples, from the same text")
    for max_seq_length in (128, 512):
        for whole_words in (False, True):
            settings = ExampleSettings(max_seq_length=max_seq_length, whole_word_masking=whole_words)
            examples = ExampleStream(shards, settings, vocabulary, seed=1).next(50_000)
            oracle_examples = Oracle(documents, settings, vocabulary).examples(len(documents))
            print(f"length {max_seq_length}, whole words {whole_words}")
            print("  bertie ", describe(examples, max_seq_length))
            print(
                "  oracle ",
                format_statistics(
                    statistics.mean(len(example.original) for example in oracle_examples) / max_seq_length,
                    statistics.mean(example.pair.is_random_next for example in oracle_examples),
                    statistics.mean(len(example.positions) for example in oracle_examples),
                ),
            )


def start_stream(directory: Path, vocabulary: Vocabulary) -> ExampleStream:
    """Open a shard and return a stream that has made its first batch."""
    stream = ExampleStream([read_shard(directory, len(vocabulary))], ExampleSettings(), vocabulary, seed=1)
    stream.next(BATCH_SIZE)
    return stream


def compare_sizes(shards: list[Shard], vocabulary: Vocabulary, folder: Path) -> None:
    """Print the cost of opening corpora of several sizes, up to the first batch."""
    print("\nsize   tokens      blocks  first batch  its memory  stream")
    for factor in (1, 4, 16):
        directory = folder / f"{factor}"
        directory.mkdir()
        write_shard(directory, shards * factor, len(vocabulary))

        seconds = []
        for _ in range(ROUNDS):
            start = time.thread_time()
            stream = start_stream(directory, vocabulary)
            seconds.append(time.thread_time() - start)
        tracemalloc.start()
        start_stream(directory, vocabulary)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        rate = statistics.median(measure_rate(make_batches, stream) for _ in range(ROUNDS))
        tokens = len(stream.shards[0].tokens)
        print(
            f"×{factor:<4} {tokens:11,} {stream.block_count:6} {statistics.median(seconds) * 1000:9.1f} ms "
            f"{peak / 1e6:8.2f} MB {rate:9,.0f}",
            flush=True,
        )


def main() -> None:
    data = Path(os.environ.get("BERTIE_DATA") or Path(__file__).parents[2] / "shared" / "data")
    tokenizer = Tokenizer.load(data / "vocab" / "uncased_en" / "vocab.txt")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        tokenizer.save(folder / "tokenizer")
        text = data / "text" / "wikipedia-small" / "wiki_00"
        prepare([text], folder / "tokenizer", folder / "corpus", workers=1)
        shards = Corpus.open(folder / "corpus").train
        compare_rates(shards, tokenizer.vocabulary)
        compare_statistics(shards, tokenizer.vocabulary)
        compare_sizes(shards, tokenizer.vocabulary, folder)


if __name__ == "__main__":
    main()
