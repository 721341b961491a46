"""Find added tokens in texts, by the rules of the package `tokenizers`.

Tokens that are not normalised are found in the text itself, then the others in the normalised form of the
parts between them. Of the tokens that begin at the same character the longest counts. The search resumes
behind it, even if it is rejected because it is not a single word.
"""

from typing import NamedTuple

import numpy as np

from bertie.base.arrays import Int32s, Int64s, UInt32s
from bertie.base.kernels import kernel, uncounted_kernel
from bertie.text.token_rows import TokenRows
from bertie.text.trie import INSIDE_WORD, Trie, child_slot, grow, parent_slot
from bertie.text.unicode import (
    CJK,
    DROPPED,
    LONGEST_SEQUENCE,
    SPACE,
    WORD_CHARACTER,
    Index,
    UnicodeTables,
    code_points,
    lookup,
)
from bertie.text.wordpiece import decode_replacement

SINGLE_WORD, LSTRIP, RSTRIP = 1, 2, 4  # the flags of a pattern
BLANK = ord(" ")
PLACEHOLDER = ord(".")  # takes the place of an added token, because it is always exactly one token
NO_TOKEN = -1


class Patterns(NamedTuple):
    """Added tokens that are searched for together.

    trie   the characters of the P tokens
    ids    int32 (P,)  the id of each token
    flags  int32 (P,)  a sum of SINGLE_WORD, LSTRIP and RSTRIP
    """

    trie: Trie
    ids: Int32s
    flags: Int32s


class Normalized(NamedTuple):
    """A normalised part of a text, with room for the longest text.

    codes    uint32  the normalised characters; an ideograph has a blank on both sides
    sources  int32   the index of the character from which each of them comes
    """

    codes: UInt32s
    sources: Int32s


class Parts(NamedTuple):
    """Texts that are cut at their added tokens.

    A part is an added token, or plain text. The array `used` has the numbers of rows in use of both other
    arrays, which have room for more.

    characters  int32 (any, 3)  a code point, and the start and end of its source in the text
    ends        int32 (any, 2)  for each part its end in `characters`, and the id of its token or NO_TOKEN
    used        int64 (2,)
    """

    characters: Int32s
    ends: Int32s
    used: Int64s


class Match(NamedTuple):
    """An added token that was found.

    It has its id or NO_TOKEN, its range, and where to resume the search.
    """

    token: Index
    start: Index
    stop: Index
    resume: Index


def normalize_text(text: str, tables: UnicodeTables) -> str:
    """Normalise a text character by character, as the search does."""
    codes, _ = code_points([text])
    normalized = allocate_normalized(len(codes))
    count = normalize(codes, np.int64(0), np.int64(len(codes)), tables, normalized)
    return "".join(map(chr, normalized.codes[:count]))


@kernel
def allocate_normalized(longest: Index) -> Normalized:
    """Allocate arrays for the normalised form of up to `longest` characters."""
    room = longest * LONGEST_SEQUENCE  # an ideograph becomes three characters, too
    return Normalized(np.empty(room, np.uint32), np.empty(room, np.int32))


@uncounted_kernel
def normalize(
    text: UInt32s, begin: Index, end: Index, tables: UnicodeTables, normalized: Normalized
) -> Index:
    """Normalise text[begin:end], and return the number of characters that are written.

    `tokenizers` lower-cases each sigma alike, so there is no final sigma here. Marks are not reordered.
    """
    codes, sources = normalized
    count = np.int64(0)
    for i in range(begin, end):
        code = np.int64(text[i])
        entry = lookup(tables, code)
        if entry & DROPPED:
            continue
        code, offset, length = decode_replacement(code, entry)
        first = count
        if entry & CJK:
            codes[count] = BLANK
            count += 1
        for k in range(length):
            codes[count] = tables.sequences[offset + k] if offset >= 0 else code
            count += 1
        if entry & CJK:
            codes[count] = BLANK
            count += 1
        if entry & SPACE:
            codes[first] = BLANK
        for k in range(first, count):
            sources[k] = i
    return count


@uncounted_kernel
def is_space(tables: UnicodeTables, code: Index) -> bool:
    r"""Return whether a character has the property White_Space.

    It is \s in Rust's regular expressions.
    """
    return bool(lookup(tables, code) & SPACE) or code in (0x0B, 0x0C, 0x85)  # these are control characters


