"""The tokenizer's kernels: clean, split into words, and match word pieces, in one linear pass.

The rules are those of google-research/bert, tokenization.py. Pieces are matched by LinMaxMatch (Song et al.,
Fast WordPiece Tokenization, arXiv:2012.15524), which reads no character twice: see bertie.text.trie.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bertie.base.kernels import kernel
from bertie.text.trie import INSIDE_WORD, WORD_START, Trie, grow
from bertie.text.unicode import (
    BLOCK_BITS,
    BLOCK_MASK,
    CJK,
    DROPPED,
    FLAG_BITS,
    LONGEST_SEQUENCE,
    MAPPED,
    MARK,
    PUNCTUATION,
    SEQUENCE,
    SPACE,
    Index,
    UnicodeTables,
    code_points,
    entry_of,
    is_final_sigma,
    order_marks,
    unicode_tables,
)

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
UInt32s = npt.NDArray[np.uint32]

SPECIAL = DROPPED | SPACE | PUNCTUATION | CJK  # a cased text's characters that are not simply copied
SPECIAL_LOWERCASE = SPECIAL | MAPPED | SEQUENCE | MARK
CAPITAL_SIGMA, FINAL_SIGMA = 0x3A3, 0x3C2


class Words(NamedTuple):
    """The words of one text, in arrays large enough for any; only the beginnings are in use.

    codes      int32  the normalised characters
    starts     int32  where each comes from in the text
    ends       int32  and the end of that, with the accents stripped after it
    word_ends  int32  where each word ends in `codes`
    """

    codes: Int32s
    starts: Int32s
    ends: Int32s
    word_ends: Int32s


@kernel
def split_text(
    text: UInt32s, begin: Index, end: Index, tables: UnicodeTables, lowercase: bool, words: Words
) -> int:
    """Clean text[begin:end] and split it into `words`; gives their number."""
    codes, starts, ends, word_ends = words
    block_of, entries = tables.block_of, tables.entries
    special = SPECIAL_LOWERCASE if lowercase else SPECIAL
    count = 0  # characters given out
    number = 0  # words ended
    word = 0  # where the word begun stands in `codes`
    run = 0  # where the marks to be ordered stand at the earliest
    unordered = False
    for i in range(begin, end):
        code: Index = np.int64(text[i])
        entry = np.int64(entries[np.int64(block_of[code >> BLOCK_BITS]) << BLOCK_BITS | code & BLOCK_MASK])
        if not entry & special:
            codes[count] = code
            starts[count] = i - begin
            ends[count] = i - begin + 1
            count += 1
            continue
        if entry & DROPPED:
            continue

        # The character as it goes out: one code, or a run of several or none.
        several = bool(lowercase and entry & SEQUENCE)
        length, first = np.int64(1), np.int64(0)
        if several:
            length = (entry >> FLAG_BITS) & 3
            first = entry >> (FLAG_BITS + 2)
        elif lowercase and entry & MAPPED:
            code = entry >> FLAG_BITS
            if text[i] == CAPITAL_SIGMA and is_final_sigma(tables, text, begin, end, i):
                code = FINAL_SIGMA
        if length == 0:
            if count > word:
                ends[count - 1] = i - begin + 1
            if not entry & MARK:  # no order across it, though it goes
                if unordered:
                    order_marks(tables, codes, max(word, run), count)
                    unordered = False
                run = count
            continue

        alone = entry & CJK or (not several and entry_of(tables, code) & PUNCTUATION)
        if (alone or entry & SPACE) and count > word:
            if unordered:
                order_marks(tables, codes, max(word, run), count)
                unordered = False
            word_ends[number] = count
            number += 1
            word = count
        if entry & SPACE:
            continue
        for k in range(length):
            if several:
                code = np.int64(tables.sequences[first + k])
            if lowercase and entry_of(tables, code) & MARK:
                unordered = True
            codes[count] = code
            starts[count] = i - begin
            ends[count] = i - begin + 1
            count += 1
        if alone:
            word_ends[number] = count
            number += 1
            word = count
    if count > word:
        if unordered:
            order_marks(tables, codes, max(word, run), count)
        word_ends[number] = count
        number += 1
    return number


@kernel
def match_words(
    words: Words,
    number: int,
    trie: Trie,
    unknown: int,
    max_word_characters: int,
    pieces: Int32s,
    count: Index,
) -> Index:
    """Write the pieces of the first `number` of `words` to pieces[count:]; gives the new count.

    A row is the piece's id, its start and end in the text, and its word.
    """
    codes, starts, ends, word_ends = words
    symbols, cells, tokens, failures, pop_bounds, pops, lengths = trie
    others = np.uint32(len(symbols) - 1)
    begin = 0
    for word in range(number):
        end = word_ends[word]
        first = count
        # Nodes are unsigned: numba then leaves out what allows for negative indices.
        node = np.uint64(WORD_START)
        piece = begin  # where the next piece to be given out begins
        i = begin
        matched = end - begin <= max_word_characters
        while matched:
            while i < end:
                child = cells[node, 0] + symbols[min(codes[i], others)]
                if cells[child, 1] != node:
                    break
                node = np.uint64(child)
                i += 1
            if i == end and node == INSIDE_WORD:
                break
            if tokens[node] >= 0:
                pieces[count, 0] = tokens[node]
                pieces[count, 1] = starts[piece]
                pieces[count, 2] = ends[i - 1]
                pieces[count, 3] = word
                count += 1
                piece = i
                node = np.uint64(INSIDE_WORD)
            elif failures[node] >= 0:
                for k in range(pop_bounds[node, 0], pop_bounds[node, 1]):
                    pieces[count, 0] = pops[k]
                    pieces[count, 1] = starts[piece]
                    piece += lengths[pops[k]]
                    pieces[count, 2] = ends[piece - 1]
                    pieces[count, 3] = word
                    count += 1
                node = np.uint64(failures[node])
            else:
                matched = False
        if not matched:
            count = first
            pieces[count, 0] = unknown
            pieces[count, 1] = starts[begin]
            pieces[count, 2] = ends[end - 1]
            pieces[count, 3] = word
            count += 1
        begin = end
    return count


@kernel
def new_words(bounds: Int64s, lowercase: bool) -> Words:
    """Room for the words of the longest of the texts that `bounds` cuts."""
    longest = 0
    for i in range(len(bounds) - 1):
        longest = max(longest, bounds[i + 1] - bounds[i])
    room = longest * LONGEST_SEQUENCE if lowercase else longest
    return Words(
        np.empty(room, np.int32), np.empty(room, np.int32), np.empty(room, np.int32), np.empty(room, np.int32)
    )


@kernel
def encode_kernel(
    text: UInt32s,
    bounds: Int64s,
    tables: UnicodeTables,
    lowercase: bool,
    trie: Trie,
    unknown: int,
    max_word_characters: int,
) -> tuple[Int32s, Int64s]:
    """The pieces of all texts, one row each (id, start, end, word), and where those of each text end."""
    words = new_words(bounds, lowercase)
    pieces = np.empty((len(text) // 4 + 16, 4), dtype=np.int32)  # English has four to five characters a piece
    piece_bounds = np.zeros(len(bounds), dtype=np.int64)
    count: Index = np.int64(0)
    for i in range(len(bounds) - 1):
        number = split_text(text, bounds[i], bounds[i + 1], tables, lowercase, words)
        characters = np.int64(words.word_ends[number - 1]) if number else 0
        if count + characters > len(pieces):
            pieces = grow(pieces, count + characters)
        count = match_words(words, number, trie, unknown, max_word_characters, pieces, count)
        piece_bounds[i + 1] = count
    return pieces[:count], piece_bounds


@kernel
def split_kernel(
    text: UInt32s, bounds: Int64s, tables: UnicodeTables, lowercase: bool
) -> tuple[Int32s, Int64s]:
    """The normalised words of all texts and their bounds, each as an array of one column."""
    words = new_words(bounds, lowercase)
    codes = np.empty((len(text) + 16, 1), dtype=np.int32)
    word_bounds = np.zeros((len(text) // 4 + 16, 1), dtype=np.int64)
    count, ended = np.int64(0), np.int64(0)
    for i in range(len(bounds) - 1):
        number = split_text(text, bounds[i], bounds[i + 1], tables, lowercase, words)
        length = np.int64(words.word_ends[number - 1]) if number else 0
        if count + length > len(codes):
            codes = grow(codes, count + length)
        for k in range(length):
            codes[count + k, 0] = words.codes[k]
        if ended + number + 1 > len(word_bounds):
            word_bounds = grow(word_bounds, ended + number + 1)
        for word in range(number):
            word_bounds[ended + word + 1, 0] = count + words.word_ends[word]
        count += length
        ended += number
    return codes[:count], word_bounds[: ended + 1]


def split_words(texts: Sequence[str], lowercase: bool) -> tuple[UInt32s, Int64s]:
    """Clean the texts and split them into words, without a vocabulary (to count words for learning one).

    Returns:
        The characters of all normalised words, uint32 (C,), and bounds, int64 (W + 1,): word i is
        codes[bounds[i] : bounds[i + 1]].
    """
    codes, bounds = split_kernel(*code_points(texts), unicode_tables(), lowercase)
    return codes[:, 0].view(np.uint32), bounds[:, 0]
