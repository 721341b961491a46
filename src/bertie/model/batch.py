"""The layout of a batch: sequences laid end to end, without padding.

No linear layer computes padding. Only some kinds of attention pad, inside buckets of similar length
(buckets.py). Shapes: see bert.py.
"""

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bertie.base.arrays import Float32s, Int32s, Int64s
from bertie.model.buckets import Buckets, copy_to, make_buckets
from bertie.model.objectives import IGNORE_INDEX
from bertie.model.sequences import Sequences, sequence_indices, token_indices

Labels = Int64s | Float32s


@dataclass(frozen=True)
class PackedBatch:
    """N sequences end to end, and the labels that a head needs.

    Attributes:
        input_ids: int32 (T,)
        token_type_ids: int32 (T,), 0 in segment A, 1 in segment B
        position_ids: int32 (T,), 0 at the start of every sequence
        cu_seqlens: int32 (N+1,), start of each sequence; the last entry is T
        lengths: int64 array (N,), the length of each sequence, on the CPU
        max_seqlen: length of the longest sequence
        vector_length: how many keys attention in buckets computes at a time; see `make_buckets`
        masked_positions: int64 (M,), pre-training: indices of the tokens to predict
        masked_labels: int64 (M,), pre-training: the original ids of these tokens
        next_sentence_labels: int64 (N,), pre-training: 0 if B follows A, 1 if B is another text
        labels: a task's labels, in the shape that its head documents
        num_targets: number of entries of `labels` other than IGNORE_INDEX
    """

    input_ids: Tensor
    token_type_ids: Tensor
    position_ids: Tensor
    cu_seqlens: Tensor
    lengths: Int64s
    max_seqlen: int
    vector_length: int = 1
    masked_positions: Tensor | None = None
    masked_labels: Tensor | None = None
    next_sentence_labels: Tensor | None = None
    labels: Tensor | None = None
    num_targets: int = 0

    def __len__(self) -> int:
        """Return the number of sequences, N."""
        return len(self.cu_seqlens) - 1

    @property
    def num_tokens(self) -> int:
        """The number of tokens, T."""
        return len(self.input_ids)

    @property
    def sequence_ids(self) -> Tensor:
        """The index of each token's sequence: int64 (T,)."""
        indices = torch.arange(len(self), device=self.cu_seqlens.device)
        # Without output_size, torch would synchronize a GPU to compute it.
        return indices.repeat_interleave(self.cu_seqlens.diff(), output_size=self.num_tokens)

    @cached_property
    def buckets(self) -> Buckets:
        """How the sequences are padded, for attention that needs it."""
        return make_buckets(self.lengths, self.vector_length).to(self.input_ids.device)

    def to(self, device: torch.device) -> "PackedBatch":
        """Return this batch with every tensor on `device`."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        moved: dict[str, Any] = {
            name: copy_to(value, device) for name, value in values.items() if isinstance(value, Tensor)
        }
        return replace(self, **moved)


def pack(
    input_ids: Int32s,
    token_type_ids: Int32s,
    bounds: Int64s,
    *,
    masked_positions: Int64s | None = None,
    masked_labels: Int64s | None = None,
    next_sentence_labels: Int64s | None = None,
    labels: Labels | None = None,
    vector_length: int = 1,
) -> PackedBatch:
    """Pack N sequences, T tokens in all, into a batch.

    Args:
        input_ids: token ids of the sequences end to end, (T,).
        token_type_ids: segments of the same tokens, (T,).
        bounds: start of each sequence and the end of the last, (N+1,). They may be cut from the
            bounds of a longer array: only their differences are used.
        masked_positions: indices of the masked tokens in `input_ids`, (M,).
        masked_labels: original ids of the masked tokens, (M,).
        next_sentence_labels: 0 or 1 for each sequence, (N,).
        labels: a task's labels, in the shape that its head documents.
        vector_length: see `PackedBatch`.
    """
    lengths = np.diff(bounds)
    cu_seqlens = bounds - bounds[0]
    position_ids = np.arange(cu_seqlens[-1]) - np.repeat(cu_seqlens[:-1], lengths)
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
        cu_seqlens=torch.from_numpy(cu_seqlens.astype(np.int32)),
        lengths=lengths,
        max_seqlen=int(lengths.max()),
        vector_length=vector_length,
        num_targets=0 if labels is None else int((labels != IGNORE_INDEX).sum()),
        **{name: torch.from_numpy(values.copy()) for name, values in optional.items() if values is not None},
    )


def pack_selected(
    input_ids: Int32s,
    token_type_ids: Int32s,
    bounds: Int64s,
    indices: Int64s,
    labels: Labels | None = None,
    *,
    token_labels: Int64s | None = None,
    group_size: int = 1,
) -> PackedBatch:
    """Select examples from a data set and pack them into a batch.

    Args:
        input_ids: token ids of all sequences of the data set end to end, (T,).
        token_type_ids: segments of the same tokens, (T,).
        bounds: start of each sequence, (N+1,); the last entry is T.
        indices: indices of the selected examples, in the order of the batch.
        labels: labels of all examples, one row each.
        token_labels: labels of all T tokens, for a task that labels tokens; replaces `labels`.
        group_size: number of consecutive sequences that form one example.
    """
    sequences = sequence_indices(indices, group_size)
    if token_labels is not None:
        selected_labels: Labels | None = token_labels[token_indices(bounds, sequences)]
    else:
        selected_labels = None if labels is None else labels[indices]
    selected = Sequences(input_ids, token_type_ids, bounds).select(sequences)
    return pack(*selected, labels=selected_labels)