@uncounted_kernel
def find_token(
    codes: UInt32s,
    begin: Index,
    end: Index,
    resume: Index,
    previous: Index,
    tables: UnicodeTables,
    patterns: Patterns,
) -> Match:
    """Find the first token of codes[begin:end] from codes[resume] on.

    Args:
        codes: the text, or a normalised part of it.
        begin, end: the range that counts as the whole text for the flags.
        resume: where to begin the search.
        previous: the end of the previous token, with the white space that it swallows.
        tables: the Unicode tables.
        patterns: the tokens.
    """
    trie = patterns.trie
    unknown_symbol = np.uint32(len(trie.symbols) - 1)
    first = resume
    while first < end:
        node, pattern, stop, i = np.uint64(INSIDE_WORD), NO_TOKEN, first, first
        while i < end:
            child = child_slot(trie.cells[node], trie.symbols[min(codes[i], unknown_symbol)])
            if parent_slot(trie.cells[child]) != node:
                break
            node = child
            i += 1
            if trie.tokens[node] >= 0:
                pattern, stop = trie.tokens[node], i
        if pattern < 0:
            first += 1
            continue
        start, first = first, stop
        flags = patterns.flags[pattern]
        if flags & SINGLE_WORD and (
            (start > begin and lookup(tables, codes[start - 1]) & WORD_CHARACTER)
            or (stop < end and lookup(tables, codes[stop]) & WORD_CHARACTER)
        ):
            continue
        while flags & RSTRIP and stop < end and is_space(tables, codes[stop]):
            stop += 1
        if flags & LSTRIP:
            while start > previous and is_space(tables, codes[start - 1]):
                start -= 1
            start = max(start, min(previous, stop))
        if start == stop:  # the token before it has swallowed it
            continue
        return Match(np.int64(patterns.ids[pattern]), start, stop, first)
    return Match(np.int64(NO_TOKEN), end, end, end)


@kernel
def reserve(parts: Parts, more: Index) -> Parts:
    """Return parts with room for `more` characters and one part."""
    characters, ends, used = parts
    if used[0] + more > len(characters):
        characters = grow(characters, used[0] + more)
    if used[1] + 1 > len(ends):
        ends = grow(ends, used[1] + 1)
    return Parts(characters, ends, used)


@uncounted_kernel
def write_character(parts: Parts, code: Index, start: Index, end: Index) -> None:
    """Write a character and the start and end of its source."""
    characters, _, used = parts
    characters[used[0], 0] = code
    characters[used[0], 1] = start
    characters[used[0], 2] = end
    used[0] += 1


@uncounted_kernel
def end_part(parts: Parts, token: Index) -> None:
    """End a part, which is an added token or, with NO_TOKEN, plain text."""
    _, ends, used = parts
    ends[used[1], 0] = used[0]
    ends[used[1], 1] = token
    used[1] += 1


@kernel
def write_token(parts: Parts, token: Index, start: Index, end: Index) -> Parts:
    """Write an added token."""
    parts = reserve(parts, np.int64(1))
    write_character(parts, PLACEHOLDER, start, end)
    end_part(parts, token)
    return parts


@kernel
def write_text(parts: Parts, text: UInt32s, begin: Index, end: Index, origin: Index) -> Parts:
    """Write text[begin:end] as plain text; `origin` is where the text begins."""
    parts = reserve(parts, end - begin)
    for i in range(begin, end):
        write_character(parts, text[i], i - origin, i - origin + 1)
    end_part(parts, NO_TOKEN)
    return parts


@kernel
def write_rest(
    parts: Parts,
    text: UInt32s,
    origin: Index,
    ends: tuple[Index, Index],
    normalized: Normalized,
    count: Index,
    first: Index,
    last: Index,
) -> Parts:
    """Write the characters between two added tokens as plain text.

    The text is normalised. A character whose normalised form lies only partly between them, such as a Hangul
    syllable, is written in normalised form. The others are written as they are in the text.

    Args:
        parts: where to write.
        text, origin, ends: text[ends[0] : ends[1]] was normalised; `origin` is where the text begins.
        normalized, count: its normalised form.
        first, last: the range between the tokens.
    """
    codes, sources = normalized
    head, tail = first, last
    while first > 0 and head < last and sources[head] == sources[first - 1]:
        head += 1
    while last < count and tail > head and sources[tail - 1] == sources[last]:
        tail -= 1
    begin = ends[0] if first == 0 else sources[head] if head < tail else ends[1]
    end = ends[1] if last == count else sources[tail]
    parts = reserve(parts, last - first + max(end - begin, 0))
    for k in range(first, head):
        write_character(parts, codes[k], sources[k] - origin, sources[k] - origin + 1)
    for i in range(begin, end):
        write_character(parts, text[i], i - origin, i - origin + 1)
    for k in range(tail, last):
        write_character(parts, codes[k], sources[k] - origin, sources[k] - origin + 1)
    end_part(parts, NO_TOKEN)
    return parts


