"""The vocabulary as a trie with failure links, for LinMaxMatch (Song et al., arXiv:2012.15524).

A failure link says, where the longest match ends, which pieces to give out and at which node to go on.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from bertie.base.kernels import kernel
from bertie.text.unicode import Index, code_points

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
UInt32s = npt.NDArray[np.uint32]
A = TypeVar("A", Int32s, Int64s)

SUFFIX = "##"  # what a piece inside a word begins with
WORD_START, INSIDE_WORD = 0, 1  # the two roots


class Trie(NamedTuple):
    """A trie in a double array (Aoe, 1989) with failure links; S slots, of which some hold a node.

    symbols    uint32          a character's number in the alphabet; the last entry, 0, serves all others
    cells      uint32 (S, 2)   of a node: what to add to a symbol to find the child, and the node's parent
    tokens     int32 (S,)      the piece that ends here, or -1
    failures   int32 (S,)      where to go on when there is no such child; -1: the word has no pieces
    pop_bounds int32 (S, 2)    which part of `pops` to give out then
    pops       int32           pieces
    lengths    int32 (V,)      the characters of each piece, without its ##
    """

    symbols: UInt32s
    cells: UInt32s
    tokens: Int32s
    failures: Int32s
    pop_bounds: Int32s
    pops: Int32s
    lengths: Int32s


@kernel
def grow(array: A, rows: Index) -> A:
    """`array` with room for `rows` rows, and as much again so that this stays rare."""
    larger = np.full((2 * rows, array.shape[1]), -1, dtype=array.dtype)
    for i in range(len(array)):  # numba takes seconds to compile an assignment to a slice
        for k in range(array.shape[1]):
            larger[i, k] = array[i, k]
    return larger


@kernel
def first_free(next_free: Int64s, slot: int) -> int:
    """The first free slot at or after `slot`; shortens the path there for the next call."""
    while next_free[slot] != slot:
        next_free[slot] = next_free[next_free[slot]]
        slot = next_free[slot]
    return slot


@kernel
def link_failure(
    nodes: Int32s, pops: Int32s, popped: np.int64, node: np.int64, child: np.int64, symbol: np.int64
) -> np.int64:
    """Set the failure link of a child that ends no piece (Algorithm 2); gives the new end of `pops`."""
    begin = popped
    while nodes[child, 3] < 0 and nodes[node, 3] >= 0:
        for k in range(nodes[node, 4], nodes[node, 5]):
            pops[popped, 0] = pops[k, 0]
            popped += 1
        node = np.int64(nodes[node, 3])
        target = nodes[node, 0] + symbol
        if nodes[target, 1] == node:
            nodes[child, 3] = target
    return popped if nodes[child, 3] >= 0 else begin


@kernel
def build_trie(
    symbols: Int64s, bounds: Int64s, ids: Int64s, suffixes: int, alphabet: int
) -> tuple[Int32s, Int32s]:
    """The trie of the sorted keys symbols[bounds[i]:bounds[i + 1]]; keys from `suffixes` on begin with ##.

    Returns:
        The nodes, int32 (S, 6), with the columns cells (two), tokens, failures and pop_bounds (two) of
        `Trie`, and its pops, int32 (P, 1).
    """
    # Free slots begin beyond the alphabet, so that what is added to a symbol is never negative.
    nodes = np.full((2 * (alphabet + len(symbols)) + 16, 6), -1, dtype=np.int32)
    next_free = np.arange(len(nodes))
    highest = np.int64(INSIDE_WORD)
    pops = np.empty((len(symbols) + 16, 1), dtype=np.int32)
    popped = np.int64(0)

    # Nodes to be given their children, level by level: the node, its range of keys, their shared length.
    queue = np.zeros((len(symbols) + 2, 4), dtype=np.int64)
    queue[0, 0], queue[0, 1], queue[0, 2] = WORD_START, 0, suffixes
    queue[1, 0], queue[1, 1], queue[1, 2] = INSIDE_WORD, suffixes, len(ids)
    queued = 2
    taken = 0
    while taken < queued:
        node, first, last, depth = queue[taken]
        taken += 1
        nodes[node, 0] = 0
        if first < last and bounds[first + 1] - bounds[first] == depth:
            first += 1  # the key that ends here
        if first == last:
            continue

        # The first place where all children find a free slot.
        lowest = symbols[bounds[first] + depth]
        slot = alphabet + 1
        fits = False
        while not fits:
            slot = first_free(next_free, slot)
            if slot + alphabet >= len(nodes):
                nodes = grow(nodes, len(nodes))
                next_free = np.concatenate((next_free, np.arange(len(next_free), len(nodes))))
            fits = True
            for key in range(first, last):
                if nodes[slot - lowest + symbols[bounds[key] + depth], 1] >= 0:
                    fits = False
                    slot += 1
                    break
        base = slot - lowest
        nodes[node, 0] = base

        while first < last:
            symbol = symbols[bounds[first] + depth]
            key = first
            while key < last and symbols[bounds[key] + depth] == symbol:
                key += 1
            child = base + symbol
            highest = max(highest, child)
            nodes[child, 1] = node
            next_free[child] = child + 1
            queue[queued, 0], queue[queued, 1] = child, first
            queue[queued, 2], queue[queued, 3] = key, depth + 1
            queued += 1

            if popped + depth >= len(pops):
                pops = grow(pops, popped + depth + 1)
            nodes[child, 4] = popped
            if bounds[first + 1] - bounds[first] == depth + 1:
                nodes[child, 2] = ids[first]
                nodes[child, 3] = INSIDE_WORD
                pops[popped, 0] = ids[first]
                popped += 1
            else:
                popped = link_failure(nodes, pops, popped, node, child, symbol)
            nodes[child, 5] = popped
            first = key
    # Any symbol may be added to any node's first column.
    return nodes[: highest + alphabet + 1], pops[:popped]


def make_trie(tokens: Sequence[str], max_word_characters: int) -> Trie:
    """The trie of a vocabulary; a piece longer than any word that is matched stays out of it."""
    keys = sorted(
        (token.startswith(SUFFIX), token.removeprefix(SUFFIX), token_id)
        for token_id, token in enumerate(tokens)
    )
    keys = [key for key in keys if 0 < len(key[1]) <= max_word_characters]
    codes, bounds = code_points([text for _, text, _ in keys])
    alphabet, places = np.unique(codes, return_inverse=True)
    symbols = np.zeros(int(codes.max(initial=0)) + 2, dtype=np.uint32)
    symbols[alphabet] = np.arange(1, len(alphabet) + 1)
    ids = np.array([token_id for _, _, token_id in keys], dtype=np.int64)
    suffixes = sum(not inside for inside, _, _ in keys)
    nodes, pops = build_trie(places + 1, bounds, ids, suffixes, len(alphabet))
    cells, token_column, failures, pop_bounds = np.split(nodes, [2, 3, 4], axis=1)
    return Trie(
        symbols,
        np.ascontiguousarray(cells).view(np.uint32),
        np.ascontiguousarray(token_column[:, 0]),
        np.ascontiguousarray(failures[:, 0]),
        np.ascontiguousarray(pop_bounds),
        pops[:, 0].copy(),
        np.array([len(token.removeprefix(SUFFIX)) for token in tokens], dtype=np.int32),
    )
