"""The vocabulary as a trie with failure links, for LinMaxMatch.

LinMaxMatch is described by Song et al., Fast WordPiece Tokenization, arXiv:2012.15524. When no
longer match is possible, the failure link of the node gives the tokens to output and the node at
which to continue, so that no character is read twice.
"""

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from bertie.base.kernels import kernel
from bertie.text.unicode import Index, code_points

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
UInt32s = npt.NDArray[np.uint32]
UInt64s = npt.NDArray[np.uint64]
A = TypeVar("A", Int32s, Int64s)

CONTINUATION_PREFIX = "##"  # begins every token that continues a word
WORD_START, INSIDE_WORD = 0, 1  # the two roots, as indices of their slots
HALF = np.uint64(32)
LOW_HALF = np.uint64((1 << 32) - 1)
BASE, PARENT, TOKEN, FAILURE, POPS_BEGIN, POPS_END = range(6)  # the columns while the trie is built


class Trie(NamedTuple):
    """A trie in a double array (Aoe, 1989) with failure links.

    Each of the S slots may hold a node.

    symbols    uint32          the symbol of each code point: its number in the alphabet, from 1, or 0 if
                               it is not there; the last entry, 0, is for all greater code points
    cells      uint64 (S,)     in the low half the base of the node: base + symbol is the slot of a child;
                               in the high half the slot of its parent, by which a match is verified
    tokens     int32 (S,)      the id of the token that ends at the node, or -1
    failures   int32 (S,)      the slot at which to continue if the node has no matching child; -1 if
                               the word has no tokens
    pop_bounds int32 (S, 2)    the range of `pops` to output before continuing there
    pops       int32           token ids
    lengths    int32 (V,)      the number of characters of each token, without ##
    """

    symbols: UInt32s
    cells: UInt64s
    tokens: Int32s
    failures: Int32s
    pop_bounds: Int32s
    pops: Int32s
    lengths: Int32s


@kernel
def child_slot(cell: np.uint64, symbol: np.uint32) -> np.uint64:
    """Return the slot where a child of a node would be, given its cell, see `Trie`."""
    return (cell & LOW_HALF) + np.uint64(symbol)


@kernel
def parent_slot(cell: np.uint64) -> np.uint64:
    """Return the slot of a node's parent, given its cell, see `Trie`."""
    return cell >> HALF


@kernel
def grow(array: A, rows: Index) -> A:
    """Copy a 2-d array into one of twice `rows` rows, the new ones filled with -1."""
    larger = np.full((2 * rows, array.shape[1]), -1, dtype=array.dtype)
    for i in range(len(array)):  # numba takes seconds to compile an assignment to a slice
        for k in range(array.shape[1]):
            larger[i, k] = array[i, k]
    return larger


@kernel
def first_free(next_free: Int64s, slot: int) -> int:
    """Return the first free slot from `slot` on, and shorten the path to it."""
    while next_free[slot] != slot:
        next_free[slot] = next_free[next_free[slot]]
        slot = next_free[slot]
    return slot


@kernel
def find_base(
    nodes: Int32s,
    next_free: Int64s,
    symbols: Int64s,
    bounds: Int64s,
    first: np.int64,
    last: np.int64,
    depth: np.int64,
    alphabet: int,
) -> tuple[Int32s, Int64s, np.int64]:
    """Find the first base at which all children of a node fall on free slots.

    Args:
        nodes: the trie so far, see `build_nodes`; a free slot has no parent.
        next_free: for each slot, the slot itself if it is free, else a later slot on the way to a free
            one.
        symbols, bounds: the keys, see `build_nodes`.
        first, last: the range of keys that pass through the node, all longer than `depth`.
        depth: the length of the key that leads to the node.
        alphabet: the largest symbol.

    Returns:
        `nodes` and `next_free`, enlarged if necessary, and the base.
    """
    lowest = symbols[bounds[first] + depth]
    # Slots from here on keep the base non-negative.
    slot = alphabet + 1
    while True:
        slot = first_free(next_free, slot)
        if slot + alphabet >= len(nodes):
            nodes = grow(nodes, len(nodes))
            next_free = np.concatenate((next_free, np.arange(len(next_free), len(nodes))))
        fits = True
        for key in range(first, last):
            if nodes[slot - lowest + symbols[bounds[key] + depth], PARENT] >= 0:
                fits = False
                break
        if fits:
            return nodes, next_free, slot - lowest
        slot += 1


@kernel
def link_child(
    nodes: Int32s, pops: Int32s, pop_count: np.int64, node: np.int64, child: np.int64, symbol: np.int64
) -> np.int64:
    """Set the failure link and the pops of a child of `node` (Algorithm 2).

    Args:
        nodes: the trie so far. The column TOKEN of the child is set.
        pops: with room for as many more entries as the child's key has symbols.
        pop_count: the number of entries in use.
        node, child: slots.
        symbol: the symbol of the edge between them.

    Returns:
        The new number of entries of `pops`.
    """
    begin = pop_count
    if nodes[child, TOKEN] >= 0:
        nodes[child, FAILURE] = INSIDE_WORD
        pops[pop_count, 0] = nodes[child, TOKEN]
        pop_count += 1
    while nodes[child, FAILURE] < 0 and nodes[node, FAILURE] >= 0:
        for k in range(nodes[node, POPS_BEGIN], nodes[node, POPS_END]):
            pops[pop_count, 0] = pops[k, 0]
            pop_count += 1
        node = np.int64(nodes[node, FAILURE])
        target = nodes[node, BASE] + symbol
        if nodes[target, PARENT] == node:
            nodes[child, FAILURE] = target
    if nodes[child, FAILURE] < 0:
        pop_count = begin
    nodes[child, POPS_BEGIN], nodes[child, POPS_END] = begin, pop_count
    return pop_count


