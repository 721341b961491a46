"""Pre-training examples: their settings, their arrays, and how they are written.

See Section 3.1 and Appendix A.1 of the paper. The defaults follow create_pretraining_data.py of
google-research/bert (line numbers refer to commit eedf571, 2020-03-11).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import pydantic

from bertie.base.arrays import Bools, Int32s, Int64s, UInt64s
from bertie.base.kernels import kernel
from bertie.base.random import fold_in
from bertie.base.settings import Settings
from bertie.corpus.masking import count_masks, mask_tokens, mask_words
from bertie.corpus.sentence_pairs import PairKind, Pairs, pair_length, write_pair


class ExampleSettings(Settings):
    """Settings for making pre-training examples.

    Attributes:
        max_seq_length: the maximum number of tokens of an example, with [CLS] and [SEP].
        short_sequence_probability: the probability of aiming at a shorter random length.
        masking_rate: the fraction of tokens to predict.
        mask_probability: the probability that a token to predict is replaced by [MASK].
        keep_probability: the probability that a token to predict is kept. Otherwise, a random token
            replaces it.
        max_predictions_per_sequence: the maximum number of tokens to predict; None to follow
            `masking_rate`.
        whole_word_masking: whether all tokens of a word are predicted together.
        pairs: the kind of segment that replaces the next sentence, with probability 0.5; "none"
            makes single segments.
        near_distance: with the pairs "near", the replacement begins at most this many sentences from
            the first segment, and at least two. If no sentence of the document does, it comes from
            another document. 0 allows any sentence of the document.
        language_smoothing: exponent S. In a corpus of several languages, a language with the fraction p
            of the tokens gets a fraction of the training text proportional to p^S. 1 changes nothing.
    """

    max_seq_length: int = pydantic.Field(128, exclude=True)  # in a run, each phase has its own
    short_sequence_probability: float = pydantic.Field(0.1, ge=0, le=1)  # create_pretraining_data.py:63
    masking_rate: float = pydantic.Field(0.15, gt=0, le=1)  # Section 3.1, Task #1
    mask_probability: float = pydantic.Field(0.8, ge=0, le=1)  # Appendix A.1
    keep_probability: float = pydantic.Field(0.1, ge=0, le=1)  # Appendix A.1
    max_predictions_per_sequence: int | None = pydantic.Field(None, ge=1)
    whole_word_masking: bool = False  # True for google-research/bert's checkpoints of 2019-05-31
    pairs: PairKind = "random"
    near_distance: int = pydantic.Field(5, ge=0)
    language_smoothing: float = pydantic.Field(1.0, gt=0, le=1)  # 0.7 in multilingual.md

    renamed: ClassVar[Mapping[str, str]] = {
        "mask_share": "mask_probability",
        "keep_share": "keep_probability",
    }

    @pydantic.field_validator("near_distance")
    @classmethod
    def _neighbours_are_no_negatives(cls, distance: int) -> int:
        if distance == 1:
            raise ValueError(
                "allows only neighbouring sentences, which cannot be negatives; use 2 or more, or 0 for no "
                "limit"
            )
        return distance

    @pydantic.model_validator(mode="after")
    def _check_probabilities(self) -> Self:
        if self.mask_probability + self.keep_probability > 1:
            raise ValueError(
                f"mask_probability {self.mask_probability} and keep_probability {self.keep_probability} "
                f"add up to more than 1; lower one of them"
            )
        return self

    @property
    def max_predictions(self) -> int:
        """The maximum number of tokens to predict in an example.

        Unless it is set, this is `masking_rate` times `max_seq_length`, rounded up: 20 at length
        128, as in the README of google-research/bert, and 77 at length 512.
        """
        return self.max_predictions_per_sequence or math.ceil(self.max_seq_length * self.masking_rate)

    def without_masks(self) -> Self:
        """Return settings for the same examples without tokens to predict.

        A masking rate of 0 is not accepted as a setting, since nothing can be learnt from it.
        """
        return self.model_copy(update={"masking_rate": 0.0, "max_predictions_per_sequence": None})


@dataclass(frozen=True)
class Examples:
    """n examples, each `[CLS] A [SEP] B [SEP]`, concatenated without padding.

    Without pairs, each is `[CLS] A [SEP]`.

    Attributes:
        input_ids: the tokens after masking, int32 (T,).
        token_type_ids: 0 up to the first [SEP] of each example, then 1; int32 (T,).
        bounds: example i is bounds[i] … bounds[i + 1] - 1 of the tokens; int64 (n + 1,).
        masked_positions: indices in `input_ids` of the tokens to predict, ascending, int64 (M,).
        masked_labels: the original tokens at these positions, int64 (M,).
        masked_bounds: example i is masked_bounds[i] … masked_bounds[i + 1] - 1 of the masks;
            int64 (n + 1,).
        next_sentence_labels: 0 if B is the text after A and 1 if not, int64 (n,); None without
            pairs.
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
def measure_examples(pairs: Pairs, masking_rate: float, max_predictions: int) -> tuple[Int64s, Int64s]:
    """Compute `bounds` and `masked_bounds` of examples: int64 (n + 1,) each.

    With whole word masking, an example may have fewer masks than `masked_bounds` has room for.
    """
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
    probabilities: tuple[float, float],
    is_continuation: Bools | None,
    bounds: Int64s,
    masked_bounds: Int64s,
    input_ids: Int32s,
    token_type_ids: Int32s,
    masked_positions: Int64s,
    masked_labels: Int64s,
    mask_counts: Int64s,
) -> None:
    """Write pairs start … stop - 1 of a block as examples, and mask them.

    The pairs become rows row, row + stride, … of the examples. The random numbers of an example
    depend on `masking_key` and its position in the block only.

    Args:
        tokens: the tokens of the shard, (T,).
        pairs: the pairs of the block, in their final order.
        special_ids: the ids of [CLS], [SEP] and [MASK].
        probabilities: `mask_probability` and `keep_probability` of the settings.
        is_continuation: which ids continue a word, bool (V,), to mask whole words; None for tokens.
        mask_counts: filled with the number of masks of each example, int64 (n,).

    The other arrays are the attributes of `Examples`; `bounds` and `masked_bounds` come from
    `measure_examples`.
    """
    cls_id, sep_id, mask_id = special_ids
    mask_probability, keep_probability = probabilities
    stream: UInt64s = np.empty(1, dtype=np.uint64)
    for position in range(start, stop):
        first, end = bounds[row], bounds[row + 1]
        ids = input_ids[first:end]
        first_sep = write_pair(tokens, pairs[position], cls_id, sep_id, ids, token_type_ids[first:end])
        stream[0] = fold_in(masking_key, np.uint64(position))
        positions = masked_positions[masked_bounds[row] : masked_bounds[row + 1]]
        labels = masked_labels[masked_bounds[row] : masked_bounds[row + 1]]
        replacement = (mask_probability, keep_probability, mask_id, vocabulary_size)
        if is_continuation is None:
            mask_tokens(stream, ids, first_sep, *replacement, positions, labels)
            mask_counts[row] = len(positions)
        else:
            mask_counts[row] = mask_words(
                stream, ids, first_sep, is_continuation, *replacement, positions, labels
            )
        positions += first
        row += stride


@kernel
def close_gaps(
    masked_bounds: Int64s, mask_counts: Int64s, masked_positions: Int64s, masked_labels: Int64s
) -> Int64s:
    """Remove the gaps between masks, in place, and return the new `masked_bounds`.

    Example i has `mask_counts[i]` masks, which begin at `masked_bounds[i]`.
    """
    bounds = np.zeros_like(masked_bounds)
    for row in range(len(mask_counts)):
        target, source = bounds[row], masked_bounds[row]
        for offset in range(mask_counts[row]):
            masked_positions[target + offset] = masked_positions[source + offset]
            masked_labels[target + offset] = masked_labels[source + offset]
        bounds[row + 1] = target + mask_counts[row]
    return bounds
