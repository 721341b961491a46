"""Compare the vocabulary trainers of bertie and `tokenizers`, on Wikipedia.

bertie merges pairs by frequency, as `tokenizers` does, and by likelihood. Every trainer runs in a
separate process, from the files to the list of tokens, so that its memory can be measured. The
vocabularies are compared by the tokens per word on a file that is not in the training text;
bertie's tokenizer applies all of them.
"""

import statistics
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from bertie.corpus.readers import list_inputs, read_documents
from bertie.corpus.word_counts import count_words
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary
from bertie.text.wordpiece_trainer import Merges, learn_vocabulary
from measure import DATA, WIKIPEDIA, Finished, Row, compare, run_function, version

FILES, SIZE = 2, 30_000


def train_bertie(merges: Merges, files: list[Path]) -> list[str]:
    words, counts = count_words(files, True, workers=1)
    return learn_vocabulary(words, counts, SIZE, merges)


def train_tokenizers(files: list[Path]) -> list[str]:
    import tokenizers

    tokenizer = tokenizers.BertWordPieceTokenizer(lowercase=True)
    texts = (document.text for file in files for document in read_documents(file))
    tokenizer.train_from_iterator(texts, SIZE, special_tokens=list(SPECIAL_TOKENS), show_progress=False)
    ids = tokenizer.get_vocab()
    return sorted(ids, key=ids.__getitem__)


TRAINERS: dict[str, Callable[[list[Path]], list[str]]] = {
    "frequency": partial(train_bertie, "frequency"),
    "likelihood": partial(train_bertie, "likelihood"),
    "tokenizers": train_tokenizers,
}


def run_trainer(name: str, count: str) -> None:
    """Train in this process; print the tokens, one a line."""
    print(*TRAINERS[name](list_inputs([DATA / "text/wikipedia/*.xz"])[: int(count)]), sep="\n")


def tokens_per_word(tokens: list[str], texts: list[str]) -> float:
    """Return how many tokens a vocabulary makes of a word."""
    encoding = Tokenizer(Vocabulary(tokens)).encode_batch(texts, add_special_tokens=False)
    return len(encoding.input_ids) / np.count_nonzero(np.diff(encoding.word_ids, prepend=-1))


def rows(rounds: int) -> Iterator[Row]:
    """Compare time, memory and vocabularies."""
    files = list_inputs([DATA / "text/wikipedia/*.xz"])[:FILES]
    size = sum(len(document.text.encode()) for file in files for document in read_documents(file)) / 1e6
    held_out = [line for document in read_documents(WIKIPEDIA) for line in document.text.splitlines()]
    run_function("wordpiece_trainer", "run_trainer", "frequency", "1")  # compiles kernels
    finished: dict[str, list[Finished]] = {name: [] for name in TRAINERS}
    for _ in range(rounds):
        for name in TRAINERS:
            finished[name].append(run_function("wordpiece_trainer", "run_trainer", name, str(FILES)))
    words = {
        name: tokens_per_word(runs[0].output.split("\n")[:-1], held_out) for name, runs in finished.items()
    }
    peaks = {name: statistics.median(run.peak for run in runs) for name, runs in finished.items()}
    for name in ("frequency", "likelihood"):
        yield compare(
            f"vocabulary-{name}",
            f"a vocabulary of {SIZE:,} entries from {size:.0f} MB, merged by {name}",
            version("tokenizers"),
            "MB/s",
            size,
            [run.seconds for run in finished[name]],
            [run.seconds for run in finished["tokenizers"]],
            note=f"{words[name]:.4f} tokens per word, the peer {words['tokenizers']:.4f}; peak memory "
            f"{peaks[name]:,.0f} MiB, the peer {peaks['tokenizers']:,.0f}. From the start of the process.",
        )
