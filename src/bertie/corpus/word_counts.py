"""Count how often each word occurs in the inputs, as tasks on worker processes.

Memory grows with the number of distinct words, not with the amount of text.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from bertie.base.arrays import Int32s, Int64s, UInt32s
from bertie.base.errors import DataError
from bertie.base.executor import Executor, run_tasks
from bertie.base.kernels import ONE, uncounted_kernel
from bertie.base.progress import Progress, byte_unit
from bertie.base.random import mix
from bertie.base.storage import check_readable
from bertie.corpus.documents import Document, InputError, InputErrors, OnError
from bertie.corpus.formats import Format
from bertie.corpus.input_languages import oversampling_factors
from bertie.corpus.input_splits import InputSplit, read_splits, split_inputs
from bertie.corpus.sources import LanguageColumn
from bertie.text.encoding import word_token_ranges
from bertie.text.tokenizer import Tokenizer
from bertie.text.unicode import unicode_tables
from bertie.text.wordpiece import is_equal, split_words

T = TypeVar("T", bound=np.generic)
Splitter = Callable[[list[str]], tuple[UInt32s, Int64s]]  # texts → the codes of words, and bounds
WordCounts = tuple[UInt32s, Int64s, Int64s]  # code points, bounds (W + 1,), counts (W,)

BATCH_CHARACTERS = 1 << 22  # text held in memory at a time

_EMPTY = -1
_FNV_PRIME = np.uint64(0x100000001B3)  # FNV-1a (draft-eastlake-fnv)


def count_words(
    inputs: Iterable[Path],
    lowercase: bool,
    workers: int | Executor,
    format: Format | None = None,
    column: str = "text",
    errors: InputErrors | None = None,
    language: LanguageColumn | None = None,
) -> tuple[list[str], Int64s]:
    """Count how often each word occurs in the documents of all inputs.

    Words are counted after normalisation, as the tokenizer sees them before it splits them into
    WordPiece tokens.

    Args:
        inputs: the files, as `list_inputs` returns them.
        lowercase: whether words are lower-cased and stripped of accents.
        workers: the number of worker processes, or a cluster; the result does not depend on it.
        format: the format of all files; None to detect the format of each.
        column: the key or column that holds the text, in JSON lines and tables.
        errors: raises or collects the errors about inputs that cannot be read; by default it raises
            the first one.
        language: the column of languages and the one to read, as in `read_documents`.

    Returns:
        The words, sorted by code points, and their counts, int64 (W,).

    Raises:
        DataError: an input cannot be read (see `read_documents`), or the inputs contain no words.
        SettingsError: a table has no such column.
        BertieError: the package that reads such files is not installed.
    """
    split = partial(_split_normalized, lowercase)
    return _count(inputs, split, workers, format, column, errors or InputErrors(), language).sorted_words()


def count_tokenized_words(
    inputs: Iterable[Path],
    tokenizer: Tokenizer,
    workers: int | Executor,
    format: Format | None = None,
    column: str = "text",
    errors: InputErrors | None = None,
) -> tuple[list[list[int]], Int64s]:
    """Count how often each word occurs in the inputs, as a sequence of token ids.

    It takes the arguments of `count_words`, and raises the same errors.

    Returns:
        The token ids of each word, in no particular order, and the counts, int64 (W,).
    """
    split = partial(_split_tokenized, tokenizer)
    table = _count(inputs, split, workers, format, column, errors or InputErrors())
    size = len(table)
    ids, bounds = table.codes.tolist(), table.bounds[: size + 1].tolist()
    return [ids[start:stop] for start, stop in pairwise(bounds)], table.counts[:size]


def _count(
    inputs: Iterable[Path],
    split: Splitter,
    workers: int | Executor,
    format: Format | None,
    column: str,
    errors: InputErrors,
    language: LanguageColumn | None = None,
) -> "WordTable":
    """Count the words into which `split` splits the documents."""
    inputs = list(inputs)
    check_readable(inputs, here=workers == 1)
    tasks = split_inputs(inputs, format, errors, language)
    sizes = [sum(part.size for part in task) for task in tasks]
    table = WordTable()
    _compile_kernels(split)
    count = partial(_count_task, split, column, errors.on_error)
    size, unit = byte_unit(sum(sizes))
    with Progress("counting words", total=-(-sum(sizes) // size), unit=unit) as progress:
        done = 0
        try:
            for index, (task_counts, task_errors) in run_tasks(count, tasks, workers):
                table.add(*task_counts)
                errors.merge(task_errors)
                done += sizes[index]
                progress.update(-(-done // size), {"unique words": len(table)})
        except InputError as error:
            raise DataError(f"{error}; or skip such inputs with --on-error skip (on_error='skip')") from None
    if not len(table) and language:
        problem = f"no document of language {language.code} has text"
        raise DataError(f"{problem}; add such documents, or leave this language out")
    if not len(table):
        cause = f" ({errors.messages[0]})" if errors.messages else ""
        raise DataError(f"the inputs contain no words{cause}; add files that hold text")
    return table


def _compile_kernels(split: Splitter) -> None:
    """Compile the kernels, and build a tokenizer's trie, before work starts.

    It happens once: not in every worker, and not in the rate.
    """
    table = WordTable()
    codes, bounds = split([""])
    table.add(codes, bounds, np.ones(len(bounds) - 1, dtype=np.int64))
    _fill_slots(table.codes, table.bounds, len(table), table.slots)


def smooth_counts(
    counted: Mapping[str, tuple[list[str], Int64s]], smoothing: float
) -> tuple[list[str], Int64s]:
    """Join the word counts of several languages.

    The counts of the smaller languages are raised.

    Args:
        counted: words and counts of `count_words`, by language.
        smoothing: the exponent S of `oversampling_factors`.

    Returns:
        The words, sorted by code points, and their counts, int64 (W,).
    """
    if len(counted) == 1:
        return next(iter(counted.values()))
    totals = {language: int(counts.sum()) for language, (_, counts) in counted.items()}
    factors = oversampling_factors(totals, smoothing)
    joined: Counter[str] = Counter()
    for language, (words, counts) in counted.items():
        raised = np.rint(factors[language] * counts).astype(np.int64)
        joined.update(dict(zip(words, raised.tolist(), strict=True)))
    words = sorted(joined)
    return words, np.array([joined[word] for word in words])


def lowercase_words(words: Sequence[str], counts: Int64s) -> tuple[list[str], Int64s]:
    """Lower-case counted words and strip their accents.

    This gives the words that `count_words` would count in lower case, except that a sigma is final
    only at the end of a word: google's tokenizer also looks beyond a full stop, as in `Α.Σ.`.

    Returns:
        The words, sorted by code points, and their counts, int64 (W,).
    """
    table = WordTable()
    codes, bounds, text_bounds = split_words(words, unicode_tables())
    table.add(codes, bounds, np.repeat(counts, np.diff(text_bounds)))
    return table.sorted_words()


def batch_documents(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Yield consecutive documents in batches of about `BATCH_CHARACTERS` characters."""
    batch: list[Document] = []
    remaining = BATCH_CHARACTERS
    for document in documents:
        batch.append(document)
        remaining -= len(document.text)
        if remaining <= 0:
            yield batch
            batch, remaining = [], BATCH_CHARACTERS
    if batch:
        yield batch


