"""Next sentence prediction (Section 3.1, Task #2): which text becomes segment A and which segment B.

The algorithm is that of google-research/bert's create_pretraining_data.py, with its random numbers drawn
in the same order, so that a test compares the two pair by pair. Other kinds of pairs share its chunks and
differ in what stands in for the next sentence. A segment is a contiguous run of a shard's tokens, also
after truncation: a pair is five numbers, and no token is copied before an example is wanted.
"""

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from bertie.base.kernels import kernel
from bertie.base.random import UInt64s, random_below, random_unit

Int64s = npt.NDArray[np.int64]
Pairs = npt.NDArray[np.void]

IS_NEXT, NOT_NEXT = 0, 1  # next_sentence_labels, as in the original release

# What B is where it is not the next sentence:
#   random  a segment of another document (the paper)
#   near    a passage of the same document that neither overlaps nor touches A: harder to tell
#   order   the segment before A: the two are swapped (ALBERT, arXiv:1909.11942, Section 3.1)
# With none there is no B, and no next sentence to predict (Table 5, "No NSP").
PairKind = Literal["random", "near", "order", "none"]

# Where a pair's segments begin and end in the shard's tokens, and its label.
PAIR = np.dtype([(name, np.int64) for name in ("a_start", "a_end", "b_start", "b_end", "label")])

DRAWS_OF_ANOTHER_DOCUMENT = 10  # create_pretraining_data.py; after these the same document may serve


@kernel
def run_start(ends: Int64s, run: int) -> int:
    """Where run number `run` starts, of contiguous runs that stop at `ends`."""
    return int(ends[run - 1]) if run > 0 else 0


@kernel
def draw_target_length(stream: UInt64s, max_tokens: int, short_sequence_probability: float) -> int:
    """The tokens that the examples of a document aim at: mostly the maximum, sometimes 2 and more."""
    if random_unit(stream) < short_sequence_probability:
        return 2 + int(random_below(stream, max_tokens - 1))
    return max_tokens


@kernel
def chunk_end(sentence_ends: Int64s, sentence: int, last: int, target_length: int) -> int:
    """The end of the shortest run of sentences from `sentence` that has the target length; at most `last`."""
    start = run_start(sentence_ends, sentence)
    end = sentence + 1
    while end < last and sentence_ends[end - 1] - start < target_length:
        end += 1
    return end


@kernel
def draw_random_segment(
    stream: UInt64s, sentence_ends: Int64s, document_ends: Int64s, document: int, target_length: int
) -> tuple[int, int]:
    """Where a segment of another document of the shard starts and ends in its tokens."""
    for _ in range(DRAWS_OF_ANOTHER_DOCUMENT):
        other = int(random_below(stream, len(document_ends)))
        if other != document:
            break
    first, last = run_start(document_ends, other), int(document_ends[other])
    sentence = first + int(random_below(stream, last - first))
    end = chunk_end(sentence_ends, sentence, last, target_length)
    return run_start(sentence_ends, sentence), int(sentence_ends[end - 1])


@kernel
def count_near_sentences(first: int, last: int, a_first: int, a_last: int) -> tuple[int, int]:
    """How many sentences of a document, first … last - 1, stand before A and after it, its neighbours not."""
    return max(a_first - 1 - first, 0), max(last - 1 - a_last, 0)


@kernel
def draw_near_segment(
    stream: UInt64s,
    sentence_ends: Int64s,
    first: int,
    last: int,
    a_first: int,
    a_last: int,
    target_length: int,
) -> tuple[int, int]:
    """Where a segment of A's own document starts and ends that leaves a sentence or more between it and A.

    A segment before A ends there as a random one ends with its document.
    """
    before, after = count_near_sentences(first, last, a_first, a_last)
    sentence = first + int(random_below(stream, before + after))
    if sentence < first + before:
        last = first + before
    else:
        sentence += a_last + 1 - (first + before)
    end = chunk_end(sentence_ends, sentence, last, target_length)
    return run_start(sentence_ends, sentence), int(sentence_ends[end - 1])


@kernel
def truncate_pair(stream: UInt64s, pair: Any, max_tokens: int) -> None:
    """Cut a pair to `max_tokens`: the longer segment loses a token, B at a tie, at the front or the back."""
    a_length = pair.a_end - pair.a_start
    b_length = pair.b_end - pair.b_start
    while a_length + b_length > max_tokens:
        at_front = random_unit(stream) < 0.5
        if a_length > b_length:
            a_length -= 1
            if at_front:
                pair.a_start += 1
        else:
            b_length -= 1
            if at_front:
                pair.b_start += 1
    pair.a_end = pair.a_start + a_length
    pair.b_end = pair.b_start + b_length


