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


class ListedNodes(NamedTuple):
    """The N nodes of a trie, level by level. Nodes 0 and 1 are the roots.

    parents       int64 (N,)      the parent of each node
    symbols       int64 (N,)      the symbol of the edge between them
    tokens        int64 (N,)      the id of the token that ends at the node, or -1
    lowest_ids    int64 (N,)      the lowest id of the tokens that pass through the node; -1 for roots
    child_bounds  int64 (N + 1,)  the children of node i are child_bounds[i] to child_bounds[i + 1] - 1
    """

    parents: Int64s
    symbols: Int64s
    tokens: Int64s
    lowest_ids: Int64s
    child_bounds: Int64s


@kernel
def list_nodes(symbols: Int64s, bounds: Int64s, ids: Int64s, first_continuation: int) -> ListedNodes:
    """List the nodes of the trie of sorted keys; for the arguments, see `build_nodes`."""
    room = len(symbols) + 2
    parents, edges = np.zeros(room, dtype=np.int64), np.zeros(room, dtype=np.int64)
    tokens, lowest_ids = np.full(room, -1), np.full(room, -1)
    child_bounds = np.zeros(room + 1, dtype=np.int64)
    keys = np.zeros((room, 3), dtype=np.int64)  # the range of keys through the node, and its depth
    keys[WORD_START, 1] = first_continuation
    keys[INSIDE_WORD, 0], keys[INSIDE_WORD, 1] = first_continuation, len(ids)
    node, listed = 0, 2
    while node < listed:
        first, last, depth = keys[node]
        child_bounds[node] = listed
        if first < last and bounds[first + 1] - bounds[first] == depth:
            tokens[node] = ids[first]  # this key ends at the node
            first += 1
        while first < last:
            symbol = symbols[bounds[first] + depth]
            parents[listed], edges[listed], lowest_ids[listed] = node, symbol, ids[first]
            keys[listed, 0], keys[listed, 2] = first, depth + 1
            while first < last and symbols[bounds[first] + depth] == symbol:
                lowest_ids[listed] = min(lowest_ids[listed], ids[first])
                first += 1
            keys[listed, 1] = first
            listed += 1
        node += 1
    child_bounds[listed] = listed
    return ListedNodes(
        parents[:listed], edges[:listed], tokens[:listed], lowest_ids[:listed], child_bounds[: listed + 1]
    )


@kernel
def find_base(
    nodes: Int32s, next_free: Int64s, symbols: Int64s, alphabet: int
) -> tuple[Int32s, Int64s, np.int64]:
    """Find the first base at which all children of a node fall on free slots.

    Args:
        nodes: the trie so far, see `build_nodes`; a free slot has no parent.
        next_free: for each slot, the slot itself if it is free, else a later slot on the way to a free
            one.
        symbols: the symbols of the children, sorted.
        alphabet: the largest symbol of all.

    Returns:
        `nodes` and `next_free`, enlarged if necessary, and the base.
    """
    # Slots from here on keep the base non-negative.
    slot = alphabet + 1
    while True:
        slot = first_free(next_free, slot)
        if slot + alphabet >= len(nodes):
            nodes = grow(nodes, len(nodes))
            next_free = np.concatenate((next_free, np.arange(len(next_free), len(nodes))))
        base = np.int64(slot - symbols[0])
        fits = True
        for symbol in symbols:
            if nodes[base + symbol, PARENT] >= 0:
                fits = False
                break
        if fits:
            return nodes, next_free, base
        slot += 1


@kernel
def place_nodes(listed: ListedNodes, alphabet: int) -> tuple[Int32s, Int64s]:
    """Give each node a slot.

    A vocabulary lists frequent tokens first, so the nodes with the lowest ids come first. Thus the nodes
    that most words pass through are close together, and more of them are in a core's cache.

    Returns:
        The nodes, as `build_nodes` returns them, with the columns BASE, PARENT and TOKEN; and the slot of
        each listed node.
    """
    nodes = np.full((2 * (alphabet + len(listed.parents)) + 16, 6), -1, dtype=np.int32)
    next_free = np.arange(len(nodes))
    slots = np.zeros(len(listed.parents), dtype=np.int64)
    slots[INSIDE_WORD] = INSIDE_WORD
    # This sort is stable, and no id of a node is lower than its parent's, so parents come before children.
    for node in np.argsort(listed.lowest_ids, kind="mergesort"):
        slot, begin, end = slots[node], listed.child_bounds[node], listed.child_bounds[node + 1]
        base = np.int64(0)
        if begin < end:
            nodes, next_free, base = find_base(nodes, next_free, listed.symbols[begin:end], alphabet)
        nodes[slot, BASE], nodes[slot, TOKEN] = base, listed.tokens[node]
        for child in range(begin, end):
            slots[child] = base + listed.symbols[child]
            nodes[slots[child], PARENT] = slot
            next_free[slots[child]] = slots[child] + 1
    return nodes, slots


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
    """Build the trie of sorted keys.

    Args:
        symbols, bounds: key i is symbols[bounds[i] : bounds[i + 1]].
        ids: the token id of each key.
        first_continuation: the index of the first key of a token that begins with ##.
        alphabet: the largest symbol.

    Returns:
        The nodes, int32 (S, 6), with the columns BASE, PARENT, TOKEN, FAILURE, POPS_BEGIN and
        POPS_END, and the pops, int32 (P, 1).
    """
    listed = list_nodes(symbols, bounds, ids, first_continuation)
    nodes, slots = place_nodes(listed, alphabet)
    longest = (bounds[1:] - bounds[:-1]).max() if len(ids) else 0
    pops = np.empty((len(symbols) + longest, 1), dtype=np.int32)
    pop_count = np.int64(0)
    for node in range(2, len(slots)):  # level by level, since links lead to higher levels
        if pop_count + longest > len(pops):
            pops = grow(pops, pop_count + longest)
        parent, symbol = slots[listed.parents[node]], listed.symbols[node]
        pop_count = link_child(nodes, pops, pop_count, parent, slots[node], symbol)
    # Any base plus any symbol is a valid index.
    return nodes[: slots.max() + alphabet + 1], pops[:pop_count]


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