@kernel
def cut_normalized(
    parts: Parts,
    text: UInt32s,
    origin: Index,
    ends: tuple[Index, Index],
    tables: UnicodeTables,
    patterns: Patterns,
    normalized: Normalized,
) -> Parts:
    """Cut text[ends[0] : ends[1]] at the tokens that its normalised form contains.

    See `write_rest`.
    """
    if len(patterns.ids) == 0:
        return write_text(parts, text, ends[0], ends[1], origin)
    count = normalize(text, ends[0], ends[1], tables, normalized)
    codes, sources = normalized
    zero = np.int64(0)
    match = find_token(codes, zero, count, zero, zero, tables, patterns)
    if match.token == NO_TOKEN:
        return write_text(parts, text, ends[0], ends[1], origin)
    previous: Index = zero
    while True:
        if previous < match.start:
            parts = write_rest(parts, text, origin, ends, normalized, count, previous, match.start)
        if match.token == NO_TOKEN:
            return parts
        start, end = sources[match.start] - origin, sources[match.stop - 1] - origin + 1
        parts = write_token(parts, match.token, start, end)
        previous = match.stop
        match = find_token(codes, zero, count, match.resume, previous, tables, patterns)


@kernel
def cut_texts(
    text: UInt32s, bounds: Int64s, tables: UnicodeTables, plain: Patterns, normalized_patterns: Patterns
) -> tuple[Parts, Int64s]:
    """Cut texts at the added tokens that they contain.

    Args:
        text, bounds: text i is text[bounds[i] : bounds[i + 1]], see `code_points`.
        tables: the Unicode tables, which decide how texts are normalised.
        plain: the tokens that are found in the text itself.
        normalized_patterns: the tokens, normalised, that are found in its normalised form.

    Returns:
        The parts, and the index of the first part of each text, int64 (n + 1,).
    """
    longest = np.max(np.diff(bounds)) if len(bounds) > 1 else 0
    normalized = allocate_normalized(longest if len(normalized_patterns.ids) else 0)
    parts = Parts(
        np.empty((len(text) + 1, 3), np.int32), np.empty((len(bounds), 2), np.int32), np.zeros(2, np.int64)
    )
    first_parts = np.zeros(len(bounds), dtype=np.int64)
    for k in range(len(bounds) - 1):
        begin, end = bounds[k], bounds[k + 1]
        previous = resume = begin
        while True:
            match = find_token(text, begin, end, resume, previous, tables, plain)
            if previous < match.start:
                ends = (previous, match.start)
                parts = cut_normalized(parts, text, begin, ends, tables, normalized_patterns, normalized)
            if match.token == NO_TOKEN:
                break
            parts = write_token(parts, match.token, match.start - begin, match.stop - begin)
            previous, resume = match.stop, match.resume
        first_parts[k + 1] = parts.used[1]
    return parts, first_parts


@kernel
def join_parts(rows: TokenRows, row_bounds: Int64s, parts: Parts, first_parts: Int64s) -> Int64s:
    """Turn the token rows of parts into the token rows of their texts.

    Args:
        rows, row_bounds: the token rows of all parts, as `encode_texts` returns them. The placeholders get
            the ids of their tokens, and offsets and words count from the beginning of the text.
        parts, first_parts: see `cut_texts`.

    Returns:
        The bounds of each text in `rows`, int64 (n + 1,).
    """
    characters, ends, _ = parts
    bounds = np.zeros(len(first_parts), dtype=np.int64)
    for k in range(len(first_parts) - 1):
        words = np.int64(0)
        for part in range(first_parts[k], first_parts[k + 1]):
            first = ends[part - 1, 0] if part else 0
            for row in rows[row_bounds[part] : row_bounds[part + 1]]:
                if ends[part, 1] != NO_TOKEN:
                    row.token = ends[part, 1]
                row.start = characters[first + row.start, 1]
                row.end = characters[first + row.end - 1, 2]
                row.word += words
            if row_bounds[part] < row_bounds[part + 1]:
                words = np.int64(rows[row_bounds[part + 1] - 1].word) + 1
        bounds[k + 1] = row_bounds[first_parts[k + 1]]
    return bounds