def _split_normalized(lowercase: bool, texts: list[str]) -> tuple[UInt32s, Int64s]:
    """Return the code points of the normalised words of texts, and their bounds."""
    codes, bounds, _ = split_words(texts, unicode_tables(lowercase, lowercase))
    return codes, bounds


def _split_tokenized(tokenizer: Tokenizer, texts: list[str]) -> tuple[UInt32s, Int64s]:
    """Return the token ids of the words of texts, and the bounds of the words."""
    encoding = tokenizer.encode_batch(texts, add_special_tokens=False)
    first, _ = word_token_ranges(encoding)
    return encoding.input_ids.astype(np.uint32), np.append(first, len(encoding.input_ids))


def _count_task(
    split: Splitter, column: str, on_error: OnError, task: list[InputSplit]
) -> tuple[WordCounts, InputErrors]:
    table, errors = WordTable(), InputErrors(on_error)
    for batch in batch_documents(read_splits(task, column, errors)):
        codes, bounds = split([document.text for document in batch])
        table.add(codes, bounds, np.ones(len(bounds) - 1, dtype=np.int64))
    size = len(table)
    return (table.codes[: table.bounds[size]], table.bounds[: size + 1], table.counts[:size]), errors


class WordTable:
    """Words and their counts, in an open-addressing hash table that keeps every word.

    Word i is `codes[bounds[i] : bounds[i + 1]]`, as code points, and occurs `counts[i]` times. The
    arrays are longer than the table; only the first `len(table)` words are valid.
    """

    def __init__(self) -> None:
        self.size = 0
        self.codes: UInt32s = np.zeros(1 << 16, dtype=np.uint32)
        self.bounds: Int64s = np.zeros(1 << 13, dtype=np.int64)
        self.counts: Int64s = np.zeros(1 << 13, dtype=np.int64)
        self.slots = np.full(1 << 14, _EMPTY, dtype=np.int32)

    def __len__(self) -> int:
        return self.size

    def add(self, codes: UInt32s, bounds: Int64s, counts: Int64s) -> None:
        """Add counts[i] occurrences of each word codes[bounds[i] : bounds[i + 1]]."""
        self.codes = _grow(self.codes, self.bounds[self.size] + len(codes))
        self.bounds = _grow(self.bounds, self.size + len(bounds))
        self.counts = _grow(self.counts, self.size + len(counts))
        if 2 * (self.size + len(counts)) > len(self.slots):
            self.slots = np.full(2 * len(self.counts), _EMPTY, dtype=np.int32)
            _fill_slots(self.codes, self.bounds, self.size, self.slots)
        self.size = _add_words(
            self.codes, self.bounds, self.counts, self.slots, self.size, codes, bounds, counts
        )

    def sorted_words(self) -> tuple[list[str], Int64s]:
        """Return the words, sorted by code points, and their counts."""
        words = self.words()
        order = sorted(range(len(words)), key=words.__getitem__)
        return [words[index] for index in order], self.counts[order]

    def words(self) -> list[str]:
        """Return the words in the order in which they were first added."""
        bounds = self.bounds[: self.size + 1].tolist()
        text = self.codes[: bounds[-1]].tobytes().decode("utf-32-le", errors="surrogatepass")
        return [text[start:stop] for start, stop in pairwise(bounds)]


