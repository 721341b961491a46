"""Next sentence prediction: which text becomes segment A, and which segment B.

See Section 3.1, Task #2, and Appendix A.1 of the paper. The algorithm follows
create_pretraining_data.py of google-research/bert (line numbers refer to commit eedf571,
2020-03-11). It draws its random numbers in the same order, so that a test can compare both pair by
pair. The other kinds of pairs use the same chunks of sentences, but replace the next sentence by
another kind of segment.

A segment is a contiguous run of a shard's tokens, even after truncation. A pair is therefore five
numbers, and no token is copied before an example is written.
"""

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from bertie.base.arrays import Int32s, Int64s, UInt64s
from bertie.base.kernels import kernel
from bertie.base.random import random_below, random_unit

Pairs = npt.NDArray[np.void]

IS_NEXT, NOT_NEXT = 0, 1  # next_sentence_labels, create_pretraining_data.py:130

# The segment that replaces the next sentence as segment B:
#   random  a segment of another document (the paper)
#   near    a passage of the same document, close to A, that neither overlaps nor touches A; harder to
#           recognise, because it has the same subject
#   order   the segment before A: the two are swapped (ALBERT, arXiv:1909.11942, Section 3.1)
#   none    there is no B, and no next sentence to predict (Table 5, "No NSP")
PairKind = Literal["random", "near", "order", "none"]

# A pair: where its segments start and end in the shard's tokens, and its label.
PAIR = np.dtype([(name, np.int64) for name in ("a_start", "a_end", "b_start", "b_end", "label")])

NO_LIMIT = 1 << 32  # for `near_distance`; no document has as many sentences
MAX_DOCUMENT_DRAWS = 10  # create_pretraining_data.py:279; the last draw may be the same document


@kernel
def start_of(ends: Int64s, index: int) -> int:
    """Return the start of item `index` of contiguous items with exclusive `ends`."""
    return int(ends[index - 1]) if index > 0 else 0


@kernel
def draw_target_length(stream: UInt64s, max_tokens: int, short_sequence_probability: float) -> int:
    """Draw the length in tokens that the examples of a document aim at.

    It is `max_tokens`, or, with `short_sequence_probability`, a random length from 2 to
    `max_tokens` (create_pretraining_data.py:239-241).
    """
    if random_unit(stream) < short_sequence_probability:
        return 2 + int(random_below(stream, max_tokens - 1))
    return max_tokens


@kernel
def find_chunk_stop(sentence_ends: Int64s, sentence: int, stop: int, target_length: int) -> int:
    """Return where a chunk of sentences stops, exclusive.

    The chunk begins with `sentence`. It is the shortest chunk of at least `target_length` tokens, or
    the rest of the document before sentence `stop` (create_pretraining_data.py:252-256).
    """
    start = start_of(sentence_ends, sentence)
    chunk_stop = sentence + 1
    while chunk_stop < stop and sentence_ends[chunk_stop - 1] - start < target_length:
        chunk_stop += 1
    return chunk_stop


@kernel
def draw_random_segment(
    stream: UInt64s, sentence_ends: Int64s, document_ends: Int64s, document: int, target_length: int
) -> tuple[int, int]:
    """Draw a segment of another document of the shard.

    The segment begins with a random sentence (create_pretraining_data.py:275-289).

    Returns:
        Where the tokens of the segment start and end.
    """
    for _ in range(MAX_DOCUMENT_DRAWS):
        other = int(random_below(stream, len(document_ends)))
        if other != document:
            break
    first, stop = start_of(document_ends, other), int(document_ends[other])
    sentence = first + int(random_below(stream, stop - first))
    chunk_stop = find_chunk_stop(sentence_ends, sentence, stop, target_length)
    return start_of(sentence_ends, sentence), int(sentence_ends[chunk_stop - 1])


