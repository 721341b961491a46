"""The kernels that match words with WordPiece tokens.

Tokens are matched by LinMaxMatch (Song et al., Fast WordPiece Tokenization, arXiv:2012.15524), which
reads no character twice; see bertie.text.trie. The time is linear in the length of the text.

Most words consist of characters that normalisation replaces by one character or removes.
`match_plain_words` normalises, splits and matches them in one pass over the text. Other words go
through `wordpiece.split_text` and `match_words`.
"""

from typing import NamedTuple

import numpy as np

from bertie.base.arrays import Int32s, Int64s, UInt32s
from bertie.base.kernels import ONE, inlined_kernel, kernel, uncounted_kernel
from bertie.text.token_rows import TOKEN_ROW, Integer, TokenRows, grow_rows, write_token
from bertie.text.trie import INSIDE_WORD, WORD_START, Trie, child_slot, parent_slot
from bertie.text.unicode import (
    CAPITAL_SIGMA,
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
    lookup,
)
from bertie.text.wordpiece import (
    NeverSplit,
    Words,
    allocate_words,
    find_never_split,
    split,
)

# The kinds of characters, in the low bits of an entry of `character_table`.
LETTER, GAP, WORD, STRIPPED, OTHER = range(5)  # GAP and WORD, and no others, end a word
KIND_BITS = 3
KIND_MASK = (1 << KIND_BITS) - 1
TABLE_SIZE = 1 << 16  # code points that have separate entries: the basic multilingual plane
OTHERS = np.uint32(TABLE_SIZE)  # the entry of all greater code points
PIECE = 4096  # characters that `split_text` splits at a time, if the text has no gap before


@kernel
def character_table(tables: UnicodeTables, trie: Trie, unk_id: int) -> UInt32s:
    """Return the table in which `match_plain_words` looks up each character.

    Args:
        tables: the Unicode tables, which decide how texts are normalised.
        trie: the vocabulary.
        unk_id: the id of [UNK].

    Returns:
        Entries, uint32 (TABLE_SIZE + 1,), the last one for all greater code points. The low bits are
        the kind: LETTER, which becomes one character; GAP, white space; WORD, a punctuation
        character or an ideograph, which is a word; STRIPPED, an accent that is removed; OTHER, which
        needs `split_text`. The high bits are the symbol of the normalised character, or for WORD its id.
    """
    table = np.empty(TABLE_SIZE + 1, np.uint32)
    table[TABLE_SIZE] = OTHER
    first, unknown_symbol = trie.cells[WORD_START], np.int64(len(trie.symbols) - 1)
    for character in range(TABLE_SIZE):
        flags = lookup(tables, character)
        is_sequence = flags & SEQUENCE != 0
        code = flags >> FLAG_BITS if flags & MAPPED and not is_sequence else np.int64(character)
        new_flags = lookup(tables, code)
        symbol = trie.symbols[min(code, unknown_symbol)]
        value, kind = np.int64(symbol), LETTER
        is_stripped = is_sequence and flags >> FLAG_BITS & 3 == 0
        is_marked = is_sequence or (flags | new_flags) & MARK != 0
        if flags & CJK or (new_flags & PUNCTUATION and not is_sequence):
            node = child_slot(first, symbol)
            is_token = parent_slot(trie.cells[node]) == WORD_START and trie.tokens[node] >= 0
            value, kind = np.int64(trie.tokens[node] if is_token else unk_id), WORD
        if is_stripped:
            kind = STRIPPED
        if flags & SPACE:
            kind = GAP
        # The capital sigma depends on its neighbours.
        if (is_marked and not is_stripped) or flags & DROPPED or character == CAPITAL_SIGMA:
            kind = OTHER
        table[character] = np.uint32(value << KIND_BITS | kind)
    return table


