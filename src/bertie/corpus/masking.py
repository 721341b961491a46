"""The masked language model (Section 3.1, Task #1): which tokens are predicted, and what replaces them."""

import numpy as np
import numpy.typing as npt

from bertie.base.kernels import kernel
from bertie.base.random import UInt64s, random_below, random_unit
from bertie.text.trie import SUFFIX
from bertie.text.vocabulary import Vocabulary

Bools = npt.NDArray[np.bool_]


def continuation_mask(vocabulary: Vocabulary) -> Bools:
    """Which ids go on with the word of the token before them: bool (V,)."""
    return np.array([token.startswith(SUFFIX) for token in vocabulary.tokens])


@kernel
def count_masks(length: int, candidates: int, masking_rate: float, max_predictions: int) -> int:
    """How many tokens of an example are predicted: `masking_rate` of its length, special tokens counted.

    At least one, at most `max_predictions` and at most the candidates. Halves round to the even number,
    as in create_pretraining_data.py.
    """
    return min(max(1, int(np.rint(length * masking_rate))), max_predictions, candidates)


@kernel
def replace_token(
    stream: UInt64s,
    input_ids: npt.NDArray[np.int32],
    position: int,
    mask_probability: float,
    keep_probability: float,
    mask_id: int,
    vocabulary_size: int,
) -> None:
    """Turn a chosen token into [MASK], leave it, or turn it into a token drawn from the whole vocabulary.

    Special tokens and the token itself may be drawn, as in create_pretraining_data.py.
    """
    share = random_unit(stream)
    if share < mask_probability:
        input_ids[position] = mask_id
    elif share >= mask_probability + keep_probability:
        input_ids[position] = random_below(stream, vocabulary_size)


@kernel
def mask_tokens(
    stream: UInt64s,
    input_ids: npt.NDArray[np.int32],
    separator: int,
    mask_probability: float,
    keep_probability: float,
    mask_id: int,
    vocabulary_size: int,
    positions: npt.NDArray[np.int64],
    labels: npt.NDArray[np.int64],
) -> None:
    """Mask as many tokens of one example as `positions` has places, every choice equally likely.

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
            replace_token(
                stream, input_ids, position, mask_probability, keep_probability, mask_id, vocabulary_size
            )
        candidates -= 1


@kernel
def mask_words(
    stream: UInt64s,
    input_ids: npt.NDArray[np.int32],
    separator: int,
    is_continuation: Bools,
    mask_probability: float,
    keep_probability: float,
    mask_id: int,
    vocabulary_size: int,
    positions: npt.NDArray[np.int64],
    labels: npt.NDArray[np.int64],
) -> int:
    """As `mask_tokens`, but of whole words; each token of a chosen word is replaced on its own.

    Words are taken in random order until `positions` is full. One with more tokens than there are places
    left is passed over, so a few places may stay empty. Where B was cut within a word, its first tokens
    belong to the last word of A. All this as in create_pretraining_data.py.

    Args:
        is_continuation: bool (V,), of `continuation_mask`.

    Returns:
        The number of masks.
    """
    last = len(input_ids) - 1
    word_of = np.empty(last, dtype=np.int64)
    sizes = np.zeros(last, dtype=np.int64)
    words = 0
    for position in range(1, last):
        if position != separator:
            if words == 0 or not is_continuation[input_ids[position]]:
                words += 1
            word_of[position] = words - 1
            sizes[words - 1] += 1

    waiting = np.arange(words)
    chosen = np.zeros(words, dtype=np.bool_)
    places = len(positions)
    while words > 0 and places > 0:
        draw = random_below(stream, words)
        word = waiting[draw]
        words -= 1
        waiting[draw] = waiting[words]
        if sizes[word] <= places:
            chosen[word] = True
            places -= sizes[word]

    count = 0
    for position in range(1, last):
        if position != separator and chosen[word_of[position]]:
            positions[count], labels[count] = position, input_ids[position]
            count += 1
            replace_token(
                stream, input_ids, position, mask_probability, keep_probability, mask_id, vocabulary_size
            )
    return count
