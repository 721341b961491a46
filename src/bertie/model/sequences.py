"""Sequences end to end, before they are anyone's batch: which stand together, and where. No torch."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]


class Sequences(NamedTuple):
    """N sequences, T tokens.

    input_ids       int32 (T,)
    token_type_ids  int32 (T,)    segment A is 0, segment B is 1
    bounds          int64 (N+1,)  where each sequence begins; the last entry is T
    """

    input_ids: Int32s
    token_type_ids: Int32s
    bounds: Int64s

    def select(self, chosen: Int64s) -> "Sequences":
        """Those of some numbers, in that order."""
        places = token_indices(self.bounds, chosen)
        bounds = np.concatenate([[0], np.cumsum(np.diff(self.bounds)[chosen])])
        return Sequences(self.input_ids[places], self.token_type_ids[places], bounds)

    def batches(self, max_tokens: int, group: int = 1) -> Iterator[tuple[Int64s, "Sequences"]]:
        """Batches as of `token_budget_batches`, each with the numbers of its sequences.

        `group` sequences are one example and stay together.
        """
        for examples in token_budget_batches(self.bounds[::group], max_tokens):
            chosen = grouped(examples, group)
            yield chosen, self.select(chosen)


def grouped(chosen: Int64s, group: int) -> Int64s:
    """The numbers of the sequences that the `chosen` examples are: int64 (len(chosen) · group,)."""
    return (chosen[:, None] * group + np.arange(group)).reshape(-1)


def token_indices(bounds: Int64s, sequences: Int64s) -> Int64s:
    """Where the tokens of some sequences stand among all tokens, in order: int64."""
    lengths = np.diff(bounds)[sequences]
    starts = bounds[sequences] - np.cumsum(lengths) + lengths
    places: Int64s = np.arange(lengths.sum()) + np.repeat(starts, lengths)
    return places


def token_budget_batches(bounds: Int64s, max_tokens: int) -> list[Int64s]:
    """Cut sequences into batches of similar length and at most `max_tokens`; a longer one stands alone.

    Where an example is a group of sequences, `bounds[::group]` keeps it together.

    Returns:
        For each batch the numbers of its sequences: int64 arrays that together hold each number once.
    """
    lengths = np.diff(bounds)
    order = np.argsort(lengths, kind="stable")
    ends = np.cumsum(lengths[order])
    batches = []
    first = 0
    while first < len(order):
        taken = ends[first - 1] if first else 0
        last = max(int(np.searchsorted(ends, taken + max_tokens, side="right")), first + 1)
        batches.append(order[first:last])
        first = last
    return batches