@uncounted_kernel
def write_matches(
    trie: Trie,
    node: np.uint64,
    starts: Int32s,
    ends: Int32s,
    begin: Index,
    end: Index,
    word: Index,
    rows: TokenRows,
    count: Index,
) -> tuple[np.uint64, Index, Index, bool]:
    """Write the tokens that end at a node, and follow its failure link.

    No longer match is possible there.

    Args:
        trie: the vocabulary.
        node: the slot of the node.
        starts, ends: the offsets of the characters of the word, or of all words.
        begin, end: the characters that led to the node are those from `begin` to `end`.
        word: the index of the word.
        rows, count: token rows; rows[count:] are written.

    Returns:
        The new node, `begin` and `count`; and whether the word can still be matched.
    """
    if trie.tokens[node] >= 0:
        write_token(rows, count, trie.tokens[node], starts[begin], ends[end - 1], word)
        return np.uint64(INSIDE_WORD), end, count + 1, True
    if trie.failures[node] < 0:
        return node, begin, count, False
    for k in range(trie.pop_bounds[node, 0], trie.pop_bounds[node, 1]):
        token_end = begin + trie.lengths[trie.pops[k]]
        write_token(rows, count, trie.pops[k], starts[begin], ends[token_end - 1], word)
        count += 1
        begin = token_end
    return np.uint64(trie.failures[node]), begin, count, True


@inlined_kernel
def entry_at(text: UInt32s, i: np.uint64, end: np.uint64, characters: UInt32s) -> np.uint32:
    """Return the entry of a character, or the entry of a GAP at the end of its text."""
    return characters[min(text[i], OTHERS)] if i < end else np.uint32(GAP)


@inlined_kernel
def skip_letters(
    text: UInt32s, i: np.uint64, end: np.uint64, characters: UInt32s, letters: Integer
) -> np.uint64:
    """Return where so many LETTERs of text[i:end], and the accents behind them, end."""
    while letters > 0 or (i < end and entry_at(text, i, end, characters) & KIND_MASK == STRIPPED):
        letters -= entry_at(text, i, end, characters) & KIND_MASK == LETTER
        i += ONE
    return i


class Place(NamedTuple):
    """A place among texts, and how many token rows and words were written before it.

    text       int64  the index of the text
    character  int64  the index of the character in this text
    row        int64  the number of token rows before it
    word       int64  the number of words before it in this text
    """

    text: Index
    character: Index
    row: Index
    word: Index


@inlined_kernel
def match_plain_word(
    text: UInt32s,
    text_begin: np.uint64,
    text_end: np.uint64,
    begin: np.uint64,
    entry: np.uint32,
    characters: UInt32s,
    trie: Trie,
    longest: np.uint64,
    rows: TokenRows,
    used: np.uint64,
    word: Index,
) -> tuple[np.uint64, np.uint64, np.uint32, bool]:
    """Match the word at text[begin], a LETTER, of text[text_begin:text_end].

    `entry` is the entry of text[begin], and `longest` the limit of a word's characters. Token rows are
    written to rows[used:]. For the other arguments, see `match_plain_words`.

    Returns:
        The end of the word, or of the part of it that was read; the new `used`; the kind of the character at
        that end; and whether the word could be matched.
    """
    node, cell, token_begin, end = np.uint64(WORD_START), trie.cells[WORD_START], begin, begin
    while True:
        while entry & KIND_MASK == LETTER:
            child = child_slot(cell, entry >> KIND_BITS)
            next_cell = trie.cells[child]
            if parent_slot(next_cell) != node:
                break
            node, cell = child, next_cell
            end += ONE
            entry = entry_at(text, end, text_end, characters)
        kind = entry & KIND_MASK
        if kind == OTHER or end - begin > longest:
            return end, used, kind, False
        if kind == STRIPPED:
            end += ONE  # an accent belongs to the character before it, so to the token that ends behind it
            entry = entry_at(text, end, text_end, characters)
            continue
        # No longer match is possible, as in `write_matches`.
        if trie.tokens[node] >= 0:
            write_token(rows, used, trie.tokens[node], token_begin - text_begin, end - text_begin, word)
            used += ONE
            if kind != LETTER:
                return end, used, kind, True
            token_begin = end
            node = np.uint64(INSIDE_WORD)
        elif trie.failures[node] < 0:
            return end, used, kind, False
        else:
            for k in range(trie.pop_bounds[node, 0], trie.pop_bounds[node, 1]):
                token = trie.pops[k]
                token_end = skip_letters(text, token_begin, end, characters, trie.lengths[token])
                write_token(rows, used, token, token_begin - text_begin, token_end - text_begin, word)
                used += ONE
                token_begin = token_end
            node = np.uint64(trie.failures[node])
            if node == INSIDE_WORD and kind != LETTER:
                return end, used, kind, True
        cell = trie.cells[node]


