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

from bertie.base.kernels import kernel
from bertie.model.objectives import IGNORE_INDEX
from bertie.model.sequences import Int64s, Sequences, grouped, token_indices

Labels = npt.NDArray[np.int64] | npt.NDArray[np.float32]

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
    next_sentence_labels  int64 (N,)     pre-training: 0 the next sentence, 1 another text
    labels                what a task learns; each of the heads says what it takes
    num_targets           how many entries of `labels` there are, less those of -100
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
    num_targets: int = 0

    def __len__(self) -> int:
        """The number of sequences, N."""
        return len(self.cu_seqlens) - 1

    @property
    def num_tokens(self) -> int:
        """The number of tokens, T."""
        return len(self.input_ids)

    @property
    def sequence_ids(self) -> Tensor:
        """Which sequence each token belongs to: int64 (T,)."""
        numbers = torch.arange(len(self), device=self.cu_seqlens.device)
        # Without the size of the output a GPU would have to be waited for.
        return numbers.repeat_interleave(self.cu_seqlens.diff(), output_size=self.num_tokens)

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
    labels: Labels | None = None,
) -> PackedBatch:
    """A batch of the sequences that `bounds` (N+1,) cuts from flat arrays (T,)."""
    lengths = np.diff(bounds)
    starts = bounds[:-1] - bounds[0]
    order = np.argsort(-lengths, kind="stable")
    shapes, widths = _buckets(lengths[order])
    position_ids, rows, places, mask = _fill_buckets(starts, lengths, order, widths)
    optional = {
        "masked_positions": masked_positions,
        "masked_labels": masked_labels,
        "next_sentence_labels": next_sentence_labels,
        "labels": labels,
    }
    return PackedBatch(
        input_ids=torch.from_numpy(input_ids.astype(np.int32)),
        token_type_ids=torch.from_numpy(token_type_ids.astype(np.int32)),
        position_ids=torch.from_numpy(position_ids),
        cu_seqlens=torch.from_numpy((bounds - bounds[0]).astype(np.int32)),
        max_seqlen=int(lengths.max()),
        bucket_shapes=shapes,
        bucket_rows=torch.from_numpy(rows),
        bucket_places=torch.from_numpy(places),
        bucket_mask=None if mask.all() else torch.from_numpy(mask),
        num_targets=0 if labels is None else int((labels != IGNORE_INDEX).sum()),
        **{name: torch.from_numpy(values.copy()) for name, values in optional.items() if values is not None},
    )


def _buckets(lengths: Int64s) -> tuple[tuple[tuple[int, int], ...], Int64s]:
    """Group sequences of similar length, given the longest first: the buckets' shapes, each one's width."""
    shapes = []
    first = 0
    while first < len(lengths):
        longest = int(lengths[first])
        last = int(np.searchsorted(-lengths, -BUCKET_RATIO * longest, side="right"))
        shapes.append((last - first, longest))
        first = last
    return tuple(shapes), np.repeat([width for _, width in shapes], [rows for rows, _ in shapes])


@kernel  # numpy's dozen passes over the tokens take nearly as long as making the examples
def _fill_buckets(
    starts: Int64s, lengths: Int64s, order: Int64s, widths: Int64s
) -> tuple[npt.NDArray[np.int32], Int64s, Int64s, npt.NDArray[np.bool_]]:
    """`position_ids`, `bucket_rows`, `bucket_places` and `bucket_mask` of a batch.

    Sequence order[i] has widths[i] places in the buckets; those behind its end show its first token.
    """
    position_ids = np.empty(lengths.sum(), dtype=np.int32)
    places = np.empty(len(position_ids), dtype=np.int64)
    rows = np.empty(widths.sum(), dtype=np.int64)
    mask = np.empty(len(rows), dtype=np.bool_)
    place = 0
    for sequence, width in zip(order, widths):  # noqa: B905 (numba knows no strict)
        start, length = starts[sequence], lengths[sequence]
        for offset in range(length):
            position_ids[start + offset] = offset
            places[start + offset] = place + offset
            rows[place + offset] = start + offset
        rows[place + length : place + width] = start
        mask[place : place + length] = True
        mask[place + length : place + width] = False
        place += width
    return position_ids, rows, places, mask


def pack_selected(
    input_ids: npt.NDArray[np.int32],
    token_type_ids: npt.NDArray[np.int32],
    bounds: npt.NDArray[np.int64],
    chosen: npt.NDArray[np.int64],
    labels: Labels | None = None,
    *,
    token_labels: npt.NDArray[np.int64] | None = None,
    group: int = 1,
) -> PackedBatch:
    """A batch of the `chosen` ones of many examples.

    Args:
        input_ids: of all sequences end to end.
        token_type_ids: likewise.
        bounds: cuts them into sequences.
        chosen: the numbers of the examples, in the order wanted.
        labels: one row for each of the many examples; or
        token_labels: one for each of their tokens.
        group: how many sequences an example is; they stand next to each other.
    """
    sequences = grouped(chosen, group)
    if token_labels is not None:
        chosen_labels: Labels | None = token_labels[token_indices(bounds, sequences)]
    else:
        chosen_labels = None if labels is None else labels[chosen]
    selected = Sequences(input_ids, token_type_ids, bounds).select(sequences)
    return pack(*selected, labels=chosen_labels)
