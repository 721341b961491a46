"""The vocabulary as a trie with failure links, for LinMaxMatch.

LinMaxMatch is described by Song et al., Fast WordPiece Tokenization, arXiv:2012.15524. When no
longer match is possible, the failure link of the node gives the tokens to output and the node at
which to continue, so that no character is read twice.
"""

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple, TypeVar

import numpy as np

from bertie.base.arrays import Int32s, Int64s, UInt32s, UInt64s
from bertie.base.kernels import kernel
from bertie.text.unicode import Index, code_points

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


class ListedNodes(NamedTuple):
    """The N nodes of a trie, level by level. Nodes 0 and 1 are the roots.

    parents       int64 (N,)      the parent of each node
    symbols       int64 (N,)      the symbol of the edge between them
    tokens        int64 (N,)      the id of the token that ends at the node, or -1
    lowest_ids    int64 (N,)      the lowest id of the tokens that pass through the node; -1 for roots
    depths        int64 (N,)      the number of symbols from the root to the node
    child_bounds  int64 (N + 1,)  the children of node i are child_bounds[i] to child_bounds[i + 1] - 1
    """

    parents: Int64s
    symbols: Int64s
    tokens: Int64s
    lowest_ids: Int64s
    depths: Int64s
    child_bounds: Int64s


def list_nodes(symbols: Int64s, bounds: Int64s, ids: Int64s, first_continuation: int) -> ListedNodes:
    """List the nodes of the trie of sorted keys; for the arguments, see `build_nodes`."""
    room = len(symbols) + 2
    listed = ListedNodes._make([*np.full((5, room), -1), np.zeros(room + 1, dtype=np.int64)])
    key_ranges = np.zeros((room, 2), dtype=np.int64)
    key_ranges[:2] = (0, first_continuation), (first_continuation, len(ids))
    listed.depths[:2] = 0
    count = _list_nodes(symbols, bounds, ids, listed, key_ranges)
    return ListedNodes._make([*(column[:count] for column in listed[:-1]), listed.child_bounds[: count + 1]])


@kernel
def _list_nodes(
    symbols: Int64s, bounds: Int64s, ids: Int64s, listed: ListedNodes, key_ranges: Int64s
) -> np.int64:
    """Fill `listed`, and return the number of nodes.

    `key_ranges` has the range of keys through each node; for the roots, it is set. So are their depths.
    """
    node, count = np.int64(0), np.int64(2)
    while node < count:
        first, last = key_ranges[node, 0], key_ranges[node, 1]
        depth = listed.depths[node]
        listed.child_bounds[node] = count
        if first < last and bounds[first + 1] - bounds[first] == depth:
            listed.tokens[node] = ids[first]  # this key ends at the node
            first += 1
        while first < last:
            symbol, lowest_id = symbols[bounds[first] + depth], ids[first]
            key_ranges[count, 0] = first
            while first < last and symbols[bounds[first] + depth] == symbol:
                lowest_id = min(lowest_id, ids[first])
                first += 1
            key_ranges[count, 1] = first
            listed.parents[count], listed.symbols[count], listed.depths[count] = node, symbol, depth + 1
            listed.lowest_ids[count] = lowest_id
            count += 1
        node += 1
    listed.child_bounds[count] = count
    return count


def place_nodes(listed: ListedNodes, alphabet: int) -> tuple[Int32s, Int64s]:
    """Give each node a slot.

    A vocabulary lists frequent tokens first, so the nodes with the lowest ids come first. Thus the nodes
    that most words pass through are close together, and more of them are in a core's cache.

    Returns:
        The nodes, as `build_nodes` returns them, with the columns BASE, PARENT and TOKEN; and the slot of
        each listed node.
    """
    room = 2 * (alphabet + len(listed.parents)) + 16
    nodes = np.full((room, 6), -1, dtype=np.int32)
    next_free = np.arange(room)
    slots = np.zeros(len(listed.parents), dtype=np.int64)
    slots[INSIDE_WORD] = INSIDE_WORD
    # This sort is stable, and no id of a node is lower than its parent's, so parents come before children.
    order = np.argsort(listed.lowest_ids, kind="stable")
    while len(order := order[_place_nodes(nodes, next_free, slots, order, listed, alphabet) :]):
        nodes = np.concatenate((nodes, np.full_like(nodes, -1)))
        next_free = np.concatenate((next_free, np.arange(len(next_free), len(nodes))))
    return nodes, slots