@kernel  # as an `uncounted_kernel`, its machine code takes 15 % longer for Chinese
def match_plain_words(
    text: UInt32s,
    bounds: Int64s,
    characters: UInt32s,
    trie: Trie,
    unk_id: int,
    max_word_characters: int,
    rows: TokenRows,
    row_bounds: Int64s,
    place: Place,
) -> Place:
    """Match the words of texts, up to one that this function cannot match.

    Such a word has an OTHER character or may have too many, so that it needs `split`, or finds no room in
    `rows`.

    Args:
        text, bounds, characters, trie, unk_id, max_word_characters: see `encode_texts`.
        rows, row_bounds: token rows and the bounds of each text in them, written from `place` on.
        place: where to begin.

    Returns:
        The place of the first word that is not matched, or the end of all texts.
    """
    k, i, count, word = place
    longest = np.uint64(max_word_characters)
    begin, used, room = np.uint64(bounds[k] + i), np.uint64(count), np.uint64(len(rows))
    while k < len(bounds) - 1:
        text_begin, text_end = np.uint64(bounds[k]), np.uint64(bounds[k + 1])
        while begin < text_end:
            entry = entry_at(text, begin, text_end, characters)
            kind = entry & KIND_MASK
            if kind in (GAP, STRIPPED):  # no word has begun that the accent could belong to
                begin += ONE
                continue
            if kind == OTHER or used + min(longest, text_end - text_begin) >= room:
                return Place(k, np.int64(begin - text_begin), np.int64(used), word)
            first, end = used, begin + ONE
            if kind == WORD:
                write_token(rows, used, entry >> KIND_BITS, begin - text_begin, end - text_begin, word)
                used += ONE
            else:
                end, used, kind, is_matched = match_plain_word(
                    text, text_begin, text_end, begin, entry, characters, trie, longest, rows, used, word
                )
                if not is_matched:
                    while kind in (LETTER, STRIPPED):
                        end += ONE
                        kind = entry_at(text, end, text_end, characters) & KIND_MASK
                    used = first
                    if kind == OTHER or end - begin > longest:
                        return Place(k, np.int64(begin - text_begin), np.int64(used), word)
                    write_token(rows, used, unk_id, begin - text_begin, end - text_begin, word)
                    used += ONE
            begin = end + np.uint64(kind == GAP)  # a space behind a word needs no turn of the loop
            word += 1
        begin, k, word = text_end, k + 1, np.int64(0)
        row_bounds[k] = used
    return Place(k, np.int64(0), np.int64(used), word)


@uncounted_kernel
def match_words(
    words: Words,
    number: int,
    trie: Trie,
    unk_id: int,
    max_word_characters: int,
    never_split: NeverSplit | None,
    rows: TokenRows,
    count: Index,
    first_word: Index,
) -> Index:
    """Match the first `number` of `words`, and return the new `count`.

    Token rows are written to rows[count:]. A word that the tokens cannot spell, or that has more than
    `max_word_characters` characters, becomes `unk_id`. A word of `never_split` becomes its id. The words are
    numbered from `first_word`.
    """
    codes, starts, ends, word_ends, _ = words
    unknown_symbol = np.uint32(len(trie.symbols) - 1)
    for word in range(number):
        begin, end = word_ends[word - 1] if word else 0, word_ends[word]
        index = first_word + word
        first = count
        if never_split is not None:  # numba compiles no code for this where it is None
            entry = find_never_split(never_split, codes[begin:end])
            if entry >= 0:
                write_token(rows, count, never_split.ids[entry], starts[begin], ends[end - 1], index)
                count += 1
                continue
        node = np.uint64(WORD_START)
        token_begin: Index = np.int64(begin)  # of the next token to be written
        i = np.int64(begin)
        is_matched = end - begin <= max_word_characters
        while is_matched:
            while i < end:
                child = child_slot(trie.cells[node], trie.symbols[min(codes[i], unknown_symbol)])
                if parent_slot(trie.cells[child]) != node:
                    break
                node = child
                i += 1
            if i == end and node == INSIDE_WORD:
                break
            node, token_begin, count, is_matched = write_matches(
                trie, node, starts, ends, token_begin, i, index, rows, count
            )
        if not is_matched:
            write_token(rows, first, unk_id, starts[begin], ends[end - 1], index)
            count = first + 1
    return count


