"""Assemble encoded texts from the tokens of their parts, chunk by chunk."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bertie.base.arrays import Int32s, Int64s
from bertie.base.kernels import ONE, kernel
from bertie.text.token_rows import TOKEN_ROW, TokenRows

# Takes texts, and their lengths if they are known. Returns token rows and bounds of texts, as
# `matching.encode_texts` does, written over the given rows.
EncodeRows = Callable[[Sequence[str], Int64s | None, TokenRows], tuple[TokenRows, Int64s]]

OFFSETS = np.dtype([("start", np.int32), ("end", np.int32)])  # records, as in `TOKEN_ROW`
NO_TOKENS = [np.empty(0, dtype) for dtype in (np.int32, np.int32, OFFSETS, np.int32)]  # as in `Encoding`
NO_ROWS = np.empty(0, TOKEN_ROW)
NO_LIMIT = 2**31 - 1
CHUNK_CHARACTERS = 1 << 17  # encoded at a time, so that intermediate arrays stay in a core's cache


@dataclass(frozen=True)
class Encoding:
    """Encoded texts, or pairs of texts, in flat arrays of T tokens.

    The tokens of text i are at bounds[i] to bounds[i + 1]. `len(encoding)` is the number of texts, and
    `encoding[i]` is the encoding of text i only. `Tokenizer.pad` makes arrays with a row for each text.

    Attributes:
        input_ids: int32 (T,), the ids of the tokens.
        token_type_ids: int32 (T,), 0 in the first text of a pair, 1 in the second.
        offsets: int32 (T, 2), the first character of the token in its text, and the end; (0, 0) for
            special tokens.
        word_ids: int32 (T,), the index of the token's word in its text; -1 for special tokens.
        bounds: int64 (n + 1,), where the tokens of each text begin and end.
        num_truncated: how many texts, or pairs, were truncated to the maximum length; 0 in `encoding[i]`.

    Example:
        >>> from bertie.text.tokenizer import Tokenizer
        >>> from bertie.text.vocabulary import Vocabulary
        >>> special_tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        >>> vocabulary = Vocabulary([*special_tokens, "he", "play", "##ing"])
        >>> encoding = Tokenizer(vocabulary).encode_batch(["He", "playing"])
        >>> encoding.input_ids.tolist()
        [2, 5, 3, 2, 6, 7, 3]
        >>> encoding.bounds.tolist()
        [0, 3, 7]
        >>> encoding[1].input_ids.tolist()
        [2, 6, 7, 3]
        >>> encoding.offsets[4:6].tolist()
        [[0, 4], [4, 7]]
        >>> encoding.word_ids.tolist()
        [-1, 0, -1, -1, 0, 0, -1]
    """

    input_ids: Int32s
    token_type_ids: Int32s
    offsets: Int32s
    word_ids: Int32s
    bounds: Int64s
    num_truncated: int = 0

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, i: int) -> "Encoding":
        if not -len(self) <= i < len(self):  # which also ends a loop over the texts
            raise IndexError(f"text {i}: the encoding has {len(self)} texts")
        begin, end = int(self.bounds[:-1][i]), int(self.bounds[1:][i])
        return Encoding(
            self.input_ids[begin:end],
            self.token_type_ids[begin:end],
            self.offsets[begin:end],
            self.word_ids[begin:end],
            np.array([0, end - begin], dtype=np.int64),
        )


def word_token_ranges(encoding: Encoding) -> tuple[Int64s, Int64s]:
    """Return the range of tokens of each word in texts without special tokens.

    Returns:
        The index of each word's first token, and the index after its last; int64 (words,) each.
    """
    begins_word = np.diff(encoding.word_ids, prepend=-1) != 0
    begins_word[encoding.bounds[:-1][np.diff(encoding.bounds) > 0]] = True
    first = np.flatnonzero(begins_word)
    return first, np.append(first, len(begins_word))[1:]


@kernel
def assemble(
    rows: TokenRows,
    row_bounds: Int64s,
    room: int,
    cls_id: int,
    sep_id: int,
    first_character: int,
    first_word: int,
    bounds: Int64s,
    input_ids: Int32s,
    token_type_ids: Int32s,
    offsets: npt.NDArray[np.void],
    word_ids: Int32s,
) -> None:
    """Truncate encoded texts, join pairs, and add special tokens.

    Args:
        rows, row_bounds: token rows and their bounds, as `encode_texts` returns them: all first
            texts, then the second texts of the pairs, if any.
        room: the maximum number of tokens without special tokens.
        cls_id, sep_id: the ids of [CLS] and [SEP], or -1 not to add it.
        first_character, first_word: where the texts begin, if they are pieces of a text; 0 otherwise.
        bounds: the bounds of the encoded texts; bounds[0] is read, the others are written.
        input_ids, token_type_ids, offsets, word_ids: the arrays of `Encoding`, written from
            bounds[0] on; `offsets` is an array of `OFFSETS` (T,).
    """
    n = len(bounds) - 1
    parts = (len(row_bounds) - 1) // max(n, 1)
    kept = np.zeros(2, dtype=np.int64)  # tokens of each part
    t = np.uint64(bounds[0])  # unsigned, so that the loop over tokens is vectorised
    for i in range(n):
        for part in range(parts):
            text = part * n + i
            kept[part] = row_bounds[text + 1] - row_bounds[text]
        while kept[0] + kept[1] > room:
            kept[0 if kept[0] > kept[1] else 1] -= 1
        if cls_id >= 0:
            input_ids[t], token_type_ids[t], word_ids[t] = cls_id, 0, -1
            offsets[t].start, offsets[t].end = 0, 0
            t += ONE
        for part in range(parts):
            begin, count = np.uint64(row_bounds[part * n + i]), np.uint64(kept[part])
            for k in range(count):
                row, span = rows[begin + k], offsets[t + k]
                input_ids[t + k], token_type_ids[t + k] = row.token, part
                span.start, span.end = first_character + row.start, first_character + row.end
                word_ids[t + k] = first_word + row.word
            t += count
            if sep_id >= 0:
                input_ids[t], token_type_ids[t], word_ids[t] = sep_id, part, -1
                offsets[t].start, offsets[t].end = 0, 0
                t += ONE
        bounds[i + 1] = t


class Chunk(NamedTuple):
    """The texts to encode at a time, or a piece of one long text.

    It has the texts `first` to `last`. `end` is None for whole texts; otherwise the piece is
    text[begin:end].
    """

    first: int
    last: int
    begin: int = 0
    end: int | None = None


def encode_in_chunks(
    texts: Sequence[str],
    pairs: Sequence[str] | None,
    encode_rows: EncodeRows,
    room: int,
    cls_id: int,
    sep_id: int,
    *,
    may_cut: bool,
) -> Encoding:
    """Encode texts, or pairs of texts, chunk by chunk.

    The intermediate arrays are as large as a chunk, even if a text is longer. The pieces of a text that
    lie behind its maximum length are not encoded.

    Args:
        texts: the texts, or the first texts of pairs.
        pairs: the second texts of pairs, which are not cut into pieces.
        encode_rows: encodes texts without special tokens.
        room: the maximum number of tokens without special tokens.
        cls_id, sep_id: the ids of [CLS] and [SEP], or -1 to add none.
        may_cut: whether a text has the same tokens if it is cut before a space.
    """
    special = 0 if cls_id < 0 else 2 if pairs is None else 3
    columns = NO_TOKENS
    bounds = np.zeros(len(texts) + 1, dtype=np.int64)
    rows, num_truncated = NO_ROWS, 0
    tokens = words = 0  # of the pieces of a text so far
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    chunks = list(divide(texts, lengths, may_cut and pairs is None))
    for number, (first, last, begin, end) in enumerate(chunks, start=1):
        if begin == 0:
            tokens = words = 0
        is_piece, ends_text = end is not None, end is None or end == len(texts[first])
        if is_piece:
            parts = [texts[first][begin:end] if tokens <= room else ""]
        else:
            parts = [*texts[first:last], *(pairs[first:last] if pairs is not None else ())]
        known = None if is_piece or pairs is not None else lengths[first:last]
        rows, row_bounds = encode_rows(parts, known, rows)
        count = int(row_bounds[-1])
        left = max(room - tokens, 0)
        if is_piece:
            num_truncated += ends_text and tokens + count > room
        else:
            num_truncated += _count_longer(row_bounds, last - first, room)
        written = bounds[first : last + 1] if begin == 0 else bounds[[last, last]]
        used, added = int(written[0]), min(count, left * (last - first)) + special * (last - first)
        if used + added > len(columns[0]):  # expect that the remaining chunks are as long
            columns = _enlarge(columns, used, used + added + added * (len(chunks) - number) * 9 // 8)
        cls, sep = cls_id if begin == 0 else -1, sep_id if ends_text else -1
        assemble(rows, row_bounds, left, cls, sep, begin, words, written, *columns)
        bounds[last] = written[-1]
        if is_piece and count:
            tokens += count
            words += int(rows["word"][count - 1]) + 1
    input_ids, token_type_ids, offsets, word_ids = (column[: bounds[-1]] for column in columns)
    offsets = offsets.view(np.int32).reshape(-1, 2)
    return Encoding(input_ids, token_type_ids, offsets, word_ids, bounds, num_truncated)


def divide(texts: Sequence[str], lengths: Int64s, may_cut: bool) -> Iterator[Chunk]:
    """Divide texts into chunks of about `CHUNK_CHARACTERS` characters.

    `lengths` has the lengths of the texts. Each longer text is a separate chunk, or several, cut before
    spaces, if `may_cut`.
    """
    ends = lengths.cumsum()
    if len(texts) and ends[-1] <= CHUNK_CHARACTERS:  # a third faster for one short text
        yield Chunk(0, len(texts))
        return
    chunk_of = ends // CHUNK_CHARACTERS
    inner = np.flatnonzero(chunk_of[1:] != chunk_of[:-1]) + 1
    long = np.flatnonzero(lengths > CHUNK_CHARACTERS)
    cuts = np.unique(np.concatenate(([0], inner, long, long + 1, [len(texts)])))
    for first, last in pairwise(cuts.tolist()):
        if may_cut and lengths[first] > CHUNK_CHARACTERS:
            yield from (Chunk(first, last, *piece) for piece in pairwise(_cut(texts[first])))
        else:
            yield Chunk(first, last)


def _cut(text: str) -> Iterator[int]:
    """Yield where the pieces of a text begin and end: before spaces."""
    begin = 0
    yield begin
    while len(text) - begin > CHUNK_CHARACTERS:
        end = text.rfind(" ", begin + 1, begin + CHUNK_CHARACTERS)
        if end < 0:
            end = text.find(" ", begin + CHUNK_CHARACTERS)
        if end < 0:
            break
        yield end
        begin = end
    yield len(text)


def _count_longer(row_bounds: Int64s, n: int, room: int) -> int:
    """Count the texts, or pairs, of n that have more than `room` tokens.

    For the bounds, see `assemble`.
    """
    if room == NO_LIMIT:
        return 0
    lengths = row_bounds[1:] - row_bounds[:-1]
    totals = lengths if len(lengths) == n else lengths[:n] + lengths[n:]
    return int((totals > room).sum())


def _enlarge(columns: list[Int32s], used: int, room: int) -> list[Int32s]:
    """Copy the first `used` rows of each column into a new one of `room` rows."""
    larger = [np.empty(room, column.dtype) for column in columns]
    if used:
        for old, new in zip(columns, larger, strict=True):
            new[:used] = old[:used]
    return larger