@kernel
def count_near_sentences(
    first: int, stop: int, a_first: int, a_stop: int, near_distance: int
) -> tuple[int, int]:
    """Count the sentences near A, before and after it, except its neighbours.

    The document is the sentences first … stop - 1, and A is the sentences a_first … a_stop - 1. A
    sentence is near if it is at most `near_distance` sentences from A; a neighbour is one from A.
    """
    before = a_first - 1 - max(first, a_first - near_distance)
    after = min(stop, a_stop + near_distance) - 1 - a_stop
    return max(before, 0), max(after, 0)


@kernel
def draw_near_segment(
    stream: UInt64s,
    sentence_ends: Int64s,
    first: int,
    stop: int,
    a_first: int,
    a_stop: int,
    near_distance: int,
    target_length: int,
) -> tuple[int, int]:
    """Draw a segment of A's document that is near A, but not next to it.

    The segment begins with a random sentence that `count_near_sentences` counts; there must be at
    least one. That function also explains the arguments.

    Returns:
        Where the tokens of the segment start and end.
    """
    before, after = count_near_sentences(first, stop, a_first, a_stop, near_distance)
    index = int(random_below(stream, before + after))
    if index < before:
        stop = a_first - 1
        sentence = stop - before + index
    else:
        sentence = a_stop + 1 + index - before
    chunk_stop = find_chunk_stop(sentence_ends, sentence, stop, target_length)
    return start_of(sentence_ends, sentence), int(sentence_ends[chunk_stop - 1])


@kernel
def draw_other_segment(
    stream: UInt64s,
    sentence_ends: Int64s,
    document_ends: Int64s,
    document: int,
    near: bool,
    around: tuple[int, int, int, int, int],
    target_length: int,
) -> tuple[int, int]:
    """Draw a segment near A if `near`, and otherwise of another document.

    If there is none near A, it is also of another document. `around` has the arguments of
    `count_near_sentences`.
    """
    if near and sum(count_near_sentences(*around)) > 0:
        return draw_near_segment(stream, sentence_ends, *around, target_length)
    return draw_random_segment(stream, sentence_ends, document_ends, document, target_length)


@kernel
def swap_segments(pair: Any) -> None:
    """Swap the segments of a pair in place."""
    pair.a_start, pair.b_start = pair.b_start, pair.a_start
    pair.a_end, pair.b_end = pair.b_end, pair.a_end


@kernel
def truncate_pair(stream: UInt64s, pair: Any, max_tokens: int) -> None:
    """Truncate a pair to `max_tokens` in place.

    Tokens are removed one by one from the longer segment, or from B if both are equally long, at
    the front or at the back with equal probability (create_pretraining_data.py:418-433).
    """
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
    stop_document: int,
    max_tokens: int,
    short_sequence_probability: float,
    kind: str,
    near_distance: int,
    pairs: Pairs,
) -> int:
    """Make the sentence pairs of some documents of a shard, in the order of the text.

    Sentences form chunks of the target length, which is drawn once per document. A chunk is cut
    after a random sentence into A and B. With probability 0.5, and always if the chunk is a single
    sentence, B is replaced by the segment that `kind` describes, or by one of another document if
    there is none. Displaced sentences begin the next chunk (create_pretraining_data.py:223-335).

    Args:
        stream: random state, uint64 (1,); advanced.
        sentence_ends, document_ends: of the shard, int64 (S,) and (D,) with D > 1.
        first_document, stop_document: the range of documents.
        max_tokens: the largest number of tokens of A and B together; at least 2.
        short_sequence_probability: the probability that a document aims at a shorter random length.
        kind: a `PairKind` other than "none".
        near_distance: of the kind "near", see `draw_near_segment`.
        pairs: filled from the front, PAIR (P,); P is at least the number of sentences.

    Returns: the number of pairs.
    """
    near, order = kind == "near", kind == "order"
    count = 0
    for document in range(first_document, stop_document):
        first, stop = start_of(document_ends, document), int(document_ends[document])
        target_length = draw_target_length(stream, max_tokens, short_sequence_probability)
        sentence = first
        while sentence < stop:
            chunk_stop = find_chunk_stop(sentence_ends, sentence, stop, target_length)
            a_stop = sentence + 1
            if chunk_stop > a_stop:
                a_stop += int(random_below(stream, chunk_stop - a_stop))
            pair = pairs[count]
            pair.a_start, pair.a_end = start_of(sentence_ends, sentence), sentence_ends[a_stop - 1]
            pair.b_start, pair.b_end, pair.label = pair.a_end, sentence_ends[chunk_stop - 1], IS_NEXT
            if chunk_stop == a_stop or random_unit(stream) < 0.5:
                pair.label = NOT_NEXT
                if order and chunk_stop > a_stop:
                    swap_segments(pair)
                else:
                    b_target = target_length - (pair.a_end - pair.a_start)
                    around = (first, stop, sentence, a_stop, near_distance)
                    pair.b_start, pair.b_end = draw_other_segment(
                        stream, sentence_ends, document_ends, document, near, around, b_target
                    )
                    chunk_stop = a_stop  # the sentences after A begin the next chunk
            sentence = chunk_stop
            truncate_pair(stream, pair, max_tokens)
            count += 1
    return count


