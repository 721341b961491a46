"""The masked language model: which tokens are predicted, and what replaces them.

The rates (15 %, and 80/10/10) are settings: `ExampleSettings` in examples.py.

See Section 3.1, Task #1, and Appendix A.1 of the paper. Line numbers such as
`create_pretraining_data.py:369` refer to google-research/bert at commit eedf571 (2020-03-11).
"""

import numpy as np

from bertie.base.arrays import Bools, Int32s, Int64s, UInt64s
from bertie.base.kernels import kernel
from bertie.base.random import random_below, random_unit
from bertie.text.trie import CONTINUATION_PREFIX
from bertie.text.vocabulary import Vocabulary


def continuation_mask(vocabulary: Vocabulary) -> Bools:
    """Return which ids continue the word of the previous token, like ##ing: bool (V,)."""
    return np.array([token.startswith(CONTINUATION_PREFIX) for token in vocabulary.tokens])


@kernel
def count_masks(length: int, candidates: int, masking_rate: float, max_predictions: int) -> int:
    """Return how many tokens of an example are predicted.

    The number is `masking_rate` times the length with special tokens, but at least 1, and at most
    `max_predictions` and the number of candidates. Halves are rounded to the even number
    (create_pretraining_data.py:369-370).

    Args:
        length: the number of tokens, with [CLS] and [SEP].
        candidates: the number of tokens without [CLS] and [SEP].
        masking_rate: the fraction of tokens to predict.
        max_predictions: the maximum number of tokens to predict.
    """
    return min(max(1, int(np.rint(length * masking_rate))), max_predictions, candidates)


@kernel
def replace_token(
    stream: UInt64s,
    input_ids: Int32s,
    position: int,
    mask_probability: float,
    keep_probability: float,
    mask_id: int,
    vocabulary_size: int,
) -> None:
    """Replace a token to be predicted by [MASK], by a random token, or not at all.

    The paper's probabilities are 80 %, 10 % and 10 %. The random token is drawn from the whole
    vocabulary, so it may be a special token or the token itself
    (create_pretraining_data.py:391-403).
    """
    draw = random_unit(stream)
    if draw < mask_probability:
        input_ids[position] = mask_id
    elif draw >= mask_probability + keep_probability:
        input_ids[position] = random_below(stream, vocabulary_size)


@kernel
def mask_tokens(
    stream: UInt64s,
    input_ids: Int32s,
    first_sep: int,
    mask_probability: float,
    keep_probability: float,
    mask_id: int,
    vocabulary_size: int,
    positions: Int64s,
    labels: Int64s,
) -> None:
    """Choose the tokens of one example to predict, and replace them in place.

    As many tokens are chosen as `positions` has elements. All choices are equally likely.

    Args:
        stream: random state, uint64 (1,); advanced.
        input_ids: the tokens from [CLS] to the last [SEP], int32 (length,); changed in place.
        first_sep: the position of the first [SEP].
        mask_probability: the probability that a chosen token is replaced by [MASK].
        keep_probability: the probability that a chosen token is kept.
        mask_id: the id of [MASK].
        vocabulary_size: the number of ids.
        positions: filled with the chosen positions in ascending order, int64 (masks,).
        labels: filled with the original tokens at these positions, int64 (masks,).
    """
    last_sep = len(input_ids) - 1
    candidates = last_sep - 1 if first_sep == last_sep else last_sep - 2
    chosen, count = 0, len(positions)
    for position in range(1, last_sep):
        if chosen == count:
            break
        if position == first_sep:
            continue
        # Selection sampling (Knuth, volume 2, algorithm 3.4.2 S) gives the positions in ascending
        # order and needs no list of candidates.
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
    input_ids: Int32s,
    first_sep: int,
    is_continuation: Bools,
    mask_probability: float,
    keep_probability: float,
    mask_id: int,
    vocabulary_size: int,
    positions: Int64s,
    labels: Int64s,
) -> int:
    """Choose whole words of one example to predict, and replace them in place.

    Words are drawn in random order until `positions` is full. A word with more tokens than are left
    to choose is passed over (create_pretraining_data.py:374-380), so a few elements of `positions`
    may stay unused. Each token of a chosen word is replaced independently. If truncation cut B
    inside a word, the first tokens of B belong to the last word of A
    (create_pretraining_data.py:346-363).

    Args:
        is_continuation: which ids continue a word, from `continuation_mask`, bool (V,).

    The other arguments have the same meaning as in `mask_tokens`.

    Returns:
        The number of tokens chosen.
    """
    last_sep = len(input_ids) - 1
    word_of = np.empty(last_sep, dtype=np.int64)  # the word of each position
    sizes = np.zeros(last_sep, dtype=np.int64)  # the number of tokens of each word
    words = 0
    for position in range(1, last_sep):
        if position != first_sep:
            if words == 0 or not is_continuation[input_ids[position]]:
                words += 1
            word_of[position] = words - 1
            sizes[words - 1] += 1

    undrawn = np.arange(words)
    is_chosen = np.zeros(words, dtype=np.bool_)
    left = len(positions)
    while words > 0 and left > 0:
        draw = random_below(stream, words)
        word = undrawn[draw]
        words -= 1
        undrawn[draw] = undrawn[words]
        if sizes[word] <= left:
            is_chosen[word] = True
            left -= sizes[word]

    count = 0
    for position in range(1, last_sep):
        if position != first_sep and is_chosen[word_of[position]]:
            positions[count], labels[count] = position, input_ids[position]
            count += 1
            replace_token(
                stream, input_ids, position, mask_probability, keep_probability, mask_id, vocabulary_size
            )
    return count