@kernel
def pair_sentences(
    stream: UInt64s,
    sentence_ends: Int64s,
    document_ends: Int64s,
    first_document: int,
    last_document: int,
    max_tokens: int,
    short_sequence_probability: float,
    kind: str,
    pairs: Pairs,
) -> int:
    """Make the sentence pairs of documents first_document … last_document - 1 of a shard, in text order.

    A chunk of sentences that reaches the target length is cut after a random sentence into A and B. In
    half of the cases, and always where the chunk is one sentence, B is instead what `kind` says. Where the
    document has no near passage, or the chunk no second segment to swap, that is a segment of another
    document, as in ALBERT's create_pretraining_data.py. Where a chunk's own B is unused, it begins the next.

    Args:
        stream: random state, uint64 (1,), advanced.
        sentence_ends, document_ends: those of the shard, int64 (S,) and (D,); D > 1.
        max_tokens: the most tokens of A and B together; at least 2.
        short_sequence_probability: the share of documents that aim at a shorter random length.
        kind: a PairKind other than none.
        pairs: PAIR (at least the documents' number of sentences,), filled from the front.

    Returns:
        The number of pairs.
    """
    near, order = kind == "near", kind == "order"
    count = 0
    for document in range(first_document, last_document):
        first, last = run_start(document_ends, document), int(document_ends[document])
        target_length = draw_target_length(stream, max_tokens, short_sequence_probability)
        sentence = first
        while sentence < last:
            end = chunk_end(sentence_ends, sentence, last, target_length)
            sentences = end - sentence
            a_last = sentence + 1
            if sentences > 1:
                a_last += int(random_below(stream, sentences - 1))
            pair = pairs[count]
            pair.a_start, pair.a_end = run_start(sentence_ends, sentence), sentence_ends[a_last - 1]
            pair.b_start, pair.b_end, pair.label = pair.a_end, sentence_ends[end - 1], IS_NEXT
            if sentences == 1 or random_unit(stream) < 0.5:
                pair.label = NOT_NEXT
                if order and sentences > 1:
                    pair.a_start, pair.b_start = pair.b_start, pair.a_start
                    pair.a_end, pair.b_end = pair.b_end, pair.a_end
                else:
                    end = a_last
                    b_target = target_length - (pair.a_end - pair.a_start)
                    if near and sum(count_near_sentences(first, last, sentence, a_last)) > 0:
                        pair.b_start, pair.b_end = draw_near_segment(
                            stream, sentence_ends, first, last, sentence, a_last, b_target
                        )
                    else:
                        pair.b_start, pair.b_end = draw_random_segment(
                            stream, sentence_ends, document_ends, document, b_target
                        )
            sentence = end
            truncate_pair(stream, pair, max_tokens)
            count += 1
    return count


@kernel
def cut_documents(
    stream: UInt64s,
    sentence_ends: Int64s,
    document_ends: Int64s,
    first_document: int,
    last_document: int,
    max_tokens: int,
    short_sequence_probability: float,
    pairs: Pairs,
) -> int:
    """As `pair_sentences`, without next sentence prediction (Table 5, "No NSP").

    A document is cut every target length; A is a piece of it and B is empty. The target is drawn for each
    piece: drawn for each document, it would make a third of all examples short. `pairs` has room for a
    pair per token.
    """
    count = 0
    for document in range(first_document, last_document):
        start = run_start(sentence_ends, run_start(document_ends, document))
        last = sentence_ends[document_ends[document] - 1]
        while start < last:
            target_length = draw_target_length(stream, max_tokens, short_sequence_probability)
            end = min(start + target_length, last)
            pair = pairs[count]
            pair.a_start, pair.a_end, pair.b_start, pair.b_end = start, end, end, end
            pair.label = IS_NEXT
            start = end
            count += 1
    return count


@kernel
def pair_length(pair: Any) -> int:
    """The length of `[CLS] A [SEP] B [SEP]`, or of `[CLS] A [SEP]` where B is empty."""
    b_length = pair.b_end - pair.b_start
    return int(2 + pair.a_end - pair.a_start + (b_length + 1 if b_length > 0 else 0))


@kernel
def write_pair(
    tokens: npt.NDArray[np.unsignedinteger[Any]],
    pair: Any,
    cls_id: int,
    sep_id: int,
    input_ids: npt.NDArray[np.int32],
    token_type_ids: npt.NDArray[np.int32],
) -> int:
    """Write `[CLS] A [SEP] B [SEP]` over `input_ids`, which has that length; give the first [SEP]'s place."""
    separator = int(1 + pair.a_end - pair.a_start)
    input_ids[0] = cls_id
    input_ids[separator] = sep_id
    for offset in range(separator - 1):
        input_ids[1 + offset] = tokens[pair.a_start + offset]
    token_type_ids[: separator + 1] = 0
    if separator + 1 < len(input_ids):
        for offset in range(pair.b_end - pair.b_start):
            input_ids[separator + 1 + offset] = tokens[pair.b_start + offset]
        input_ids[-1] = sep_id
        token_type_ids[separator + 1 :] = 1
    return separator
