"""PackedBatch: the one layout of a batch. Sequences stand end to end, so no linear layer computes padding.

Legend of shapes, here and in the rest of the room:
    T  tokens of the batch     N  sequences     M  masked positions     V  vocabulary
    H  hidden size             A  heads         D  head size, H = A·D   S  padded length in a bucket
    P  tokens of the batch in the buckets, padding included (P ≥ T)
"""

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

# Sequences that share an attention bucket differ in length by at most this factor, which bounds the
# padding inside attention, while ten buckets reach from 512 down to 30 tokens.
BUCKET_RATIO = 0.75


@dataclass(frozen=True)
class PackedBatch:
    """Sequences end to end, and what a head may need of them.

    input_ids             int32 (T,)
    token_type_ids        int32 (T,)     segment A is 0, segment B is 1
    position_ids          int32 (T,)     0 at the start of every sequence
    cu_seqlens            int32 (N+1,)   where each sequence begins; the last entry is T
    max_seqlen            the longest sequence
    bucket_shapes         (sequences, S) of each attention bucket
    bucket_rows           int64 (P,)     which token stands in each place of the buckets
    bucket_places         int64 (T,)     in which place of the buckets each token stands
    bucket_mask           bool (P,)      which places hold a token; None where all do
    masked_positions      int64 (M,)     pre-training: the places to predict, in the packed tokens
    masked_labels         int64 (M,)     pre-training: the ids that stood there
    next_sentence_labels  int64 (N,)     pre-training: 0 the next sentence, 1 a random one
    labels                int64 (N,)     classification
    """

    input_ids: Tensor
    token_type_ids: Tensor
    position_ids: Tensor
    cu_seqlens: Tensor
    max_seqlen: int
    bucket_shapes: tuple[tuple[int, int], ...]
    bucket_rows: Tensor
    bucket_places: Tensor
    bucket_mask: Tensor | None
    masked_positions: Tensor | None = None
    masked_labels: Tensor | None = None
    next_sentence_labels: Tensor | None = None
    labels: Tensor | None = None

    def __len__(self) -> int:
        """The number of sequences, N."""
        return len(self.cu_seqlens) - 1

    @property
    def num_tokens(self) -> int:
        """The number of tokens, T."""
        return len(self.input_ids)

    def to(self, device: torch.device) -> "PackedBatch":
        """This batch with every tensor on `device`."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        moved: dict[str, Any] = {k: v.to(device) for k, v in values.items() if isinstance(v, Tensor)}
        return replace(self, **moved)


def pack(
    input_ids: npt.NDArray[np.int32],
    token_type_ids: npt.NDArray[np.int32],
    bounds: npt.NDArray[np.int64],
    *,
    masked_positions: npt.NDArray[np.int64] | None = None,
    masked_labels: npt.NDArray[np.int64] | None = None,
    next_sentence_labels: npt.NDArray[np.int64] | None = None,
    labels: npt.NDArray[np.int64] | None = None,
) -> PackedBatch:
    """A batch of the sequences that `bounds` (N+1,) cuts from flat arrays (T,)."""
    lengths = np.diff(bounds)
    starts = bounds[:-1] - bounds[0]
    position_ids = np.arange(len(input_ids), dtype=np.int64) - np.repeat(starts, lengths)
    shapes, rows, places, mask = _buckets(starts, lengths, position_ids)
    optional = {
        "masked_positions": masked_positions,
        "masked_labels": masked_labels,
        "next_sentence_labels": next_sentence_labels,
        "labels": labels,
    }
    return PackedBatch(
        input_ids=torch.from_numpy(input_ids.astype(np.int32)),
        token_type_ids=torch.from_numpy(token_type_ids.astype(np.int32)),
        position_ids=torch.from_numpy(position_ids.astype(np.int32)),
        cu_seqlens=torch.from_numpy((bounds - bounds[0]).astype(np.int32)),
        max_seqlen=int(lengths.max()),
        bucket_shapes=shapes,
        bucket_rows=torch.from_numpy(rows),
        bucket_places=torch.from_numpy(places),
        bucket_mask=None if mask.all() else torch.from_numpy(mask),
        **{name: torch.from_numpy(values.copy()) for name, values in optional.items() if values is not None},
    )


def _buckets(
    starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], position_ids: npt.NDArray[np.int64]
) -> tuple[tuple[tuple[int, int], ...], npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Gather sequences of similar length into padded rectangles for attention."""
    order = np.argsort(-lengths, kind="stable")
    shapes: list[tuple[int, int]] = []
    rows: list[npt.NDArray[np.int64]] = []
    masks: list[npt.NDArray[np.bool_]] = []
    first_places = np.empty(len(lengths), dtype=np.int64)  # where each sequence begins in the buckets
    done = place = 0
    while done < len(order):
        longest = int(lengths[order[done]])
        # Lengths fall along `order`, so the members of the bucket are a run of it.
        members = order[done : np.searchsorted(-lengths[order], -BUCKET_RATIO * longest, side="right")]
        within = np.arange(longest)
        mask = within < lengths[members, None]
        shapes.append((len(members), longest))
        rows.append(np.where(mask, starts[members, None] + within, starts[members, None]).ravel())
        masks.append(mask.ravel())
        first_places[members] = place + longest * np.arange(len(members))
        place += longest * len(members)
        done += len(members)
    places = np.repeat(first_places, lengths) + position_ids
    return tuple(shapes), np.concatenate(rows), places, np.concatenate(masks)


def pack_selected(
    input_ids: npt.NDArray[np.int32],
    token_type_ids: npt.NDArray[np.int32],
    bounds: npt.NDArray[np.int64],
    chosen: npt.NDArray[np.int64],
    labels: npt.NDArray[np.int64] | None = None,
) -> PackedBatch:
    """A batch of the `chosen` ones of many sequences end to end; `labels` are those of the many."""
    lengths = np.diff(bounds)[chosen]
    chosen_bounds = np.concatenate([[0], np.cumsum(lengths)])
    places = np.arange(chosen_bounds[-1]) + np.repeat(bounds[chosen] - chosen_bounds[:-1], lengths)
    return pack(
        input_ids[places],
        token_type_ids[places],
        chosen_bounds,
        labels=None if labels is None else labels[chosen],
    )


def token_budget_batches(bounds: npt.NDArray[np.int64], max_tokens: int) -> list[npt.NDArray[np.int64]]:
    """Cut sequences into batches of similar length and at most `max_tokens`; a longer one stands alone.

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