@kernel
def build_nodes(
    symbols: Int64s, bounds: Int64s, ids: Int64s, first_continuation: int, alphabet: int
) -> tuple[Int32s, Int32s]:
    """Build the trie of sorted keys, level by level.

    Args:
        symbols, bounds: key i is symbols[bounds[i] : bounds[i + 1]].
        ids: the token id of each key.
        first_continuation: the index of the first key of a token that begins with ##.
        alphabet: the largest symbol.

    Returns:
        The nodes, int32 (S, 6), with the columns BASE, PARENT, TOKEN, FAILURE, POPS_BEGIN and
        POPS_END, and the pops, int32 (P, 1).
    """
    nodes = np.full((2 * (alphabet + len(symbols)) + 16, 6), -1, dtype=np.int32)
    next_free = np.arange(len(nodes))
    highest = np.int64(INSIDE_WORD)
    pops = np.empty((len(symbols) + 16, 1), dtype=np.int32)
    pop_count = np.int64(0)
    # Nodes that have no children yet: the slot, the range of keys through it, its depth.
    queue = np.zeros((len(symbols) + 2, 4), dtype=np.int64)
    queue[0, 0], queue[0, 1], queue[0, 2] = WORD_START, 0, first_continuation
    queue[1, 0], queue[1, 1], queue[1, 2] = INSIDE_WORD, first_continuation, len(ids)
    head, queued = 0, 2
    while head < queued:
        node, first, last, depth = queue[head]
        head += 1
        nodes[node, BASE] = 0
        if first < last and bounds[first + 1] - bounds[first] == depth:
            first += 1  # this key ends at the node
        if first == last:
            continue
        nodes, next_free, base = find_base(nodes, next_free, symbols, bounds, first, last, depth, alphabet)
        nodes[node, BASE] = base
        while first < last:
            symbol = symbols[bounds[first] + depth]
            next_first = first
            while next_first < last and symbols[bounds[next_first] + depth] == symbol:
                next_first += 1
            child = base + symbol
            highest = max(highest, child)
            nodes[child, PARENT] = node
            next_free[child] = child + 1
            queue[queued, 0], queue[queued, 1] = child, first
            queue[queued, 2], queue[queued, 3] = next_first, depth + 1
            queued += 1
            if bounds[first + 1] - bounds[first] == depth + 1:
                nodes[child, TOKEN] = ids[first]
            if pop_count + depth >= len(pops):
                pops = grow(pops, pop_count + depth + 1)
            pop_count = link_child(nodes, pops, pop_count, node, child, symbol)
            first = next_first
    # Any base plus any symbol is a valid index.
    return nodes[: highest + alphabet + 1], pops[:pop_count]


def build_trie(tokens: Sequence[str], max_word_characters: int) -> Trie:
    """Build the trie of a vocabulary.

    A token that occurs twice has its last id. Tokens of more than `max_word_characters` characters
    are left out, because longer words become [UNK] without being matched.
    """
    last_ids = {token: token_id for token_id, token in enumerate(tokens)}
    prefix = len(CONTINUATION_PREFIX)
    groups: tuple[list[str], list[str]] = ([], [])  # tokens that begin a word, and tokens that continue one
    for token in sorted(last_ids):
        is_continuation = token.startswith(CONTINUATION_PREFIX)
        if 0 < len(token) - prefix * is_continuation <= max_word_characters:
            groups[is_continuation].append(token)
    keys = groups[0] + [token[prefix:] for token in groups[1]]
    codes, bounds = code_points(keys)
    symbols = np.zeros(int(codes.max(initial=0)) + 2, dtype=np.uint32)
    symbols[codes] = 1
    alphabet = int(symbols.sum())
    symbols *= np.cumsum(symbols, dtype=np.uint32)
    ids = np.fromiter(map(last_ids.__getitem__, chain(*groups)), np.int64, len(keys))
    nodes, pops = build_nodes(symbols[codes].astype(np.int64), bounds, ids, len(groups[0]), alphabet)
    return Trie(
        symbols,
        nodes[:, PARENT].astype(np.uint64) << HALF | nodes[:, BASE].astype(np.uint64) & LOW_HALF,
        np.ascontiguousarray(nodes[:, TOKEN]),
        np.ascontiguousarray(nodes[:, FAILURE]),
        np.ascontiguousarray(nodes[:, [POPS_BEGIN, POPS_END]]),
        pops[:, 0].copy(),
        np.array([len(token.removeprefix(CONTINUATION_PREFIX)) for token in tokens], dtype=np.int32),
    )
