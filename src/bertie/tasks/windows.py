"""Overlapping windows over documents that are longer than a sequence.

The tokens of a document form one row. Windows of the model's sequence length are placed over it,
and each token is read in the window where it has the most context.
"""

from typing import NamedTuple

import numpy as np

from bertie.base.arrays import Int32s, Int64s
from bertie.model.sequences import cumulative_bounds
from bertie.text.vocabulary import Vocabulary


class DocumentWindows(NamedTuple):
    """N windows over documents, as sequences with [CLS] and [SEP].

    T is the number of tokens in all windows, P the number of tokens in all documents.

    input_ids  int32 (T,)
    bounds     int64 (N+1,)  window i is input_ids[bounds[i] : bounds[i + 1]]
    positions  int64 (P,)    index in `input_ids` of each document token, in the window where it
                             has the most context
    """

    input_ids: Int32s
    bounds: Int64s
    positions: Int64s


class WindowSpans(NamedTuple):
    """The tokens that N windows cover, as indices into all documents' tokens.

    start       int64 (N,)  first token
    end         int64 (N,)  one past the last token
    best_start  int64 (N,)  window i has the most context for the tokens from best_start[i] to
                            before best_start[i + 1]
    """

    start: Int64s
    end: Int64s
    best_start: Int64s


def split_into_windows(
    token_ids: Int32s, document_bounds: Int64s, vocabulary: Vocabulary, max_seq_length: int
) -> DocumentWindows:
    """Split documents into windows of at most `max_seq_length` tokens.

    Args:
        token_ids: the tokens of all documents, int32 (P,).
        document_bounds: document i is token_ids[document_bounds[i] : document_bounds[i + 1]].
        vocabulary: has the ids of [CLS] and [SEP].
        max_seq_length: at least 3, since [CLS] and [SEP] count.
    """
    start, end, best_start = place_windows(document_bounds, max_seq_length - 2)
    input_ids, bounds = cut_windows(token_ids, start, end, vocabulary)
    tokens = np.arange(len(token_ids))
    window = np.searchsorted(best_start, tokens, side="right") - 1
    return DocumentWindows(input_ids, bounds, bounds[window] + 1 + tokens - start[window])


def cut_windows(
    token_ids: Int32s, start: Int64s, end: Int64s, vocabulary: Vocabulary
) -> tuple[Int32s, Int64s]:
    """Return the `input_ids` and `bounds` of windows as sequences.

    They have [CLS] and [SEP].

    Args:
        token_ids: the tokens of all documents, int32 (P,).
        start, end: int64 (N,); window i has token_ids[start[i] : end[i]].
        vocabulary: has the ids of [CLS] and [SEP].
    """
    bounds = cumulative_bounds(end - start + 2)
    input_ids = np.empty(bounds[-1], dtype=np.int32)
    is_special = np.zeros(bounds[-1], dtype=np.bool_)
    for positions, token_id in ((bounds[:-1], vocabulary.cls_id), (bounds[1:] - 1, vocabulary.sep_id)):
        input_ids[positions], is_special[positions] = token_id, True
    shifts = np.repeat(start - bounds[:-1] - 1, end - start + 2)  # from input_ids to token_ids
    input_ids[~is_special] = token_ids[(np.arange(bounds[-1]) + shifts)[~is_special]]
    return input_ids, bounds


def place_windows(document_bounds: Int64s, window_size: int) -> WindowSpans:
    """Spread windows evenly over each document, overlapping by half or more.

    A token then has at least a quarter of a window as context on either side, unless its document
    ends there. The most context means the most tokens on the scarcer side, as in SQuAD's windows; a
    side that reaches the end of the document is not scarce.

    Args:
        document_bounds: int64 (n+1,); document i is tokens document_bounds[i] to before
            document_bounds[i + 1].
        window_size: number of tokens in a window, or fewer in a shorter document.
    """
    sizes = np.diff(document_bounds)
    surplus = np.maximum(sizes - window_size, 0)
    steps = -(-surplus // max(window_size // 2, 1))
    counts = np.minimum(sizes, 1) + steps
    document = np.repeat(np.arange(len(sizes)), counts)
    index_in_document = np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)
    shift = surplus[document] * index_in_document // np.maximum(steps[document], 1)
    start = document_bounds[document] + shift
    end = np.minimum(start + window_size, document_bounds[document + 1])
    # The middle of the overlap with the window before; at the start of a document, where windows meet
    # without overlap, that is the start itself.
    best_start = np.concatenate([start[:1], (end[:-1] + start[1:] + 1) // 2])
    return WindowSpans(start, end, best_start)
