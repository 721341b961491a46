"""Tables of the Unicode properties that the tokenizer needs.

The tables are a data file, made by scripts/make_unicode_tables.py, so that token ids do not depend
on the Unicode version of the running Python. Every code point has an entry of 32 bits. The low
`FLAG_BITS` bits are flags. The bits above them encode the result of normalising the character, which
is lower-casing it, decomposing it (NFD) and stripping its accents (category Mn), or only one of both:

    MAPPED     one other character: its code point
    SEQUENCE   zero, two or three characters: their offset in `sequences`, then their number in two bits
    neither    the character itself

There are tables for each combination of both. Entries are stored in blocks, and equal blocks only
once.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bertie.base.arrays import Int32s, Int64s, UInt8s, UInt16s, UInt32s
from bertie.base.kernels import uncounted_kernel

Index = int | np.int64  # the same type to numba

UNICODE_VERSION = "14.0.0"  # of the data file; scripts/make_unicode_tables.py refuses any other
TABLES_FILE = Path(__file__).with_suffix(".npz")
BLOCK_BITS = 7  # blocks of 128 code points; blocks of 32 to 256 make files of about the same size
BLOCK_MASK = (1 << BLOCK_BITS) - 1
FLAG_BITS = 11  # leaves 21 bits, enough for any code point
LONGEST_SEQUENCE = 3  # a Hangul syllable of three letters
CAPITAL_SIGMA, FINAL_SIGMA = 0x3A3, 0x3C2

DROPPED = 1  # Cc and Cf, except tab, newline and carriage return; U+FFFD
SPACE = 2  # white space as in str.split, unless dropped
PUNCTUATION = 4  # categories P*, and every ASCII symbol
CJK = 8  # ideographs: each is a word
MAPPED = 16
SEQUENCE = 32
MARK = 64  # the canonical combining class is not 0; only where accents are stripped
CASED = 128  # the properties Cased (unless ignorable) and Case_Ignorable, for the final sigma
IGNORABLE = 256
WORD_CHARACTER = 512  # \w of Unicode's UTS #18: letters, marks, decimal digits, connectors and joiners

# Characters of scripts without spaces between words, in which a "word" of BERT's basic tokenizer may be a
# whole sentence: the scripts of UAX #14's class SA (Thai, Lao, Burmese, Khmer, …), kana, and Han.
UNSPACED = (
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u1950-\u19df\u1a20-\u1aaf\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\ua9e0-\ua9ff\uaa60-\uaadf\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]"
)


class UnicodeTables(NamedTuple):
    """Arrays in the form that the kernels take.

    block_of      uint16  for each run of 1 << BLOCK_BITS code points, the index of its block
    entries       uint32  the blocks, one after another
    sequences     uint32  the characters of all sequences
    marks         uint32  marks that are not stripped (Mc) and have a combining class, ascending
    mark_classes  uint8   the combining class of each of `marks`
    """

    block_of: UInt16s
    entries: UInt32s
    sequences: UInt32s
    marks: UInt32s
    mark_classes: UInt8s


@cache
def unicode_tables(
    lowercase: bool = True, strip_accents: bool = True, tokenize_chinese_chars: bool = True
) -> UnicodeTables:
    """Return the tables of one kind of normalisation.

    Each file of tables is read once.

    Args:
        lowercase: lower-case each character.
        strip_accents: decompose each character and strip its accents.
        tokenize_chinese_chars: make each ideograph a word.
    """
    with np.load(TABLES_FILE) as file:
        tables = UnicodeTables(*(file[name] for name in UnicodeTables._fields))
    entries = tables.entries if tokenize_chinese_chars else tables.entries & ~np.uint32(CJK)
    return tables._replace(block_of=tables.block_of[2 * lowercase + strip_accents], entries=entries)


def is_whitespace(character: str) -> bool:
    """Return whether a character separates words."""
    return bool(_flags(character) & SPACE)


def is_control(character: str) -> bool:
    """Return whether a character is dropped as a control or format character."""
    return bool(_flags(character) & DROPPED) and character != "\ufffd"


def is_punctuation(character: str) -> bool:
    """Return whether a character is punctuation, and so a word; all ASCII symbols are."""
    return bool(_flags(character) & PUNCTUATION)


def _flags(character: str) -> int:
    return int(lookup(unicode_tables(False, False), ord(character)))


def code_points(texts: Sequence[str], lengths: Int64s | None = None) -> tuple[UInt32s, Int64s]:
    """Convert texts to arrays of code points.

    `lengths` are the texts' lengths, if they are known.

    Returns:
        The code points of all C characters, uint32 (C,), and bounds, int64 (n + 1,): the characters
        of text i are codes[bounds[i] : bounds[i + 1]].
    """
    joined = "".join(texts)
    if joined.isascii():
        codes = np.frombuffer(joined.encode("utf-32-le"), dtype="<u4")
    else:  # three times as fast for other text, and half as fast for ASCII
        codes = np.array([joined]).view(np.uint32)  # with lone surrogates, as in google's tokenizer
        codes.flags.writeable = False
    bounds = np.zeros(len(texts) + 1, dtype=np.int64)
    if lengths is None:
        lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    np.cumsum(lengths, out=bounds[1:])
    return codes, bounds


@uncounted_kernel
def lookup(tables: UnicodeTables, code: Index) -> np.int64:
    """Return the entry of a code point."""
    block = np.int64(tables.block_of[code >> BLOCK_BITS])
    return np.int64(tables.entries[block << BLOCK_BITS | code & BLOCK_MASK])


@uncounted_kernel
def is_final_sigma(tables: UnicodeTables, text: UInt32s, begin: Index, end: Index, sigma: Index) -> bool:
    """Return whether the capital sigma at text[sigma] becomes a final sigma.

    As in str.lower (Unicode 3.13, Final_Sigma), it does if it is preceded, but not followed, by a
    cased character in text[begin:end]. Case-ignorable characters are ignored.
    """
    skipped = IGNORABLE | DROPPED
    before = sigma - 1
    while before >= begin and lookup(tables, text[before]) & skipped:
        before -= 1
    if before < begin or not lookup(tables, text[before]) & CASED:
        return False
    after = sigma + 1
    while after < end and lookup(tables, text[after]) & skipped:
        after += 1
    return after == end or not lookup(tables, text[after]) & CASED


@uncounted_kernel
def combining_class(tables: UnicodeTables, code: Index) -> Index:
    """Return the combining class of a character that is not stripped as an accent."""
    for i in range(len(tables.marks)):
        if tables.marks[i] == code:
            return np.int64(tables.mark_classes[i])
    return 0


@uncounted_kernel
def sort_marks(tables: UnicodeTables, codes: Int32s, begin: Index, end: Index, scratch: Int32s) -> None:
    """Put each run of marks in codes[begin:end] into canonical order.

    This is a stable sort by combining class. There is one pass over a run per class. The time is
    linear, as only five classes are possible (6, 9, 216, 224 and 226). As many elements of `scratch` are
    written.
    """
    for i in range(end - begin):
        scratch[i] = codes[begin + i]
    first = begin
    while first < end:
        last = first
        while last < end and combining_class(tables, codes[last]) > 0:
            last += 1
        target = first
        previous: Index = 0  # the class of the marks that were copied last
        while target < last:
            lowest: Index = 256
            for i in range(first, last):
                mark_class = combining_class(tables, scratch[i - begin])
                if previous < mark_class < lowest:
                    lowest = mark_class
            for i in range(first, last):
                if combining_class(tables, scratch[i - begin]) == lowest:
                    codes[target] = scratch[i - begin]
                    target += 1
            previous = lowest
        first = last + 1