@kernel
def _place_nodes(
    nodes: Int32s, next_free: Int64s, slots: Int64s, order: Int64s, listed: ListedNodes, alphabet: int
) -> int:
    """Give the children of each node in `order` a slot, as long as there is room.

    Args:
        nodes: the trie so far, see `build_nodes`; a free slot has no parent.
        next_free: for each slot, the slot itself if it is free, else a later slot on the way to a free one.
        slots: of the nodes that have one; the roots and the children of placed nodes.
        order: the nodes to place.
        listed: all nodes.
        alphabet: the largest symbol of all.

    Returns:
        How many nodes of `order` were placed. If not all, the arrays have to be larger.
    """
    for placed in range(len(order)):
        node = order[placed]
        begin, end = listed.child_bounds[node], listed.child_bounds[node + 1]
        base = np.int64(0)
        if begin < end:
            base = _find_base(nodes, next_free, listed.symbols, begin, end, alphabet)
            if base < 0:
                return placed
        slot = slots[node]
        nodes[slot, BASE], nodes[slot, TOKEN] = base, listed.tokens[node]
        for child in range(begin, end):
            slots[child] = base + listed.symbols[child]
            nodes[slots[child], PARENT] = slot
            next_free[slots[child]] = slots[child] + 1
    return len(order)


@kernel
def _find_base(
    nodes: Int32s, next_free: Int64s, symbols: Int64s, begin: np.int64, end: np.int64, alphabet: int
) -> np.int64:
    """Find the first base at which all of symbols[begin:end] fall on free slots.

    Return -1 if there is no room.
    """
    slot = np.int64(alphabet + 1)  # from here on the base is not negative
    while True:
        while next_free[slot] != slot:
            next_free[slot] = next_free[next_free[slot]]  # shortens the way
            slot = next_free[slot]
        if slot + alphabet >= len(nodes):
            return np.int64(-1)
        base = np.int64(slot - symbols[begin])
        fits = True
        for i in range(begin, end):
            if nodes[base + symbols[i], PARENT] >= 0:
                fits = False
                break
        if fits:
            return base
        slot += 1


@kernel
def _link_nodes(nodes: Int32s, pops: Int32s, listed: ListedNodes, slots: Int64s) -> np.int64:
    """Set the failure links and the pops of all nodes (Algorithm 2).

    Args:
        nodes: the trie. The columns BASE, PARENT and TOKEN are set.
        pops: room for the pops: no node has more of them than symbols from the root.
        listed: the nodes, level by level, since links lead to higher levels.
        slots: the slot of each listed node.

    Returns:
        The number of entries of `pops` in use.
    """
    count = np.int64(0)
    for i in range(2, len(slots)):
        node, child, symbol = slots[listed.parents[i]], slots[i], listed.symbols[i]
        begin = count
        if nodes[child, TOKEN] >= 0:
            nodes[child, FAILURE] = INSIDE_WORD
            pops[count] = nodes[child, TOKEN]
            count += 1
        while nodes[child, FAILURE] < 0 and nodes[node, FAILURE] >= 0:
            for k in range(nodes[node, POPS_BEGIN], nodes[node, POPS_END]):
                pops[count] = pops[k]
                count += 1
            node = np.int64(nodes[node, FAILURE])
            target = nodes[node, BASE] + symbol
            if nodes[target, PARENT] == node:
                nodes[child, FAILURE] = target
        if nodes[child, FAILURE] < 0:
            count = begin
        nodes[child, POPS_BEGIN], nodes[child, POPS_END] = begin, count
    return count


def build_nodes(
    symbols: Int64s, bounds: Int64s, ids: Int64s, first_continuation: int, alphabet: int
) -> tuple[Int32s, Int32s]:
    """Build the trie of sorted keys.

    Only loops are kernels, because the functions of numpy take numba longer to compile than these.

    Args:
        symbols, bounds: key i is symbols[bounds[i] : bounds[i + 1]].
        ids: the token id of each key.
        first_continuation: the index of the first key of a token that begins with ##.
        alphabet: the largest symbol.

    Returns:
        The nodes, int32 (S, 6), with the columns BASE, PARENT, TOKEN, FAILURE, POPS_BEGIN and
        POPS_END, and the pops, int32 (P,).
    """
    listed = list_nodes(symbols, bounds, ids, first_continuation)
    nodes, slots = place_nodes(listed, alphabet)
    pops = np.empty(listed.depths.sum(), dtype=np.int32)
    count = _link_nodes(nodes, pops, listed, slots)
    # Any base plus any symbol is a valid index.
    return nodes[: slots.max() + alphabet + 1], pops[:count]


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
        pops.copy(),
        np.array([len(token.removeprefix(CONTINUATION_PREFIX)) for token in tokens], dtype=np.int32),
    )
