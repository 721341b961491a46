"""Documents -> how often each word occurs, as tasks on the executor, in memory for the unique words alone."""

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from bertie.base.errors import DataError
from bertie.base.executor import run_tasks
from bertie.base.kernels import kernel
from bertie.base.progress import Progress
from bertie.base.random import mix
from bertie.corpus.documents import Document, OnError, Problems
from bertie.corpus.formats import Format
from bertie.corpus.input_splits import InputSplit, cut_into_tasks, read_splits
from bertie.text.wordpiece import split_words

T = TypeVar("T", bound=np.generic)
UInt32s = npt.NDArray[np.uint32]
Int64s = npt.NDArray[np.int64]
WordCounts = tuple[UInt32s, Int64s, Int64s]  # characters, bounds (W + 1,), counts (W,)

BATCH_CHARACTERS = 1 << 22  # of text in memory at a time

_EMPTY = -1
_ONE = np.uint64(1)
_FNV_PRIME = np.uint64(0x100000001B3)  # FNV-1a (draft-eastlake-fnv)


def count_words(
    inputs: Iterable[Path],
    lowercase: bool,
    workers: int,
    format: Format | None = None,
    column: str = "text",
    problems: Problems | None = None,
) -> tuple[list[str], Int64s]:
    """The words of all documents of `inputs`, and how often each occurs.

    A word is what the tokenizer splits text into before it looks at a vocabulary, normalised: lower-cased
    and stripped of accents where `lowercase`. What cannot be read is counted in `problems`.

    Returns:
        The words, sorted by code points, and their counts, int64 (W,).

    Raises:
        DataError: an input cannot be read, as in `read_documents`, or there is not one word.
        SettingsError, BertieError: as in `read_documents`.
    """
    problems = problems or Problems()
    tasks = cut_into_tasks(inputs, format, problems)
    sizes = [sum(span.size for span in task) for task in tasks]
    table = WordTable()
    count = partial(_count_task, lowercase, column, problems.on_error)
    with Progress("counting words", total=round(sum(sizes) / 1e6), unit="MB") as progress:
        done = 0
        for index, (counted, task_problems) in run_tasks(count, tasks, workers):
            table.add(*counted)
            problems.merge(task_problems)
            done += sizes[index]
            progress.update(round(done / 1e6), {"unique words": len(table)})
    words, counts = table.words(), table.counts[: len(table)]
    if not words:
        raise DataError(
            f"the inputs hold no words{f' ({problems.messages[0]})' if problems.messages else ''}"
        )
    order = sorted(range(len(words)), key=words.__getitem__)
    return [words[index] for index in order], counts[order]


def batch_documents(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Runs of documents of about `BATCH_CHARACTERS`."""
    batch: list[Document] = []
    room = BATCH_CHARACTERS
    for document in documents:
        batch.append(document)
        room -= len(document.text)
        if room <= 0:
            yield batch
            batch, room = [], BATCH_CHARACTERS
    if batch:
        yield batch


def _count_task(
    lowercase: bool, column: str, on_error: OnError, task: list[InputSplit]
) -> tuple[WordCounts, Problems]:
    table, problems = WordTable(), Problems(on_error)
    for batch in batch_documents(read_splits(task, column, problems)):
        codes, bounds = split_words([document.text for document in batch], lowercase)
        table.add(codes, bounds, np.ones(len(bounds) - 1, dtype=np.int64))
    size = len(table)
    return (table.codes[: table.bounds[size]], table.bounds[: size + 1], table.counts[:size]), problems


class WordTable:
    """Words, as code points, and their counts: an open-addressing hash table that keeps every word."""

    def __init__(self) -> None:
        self.size = 0
        self.codes: UInt32s = np.zeros(1 << 16, dtype=np.uint32)
        self.bounds: Int64s = np.zeros(1 << 13, dtype=np.int64)
        self.counts: Int64s = np.zeros(1 << 13, dtype=np.int64)
        self.slots = np.full(1 << 14, _EMPTY, dtype=np.int32)

    def __len__(self) -> int:
        return self.size

    def add(self, codes: UInt32s, bounds: Int64s, counts: Int64s) -> None:
        """Count the words codes[bounds[i] : bounds[i + 1]] counts[i] times more."""
        self.codes = _grown(self.codes, self.bounds[self.size] + len(codes))
        self.bounds = _grown(self.bounds, self.size + len(bounds))
        self.counts = _grown(self.counts, self.size + len(counts))
        if 2 * (self.size + len(counts)) > len(self.slots):
            self.slots = np.full(2 * len(self.counts), _EMPTY, dtype=np.int32)
            _fill_slots(self.codes, self.bounds, self.size, self.slots)
        self.size = _add_words(
            self.codes, self.bounds, self.counts, self.slots, self.size, codes, bounds, counts
        )

    def words(self) -> list[str]:
        bounds = self.bounds[: self.size + 1].tolist()
        text = self.codes[: bounds[-1]].tobytes().decode("utf-32-le", errors="surrogatepass")
        return [text[start:stop] for start, stop in pairwise(bounds)]


def _grown(array: npt.NDArray[T], length: int) -> npt.NDArray[T]:
    """`array` with room for `length` elements; lengths are powers of two."""
    if length <= len(array):
        return array
    longer = np.zeros(1 << int(length - 1).bit_length(), dtype=array.dtype)
    longer[: len(array)] = array
    return longer


@kernel
def _slot(codes: UInt32s, bounds: Int64s, slots: npt.NDArray[np.int32], word: UInt32s) -> np.int64:
    """Where in the hash table `word` stands, or would."""
    hashed = np.uint64(len(word))
    for code in word:
        hashed = (hashed ^ np.uint64(code)) * _FNV_PRIME
    mask = np.uint64(len(slots) - 1)
    slot = mix(hashed) & mask
    while True:
        known = slots[slot]
        if known == _EMPTY or np.array_equal(codes[bounds[known] : bounds[known + 1]], word):
            return np.int64(slot)
        slot = (slot + _ONE) & mask


@kernel
def _fill_slots(codes: UInt32s, bounds: Int64s, size: int, slots: npt.NDArray[np.int32]) -> None:
    for index in range(size):
        slots[_slot(codes, bounds, slots, codes[bounds[index] : bounds[index + 1]])] = index


@kernel
def _add_words(
    codes: UInt32s,
    bounds: Int64s,
    counts: Int64s,
    slots: npt.NDArray[np.int32],
    size: int,
    new_codes: UInt32s,
    new_bounds: Int64s,
    new_counts: Int64s,
) -> int:
    """Add to a table with room for all; give the number of words in it."""
    for index in range(len(new_counts)):
        word = new_codes[new_bounds[index] : new_bounds[index + 1]]
        slot = _slot(codes, bounds, slots, word)
        if slots[slot] == _EMPTY:
            slots[slot] = size
            bounds[size + 1] = bounds[size] + len(word)
            codes[bounds[size] : bounds[size + 1]] = word
            counts[size] = 0
            size += 1
        counts[slots[slot]] += new_counts[index]
    return size
