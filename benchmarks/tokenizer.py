"""The tokenizer against `tokenizers`, on lines of Wikipedia: python benchmarks/tokenizer.py

Both sides take the same lists of strings, in turn, in one run; the figures are medians. Ours gives ids,
segments, word numbers and offsets as arrays; theirs is `encode_batch_fast`, which leaves offsets out, and its
time includes no conversion to arrays. The data: BERTIE_DATA, or ../shared/data.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

os.environ["RAYON_NUM_THREADS"] = "2"  # read once, when tokenizers starts its threads

import tokenizers

from bertie.text.tokenizer import Encoding, Tokenizer

CHARACTERS = 2_000_000
ROUNDS = 7
LINES_AT_ONCE = 1000  # what a caller would hand over at a time


def seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def main() -> None:
    data = Path(os.environ.get("BERTIE_DATA") or Path(__file__).parents[2] / "shared" / "data")
    with (data / "text" / "wikipedia-small" / "wiki_00").open(encoding="utf-8") as file:
        lines = file.read(CHARACTERS).split("\n")
    size = len("\n".join(lines).encode()) / 1e6
    batches = [lines[i : i + LINES_AT_ONCE] for i in range(0, len(lines), LINES_AT_ONCE)]

    ours = Tokenizer.load(data / "vocab" / "uncased_en" / "vocab.txt")
    with tempfile.TemporaryDirectory() as folder:
        ours.save(folder)
        theirs = tokenizers.Tokenizer.from_file(f"{folder}/tokenizer.json")
    theirs.encode_special_tokens = True  # special tokens in a text are plain text, as in google's

    def encode_ours(threads: int) -> list[Encoding]:
        if threads == 1:
            return [ours.encode_batch(batch) for batch in batches]
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(ours.encode_batch, batches))

    def encode_theirs(threads: int) -> list[list[tokenizers.Encoding]]:
        os.environ["TOKENIZERS_PARALLELISM"] = "true" if threads > 1 else "false"  # read at every call
        return [theirs.encode_batch_fast(batch) for batch in batches]

    our_ids = [i for encoding in encode_ours(1) for i in encoding.input_ids.tolist()]
    their_ids = [i for batch in encode_theirs(1) for encoding in batch for i in encoding.ids]
    print(f"{size:.1f} MB, {len(lines)} lines, {len(our_ids)} tokens, ids equal: {our_ids == their_ids}")
    for threads in (1, 2):
        times = [
            (seconds(lambda: encode_ours(threads)), seconds(lambda: encode_theirs(threads)))  # noqa: B023
            for _ in range(ROUNDS)
        ]
        for name, column in zip(("bertie", "tokenizers"), zip(*times, strict=True), strict=True):
            median = statistics.median(column)
            rate = f"{size / median:6.1f} MB/s {len(our_ids) / median / 1e6:6.2f} M tokens/s"
            print(f"{threads} thread(s)  {name:10}  {rate}")
        ratio = statistics.median(their / our for our, their in times)
        print(f"{threads} thread(s)  ratio {ratio:.1f}")


if __name__ == "__main__":
    main()