@uncounted_kernel
def find_stop(text: UInt32s, begin: Index, characters: UInt32s, is_word_a_stop: bool) -> Index:
    """Return the end of the first word that `match_plain_words` does not match.

    The word is in text[begin:]. If `is_word_a_stop` is false, only white space ends it, and it has `PIECE`
    characters or more.
    """
    i = begin if is_word_a_stop else begin + PIECE
    while i < len(text):
        kind = characters[min(text[i], OTHERS)] & KIND_MASK
        if kind == GAP or (is_word_a_stop and kind == WORD):
            return i
        i += 1
    return np.int64(len(text))


@kernel
def encode_texts(
    text: UInt32s,
    bounds: Int64s,
    tables: UnicodeTables,
    characters: UInt32s,
    trie: Trie,
    unk_id: int,
    max_word_characters: int,
    never_split: NeverSplit | None,
    rows: TokenRows,
) -> tuple[TokenRows, Int64s]:
    """Encode texts without special tokens.

    Args:
        text, bounds: text i is text[bounds[i] : bounds[i + 1]], see `code_points`.
        tables: the Unicode tables, which decide how texts are normalised.
        characters: the same for single characters, see `character_table`.
        trie: the vocabulary.
        unk_id: the id of [UNK].
        max_word_characters: longer words become [UNK].
        never_split: words that are one token, if any.
        rows: where to write token rows, `TOKEN_ROW` (any,).

    Returns:
        `rows`, or a larger array, and the bounds of each text in it, int64 (n + 1,).
    """
    words = allocate_words(np.int64(PIECE))
    room = min(max_word_characters, len(text)) + 1  # rows that `match_plain_words` asks for
    # Plain characters have at most one token each, so that the rows need not grow. The system provides no
    # memory for rows that are never written.
    if len(rows) < len(text) + room:
        rows = np.empty(len(text) + room, dtype=TOKEN_ROW)
    row_bounds = np.zeros(len(bounds), dtype=np.int64)
    place = Place(np.int64(0), np.int64(0), np.int64(0), np.int64(0))
    while place.text < len(bounds) - 1:
        if never_split is None:
            place = match_plain_words(
                text, bounds, characters, trie, unk_id, max_word_characters, rows, row_bounds, place
            )
            if place.text == len(bounds) - 1:
                break
            if place.row + room > len(rows):
                rows = grow_rows(rows, place.row + room)
                continue
        k, i, count, word = place
        of_text = text[bounds[k] : bounds[k + 1]]
        stop = find_stop(of_text, i, characters, never_split is None)
        if (stop - i) * LONGEST_SEQUENCE > len(words.codes):
            words = allocate_words(stop - i)
        number = split(of_text, i, stop, tables, never_split, words)
        characters_written = np.int64(words.word_ends[number - 1]) if number else 0
        if count + characters_written > len(rows):
            rows = grow_rows(rows, count + characters_written)
        count = match_words(words, number, trie, unk_id, max_word_characters, never_split, rows, count, word)
        if stop < len(of_text):
            place = Place(k, stop, count, word + number)
        else:
            row_bounds[k + 1] = count
            place = Place(k + 1, np.int64(0), count, np.int64(0))
    return rows, row_bounds
