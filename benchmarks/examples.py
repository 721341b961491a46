"""Examples a second on one thread, beside the plain-Python oracle of the tests: python benchmarks/examples.py

Both make examples of the same ten megabytes of Wikipedia, prepared as `bertie prepare` does it. Ours go from
the stream's cursor over memory-mapped shards to the arrays of a batch; the oracle starts from lists of
tokens in memory and stops at lists. The data: BERTIE_DATA, or ../shared/data.
"""

import os
import random
import runpy
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import islice, pairwise
from pathlib import Path

from bertie.corpus.preparation import prepare
from bertie.corpus.sampling import ExampleSettings, ExampleStream
from bertie.corpus.shards import Corpus, Shard
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import Vocabulary

BATCH_SIZE = 256  # Appendix A.2
BATCHES = 100
ORACLE_DOCUMENTS = 200
ROUNDS = 7

oracle = runpy.run_path(str(Path(__file__).parents[1] / "tests" / "corpus" / "google_oracle.py"))


def rate(work: Callable[[], int]) -> float:
    """Examples a second."""
    begin = time.perf_counter()
    examples = work()
    return examples / (time.perf_counter() - begin)


def as_lists(shard: Shard) -> list[list[list[int]]]:
    tokens = shard.tokens.tolist()
    sentences = iter([tokens[start:end] for start, end in pairwise([0, *shard.sentence_ends.tolist()])])
    return [
        list(islice(sentences, end - start)) for start, end in pairwise([0, *shard.document_ends.tolist()])
    ]


def compare(
    shards: list[Shard], documents: list[list[list[int]]], vocabulary: Vocabulary, max_seq_length: int
) -> None:
    settings = ExampleSettings(max_seq_length=max_seq_length)
    stream = ExampleStream(shards, settings, vocabulary, seed=1)
    stream.next(BATCH_SIZE)  # compiles
    rng = random.Random(1)

    def ours() -> int:
        return sum(len(stream.next(BATCH_SIZE)) for _ in range(BATCHES))

    def theirs() -> int:
        sizes = (max_seq_length, settings.max_predictions, len(vocabulary))
        return sum(
            len(oracle["document_examples"](documents, index, *sizes, rng))
            for index in range(ORACLE_DOCUMENTS)
        )

    rounds = [(rate(ours), rate(theirs)) for _ in range(ROUNDS)]
    ratio = statistics.median(our / their for our, their in rounds)
    our, their = (statistics.median(column) for column in zip(*rounds, strict=True))
    print(f"length {max_seq_length}: bertie {our:,.0f} examples/s, oracle {their:,.0f}, ratio {ratio:.0f}")


def main() -> None:
    data = Path(os.environ.get("BERTIE_DATA") or Path(__file__).parents[2] / "shared" / "data")
    tokenizer = Tokenizer.load(data / "vocab" / "uncased_en" / "vocab.txt")
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(f"{folder}/tokenizer")
        text = data / "text" / "wikipedia-small" / "wiki_00"
        prepare([text], Path(folder, "tokenizer"), Path(folder, "corpus"), workers=2)
        shards = Corpus.open(Path(folder, "corpus")).train
        documents = as_lists(shards[0])
        tokens = sum(len(shard.tokens) for shard in shards)
        print(f"{len(documents)} documents, {tokens} tokens, batches of {BATCH_SIZE}, median of {ROUNDS}")
        for max_seq_length in (128, 512):
            compare(shards, documents, tokenizer.vocabulary, max_seq_length)


if __name__ == "__main__":
    main()
