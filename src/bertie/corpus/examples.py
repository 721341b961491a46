"""What a pre-training example is: its settings, its arrays, and how pairs are written into them, masked."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import pydantic

from bertie.base.kernels import kernel
from bertie.base.random import UInt64s, fold
from bertie.base.settings import Settings
from bertie.corpus.masking import Bools, count_masks, mask_tokens, mask_words
from bertie.corpus.sentence_pairs import PairKind, Pairs, pair_length, write_pair

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]


class ExampleSettings(Settings):
    """How examples are made; the defaults are those of the paper and of create_pretraining_data.py."""

    max_seq_length: int = pydantic.Field(128, exclude=True)  # in a run the phases say it
    short_sequence_probability: float = pydantic.Field(0.1, ge=0, le=1)
    masking_rate: float = pydantic.Field(0.15, gt=0, le=1)  # Section 3.1, Task #1
    mask_probability: float = pydantic.Field(0.8, ge=0, le=1)  # Appendix A.1; a random token takes the rest
    keep_probability: float = pydantic.Field(0.1, ge=0, le=1)
    max_predictions_per_sequence: int | None = pydantic.Field(None, ge=1)
    whole_word_masking: bool = False  # as the later checkpoints of google-research/bert
    pairs: PairKind = "random"

    renamed: ClassVar[Mapping[str, str]] = {
        "mask_share": "mask_probability",
        "keep_share": "keep_probability",
    }

    @pydantic.model_validator(mode="after")
    def _shares_leave_a_rest(self) -> Self:
        if self.mask_probability + self.keep_probability > 1:
            raise ValueError(
                f"mask_probability {self.mask_probability} and keep_probability {self.keep_probability} "
                f"are more than 1 together"
            )
        return self

    @property
    def max_predictions(self) -> int:
        """The most masks of an example: the setting, or else the masking rate of the longest, rounded up.

        That is 20 at length 128, as the README of google-research/bert has it, and 77 at 512.
        """
        return self.max_predictions_per_sequence or math.ceil(self.max_seq_length * self.masking_rate)

    def unmasked(self) -> Self:
        """The same examples with no token to predict, which as a setting would be of no use."""
        return self.model_copy(update={"masking_rate": 0.0, "max_predictions_per_sequence": None})


@dataclass(frozen=True)
class Examples:
    """n pre-training examples, `[CLS] A [SEP] B [SEP]` each, flat and without padding.

    input_ids             int32 (T,)    masked already
    token_type_ids        int32 (T,)    0 as far as the first [SEP], then 1
    bounds                int64 (n+1,)  example i is bounds[i] … bounds[i+1]
    masked_positions      int64 (M,)    indices into the flat T tokens, ascending
    masked_labels         int64 (M,)    the tokens that stood there
    masked_bounds         int64 (n+1,)  cut the masks into examples
    next_sentence_labels  int64 (n,)    0 where B is the text after A, 1 where not; None without pairs
    """

    input_ids: Int32s
    token_type_ids: Int32s
    bounds: Int64s
    masked_positions: Int64s
    masked_labels: Int64s
    masked_bounds: Int64s
    next_sentence_labels: Int64s | None

    def __len__(self) -> int:
        return len(self.bounds) - 1


@kernel
def measure(pairs: Pairs, masking_rate: float, max_predictions: int) -> tuple[Int64s, Int64s]:
    """Where each example ends among the tokens, and among places for masks: int64 (n+1,) twice, from 0."""
    bounds = np.zeros(len(pairs) + 1, dtype=np.int64)
    masked_bounds = np.zeros(len(pairs) + 1, dtype=np.int64)
    for row in range(len(pairs)):
        pair = pairs[row]
        length = pair_length(pair)
        candidates = (pair.a_end - pair.a_start) + (pair.b_end - pair.b_start)
        bounds[row + 1] = bounds[row] + length
        masks = count_masks(length, candidates, masking_rate, max_predictions)
        masked_bounds[row + 1] = masked_bounds[row] + masks
    return bounds, masked_bounds


@kernel
def write_examples(
    tokens: npt.NDArray[np.unsignedinteger[Any]],
    pairs: Pairs,
    masking_key: np.uint64,
    start: int,
    stop: int,
    row: int,
    stride: int,
    special_ids: tuple[int, int, int],
    vocabulary_size: int,
    shares: tuple[float, float],
    is_continuation: Bools | None,
    bounds: Int64s,
    masked_bounds: Int64s,
    input_ids: Int32s,
    token_type_ids: Int32s,
    masked_positions: Int64s,
    masked_labels: Int64s,
    masks: Int64s,
) -> None:
    """Write pairs start … stop of a block to rows row, row + stride, … of flat examples, masked.

    With `is_continuation` whole words are masked. `masks`, int64 (n,), says how many places were used.
    """
    cls_id, sep_id, mask_id = special_ids
    mask_probability, keep_probability = shares
    stream: UInt64s = np.empty(1, dtype=np.uint64)
    for position in range(start, stop):
        first, end = bounds[row], bounds[row + 1]
        ids = input_ids[first:end]
        separator = write_pair(tokens, pairs[position], cls_id, sep_id, ids, token_type_ids[first:end])
        stream[0] = fold(masking_key, np.uint64(position))
        places = masked_positions[masked_bounds[row] : masked_bounds[row + 1]]
        labels = masked_labels[masked_bounds[row] : masked_bounds[row + 1]]
        how = (mask_probability, keep_probability, mask_id, vocabulary_size)
        if is_continuation is None:
            mask_tokens(stream, ids, separator, *how, places, labels)
            masks[row] = len(places)
        else:
            masks[row] = mask_words(stream, ids, separator, is_continuation, *how, places, labels)
        places += first
        row += stride


@kernel
def close_gaps(
    masked_bounds: Int64s, masks: Int64s, masked_positions: Int64s, masked_labels: Int64s
) -> Int64s:
    """Move the masks together, of which example i has masks[i] from masked_bounds[i] on: the new bounds."""
    bounds = np.zeros_like(masked_bounds)
    for row in range(len(masks)):
        begin, first = bounds[row], masked_bounds[row]
        for offset in range(masks[row]):
            masked_positions[begin + offset] = masked_positions[first + offset]
            masked_labels[begin + offset] = masked_labels[first + offset]
        bounds[row + 1] = begin + masks[row]
    return bounds
