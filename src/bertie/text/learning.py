"""Learn a vocabulary from a table of word counts, the same to the byte wherever and however often it runs.

The paper's vocabulary was made by an unreleased WordPiece learner that chose merges by likelihood. What
is here is what the `tokenizers` package offers under that name: byte-pair encoding (Sennrich et al.,
arXiv:1508.07909) over pieces that are written `##x` inside a word, always merging the most frequent pair.
Unlike there, counts are exact 64-bit integers and ties are broken by the strings, so nothing depends on
the order of the input or of a hash table.

A word is a linked list of pieces. All places where a pair stands form a chain through the same positions,
so a merge touches these places and no others. The chains live in arrays and are compiled; the queue of
pairs is a Python heap.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from bertie.base.errors import SettingsError
from bertie.base.kernels import kernel
from bertie.base.random import mix
from bertie.text.vocabulary import SPECIAL_TOKENS

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]

MAX_ALPHABET = 1000  # characters; limit_alphabet of tokenizers' BertWordPieceTokenizer.train
MAX_WORD_CHARACTERS = 100  # a longer word is [UNK] to the tokenizer, as in transformers

_NONE = -1
_ONE, _32 = np.uint64(1), np.uint64(32)

Words = tuple[Int32s, Int32s, Int32s, Int32s, Int32s, Int32s, Int64s]  # as in _PairChains
Pairs = tuple[Int32s, Int32s, Int64s, Int32s, Int32s]


def learn_vocabulary(words: Sequence[str], counts: Iterable[int], size: int) -> list[str]:
    """The tokens of a vocabulary of `size` entries, learnt from normalised words and how often each occurs.

    They come in this order: the special tokens; the alphabet, sorted; the merges, as they were learnt. The
    alphabet is made of the most frequent characters, at most `MAX_ALPHABET`, each as the beginning of a
    word (`x`) and as its continuation (`##x`) where it occurs so. In a small vocabulary it is cut so as to
    take at most half of the entries. A word with another character would be [UNK] whatever was learnt from
    it, and so would one longer than `MAX_WORD_CHARACTERS`: such words are left out.

    The list is shorter than `size` where there is nothing left to merge.

    Raises:
        SettingsError: `size` leaves no room for an alphabet.
    """
    max_characters = min(MAX_ALPHABET, (size - len(SPECIAL_TOKENS)) // 4)
    if max_characters < 1:
        raise SettingsError(f"size = {size}: too small for a vocabulary; 1,000 is small, 30,522 is BERT's")
    table = [(word, int(count)) for word, count in zip(words, counts, strict=True)]
    characters = _most_frequent_characters(table, max_characters)
    table = [
        (word, count)
        for word, count in table
        if word and len(word) <= MAX_WORD_CHARACTERS and characters.issuperset(word)
    ]
    alphabet = {word[0] for word, _ in table}
    alphabet.update(f"##{character}" for word, _ in table for character in set(word[1:]))
    tokens = [*SPECIAL_TOKENS, *sorted(alphabet)]
    ids = {token: index for index, token in enumerate(tokens)}
    chains = _PairChains(table, ids)
    queue = [(-chains.counts[pair], *chains.strings(pair, tokens), pair) for pair in range(chains.total)]
    heapq.heapify(queue)
    while queue and len(tokens) < size:
        count, left, right, pair = heapq.heappop(queue)
        current = -int(chains.counts[pair])
        if current != count:  # merges since then have taken some of its places
            if current:
                heapq.heappush(queue, (current, left, right, pair))
            continue
        merged = left + right.removeprefix("##")
        if merged not in ids:  # two pairs can spell the same piece
            ids[merged] = len(tokens)
            tokens.append(merged)
        for changed in chains.merge(pair, ids[merged], len(tokens)):
            heapq.heappush(queue, (-int(chains.counts[changed]), *chains.strings(changed, tokens), changed))
    return tokens


def _most_frequent_characters(table: list[tuple[str, int]], limit: int) -> set[str]:
    frequency: Counter[str] = Counter()
    for word, count in table:
        for character in word:
            frequency[character] += count
    ranked = sorted(frequency, key=lambda character: (-frequency[character], character))
    return set(ranked[:limit])


class _PairChains:
    """All words as linked lists of pieces, and for each pair of neighbours the chain of its places.

    Arrays over positions (one for each character of each word):
      pieces, before, after        the piece that begins here; its neighbours' positions in the word
      pair_at, earlier, later      the pair that begins here; its chain's neighbours
      weights                      how often the word occurs
    Arrays over pairs: left and right (pieces), counts, first (the beginning of the chain). `slots` is an
    open-addressing hash table from (left, right) to the pair.
    """

    def __init__(self, table: list[tuple[str, int]], ids: dict[str, int]) -> None:
        lengths = np.array([len(word) for word, _ in table], dtype=np.int64)
        ends = np.cumsum(lengths)
        size = int(lengths.sum())
        pieces = np.fromiter(
            (
                ids[character if place == 0 else f"##{character}"]
                for word, _ in table
                for place, character in enumerate(word)
            ),
            np.int32,
            size,
        )
        before = np.arange(-1, size - 1, dtype=np.int32)
        after = np.arange(1, size + 1, dtype=np.int32)
        before[ends - lengths] = _NONE
        after[ends - 1] = _NONE
        weights = np.repeat(np.array([count for _, count in table], dtype=np.int64), lengths)
        pair_at, earlier, later = (np.full(size, _NONE, dtype=np.int32) for _ in range(3))
        self.words = (pieces, before, after, pair_at, earlier, later, weights)
        self.total = 0
        chunk = 1 << 16
        left, right, first = (np.zeros(chunk, dtype=np.int32) for _ in range(3))
        counts = np.zeros(chunk, dtype=np.int64)
        self.pairs: Pairs = (left, right, counts, first, np.full(2 * chunk, _NONE, dtype=np.int32))
        for start in range(0, size, chunk):
            self._reserve(chunk)
            self.total = _link_range(self.words, self.pairs, self.total, start, min(start + chunk, size))

    @property
    def counts(self) -> Int64s:
        return self.pairs[2]

    def strings(self, pair: int, tokens: list[str]) -> tuple[str, str]:
        left, right = self.pairs[:2]
        return tokens[left[pair]], tokens[right[pair]]

    def merge(self, pair: int, merged: int, symbols: int) -> list[int]:
        """Put the piece `merged` wherever `pair` stands; give the pairs that have become more frequent."""
        self._reserve(2 * symbols)  # a new pair holds `merged` on its left or on its right
        self.total, linked = _merge(self.words, self.pairs, self.total, pair, merged)
        linked = np.unique(linked)
        changed: list[int] = linked[self.counts[linked] > 0].tolist()  # places may have gone again in a run
        return changed

    def _reserve(self, more: int) -> None:
        while self.total + more > len(self.counts):
            left, right, counts, first, _ = self.pairs
            room = (0, len(counts))
            left, right, first = np.pad(left, room), np.pad(right, room), np.pad(first, room)
            slots = np.full(4 * len(counts), _NONE, dtype=np.int32)
            self.pairs = (left, right, np.pad(counts, room), first, slots)
            _fill_slots(self.pairs, self.total)


@kernel
def _slot(pairs: Pairs, left: int, right: int) -> np.int64:
    """Where in the hash table the pair stands, or would."""
    lefts, rights, _, _, slots = pairs
    mask = np.uint64(len(slots) - 1)
    slot = mix((np.uint64(left) << _32) | np.uint64(right)) & mask
    while True:
        pair = slots[slot]
        if pair == _NONE or (lefts[pair] == left and rights[pair] == right):
            return np.int64(slot)
        slot = (slot + _ONE) & mask


@kernel
def _fill_slots(pairs: Pairs, total: int) -> None:
    left, right, _, _, slots = pairs
    for pair in range(total):
        slots[_slot(pairs, left[pair], right[pair])] = pair


@kernel
def _link(words: Words, pairs: Pairs, total: int, position: int) -> int:
    """Enter the pair that begins at `position` in its chain; give the number of pairs, grown if it is new."""
    pieces, _, after, pair_at, earlier, later, weights = words
    left, right, counts, first, slots = pairs
    slot = _slot(pairs, pieces[position], pieces[after[position]])
    pair = slots[slot]
    if pair == _NONE:
        pair = total
        total += 1
        slots[slot] = pair
        left[pair] = pieces[position]
        right[pair] = pieces[after[position]]
        counts[pair] = 0
        first[pair] = _NONE
    pair_at[position] = pair
    counts[pair] += weights[position]
    earlier[position] = _NONE
    later[position] = first[pair]
    if first[pair] != _NONE:
        earlier[first[pair]] = position
    first[pair] = position
    return total


@kernel
def _unlink(words: Words, pairs: Pairs, position: int) -> None:
    """Take the pair that begins at `position` out of its chain."""
    _, _, _, pair_at, earlier, later, weights = words
    _, _, counts, first, _ = pairs
    pair = pair_at[position]
    counts[pair] -= weights[position]
    if earlier[position] == _NONE:
        first[pair] = later[position]
    else:
        later[earlier[position]] = later[position]
    if later[position] != _NONE:
        earlier[later[position]] = earlier[position]
    pair_at[position] = _NONE


@kernel
def _link_range(words: Words, pairs: Pairs, total: int, start: int, stop: int) -> int:
    after = words[2]
    for position in range(start, stop):
        if after[position] != _NONE:
            total = _link(words, pairs, total, position)
    return total


@kernel
def _merge(words: Words, pairs: Pairs, total: int, pair: int, merged: int) -> tuple[int, Int32s]:
    """Merge all places of `pair`; give the number of pairs and the pairs linked, with repeats."""
    pieces, before, after, pair_at, _, later, _ = words
    first = pairs[3]
    places = 0
    position = first[pair]
    while position != _NONE:
        places += 1
        position = later[position]
    linked = np.empty(2 * places, dtype=np.int32)
    size = 0
    while first[pair] != _NONE:
        position = first[pair]
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
        pieces[position] = merged
        after[position] = following
        if previous != _NONE:
            total = _link(words, pairs, total, previous)
            linked[size] = pair_at[previous]
            size += 1
        if following != _NONE:
            total = _link(words, pairs, total, position)
            linked[size] = pair_at[position]
            size += 1
    return total, linked[:size]
