"""The masked language model (Section 3.1, Task #1): which tokens are predicted, and what replaces them."""

import numpy as np
import numpy.typing as npt

from bertie.base.kernels import kernel
from bertie.base.random import UInt64s, random_below, random_unit


@kernel
def count_masks(length: int, candidates: int, masking_rate: float, max_predictions: int) -> int:
    """How many tokens of an example are predicted: `masking_rate` of its length, special tokens counted.

    At least one, at most `max_predictions` and at most the candidates. Halves round to the even number,
    as in create_pretraining_data.py.
    """
    return min(max(1, int(np.rint(length * masking_rate))), max_predictions, candidates)


@kernel
def mask_tokens(
    stream: UInt64s,
    input_ids: npt.NDArray[np.int32],
    separator: int,
    mask_share: float,
    keep_share: float,
    mask_id: int,
    vocabulary_size: int,
    positions: npt.NDArray[np.int64],
    labels: npt.NDArray[np.int64],
) -> None:
    """Mask as many tokens of one example as `positions` has places, every choice equally likely.

    A chosen token becomes [MASK], stays, or becomes a token drawn from the whole vocabulary (special tokens
    and itself among them, as in create_pretraining_data.py), with the shares given and the rest.

    Args:
        stream: random state, uint64 (1,), advanced.
        input_ids: int32 (length,), from [CLS] to the last [SEP], changed in place.
        separator: the place of the first [SEP].
        positions: int64 (masks,), filled with the chosen places in ascending order.
        labels: int64 (masks,), filled with the tokens that stood there.
    """
    last = len(input_ids) - 1
    candidates = last - 1 if separator == last else last - 2
    chosen, count = 0, len(positions)
    for position in range(1, last):
        if chosen == count:
            break
        if position == separator:
            continue
        # Selection sampling (Knuth, volume 2, algorithm 3.4.2 S): ascending, and no list of candidates.
        if random_below(stream, candidates) < count - chosen:
            positions[chosen], labels[chosen] = position, input_ids[position]
            chosen += 1
            share = random_unit(stream)
            if share < mask_share:
                input_ids[position] = mask_id
            elif share >= mask_share + keep_share:
                input_ids[position] = random_below(stream, vocabulary_size)
        candidates -= 1
