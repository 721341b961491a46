"""Compare the vocabulary trainers of bertie and `tokenizers`, on Wikipedia.

    python benchmarks/wordpiece_trainer.py [FILES=20] [SIZE=30000] [WORKERS=2]

bertie merges pairs by frequency, as `tokenizers` does, and by likelihood. Every trainer runs in a
separate process, from the files to the list of tokens, so that its memory can be measured. The
vocabularies are compared by the tokens per word on a file that is not in the training text;
bertie's tokenizer applies all of them. The data are in BERTIE_DATA, or in ../shared/data.
"""

import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage

import numpy as np

from bertie.corpus.readers import list_inputs, read_documents
from bertie.corpus.word_counts import count_words
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary
from bertie.text.wordpiece_trainer import Merges, learn_vocabulary

DATA = Path(os.environ.get("BERTIE_DATA") or Path(__file__).parents[2] / "shared" / "data")
HELD_OUT = DATA / "text/wikipedia-small/wiki_00"


def train_bertie(merges: Merges, files: list[Path], size: int, workers: int) -> list[str]:
    started = time.perf_counter()
    words, counts = count_words(files, True, workers)
    print(f"  {len(words):,} words counted in {time.perf_counter() - started:.1f} s", file=sys.stderr)
    return learn_vocabulary(words, counts, size, merges)


def train_tokenizers(files: list[Path], size: int, workers: int) -> list[str]:
    os.environ["RAYON_NUM_THREADS"] = str(workers)
    import tokenizers

    tokenizer = tokenizers.BertWordPieceTokenizer(lowercase=True)
    texts = (document.text for file in files for document in read_documents(file))
    tokenizer.train_from_iterator(texts, size, special_tokens=list(SPECIAL_TOKENS), show_progress=False)
    ids = tokenizer.get_vocab()
    return sorted(ids, key=ids.__getitem__)


TRAINERS = {
    "frequency": partial(train_bertie, "frequency"),
    "likelihood": partial(train_bertie, "likelihood"),
    "tokenizers": train_tokenizers,
}


def run_trainer(name: str, count: int, size: int, workers: int) -> None:
    """Train in this process; print seconds, megabytes and tokens, one per line."""
    files = list_inputs([DATA / "text/wikipedia/*.xz"])[:count]
    started = time.perf_counter()
    tokens = TRAINERS[name](files, size, workers)
    seconds = time.perf_counter() - started
    # An upper bound: the system reports only the largest of the child processes.
    memory = getrusage(RUSAGE_SELF).ru_maxrss + workers * getrusage(RUSAGE_CHILDREN).ru_maxrss
    print(seconds, memory / 1e3, *tokens, sep="\n")


def main(count: int = 20, size: int = 30_000, workers: int = 2) -> None:
    held_out = [line for document in read_documents(HELD_OUT) for line in document.text.splitlines()]
    megabytes = sum(
        len(document.text.encode())
        for file in list_inputs([DATA / "text/wikipedia/*.xz"])[:count]
        for document in read_documents(file)
    ) / 1e6  # fmt: skip
    print(f"{count} files, {megabytes:.0f} MB of text, {size:,} tokens, {workers} workers or threads")
    for name in TRAINERS:
        command = [sys.executable, __file__, name, str(count), str(size), str(workers)]
        output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        seconds, memory, *tokens = output.split("\n")[:-1]
        encoding = Tokenizer(Vocabulary(tokens)).encode_batch(held_out, add_special_tokens=False)
        words = np.count_nonzero(np.diff(encoding.word_ids, prepend=-1))
        print(
            f"{name:12} {float(seconds):6.1f} s  {float(memory):6.0f} MB  {len(tokens):,} tokens"
            f"  {len(encoding.input_ids) / words:.4f} tokens per word"
        )


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in TRAINERS:
        run_trainer(sys.argv[1], *map(int, sys.argv[2:]))
    else:
        main(*map(int, sys.argv[1:]))
