"""Compare bertie's tokenizer with `tokenizers`, on lines of Wikipedia.

    python benchmarks/tokenizer.py

Both encode the same list of strings, alternating in one process; the figures are medians. bertie
returns ids, segments, word indices and offsets as arrays. `encode_batch_fast` of the peer omits
offsets, and its time excludes the conversion to arrays. With two threads, each of bertie's encodes
half of the list; the peer uses its own threads. More measurements follow: time and memory for texts
of three sizes; and the time per character for words of several lengths, with a worst-case vocabulary.
With an argument (speed, sizes or words), only that measurement runs. `tokenizer_peers.py` compares
bertie with more peers, and `tokenizer_costs.py` languages, threads and starts. The data are in
BERTIE_DATA, or in ../shared/data.
"""

import argparse
import os
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

os.environ["RAYON_NUM_THREADS"] = "2"  # read once, when tokenizers starts its threads

import numpy as np
import tokenizers

from bertie.text.encoding import Encoding
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary

CHARACTERS = 8_000_000
ROUNDS = 5
WORD_LENGTHS = (5, 10, 20, 50, 100)  # 100 is the limit


def seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def compare_speed(data: Path) -> None:
    """Print megabytes per second of bertie and of the peer, on one thread and on two."""
    with (data / "text" / "wikipedia-small" / "wiki_00").open(encoding="utf-8") as file:
        lines = file.read(CHARACTERS).split("\n")
    size = len("\n".join(lines).encode()) / 1e6
    halves = [lines[: len(lines) // 2], lines[len(lines) // 2 :]]

    tokenizer = Tokenizer.load(data / "vocab" / "uncased_en" / "vocab.txt")
    with tempfile.TemporaryDirectory() as directory:
        tokenizer.save(directory)
        peer = tokenizers.Tokenizer.from_file(f"{directory}/tokenizer.json")
    peer.encode_special_tokens = True  # special tokens in a text are plain text, as for bertie

    def encode(threads: int) -> list[Encoding]:
        if threads == 1:
            return [tokenizer.encode_batch(lines)]
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(tokenizer.encode_batch, halves))

    def encode_with_peer(threads: int) -> list[tokenizers.Encoding]:
        os.environ["TOKENIZERS_PARALLELISM"] = "true" if threads > 1 else "false"  # read at every call
        return peer.encode_batch_fast(lines)

    (encoding,) = encode(1)
    # Before the peer runs: the memory that it frees would help the main thread, but not the others.
    before_peer = [[seconds(lambda: encode(threads)) for threads in (1, 2)] for _ in range(3 * ROUNDS)]  # noqa: B023
    ids = np.split(encoding.input_ids, encoding.bounds[1:-1])
    equal = [a.tolist() == b.ids for a, b in zip(ids, encode_with_peer(1), strict=True)]
    tokens = len(encoding.input_ids)
    print(f"{size:.1f} MB, {len(lines):,} lines, {tokens:,} tokens; ids differ in {equal.count(False)} lines")
    times = [
        [seconds(lambda: work(threads)) for work in (encode, encode_with_peer) for threads in (1, 2)]  # noqa: B023
        for _ in range(ROUNDS)
    ]
    for name, column in zip(
        ("bertie, 1 thread", "bertie, 2 threads", "tokenizers, 1 thread", "tokenizers, 2 threads"),
        zip(*times, strict=True),
        strict=True,
    ):
        median = statistics.median(column)
        print(f"{name:21}  {size / median:6.1f} MB/s  {tokens / median / 1e6:6.2f} M tokens/s")

    def ratio(slower: int, faster: int) -> float:
        return statistics.median(row[slower] / row[faster] for row in times)

    print(f"bertie / tokenizers: {ratio(2, 0):.1f} times as fast on one thread, {ratio(3, 1):.1f} on two")
    scaling = statistics.median(one / two for one, two in before_peer)
    print(f"two threads / one: bertie {scaling:.2f}, tokenizers {ratio(2, 3):.2f}")


def compare_sizes(data: Path) -> None:
    """Print time and peak memory for 1, 4 and 16 sixteenths of the text."""
    lines = (data / "text" / "wikipedia-small" / "wiki_00").read_text(encoding="utf-8").split("\n")
    tokenizer = Tokenizer.load(data / "vocab" / "uncased_en" / "vocab.txt")
    for factor in (1, 4, 16):
        texts = lines[: len(lines) * factor // 16]
        size = len("\n".join(texts).encode()) / 1e6
        median = statistics.median(seconds(lambda: tokenizer.encode_batch(texts)) for _ in range(ROUNDS))  # noqa: B023
        tracemalloc.start()
        tokenizer.encode_batch(texts)
        peak = tracemalloc.get_traced_memory()[1] / 1e6
        tracemalloc.stop()
        rate = f"{1e3 * median:5.1f} ms, {size / median:.1f} MB/s"
        print(f"x{factor:<3} {size:5.1f} MB: {rate}, peak {peak:.1f} MB")


def compare_word_lengths() -> None:
    """Print nanoseconds per character for words of several lengths.

    The words are aa…ab, and all tokens that match are prefixes of the longer token aa…ac. Trying
    the longest token first, or restarting in the trie for each token, takes quadratic time here.
    """
    short = ["a" * length for length in (1, 2, 3)]
    long = ["a" * length + "c" for length in range(1, max(WORD_LENGTHS))]
    tokens = [token for text in (*short, *long, "b") for token in (text, f"##{text}")]
    tokenizer = Tokenizer(Vocabulary([*SPECIAL_TOKENS, *tokens]))
    texts = {n: [f"{'a' * (n - 1)}b " * (CHARACTERS // 8 // (n + 1))] for n in WORD_LENGTHS}
    times = [
        [seconds(lambda: tokenizer.encode_batch(text)) / len(text[0]) for text in texts.values()]  # noqa: B023
        for _ in range(3 * ROUNDS)
    ]
    costs = [statistics.median(column) * 1e9 for column in zip(*times, strict=True)]
    listed = ", ".join(f"{cost:.1f} ({n} letters)" for n, cost in zip(WORD_LENGTHS, costs, strict=True))
    print(f"ns per character: {listed}")
    print(f"longest words / shortest: {costs[-1] / costs[0]:.2f}")


def main() -> None:
    data = Path(os.environ.get("BERTIE_DATA") or Path(__file__).parents[2] / "shared" / "data")
    measurements = {
        "speed": lambda: compare_speed(data),
        "sizes": lambda: compare_sizes(data),
        "words": compare_word_lengths,
    }
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", metavar="MEASUREMENT", help=f"default: {', '.join(measurements)}")
    names = parser.parse_args().names or list(measurements)
    if unknown := set(names) - measurements.keys():
        parser.error(f"unknown {', '.join(sorted(unknown))}; choose from {', '.join(measurements)}")
    for name in names:
        measurements[name]()


if __name__ == "__main__":
    main()
