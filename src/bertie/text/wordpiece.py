"""The kernels that clean text and split it into words.

The rules follow tokenization.py of google-research/bert. The time is linear in the length of the text.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bertie.base.arrays import Int32s, Int64s, UInt32s
from bertie.base.kernels import kernel, uncounted_kernel
from bertie.text.trie import grow
from bertie.text.unicode import (
    CAPITAL_SIGMA,
    CJK,
    DROPPED,
    FINAL_SIGMA,
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
    is_final_sigma,
    lookup,
    sort_marks,
)

SPECIAL = DROPPED | SPACE | PUNCTUATION | CJK | MAPPED | SEQUENCE | MARK  # not simply copied


class Words(NamedTuple):
    """The normalised words of one text.

    The arrays have room for the longest text; only their beginnings are used.

    codes      int32  the normalised characters of all words
    starts     int32  for each normalised character, the start of its source in the text
    ends       int32  the end of its source, including stripped accents that follow it
    word_ends  int32  for each word, its end in `codes`
    scratch    int32  for `sort_marks`
    """

    codes: Int32s
    starts: Int32s
    ends: Int32s
    word_ends: Int32s
    scratch: Int32s


@kernel
def decode_replacement(code: np.int64, entry: np.int64) -> tuple[np.int64, np.int64, np.int64]:
    """Decode the result of normalising a character.

    Returns:
        If it is one character: its code point, -1, 1. If it is a sequence: `code` unchanged, the
        offset in `tables.sequences`, the length, which may be 0.
    """
    if entry & SEQUENCE:
        return code, entry >> (FLAG_BITS + 2), (entry >> FLAG_BITS) & 3
    if entry & MAPPED:
        return entry >> FLAG_BITS, np.int64(-1), np.int64(1)
    return code, np.int64(-1), np.int64(1)


class NeverSplit(NamedTuple):
    """Words that are neither normalised nor split, and always one token.

    codes   int32  the characters of all words
    bounds  int64  word i is codes[bounds[i] : bounds[i + 1]]
    ids     int32  the id of each word
    """

    codes: Int32s
    bounds: Int64s
    ids: Int32s


@uncounted_kernel
def split_text(text: UInt32s, begin: Index, end: Index, tables: UnicodeTables, words: Words) -> int:
    """Clean text[begin:end], split it into `words`, and return their number.

    Both ends of the range are boundaries of words, or of the text.
    """
    codes, starts, ends, word_ends, scratch = words
    # numba would compile `sort_marks` for each of the constants 0 and -1 too.
    count = np.int64(0)  # characters written
    number = 0  # words ended
    word: Index = 0  # where the current word begins in `codes`
    first_mark = np.int64(-1)  # the first mark in `codes` that may not be in canonical order yet
    for i in range(begin, end):
        code = np.int64(text[i])
        entry = lookup(tables, code)
        if not entry & SPECIAL:
            codes[count], starts[count], ends[count] = code, i, i + 1
            count += 1
            continue
        if entry & DROPPED:
            continue
        code, offset, length = decode_replacement(code, entry)
        if text[i] == CAPITAL_SIGMA and is_final_sigma(tables, text, 0, len(text), i):
            code = np.int64(FINAL_SIGMA)
        if length == 0 and count > word:
            ends[count - 1] = i + 1  # a stripped accent belongs to the character before it
        is_word = entry & CJK or (offset < 0 and lookup(tables, code) & PUNCTUATION)
        ends_word = (is_word or entry & SPACE) and count > word
        # Marks are not reordered across a character that is not a mark, even if it is stripped.
        if first_mark >= 0 and (ends_word or (length == 0 and not entry & MARK)):
            sort_marks(tables, codes, first_mark, count, scratch)
            first_mark = np.int64(-1)
        if ends_word:
            word_ends[number] = count
            number, word = number + 1, count
        if entry & SPACE:
            continue
        for k in range(length):
            if offset >= 0:
                code = np.int64(tables.sequences[offset + k])
            if first_mark < 0 and lookup(tables, code) & MARK:
                first_mark = count
            codes[count], starts[count], ends[count] = code, i, i + 1
            count += 1
        if is_word:
            word_ends[number] = count
            number, word = number + 1, count
    if first_mark >= 0:
        sort_marks(tables, codes, first_mark, count, scratch)
    if count > word:
        word_ends[number] = count
        number += 1
    return number


@uncounted_kernel
def is_equal(codes: Int32s | UInt32s, begin: Index, end: Index, word: Int32s | UInt32s) -> bool:
    """Return whether codes[begin:end] is `word`. (`np.array_equal` would allocate an array.)"""
    if end - begin != len(word):
        return False
    i = 0
    while i < len(word) and codes[begin + i] == word[i]:
        i += 1
    return i == len(word)


@uncounted_kernel
def find_never_split(never_split: NeverSplit, word: Int32s) -> int:
    """Return the index of the entry of `never_split` that equals `word`, or -1."""
    codes, bounds, _ = never_split
    for entry in range(len(bounds) - 1):
        if is_equal(codes, bounds[entry], bounds[entry + 1], word):
            return entry
    return -1


@uncounted_kernel
def split_text_except(
    text: UInt32s, begin: Index, end: Index, tables: UnicodeTables, never_split: NeverSplit, words: Words
) -> int:
    """Split text[begin:end] as `split_text` does, except the words of `never_split`.

    As in the BasicTokenizer of `transformers`, such a word is surrounded by white space or
    ideographs. It is compared both before it is normalised and afterwards.
    """
    codes, starts, ends, word_ends, scratch = words
    count: Index = np.int64(0)  # characters written
    number = 0  # words ended
    chunk = begin  # of text up to the next white space, or one ideograph
    while chunk < end:
        first_flags = lookup(tables, text[chunk])
        stop = chunk + 1
        kept: Index = np.int64(0)  # characters that are not dropped
        for i in range(chunk, end):
            flags = lookup(tables, text[i])
            if i > chunk and (flags | first_flags) & (SPACE | CJK):
                break
            stop = i + 1
            if not flags & (DROPPED | SPACE):
                codes[count + kept], starts[count + kept], ends[count + kept] = text[i], i, stop
                kept += 1
        first_number = number
        if find_never_split(never_split, codes[count : count + kept]) < 0:
            parts = Words(codes[count:], starts[count:], ends[count:], word_ends[number:], scratch)
            number += split_text(text, chunk, stop, tables, parts)
            kept = np.int64(parts.word_ends[number - first_number - 1]) if number > first_number else 0
            for k in range(first_number, number):
                word_ends[k] += count
        is_one_word = find_never_split(never_split, codes[count : count + kept]) >= 0
        count += kept
        if is_one_word:
            word_ends[first_number] = count
            number = first_number + 1
        chunk = stop
    return number


@uncounted_kernel
def split(
    text: UInt32s,
    begin: Index,
    end: Index,
    tables: UnicodeTables,
    never_split: NeverSplit | None,
    words: Words,
) -> int:
    """Split text[begin:end] by the rules of `split_text_except`.

    Without `never_split`, use the rules of `split_text`.
    """
    if never_split is None:
        return split_text(text, begin, end, tables, words)
    return split_text_except(text, begin, end, tables, never_split, words)


@kernel
def allocate_words(longest: Index) -> Words:
    """Allocate arrays for the words of a text of up to `longest` characters."""
    room = longest * LONGEST_SEQUENCE
    return Words(
        np.empty(room, np.int32),
        np.empty(room, np.int32),
        np.empty(room, np.int32),
        np.empty(room, np.int32),
        np.empty(room, np.int32),
    )


@kernel
def split_texts(
    text: UInt32s, bounds: Int64s, tables: UnicodeTables, never_split: NeverSplit | None
) -> tuple[Int32s, Int64s, Int64s]:
    """Split texts into normalised words.

    The arguments have the same meaning as in `matching.encode_texts`.

    Returns:
        The characters of all words, int32 (C, 1), the bounds of the words, int64 (W + 1, 1), and the
        index of the first word of each text, int64 (n + 1,).
    """
    longest = np.max(np.diff(bounds)) if len(bounds) > 1 else 0
    words = allocate_words(longest)
    text_bounds = np.zeros(len(bounds), dtype=np.int64)
    codes = np.empty((len(text) + 16, 1), dtype=np.int32)
    word_bounds = np.zeros((len(text) // 4 + 16, 1), dtype=np.int64)
    character_count, word_count = np.int64(0), np.int64(0)
    for i in range(len(bounds) - 1):
        of_text = text[bounds[i] : bounds[i + 1]]
        number = split(of_text, 0, len(of_text), tables, never_split, words)
        length = np.int64(words.word_ends[number - 1]) if number else 0
        if character_count + length > len(codes):
            codes = grow(codes, character_count + length)
        for k in range(length):
            codes[character_count + k, 0] = words.codes[k]
        if word_count + number + 1 > len(word_bounds):
            word_bounds = grow(word_bounds, word_count + number + 1)
        for word in range(number):
            word_bounds[word_count + word + 1, 0] = character_count + words.word_ends[word]
        character_count += length
        word_count += number
        text_bounds[i + 1] = word_count
    return codes[:character_count], word_bounds[: word_count + 1], text_bounds


def make_never_split(words: Sequence[str], ids: Mapping[str, int], unk_id: int) -> NeverSplit | None:
    """Return words that are never split, for the kernels; None if there are none."""
    if not words:
        return None
    codes, bounds = code_points(words)
    word_ids = np.array([ids.get(word, unk_id) for word in words], dtype=np.int32)
    return NeverSplit(codes.astype(np.int32), bounds, word_ids)


def split_words(
    texts: Sequence[str], tables: UnicodeTables, never_split: NeverSplit | None = None
) -> tuple[UInt32s, Int64s, Int64s]:
    """Clean texts and split them into normalised words, without a vocabulary.

    Args:
        texts: the texts.
        tables: the Unicode tables, which decide how texts are normalised.
        never_split: words that are neither normalised nor split, if any.

    Returns:
        The code points of all words, uint32 (C,); bounds, int64 (W + 1,): word i is
        codes[bounds[i] : bounds[i + 1]]; and bounds of the texts, int64 (n + 1,): text i has the words
        from text_bounds[i] to text_bounds[i + 1].
    """
    codes, bounds, text_bounds = split_texts(*code_points(texts), tables, never_split)
    return codes[:, 0].view(np.uint32), bounds[:, 0], text_bounds
