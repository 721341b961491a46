"""Learn a WordPiece vocabulary from word counts, reproducibly to the byte.

The trainer that made BERT's vocabulary was never released. It is known to merge the pair of tokens
that raises the likelihood of the training data most (Schuster and Nakajima, Japanese and Korean
voice search, 2012, Section 4; Wu et al., arXiv:1609.08144, Section 4.1). The WordPiece
trainer of the package `tokenizers` merges the most frequent pair, which is byte-pair encoding
(Sennrich et al., arXiv:1508.07909). Both criteria are implemented here, on tokens that are written
`##x` inside a word. Counts are exact 64-bit integers and ties are broken by the strings of the
tokens, so the result does not depend on the order of the input or of a hash table.

A word is a linked list of tokens. All occurrences of a pair form a chain, so that a merge visits
only the occurrences of its pair. A heap orders the pairs by their gain.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np

from bertie.base.arrays import Float64s, Int32s, Int64s
from bertie.base.errors import SettingsError
from bertie.base.kernels import ONE, uncounted_kernel
from bertie.base.random import mix
from bertie.text.trie import CONTINUATION_PREFIX
from bertie.text.unicode import code_points
from bertie.text.vocabulary import SPECIAL_TOKENS

Merges = Literal["frequency", "likelihood"]

MAX_ALPHABET = 1000  # characters; limit_alphabet of tokenizers' BertWordPieceTokenizer.train
TOKENS_PER_CHARACTER = 4  # at least, so that single characters, each `x` and `##x`, are at most half of them
MIN_SIZE = len(SPECIAL_TOKENS) + TOKENS_PER_CHARACTER  # for an alphabet of one character
MAX_WORD_CHARACTERS = 100  # a longer word becomes [UNK] in the tokenizer, as in transformers
# When a likelihood gain rises, the heap stores it too high by this times the count, so that small
# further rises need no reordering.
HEADROOM = 0.5

_NONE = -1
_32 = np.uint64(32)


def limit_alphabet(size: int, alphabet: int) -> int:
    """Return the maximum number of characters in a vocabulary of this size.

    Raises:
        SettingsError: `size` leaves no room for an alphabet, or `alphabet` is less than 1.
    """
    if alphabet < 1:
        raise SettingsError(f"alphabet = {alphabet}: expected the number of characters, 1 or more")
    if size < MIN_SIZE:
        raise SettingsError(
            f"size = {size}: too small for a vocabulary; use {MIN_SIZE} or more (BERT has 30,522)"
        )
    return min(alphabet, (size - len(SPECIAL_TOKENS)) // TOKENS_PER_CHARACTER)


def learn_vocabulary(
    words: Sequence[str],
    counts: Iterable[int],
    size: int,
    merges: Merges = "frequency",
    alphabet: int = MAX_ALPHABET,
) -> list[str]:
    """Learn the tokens of a vocabulary from normalised words and their counts.

    Words of more than `MAX_WORD_CHARACTERS` characters are ignored, because the tokenizer makes
    them [UNK]. The alphabet consists of the most frequent characters of the other words. Each is a
    token at the beginning of a word (`x`), inside a word (`##x`), or both, depending on where it
    occurs. Words with any other character are ignored, because the tokenizer would make them [UNK]
    in any case.

    Then the pair of adjacent tokens with the largest gain is merged into a new token, until the
    vocabulary is full. The gain is f if `merges` is "frequency", and f log(f N / (f_a f_b)) if it
    is "likelihood". Here f is the current count of the pair (a, b), f_a and f_b are the counts of
    its tokens, and N is the count of all tokens (docs/decisions/vocabulary_learning.md).

    Args:
        words: normalised words, each once.
        counts: how often each word occurs.
        size: the maximum number of tokens, special tokens included.
        merges: the criterion by which pairs are merged.
        alphabet: the maximum number of characters in the alphabet. In a small vocabulary it is
            reduced, so that single characters are at most half of the tokens.

    Returns:
        The tokens in the order of their ids: the special tokens, the alphabet, sorted, and the
        merged tokens in the order of the merges. There are fewer than `size` if no pairs are left.

    Raises:
        SettingsError: as in `limit_alphabet`.
    """
    max_characters = limit_alphabet(size, alphabet)
    table = [
        (word, int(count))
        for word, count in zip(words, counts, strict=True)
        if 0 < len(word) <= MAX_WORD_CHARACTERS
    ]
    characters = _most_frequent_characters(table, max_characters)
    table = [(word, count) for word, count in table if characters.issuperset(word)]
    single = {word[0] for word, _ in table}
    single.update(f"{CONTINUATION_PREFIX}{character}" for word, _ in table for character in set(word[1:]))
    tokens = [*SPECIAL_TOKENS, *sorted(single)]
    ids = {token: token_id for token_id, token in enumerate(tokens)}
    state = _MergeState(table, tokens, size, merges == "likelihood")
    while len(tokens) < size and (pair := state.best_pair()) is not None:
        left, right = pair
        merged = tokens[left] + tokens[right].removeprefix(CONTINUATION_PREFIX)
        if merged not in ids:  # two pairs can spell the same token
            ids[merged] = len(tokens)
            state.add_token(ids[merged], merged)
            tokens.append(merged)
        state.merge_best_pair(ids[merged])
    return tokens


def _most_frequent_characters(table: list[tuple[str, int]], limit: int) -> set[str]:
    counts: Counter[str] = Counter()
    for word, count in table:
        for character in word:
            counts[character] += count
    ranked = sorted(counts, key=lambda character: (-counts[character], character))
    return set(ranked[:limit])


class Words(NamedTuple):
    """All words as linked lists of tokens.

    The arrays have one position for each character of each word. A token, and the pair that begins
    with it, are stored at the position of the token's first character.

    tokens          int32  the token at this position
    before, after   int32  the positions of the previous and the next token of the word, or -1
    pairs           int32  the pair at this position, or -1
    earlier, later  int32  the neighbours in the chain of all positions with the same pair, or -1
    weights         int64  the count of the word
    """

    tokens: Int32s
    before: Int32s
    after: Int32s
    pairs: Int32s
    earlier: Int32s
    later: Int32s
    weights: Int64s


class Pairs(NamedTuple):
    """Pairs of adjacent tokens, in arrays that have room for more pairs.

    left, right            int32    the tokens
    counts                 int64    the count of the pair
    first                  int32    the first position in the chain of its positions, or -1
    next_left, next_right  int32    another pair with the same left token; with the same right token
    gains                  float64  the order of the heap: at least the current gain of the pair
    heap                   int32    the pairs as a binary heap, the best one first
    heap_indices           int32    the index of each pair in `heap`
    slots                  int32    an open-addressing hash table from (left, right) to the pair
    number                 int64    (1,) the number of pairs
    """

    left: Int32s
    right: Int32s
    counts: Int64s
    first: Int32s
    next_left: Int32s
    next_right: Int32s
    gains: Float64s
    heap: Int32s
    heap_indices: Int32s
    slots: Int32s
    number: Int64s


class Tokens(NamedTuple):
    """Tokens by their ids.

    counts             int64  the count of the token
    on_left, on_right  int32  the first pair with the token on its left; on its right; or -1
    names              int32  (V, 102) the code points of the token, padded with 0
    total              int64  (1,) the count of all tokens
    """

    counts: Int64s
    on_left: Int32s
    on_right: Int32s
    names: Int32s
    total: Int64s


class _MergeState:
    """The words, tokens and pairs in the form that the kernels take."""

    def __init__(self, table: list[tuple[str, int]], tokens: list[str], size: int, likelihood: bool) -> None:
        self.words = _split_into_characters(table, {token: token_id for token_id, token in enumerate(tokens)})
        size = min(size, len(tokens) + len(self.words.tokens))  # each merge shortens a word
        counts = np.zeros(size, dtype=np.int64)
        np.add.at(counts, self.words.tokens, self.words.weights)
        on_left, on_right = np.full((2, size), _NONE, dtype=np.int32)
        names = np.zeros((size, len(CONTINUATION_PREFIX) + MAX_WORD_CHARACTERS), dtype=np.int32)
        self.tokens = Tokens(counts, on_left, on_right, names, counts.sum(keepdims=True))
        for token_id, token in enumerate(tokens):
            self.add_token(token_id, token)
        self.likelihood = likelihood
        chunk = 1 << 16
        left, right, first, next_left, next_right, heap, heap_indices = np.zeros((7, chunk), dtype=np.int32)
        counts, gains = np.zeros(chunk, np.int64), np.zeros(chunk)
        slots = np.full(2 * chunk, _NONE, np.int32)
        number = np.zeros(1, dtype=np.int64)
        links = first, next_left, next_right
        self.pairs = Pairs(left, right, counts, *links, gains, heap, heap_indices, slots, number)
        for start in range(0, len(self.words.tokens), chunk):
            self._reserve(chunk)
            _link_range(self.words, self.tokens, self.pairs, start, start + chunk)
        for token_id in range(len(tokens)):
            _raise_gains(self.pairs, self.tokens, likelihood, token_id)

    def add_token(self, token_id: int, token: str) -> None:
        self.tokens.names[token_id, : len(token)] = code_points([token])[0]

    def best_pair(self) -> tuple[int, int] | None:
        """Return the two tokens to merge next, or None if no pairs are left."""
        pair = _best_pair(self.pairs, self.tokens, self.likelihood)
        return None if pair == _NONE else (int(self.pairs.left[pair]), int(self.pairs.right[pair]))

    def merge_best_pair(self, merged: int) -> None:
        """Replace all occurrences of the best pair by the token `merged`."""
        # A new pair has `merged` on its left or on its right.
        self._reserve(2 * len(self.tokens.counts))
        _merge_best_pair(self.words, self.tokens, self.pairs, self.likelihood, merged)

    def _reserve(self, count: int) -> None:
        """Make room for `count` more pairs."""
        while self.pairs.number[0] + count > len(self.pairs.counts):
            longer = [np.pad(column, (0, len(column))) for column in self.pairs[:-2]]
            slots = np.full(4 * len(self.pairs.counts), _NONE, dtype=np.int32)
            self.pairs = Pairs._make([*longer, slots, self.pairs.number])
            _fill_slots(self.pairs)


def _split_into_characters(table: list[tuple[str, int]], ids: dict[str, int]) -> Words:
    """Split all words into characters, with no position in a chain yet."""
    lengths = np.array([len(word) for word, _ in table], dtype=np.int64)
    ends = np.cumsum(lengths)
    size = int(lengths.sum())
    characters = (f"{CONTINUATION_PREFIX}{c}" if i else c for word, _ in table for i, c in enumerate(word))
    tokens = np.fromiter(map(ids.__getitem__, characters), np.int32, size)
    before = np.arange(-1, size - 1, dtype=np.int32)
    after = np.arange(1, size + 1, dtype=np.int32)
    before[ends - lengths] = _NONE
    after[ends - 1] = _NONE
    weights = np.repeat(np.array([count for _, count in table], dtype=np.int64), lengths)
    pairs, earlier, later = (np.full(size, _NONE, dtype=np.int32) for _ in range(3))
    return Words(tokens, before, after, pairs, earlier, later, weights)


@uncounted_kernel
def _slot(pairs: Pairs, left: int, right: int) -> np.int64:
    """Return the slot of a pair in the hash table, or the free slot for it."""
    mask = np.uint64(len(pairs.slots) - 1)
    slot = mix((np.uint64(left) << _32) | np.uint64(right)) & mask
    while True:
        pair = pairs.slots[slot]
        if pair == _NONE or (pairs.left[pair] == left and pairs.right[pair] == right):
            return np.int64(slot)
        slot = (slot + ONE) & mask


@uncounted_kernel
def _fill_slots(pairs: Pairs) -> None:
    for pair in range(pairs.number[0]):
        pairs.slots[_slot(pairs, pairs.left[pair], pairs.right[pair])] = pair


@uncounted_kernel
def _link(words: Words, tokens: Tokens, pairs: Pairs, position: int) -> None:
    """Add the pair at `position` to its chain, and a new pair to the end of the heap."""
    left, right = words.tokens[position], words.tokens[words.after[position]]
    slot = _slot(pairs, left, right)
    pair = pairs.slots[slot]
    if pair == _NONE:
        pair = pairs.number[0]
        pairs.number[0] += 1
        pairs.slots[slot] = pair
        pairs.left[pair], pairs.right[pair] = left, right
        pairs.counts[pair] = 0
        pairs.first[pair] = _NONE
        pairs.next_left[pair], pairs.next_right[pair] = tokens.on_left[left], tokens.on_right[right]
        tokens.on_left[left] = tokens.on_right[right] = pair
        pairs.gains[pair] = -np.inf
        pairs.heap[pair] = pairs.heap_indices[pair] = pair
    words.pairs[position] = pair
    pairs.counts[pair] += words.weights[position]
    first = pairs.first[pair]
    words.earlier[position] = _NONE
    words.later[position] = first
    if first != _NONE:
        words.earlier[first] = position
    pairs.first[pair] = position


@uncounted_kernel
def _unlink(words: Words, pairs: Pairs, position: int) -> None:
    """Remove the pair at `position` from its chain."""
    pair = words.pairs[position]
    pairs.counts[pair] -= words.weights[position]
    earlier, later = words.earlier[position], words.later[position]
    if earlier == _NONE:
        pairs.first[pair] = later
    else:
        words.later[earlier] = later
    if later != _NONE:
        words.earlier[later] = earlier
    words.pairs[position] = _NONE


@uncounted_kernel
def _link_range(words: Words, tokens: Tokens, pairs: Pairs, start: int, stop: int) -> None:
    """Add the pairs at the positions from `start` to before `stop` to their chains."""
    for position in range(start, min(stop, len(words.after))):
        if words.after[position] != _NONE:
            _link(words, tokens, pairs, position)


@uncounted_kernel
def _gain(pairs: Pairs, tokens: Tokens, likelihood: bool, pair: int) -> float:
    """Return the current gain of a pair; minus infinity if it no longer occurs."""
    count = float(pairs.counts[pair])
    if count == 0:
        return -np.inf
    if not likelihood:
        return count
    # Equal counts give bitwise equal gains, because the order of the operations is the same.
    product = float(tokens.counts[pairs.left[pair]]) * float(tokens.counts[pairs.right[pair]])
    return count * math.log(count * float(tokens.total[0]) / product)


@uncounted_kernel
def _precedes(pairs: Pairs, tokens: Tokens, pair: int, other: int) -> bool:
    """Return whether `pair` comes before `other`: by gain, then by the strings."""
    if pairs.gains[pair] != pairs.gains[other]:
        return bool(pairs.gains[pair] > pairs.gains[other])
    for side in (pairs.left, pairs.right):
        name, other_name = tokens.names[side[pair]], tokens.names[side[other]]
        for i in range(len(name)):
            if name[i] != other_name[i]:
                return bool(name[i] < other_name[i])
    return False


@uncounted_kernel
def _set_gain(pairs: Pairs, tokens: Tokens, pair: int, gain: float) -> None:
    """Set the gain of a pair, and move the pair up or down the heap accordingly."""
    heap, heap_indices, number = pairs.heap, pairs.heap_indices, pairs.number[0]
    pairs.gains[pair] = gain
    index = np.int64(heap_indices[pair])
    while index > 0 and _precedes(pairs, tokens, pair, heap[(index - 1) // 2]):
        heap[index] = heap[(index - 1) // 2]
        heap_indices[heap[index]] = index
        index = (index - 1) // 2
    while 2 * index + 1 < number:
        child = 2 * index + 1
        if child + 1 < number and _precedes(pairs, tokens, heap[child + 1], heap[child]):
            child += 1
        if not _precedes(pairs, tokens, heap[child], pair):
            break
        heap[index] = heap[child]
        heap_indices[heap[index]] = index
        index = child
    heap[index] = pair
    heap_indices[pair] = index


@uncounted_kernel
def _raise_gains(pairs: Pairs, tokens: Tokens, likelihood: bool, token: int) -> None:
    """Raise the stored gain of each pair with `token` to at least its current gain."""
    headroom = HEADROOM if likelihood else 0.0
    for first, following in ((tokens.on_left, pairs.next_left), (tokens.on_right, pairs.next_right)):
        pair = first[token]
        while pair != _NONE:
            gain = _gain(pairs, tokens, likelihood, pair)
            if gain > pairs.gains[pair]:
                _set_gain(pairs, tokens, pair, gain + headroom * pairs.counts[pair])
            pair = following[pair]


@uncounted_kernel
def _best_pair(pairs: Pairs, tokens: Tokens, likelihood: bool) -> int:
    """Return the pair with the largest current gain, or -1 if no pairs are left.

    The pair is moved to the top of the heap.
    """
    while pairs.number[0] > 0:
        pair = pairs.heap[0]
        gain = _gain(pairs, tokens, likelihood, pair)
        if gain == pairs.gains[pair]:
            return pair if pairs.counts[pair] > 0 else _NONE
        _set_gain(pairs, tokens, pair, gain)
    return _NONE


@uncounted_kernel
def _merge_best_pair(words: Words, tokens: Tokens, pairs: Pairs, likelihood: bool, merged: int) -> None:
    """Replace all occurrences of the pair at the top of the heap by `merged`."""
    before, after = words.before, words.after
    pair = pairs.heap[0]
    left, right = pairs.left[pair], pairs.right[pair]
    while pairs.first[pair] != _NONE:
        position = pairs.first[pair]
        # Occurrences overlap in a run such as a-a-a. Merging a run from its left makes the result
        # independent of the order of the chain, and so of the input.
        while before[position] != _NONE and words.pairs[before[position]] == pair:
            position = before[position]
        previous, second = before[position], after[position]
        following = after[second]
        _unlink(words, pairs, position)
        if previous != _NONE:
            _unlink(words, pairs, previous)
        if following != _NONE:
            _unlink(words, pairs, second)
            before[following] = position
        words.tokens[position] = merged
        after[position] = following
        weight = words.weights[position]
        tokens.counts[left] -= weight
        tokens.counts[right] -= weight
        tokens.counts[merged] += weight
        tokens.total[0] -= weight
        if previous != _NONE:
            _link(words, tokens, pairs, previous)
        if following != _NONE:
            _link(words, tokens, pairs, position)
    # `_best_pair` corrects gains that fell. Gains that rose must be raised here. Counts rise for pairs
    # with the merged token only. Likelihood gains also rise for pairs with `left` or `right`, because
    # these tokens have become rarer.
    _raise_gains(pairs, tokens, likelihood, merged)
    if likelihood:
        _raise_gains(pairs, tokens, likelihood, left)
        _raise_gains(pairs, tokens, likelihood, right)
