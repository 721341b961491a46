"""Learn a vocabulary from a table of word counts, the same to the byte wherever and however often it runs.

The paper's vocabulary was made by an unreleased WordPiece learner. What is known of it is that it merges the
pair of pieces that raises the likelihood of the training data most (Schuster and Nakajima, Japanese and
Korean voice search, 2012, Section 4; Wu et al., arXiv:1609.08144, Section 4.1). What the `tokenizers` package
offers under that name merges the most frequent pair: byte-pair encoding (Sennrich et al., arXiv:1508.07909).
Both are here, over pieces that are written `##x` inside a word. Counts are exact 64-bit integers and ties are
broken by the strings, so nothing depends on the order of the input or of a hash table.

A word is a linked list of pieces. All places where a pair stands form a chain through the same positions,
so a merge touches these places and no others. A heap holds all pairs, the next to be merged on top.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from bertie.base.errors import SettingsError
from bertie.base.kernels import kernel
from bertie.base.random import mix
from bertie.text.trie import SUFFIX
from bertie.text.unicode import code_points
from bertie.text.vocabulary import SPECIAL_TOKENS

Merges = Literal["frequency", "likelihood"]
Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Float64s = npt.NDArray[np.float64]

MAX_ALPHABET = 1000  # characters; limit_alphabet of tokenizers' BertWordPieceTokenizer.train
MAX_WORD_CHARACTERS = 100  # a longer word is [UNK] to the tokenizer, as in transformers
HEADROOM = 0.5  # by which a gain is set too high, times the count, so as not to be moved at every small rise

_NONE = -1
_ONE, _32 = np.uint64(1), np.uint64(32)


def learn_vocabulary(
    words: Sequence[str],
    counts: Iterable[int],
    size: int,
    merges: Merges = "frequency",
    alphabet: int = MAX_ALPHABET,
) -> list[str]:
    """The tokens of a vocabulary of `size` entries, learnt from normalised words and how often each occurs.

    They come in this order: the special tokens; the alphabet, sorted; the merges, as they were learnt. The
    alphabet is made of the most frequent characters, at most `alphabet`, each as the beginning of a
    word (`x`) and as its continuation (`##x`) where it occurs so. In a small vocabulary it is cut so as to
    take at most half of the entries. A word with another character would be [UNK] whatever was learnt from
    it, and so would one longer than `MAX_WORD_CHARACTERS`: such words are left out.

    Merged next is the pair of neighbours that occurs most often or, where `merges` is "likelihood", the one
    that gains most: f log(f N / (f_a f_b)), f being how often the pair (a, b) occurs now, f_a and f_b how
    often its pieces do, N how often all pieces do (docs/decisions/vocabulary_learning.md).

    The list is shorter than `size` where there is nothing left to merge.

    Raises:
        SettingsError: `size` leaves no room for an alphabet.
    """
    max_characters = min(alphabet, (size - len(SPECIAL_TOKENS)) // 4)
    if max_characters < 1:
        raise SettingsError(f"size = {size}: too small for a vocabulary; 1,000 is small, 30,522 is BERT's")
    table = [(word, int(count)) for word, count in zip(words, counts, strict=True)]
    characters = _most_frequent_characters(table, max_characters)
    table = [
        (word, count)
        for word, count in table
        if word and len(word) <= MAX_WORD_CHARACTERS and characters.issuperset(word)
    ]
    pieces = {word[0] for word, _ in table}
    pieces.update(f"##{character}" for word, _ in table for character in set(word[1:]))
    tokens = [*SPECIAL_TOKENS, *sorted(pieces)]
    ids = {token: index for index, token in enumerate(tokens)}
    pairs = _PairTable(table, tokens, size, merges == "likelihood")
    while len(tokens) < size:
        best = pairs.best()
        if best is None:
            break
        left, right = best
        merged = tokens[left] + tokens[right].removeprefix("##")
        if merged not in ids:  # two pairs can spell the same piece
            ids[merged] = len(tokens)
            pairs.add_piece(ids[merged], merged)
            tokens.append(merged)
        pairs.merge_best(ids[merged])
    return tokens


def _most_frequent_characters(table: list[tuple[str, int]], limit: int) -> set[str]:
    frequency: Counter[str] = Counter()
    for word, count in table:
        for character in word:
            frequency[character] += count
    ranked = sorted(frequency, key=lambda character: (-frequency[character], character))
    return set(ranked[:limit])


class Words(NamedTuple):
    """All words as linked lists of pieces: arrays over positions, one for each character of each word.

    pieces, before, after    int32  the piece that begins here; its neighbours' positions in the word
    pair_at, earlier, later  int32  the pair that begins here; its chain's neighbours
    weights                  int64  how often the word occurs
    """

    pieces: Int32s
    before: Int32s
    after: Int32s
    pair_at: Int32s
    earlier: Int32s
    later: Int32s
    weights: Int64s


class Pairs(NamedTuple):
    """Pairs of neighbouring pieces, with room for more.

    left, right            int32    the pieces
    counts                 int64    how often the pair occurs
    first                  int32    the beginning of the chain of its places
    next_left, next_right  int32    another pair with the same left piece; with the same right piece
    gains                  float64  what to order by: no less than what merging the pair gains now
    heap, ranks            int32    the pairs, none before one that precedes it; where each stands there
    slots                  int32    an open-addressing hash table from (left, right) to the pair
    number                 int64    (1,) how many there are
    """

    left: Int32s
    right: Int32s
    counts: Int64s
    first: Int32s
    next_left: Int32s
    next_right: Int32s
    gains: Float64s
    heap: Int32s
    ranks: Int32s
    slots: Int32s
    number: Int64s


class Pieces(NamedTuple):
    """Pieces, by their ids.

    counts             int64  how often the piece occurs
    on_left, on_right  int32  a pair that has the piece on its left; on its right
    names              int32  (V, 102) its code points, filled up with 0
    number             int64  (1,) how often all of them occur
    """

    counts: Int64s
    on_left: Int32s
    on_right: Int32s
    names: Int32s
    number: Int64s


class _PairTable:
    """The words as the kernels take them, with their pieces and pairs."""

    def __init__(self, table: list[tuple[str, int]], tokens: list[str], size: int, likelihood: bool) -> None:
        self.words = _cut_words(table, {token: piece for piece, token in enumerate(tokens)})
        counts = np.zeros(size, dtype=np.int64)
        np.add.at(counts, self.words.pieces, self.words.weights)
        on_left, on_right = np.full((2, size), _NONE, dtype=np.int32)
        names = np.zeros((size, len(SUFFIX) + MAX_WORD_CHARACTERS), dtype=np.int32)
        self.pieces = Pieces(counts, on_left, on_right, names, counts.sum(keepdims=True))
        for piece, token in enumerate(tokens):
            self.add_piece(piece, token)
        self.likelihood = likelihood
        chunk = 1 << 16
        left, right, first, next_left, next_right, heap, ranks = np.zeros((7, chunk), dtype=np.int32)
        counts, gains, slots = np.zeros(chunk, np.int64), np.zeros(chunk), np.full(2 * chunk, _NONE, np.int32)
        links = first, next_left, next_right
        self.pairs = Pairs(
            left, right, counts, *links, gains, heap, ranks, slots, np.zeros(1, dtype=np.int64)
        )
        for start in range(0, len(self.words.pieces), chunk):
            self._reserve(chunk)
            _link_range(self.words, self.pieces, self.pairs, start, start + chunk)
        for piece in range(len(tokens)):
            _queue_piece(self.pairs, self.pieces, likelihood, piece)

    def add_piece(self, piece: int, token: str) -> None:
        self.pieces.names[piece, : len(token)] = code_points([token])[0]

    def best(self) -> tuple[int, int] | None:
        """The pair to be merged next, None where there is none."""
        pair = _best(self.pairs, self.pieces, self.likelihood)
        return None if pair == _NONE else (int(self.pairs.left[pair]), int(self.pairs.right[pair]))

    def merge_best(self, merged: int) -> None:
        """Put the piece `merged` wherever the best pair stands."""
        self._reserve(2 * len(self.pieces.counts))  # a new pair holds `merged` on its left or on its right
        _merge_best(self.words, self.pieces, self.pairs, self.likelihood, merged)

    def _reserve(self, more: int) -> None:
        while self.pairs.number[0] + more > len(self.pairs.counts):
            longer = [np.pad(column, (0, len(column))) for column in self.pairs[:-2]]
            slots = np.full(4 * len(self.pairs.counts), _NONE, dtype=np.int32)
            self.pairs = Pairs._make([*longer, slots, self.pairs.number])
            _fill_slots(self.pairs)


def _cut_words(table: list[tuple[str, int]], ids: dict[str, int]) -> Words:
    """Words cut into characters, in no chain yet."""
    lengths = np.array([len(word) for word, _ in table], dtype=np.int64)
    ends = np.cumsum(lengths)
    size = int(lengths.sum())
    characters = (f"{SUFFIX}{c}" if place else c for word, _ in table for place, c in enumerate(word))
    pieces = np.fromiter(map(ids.__getitem__, characters), np.int32, size)
    before = np.arange(-1, size - 1, dtype=np.int32)
    after = np.arange(1, size + 1, dtype=np.int32)
    before[ends - lengths] = _NONE
    after[ends - 1] = _NONE
    weights = np.repeat(np.array([count for _, count in table], dtype=np.int64), lengths)
    pair_at, earlier, later = (np.full(size, _NONE, dtype=np.int32) for _ in range(3))
    return Words(pieces, before, after, pair_at, earlier, later, weights)


@kernel
def _slot(pairs: Pairs, left: int, right: int) -> np.int64:
    """Where in the hash table the pair stands, or would."""
    mask = np.uint64(len(pairs.slots) - 1)
    slot = mix((np.uint64(left) << _32) | np.uint64(right)) & mask
    while True:
        pair = pairs.slots[slot]
        if pair == _NONE or (pairs.left[pair] == left and pairs.right[pair] == right):
            return np.int64(slot)
        slot = (slot + _ONE) & mask


@kernel
def _fill_slots(pairs: Pairs) -> None:
    for pair in range(pairs.number[0]):
        pairs.slots[_slot(pairs, pairs.left[pair], pairs.right[pair])] = pair


@kernel
def _link(words: Words, pieces: Pieces, pairs: Pairs, position: int) -> None:
    """Enter the pair that begins at `position` in its chain; a new pair comes last in the heap."""
    left, right = words.pieces[position], words.pieces[words.after[position]]
    slot = _slot(pairs, left, right)
    pair = pairs.slots[slot]
    if pair == _NONE:
        pair = pairs.number[0]
        pairs.number[0] += 1
        pairs.slots[slot] = pair
        pairs.left[pair], pairs.right[pair] = left, right
        pairs.counts[pair] = 0
        pairs.first[pair] = _NONE
        pairs.next_left[pair], pairs.next_right[pair] = pieces.on_left[left], pieces.on_right[right]
        pieces.on_left[left] = pieces.on_right[right] = pair
        pairs.gains[pair] = -np.inf
        pairs.heap[pair] = pairs.ranks[pair] = pair
    words.pair_at[position] = pair
    pairs.counts[pair] += words.weights[position]
    first = pairs.first[pair]
    words.earlier[position] = _NONE
    words.later[position] = first
    if first != _NONE:
        words.earlier[first] = position
    pairs.first[pair] = position


@kernel
def _unlink(words: Words, pairs: Pairs, position: int) -> None:
    """Take the pair that begins at `position` out of its chain."""
    pair = words.pair_at[position]
    pairs.counts[pair] -= words.weights[position]
    earlier, later = words.earlier[position], words.later[position]
    if earlier == _NONE:
        pairs.first[pair] = later
    else:
        words.later[earlier] = later
    if later != _NONE:
        words.earlier[later] = earlier
    words.pair_at[position] = _NONE


@kernel
def _link_range(words: Words, pieces: Pieces, pairs: Pairs, start: int, stop: int) -> None:
    for position in range(start, min(stop, len(words.after))):
        if words.after[position] != _NONE:
            _link(words, pieces, pairs, position)


@kernel
def _gain(pairs: Pairs, pieces: Pieces, likelihood: bool, pair: int) -> float:
    """What merging the pair gains now; minus infinity where it no longer occurs."""
    count = float(pairs.counts[pair])
    if count == 0:
        return -np.inf
    if not likelihood:
        return count
    # The same operations on the same counts give the same number, so equal gains are equal to the bit.
    parts = float(pieces.counts[pairs.left[pair]]) * float(pieces.counts[pairs.right[pair]])
    return count * math.log(count * float(pieces.number[0]) / parts)


@kernel
def _precedes(pairs: Pairs, pieces: Pieces, pair: int, other: int) -> bool:
    """Whether a pair is to be merged before another: for its gain, or its strings between equals."""
    if pairs.gains[pair] != pairs.gains[other]:
        return bool(pairs.gains[pair] > pairs.gains[other])
    for side in (pairs.left, pairs.right):
        name, other_name = pieces.names[side[pair]], pieces.names[side[other]]
        for i in range(len(name)):
            if name[i] != other_name[i]:
                return bool(name[i] < other_name[i])
    return False


@kernel
def _set_gain(pairs: Pairs, pieces: Pieces, pair: int, gain: float) -> None:
    """Give the pair this gain, and its place in the heap."""
    heap, ranks, number = pairs.heap, pairs.ranks, pairs.number[0]
    pairs.gains[pair] = gain
    rank = np.int64(ranks[pair])
    while rank > 0 and _precedes(pairs, pieces, pair, heap[(rank - 1) // 2]):
        heap[rank] = heap[(rank - 1) // 2]
        ranks[heap[rank]] = rank
        rank = (rank - 1) // 2
    while 2 * rank + 1 < number:
        child = 2 * rank + 1
        if child + 1 < number and _precedes(pairs, pieces, heap[child + 1], heap[child]):
            child += 1
        if not _precedes(pairs, pieces, heap[child], pair):
            break
        heap[rank] = heap[child]
        ranks[heap[rank]] = rank
        rank = child
    heap[rank] = pair
    ranks[pair] = rank


@kernel
def _queue_piece(pairs: Pairs, pieces: Pieces, likelihood: bool, piece: int) -> None:
    """Raise the gains of all pairs that hold the piece to what they are, at least."""
    headroom = HEADROOM if likelihood else 0.0
    for first, following in ((pieces.on_left, pairs.next_left), (pieces.on_right, pairs.next_right)):
        pair = first[piece]
        while pair != _NONE:
            gain = _gain(pairs, pieces, likelihood, pair)
            if gain > pairs.gains[pair]:
                _set_gain(pairs, pieces, pair, gain + headroom * pairs.counts[pair])
            pair = following[pair]


@kernel
def _best(pairs: Pairs, pieces: Pieces, likelihood: bool) -> int:
    """The pair that gains most now, or -1."""
    while pairs.number[0] > 0:
        pair = pairs.heap[0]
        gain = _gain(pairs, pieces, likelihood, pair)
        if gain == pairs.gains[pair]:
            return pair if pairs.counts[pair] > 0 else _NONE
        _set_gain(pairs, pieces, pair, gain)
    return _NONE


@kernel
def _merge_best(words: Words, pieces: Pieces, pairs: Pairs, likelihood: bool, merged: int) -> None:
    """Put the piece `merged` wherever the pair on top of the heap stands."""
    before, after, pair_at = words.before, words.after, words.pair_at
    pair = pairs.heap[0]
    left, right = pairs.left[pair], pairs.right[pair]
    while pairs.first[pair] != _NONE:
        position = pairs.first[pair]
        # In a run such as a-a-a the places overlap. Merging from its left makes their order in the
        # chain, and with it the order of the input, of no account.
        while before[position] != _NONE and pair_at[before[position]] == pair:
            position = before[position]
        previous, second = before[position], after[position]
        following = after[second]
        _unlink(words, pairs, position)
        if previous != _NONE:
            _unlink(words, pairs, previous)
        if following != _NONE:
            _unlink(words, pairs, second)
            before[following] = position
        words.pieces[position] = merged
        after[position] = following
        weight = words.weights[position]
        pieces.counts[left] -= weight
        pieces.counts[right] -= weight
        pieces.counts[merged] += weight
        pieces.number[0] -= weight
        if previous != _NONE:
            _link(words, pieces, pairs, previous)
        if following != _NONE:
            _link(words, pieces, pairs, position)
    # A gain that fell is found out on top of the heap. Counts rise with the merged piece alone, likelihoods
    # with the other two as well, which are rarer now.
    _queue_piece(pairs, pieces, likelihood, merged)
    if likelihood:
        _queue_piece(pairs, pieces, likelihood, left)
        _queue_piece(pairs, pieces, likelihood, right)
