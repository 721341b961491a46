"""Pre-training examples a second on one thread: python benchmarks/examples.py

From the stream's cursor over memory-mapped shards to arrays (`stream`), and on to the packed batches that a
model takes, position ids, cu_seqlens and attention buckets among them (`packed`). Beside it the plain-Python
oracle of the tests, which starts from lists of tokens in memory and stops at lists. The text is ten
megabytes of Wikipedia under the original uncased vocabulary, prepared as `bertie prepare` does it. Seconds
are those of the thread, so that others on the machine do not count. The data: BERTIE_DATA, or
../shared/data.
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
from bertie.training.pretraining import PretrainingSettings, pack_examples

BATCH_SIZE = 256  # Appendix A.2
BATCHES = 50
ORACLE_DOCUMENTS = 200
ROUNDS = 7
KINDS = ("random", "near", "order", "none")

tests = Path(__file__).parents[1] / "tests"
document_examples = runpy.run_path(str(tests / "corpus" / "google_oracle.py"))["document_examples"]


def rate(make: Callable[..., int], *arguments: object) -> float:
    """Examples a second; `make` tells how many it has made."""
    begin = time.thread_time()
    examples = make(*arguments)
    return examples / (time.thread_time() - begin)


def made(stream: ExampleStream) -> int:
    return sum(len(stream.next(BATCH_SIZE)) for _ in range(BATCHES))


def packed(stream: ExampleStream) -> int:
    tokens = PretrainingSettings().micro_batch_tokens
    batches = (pack_examples(stream.next(BATCH_SIZE), tokens) for _ in range(BATCHES))
    return sum(len(micro_batch) for micro_batches in batches for micro_batch in micro_batches)


def as_lists(shard: Shard) -> list[list[list[int]]]:
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
        self.continuation_mask = set(np.flatnonzero(continuation_mask(vocabulary)).tolist())
        if not settings.whole_word_masking:
            self.continuation_mask = set()
        self.rng = random.Random(1)

    def examples(self, count: int) -> list:
        """The examples of the first `count` documents."""
        return [
            example
            for index in range(count)
            for example in document_examples(
                self.documents, index, *self.sizes, self.rng, self.continuation_mask
            )
        ]

    def made(self) -> int:
        return len(self.examples(ORACLE_DOCUMENTS))


def compare_rates(shards: list[Shard], vocabulary: Vocabulary) -> None:
    documents = as_lists(shards[0])
    print("length  pairs   whole words   stream   packed   packed / oracle")
    for max_seq_length in (128, 512):
        for kind, whole_words in [*((kind, False) for kind in KINDS), ("random", True)]:
            settings = ExampleSettings(
                max_seq_length=max_seq_length, pairs=kind, whole_word_masking=whole_words
            )
            stream = ExampleStream(shards, settings, vocabulary, seed=1)
            oracle = Oracle(documents, settings, vocabulary)
            packed(stream)  # compiles
            rounds = [(rate(made, stream), rate(packed, stream), rate(oracle.made)) for _ in range(ROUNDS)]
            ours, finished, _ = (statistics.median(column) for column in zip(*rounds, strict=True))
            line = f"{max_seq_length:6}  {kind:6}  {'yes' if whole_words else 'no':11}"
            line += f" {ours:8,.0f} {finished:8,.0f}"
            if kind == "random":  # the only kind that google has
                line += f"   {statistics.median(finished / their for _, finished, their in rounds):.0f}"
            print(line, flush=True)


def describe(examples: Examples, max_seq_length: int) -> str:
    return figures(
        len(examples.input_ids) / len(examples) / max_seq_length,
        float(examples.next_sentence_labels.mean()),
        len(examples.masked_positions) / len(examples),
    )


def figures(fill: float, not_next: float, masks: float) -> str:
    return f"fill {fill:.3f}, random next {not_next:.3f}, masks an example {masks:.2f}"


def compare_figures(shards: list[Shard], vocabulary: Vocabulary) -> None:
    documents = as_lists(shards[0])
    print("\nwhat the examples are like, on the same text")
    for max_seq_length in (128, 512):
        for whole_words in (False, True):
            settings = ExampleSettings(max_seq_length=max_seq_length, whole_word_masking=whole_words)
            ours = ExampleStream(shards, settings, vocabulary, seed=1).next(50_000)
            theirs = Oracle(documents, settings, vocabulary).examples(len(documents))
            print(f"length {max_seq_length}, whole words {whole_words}")
            print("  bertie ", describe(ours, max_seq_length))
            print(
                "  oracle ",
                figures(
                    statistics.mean(len(example.original) for example in theirs) / max_seq_length,
                    statistics.mean(example.pair.is_random_next for example in theirs),
                    statistics.mean(len(example.positions) for example in theirs),
                ),
            )


def open_stream(place: Path, vocabulary: Vocabulary) -> ExampleStream:
    """A stream that has given its first batch."""
    stream = ExampleStream([read_shard(place, len(vocabulary))], ExampleSettings(), vocabulary, seed=1)
    stream.next(BATCH_SIZE)
    return stream


def compare_sizes(shards: list[Shard], vocabulary: Vocabulary, folder: Path) -> None:
    """Time and memory from opening a corpus to its first batch, and the rate after it."""
    print("\nsize   tokens      blocks  first batch  its memory  stream")
    for factor in (1, 4, 16):
        place = folder / f"{factor}"
        place.mkdir()
        write_shard(place, shards * factor, len(vocabulary))

        seconds = []
        for _ in range(ROUNDS):
            begin = time.thread_time()
            stream = open_stream(place, vocabulary)
            seconds.append(time.thread_time() - begin)
        tracemalloc.start()
        open_stream(place, vocabulary)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        speed = statistics.median(rate(made, stream) for _ in range(ROUNDS))
        tokens = len(stream.shards[0].tokens)
        print(
            f"×{factor:<4} {tokens:11,} {stream.blocks:6} {statistics.median(seconds) * 1000:9.1f} ms "
            f"{peak / 1e6:8.2f} MB {speed:9,.0f}",
            flush=True,
        )


def main() -> None:
    data = Path(os.environ.get("BERTIE_DATA") or Path(__file__).parents[2] / "shared" / "data")
    tokenizer = Tokenizer.load(data / "vocab" / "uncased_en" / "vocab.txt")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokenizer.save(folder / "tokenizer")
        text = data / "text" / "wikipedia-small" / "wiki_00"
        prepare([text], folder / "tokenizer", folder / "corpus", workers=1)
        shards = Corpus.open(folder / "corpus").train
        compare_rates(shards, tokenizer.vocabulary)
        compare_figures(shards, tokenizer.vocabulary)
        compare_sizes(shards, tokenizer.vocabulary, folder)


if __name__ == "__main__":
    main()
