"""What the tokenizer knows of each Unicode character: its class, and what lower-casing makes of it.

The tables are a data file, made by scripts/make_unicode_tables.py, so that ids do not depend on the
Unicode version of the Python that runs. A code point's entry holds flags in its low bits and, above them,
what becomes of the character when it is lower-cased, decomposed (NFD) and stripped of accents (Mn): a code
point (MAPPED), a run of `sequences` (SEQUENCE: offset, then a length in two bits), or itself (neither).
Entries stand in blocks, equal blocks are kept once.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bertie.base.kernels import kernel

UInt32s = npt.NDArray[np.uint32]
Int64s = npt.NDArray[np.int64]
Index = int | np.int64  # the same to numba

UNICODE_VERSION = "14.0.0"  # of the data file, which its script makes for this version only
TABLES_FILE = Path(__file__).with_suffix(".npz")
BLOCK_BITS = 7  # blocks of 128 code points: 32 to 256 make tables of about the same size
BLOCK_MASK = (1 << BLOCK_BITS) - 1
FLAG_BITS = 11  # the 21 bits above hold any code point
LONGEST_SEQUENCE = 3  # a Hangul syllable of three letters

DROPPED = 1  # Cc and Cf but for tab, newline, carriage return; NUL and U+FFFD
SPACE = 2  # what str.split splits at, less what is dropped
PUNCTUATION = 4  # P*, and every ASCII symbol
CJK = 8  # ideographs: each is a word
MAPPED = 16
SEQUENCE = 32
MARK = 64  # its canonical combining class is not 0
CASED = 128  # the Unicode properties Cased (where not ignorable) and Case_Ignorable, for the final sigma
IGNORABLE = 256


class UnicodeTables(NamedTuple):
    """The tables in the form the kernels take.

    block_of      uint16  the block of each run of 1 << BLOCK_BITS code points
    entries       uint32  the blocks
    sequences     uint32  what characters become that become several
    marks         uint32  the marks that survive stripping (Mc) and have a combining class, ascending
    mark_classes  uint8   their combining classes
    """

    block_of: npt.NDArray[np.uint16]
    entries: UInt32s
    sequences: UInt32s
    marks: UInt32s
    mark_classes: npt.NDArray[np.uint8]


@cache
def unicode_tables() -> UnicodeTables:
    """The tables, read once."""
    with np.load(TABLES_FILE) as file:
        return UnicodeTables(*(file[name] for name in UnicodeTables._fields))


def code_points(texts: Sequence[str]) -> tuple[UInt32s, Int64s]:
    """The characters of all texts, uint32 (C,), and the bounds that cut them into texts, int64 (n + 1,)."""
    # A lone surrogate is a character like any other to google's tokenizer, so it passes.
    codes = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), dtype="<u4")
    bounds = np.zeros(len(texts) + 1, dtype=np.int64)
    np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)), out=bounds[1:])
    return codes, bounds


@kernel
def entry_of(tables: UnicodeTables, code: Index) -> np.int64:
    """The entry of a code point."""
    block = np.int64(tables.block_of[code >> BLOCK_BITS])
    return np.int64(tables.entries[block << BLOCK_BITS | code & BLOCK_MASK])


@kernel
def is_final_sigma(tables: UnicodeTables, text: UInt32s, begin: Index, end: Index, sigma: Index) -> bool:
    """Whether the capital sigma at `sigma` ends a word, as str.lower decides (Unicode 3.13, Final_Sigma).

    A cased character must come before and none after, case-ignorable ones between not counted.
    """
    skipped = IGNORABLE | DROPPED
    before = sigma - 1
    while before >= begin and entry_of(tables, text[before]) & skipped:
        before -= 1
    if before < begin or not entry_of(tables, text[before]) & CASED:
        return False
    after = sigma + 1
    while after < end and entry_of(tables, text[after]) & skipped:
        after += 1
    return after == end or not entry_of(tables, text[after]) & CASED


@kernel
def combining_class(tables: UnicodeTables, code: Index) -> Index:
    """The canonical combining class of a character that survives stripping."""
    for i in range(len(tables.marks)):
        if tables.marks[i] == code:
            return np.int64(tables.mark_classes[i])
    return 0


@kernel
def order_marks(tables: UnicodeTables, codes: npt.NDArray[np.int32], begin: Index, end: Index) -> None:
    """Put each run of marks in codes[begin:end] into canonical order: stable, by combining class.

    Each class is a pass over the run, so the cost is linear: there are five (6, 9, 216, 224, 226).
    """
    source = codes[begin:end].copy()
    classes = np.empty(end - begin, dtype=np.int64)
    for i in range(end - begin):
        classes[i] = combining_class(tables, source[i])
    first = 0
    while first < len(source):
        last = first
        while last < len(source) and classes[last] > 0:
            last += 1
        placed = first
        done = 0  # classes up to this one are placed
        while placed < last:
            lowest = 256
            for i in range(first, last):
                if done < classes[i] < lowest:
                    lowest = classes[i]
            for i in range(first, last):
                if classes[i] == lowest:
                    codes[begin + placed] = source[i]
                    placed += 1
            done = lowest
        first = last + 1