def _grow(array: npt.NDArray[T], length: int) -> npt.NDArray[T]:
    """Return `array`, or a longer copy if it has fewer than `length` elements.

    The length of the copy is a power of 2.
    """
    if length <= len(array):
        return array
    longer = np.zeros(1 << int(length - 1).bit_length(), dtype=array.dtype)
    longer[: len(array)] = array
    return longer


@uncounted_kernel
def _find_slot(codes: UInt32s, bounds: Int64s, slots: Int32s, word: UInt32s) -> np.int64:
    """Return the slot of the hash table that holds `word`, or the empty slot for it."""
    hashed = np.uint64(len(word))
    for code in word:
        hashed = (hashed ^ np.uint64(code)) * _FNV_PRIME
    mask = np.uint64(len(slots) - 1)
    slot = mix(hashed) & mask
    while True:
        index = slots[slot]
        if index == _EMPTY or is_equal(codes, bounds[index], bounds[index + 1], word):
            return np.int64(slot)
        slot = (slot + ONE) & mask


@uncounted_kernel
def _fill_slots(codes: UInt32s, bounds: Int64s, size: int, slots: Int32s) -> None:
    """Enter the first `size` words in `slots`, which are empty."""
    for index in range(size):
        slots[_find_slot(codes, bounds, slots, codes[bounds[index] : bounds[index + 1]])] = index


@uncounted_kernel
def _add_words(
    codes: UInt32s,
    bounds: Int64s,
    counts: Int64s,
    slots: Int32s,
    size: int,
    new_codes: UInt32s,
    new_bounds: Int64s,
    new_counts: Int64s,
) -> int:
    """Add words to a table that has room for them, and return its new size."""
    for index in range(len(new_counts)):
        word = new_codes[new_bounds[index] : new_bounds[index + 1]]
        slot = _find_slot(codes, bounds, slots, word)
        if slots[slot] == _EMPTY:
            slots[slot] = size
            bounds[size + 1] = bounds[size] + len(word)
            for i in range(len(word)):
                codes[bounds[size] + i] = word[i]
            counts[size] = 0
            size += 1
        counts[slots[slot]] += new_counts[index]
    return size