@kernel
def cut_documents(
    stream: UInt64s,
    sentence_ends: Int64s,
    document_ends: Int64s,
    first_document: int,
    stop_document: int,
    max_tokens: int,
    short_sequence_probability: float,
    pairs: Pairs,
) -> int:
    """Cut documents into single segments, without next sentence prediction.

    These are the examples of "No NSP" in Table 5. A is the next run of tokens with the target
    length, and B is empty. The target length is drawn for each segment. If it were drawn once for
    each document, a third of all examples would be short.

    Args:
        pairs: filled from the front, PAIR (P,); P is at least the number of tokens of the
            documents.

    The other arguments have the same meaning as in `pair_sentences`.

    Returns:
        The number of pairs.
    """
    count = 0
    for document in range(first_document, stop_document):
        start = start_of(sentence_ends, start_of(document_ends, document))
        document_end = sentence_ends[document_ends[document] - 1]
        while start < document_end:
            target_length = draw_target_length(stream, max_tokens, short_sequence_probability)
            end = min(start + target_length, document_end)
            pair = pairs[count]
            pair.a_start, pair.a_end, pair.b_start, pair.b_end = start, end, end, end
            pair.label = IS_NEXT
            start = end
            count += 1
    return count


@kernel
def pair_length(pair: Any) -> int:
    """Return the length of `[CLS] A [SEP] B [SEP]`, or of `[CLS] A [SEP]` without B."""
    b_length = pair.b_end - pair.b_start
    return int(2 + pair.a_end - pair.a_start + (b_length + 1 if b_length > 0 else 0))


@kernel
def write_pair(
    tokens: npt.NDArray[np.unsignedinteger[Any]],
    pair: Any,
    cls_id: int,
    sep_id: int,
    input_ids: Int32s,
    token_type_ids: Int32s,
) -> int:
    """Write `[CLS] A [SEP] B [SEP]`, or `[CLS] A [SEP]` if B is empty.

    Token types are 0 up to the first [SEP], and 1 after it (create_pretraining_data.py:304-319).

    Args:
        tokens: the tokens of the shard, (T,).
        pair: a record of PAIR.
        cls_id: the id of [CLS].
        sep_id: the id of [SEP].
        input_ids: filled with the example, int32 (`pair_length(pair)`,).
        token_type_ids: filled with the token types of the example, with the same shape.

    Returns:
        The position of the first [SEP].
    """
    first_sep = int(1 + pair.a_end - pair.a_start)
    input_ids[0] = cls_id
    input_ids[first_sep] = sep_id
    for offset in range(first_sep - 1):
        input_ids[1 + offset] = tokens[pair.a_start + offset]
    token_type_ids[: first_sep + 1] = 0
    if first_sep + 1 < len(input_ids):
        for offset in range(pair.b_end - pair.b_start):
            input_ids[first_sep + 1 + offset] = tokens[pair.b_start + offset]
        input_ids[-1] = sep_id
        token_type_ids[first_sep + 1 :] = 1
    return first_sep
