"""The tokenizer against `tokenizers`, on lines of Wikipedia: python benchmarks/tokenizer.py

Both sides take the same list of strings, in turn, in one run; the figures are medians. Ours gives ids,
segments, word numbers and offsets as arrays; theirs is `encode_batch_fast`, which leaves offsets out, and its
time includes no conversion to arrays. Two threads: ours encode half of the list each, theirs are its own.
Then the cost of a character in words of every length, on a vocabulary built to hurt. The data: BERTIE_DATA,
or ../shared/data.
"""

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

from bertie.text.tokenizer import Encoding, Tokenizer
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary

CHARACTERS = 8_000_000
ROUNDS = 5
WORD_LENGTHS = (5, 10, 20, 50, 100)  # 100 is the longest that is matched


def seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def compare_speed(data: Path) -> None:
    """Megabytes a second, ours and theirs, on one thread and on two."""
    with (data / "text" / "wikipedia-small" / "wiki_00").open(encoding="utf-8") as file:
        lines = file.read(CHARACTERS).split("\n")
    size = len("\n".join(lines).encode()) / 1e6
    halves = [lines[: len(lines) // 2], lines[len(lines) // 2 :]]

    ours = Tokenizer.load(data / "vocab" / "uncased_en" / "vocab.txt")
    with tempfile.TemporaryDirectory() as folder:
        ours.save(folder)
        theirs = tokenizers.Tokenizer.from_file(f"{folder}/tokenizer.json")
    theirs.encode_special_tokens = True  # special tokens in a text are plain text, as in google's

    def encode_ours(threads: int) -> list[Encoding]:
        if threads == 1:
            return [ours.encode_batch(lines)]
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(ours.encode_batch, halves))

    def encode_theirs(threads: int) -> list[tokenizers.Encoding]:
        os.environ["TOKENIZERS_PARALLELISM"] = "true" if threads > 1 else "false"  # read at every call
        return theirs.encode_batch_fast(lines)

    (encoding,) = encode_ours(1)
    # Before the peer has run: the memory it frees would serve our main thread, but not the others.
    alone = [[seconds(lambda: encode_ours(threads)) for threads in (1, 2)] for _ in range(3 * ROUNDS)]  # noqa: B023
    our_ids = np.split(encoding.input_ids, encoding.bounds[1:-1])
    same = [a.tolist() == b.ids for a, b in zip(our_ids, encode_theirs(1), strict=True)]
    tokens = len(encoding.input_ids)
    print(f"{size:.1f} MB, {len(lines):,} lines, {tokens:,} tokens; ids differ in {same.count(False)} lines")
    times = [
        [seconds(lambda: work(threads)) for work in (encode_ours, encode_theirs) for threads in (1, 2)]  # noqa: B023
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

    print(f"bertie against tokenizers: {ratio(2, 0):.1f} times on one thread, {ratio(3, 1):.1f} on two")
    ours_scale = statistics.median(one / two for one, two in alone)
    print(f"two threads against one: bertie {ours_scale:.2f}, tokenizers {ratio(2, 3):.2f}")


def compare_sizes(data: Path) -> None:
    """Time and the most memory at a time, the result included, at ×1, ×4 and ×16 of the text."""
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
        print(f"x{factor:<3} {size:5.1f} MB: {rate}, {peak:.1f} MB at most")


def compare_word_lengths() -> None:
    """Nanoseconds a character of words aa…ab, whose pieces are short but whose every end looks like aa…ac.

    To match by trying the longest piece first, or by walking the trie anew for each piece, is quadratic here.
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
    print(f"ns a character: {listed}")
    print(f"the longest words against the shortest: {costs[-1] / costs[0]:.2f} times")


if __name__ == "__main__":
    folder = Path(os.environ.get("BERTIE_DATA") or Path(__file__).parents[2] / "shared" / "data")
    compare_speed(folder)
    compare_sizes(folder)
    compare_word_lengths()
