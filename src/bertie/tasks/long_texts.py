"""Classify texts that are longer than a sequence.

The methods are in Sun et al., arXiv:1905.05583, Section 5.3.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bertie.base.arrays import Bools, Float32s, Int64s
from bertie.base.errors import SettingsError
from bertie.model.config import ClassifierPooling
from bertie.model.engines.embeddings import pool
from bertie.model.formats.directory import LongTexts
from bertie.model.sequences import cumulative_bounds
from bertie.tasks.task import Inputs
from bertie.tasks.windows import cut_windows
from bertie.text.tokenizer import Tokenizer

HEAD_FRACTION = 128 / 510  # of the tokens without [CLS] and [SEP] (Section 5.3.1)


@dataclass(frozen=True, kw_only=True)
class TextWindows(Inputs):
    """Windows over n texts.

    Each sequence is a window, but each label belongs to a text.

    text_bounds  int64 (n+1,); the windows of text i are the sequences text_bounds[i] to before
                 text_bounds[i + 1], one or more
    long_texts   how to pool their logits
    """

    text_bounds: Int64s
    long_texts: LongTexts

    @property
    def unit_bounds(self) -> Int64s:
        """The bounds of the texts."""
        return self.bounds[self.text_bounds]

    @property
    def num_examples(self) -> int:
        """The number of texts, n."""
        return len(self.text_bounds) - 1

    def pool(self, logits: Float32s) -> Float32s:
        """Pool logits of windows, (N, labels), into logits of texts, (n, labels)."""
        return pool(logits, self.text_bounds, self.long_texts.pooling)


def describe_truncated(
    number: str, max_seq_length: int, how: LongTexts | None, pooling: ClassifierPooling = "pooler"
) -> str:
    """Say how many texts are truncated, and how to read them whole.

    Args:
        number: the number of these texts, for a person to read.
        max_seq_length: the length at which texts are truncated.
        how: how a classifier of single texts reads long texts; None for other models, which have no choice.
        pooling: the classifier's input. Contrastive training, whose classifiers read the mean over the
            tokens, cannot train on windows.
    """
    part = "middles" if how and how.method == "head-tail" else "ends"
    windows = "; to read them whole, fine-tune with --set long_texts=windows (long_texts='windows')"
    remedy = windows if how and pooling == "pooler" else ""
    return f"texts longer than {max_seq_length} tokens, whose {part} are ignored: {number}{remedy}"


def encode_long_texts(
    texts: Any, labels: npt.NDArray[Any] | None, tokenizer: Tokenizer, max_seq_length: int, how: LongTexts
) -> Inputs:
    """Encode single texts, the long ones by their head and tail, or in windows.

    Args:
        texts: n texts.
        labels: their labels, n rows; None if they are unknown.
        tokenizer: the tokenizer of the model.
        max_seq_length: the largest number of tokens in a sequence, with [CLS] and [SEP].
        how: its method is not `truncate`.

    Raises:
        SettingsError: the stride is longer than a window, so that tokens between windows would be lost.
    """
    size = max_seq_length - 2
    if how.stride > size:
        raise SettingsError(
            f"window_stride {how.stride} exceeds the {size} tokens of a window (max_seq_length without [CLS] "
            f"and [SEP]); use {size} or less, or a larger max_seq_length"
        )
    encoding = tokenizer.encode_batch(texts, add_special_tokens=False)
    token_ids, bounds = encoding.input_ids, encoding.bounds
    if how.method == "head-tail":
        kept = _is_head_or_tail(bounds, size)
        num_truncated = int((np.diff(bounds) > size).sum())
        bounds = np.searchsorted(np.flatnonzero(kept), bounds)
        input_ids, bounds = cut_windows(token_ids[kept], bounds[:-1], bounds[1:], tokenizer.vocabulary)
        return Inputs(input_ids, np.zeros_like(input_ids), bounds, labels, num_truncated=num_truncated)
    start, end, text_bounds = _place_windows(bounds, size, how.stride or size)
    input_ids, bounds = cut_windows(token_ids, start, end, tokenizer.vocabulary)
    return TextWindows(
        input_ids, np.zeros_like(input_ids), bounds, labels, text_bounds=text_bounds, long_texts=how
    )


def _is_head_or_tail(bounds: Int64s, size: int) -> Bools:
    """Return which tokens of the texts are among the `size` ones that the model reads."""
    head = round(size * HEAD_FRACTION)
    lengths = np.diff(bounds)
    before = np.arange(bounds[-1]) - np.repeat(bounds[:-1], lengths)  # tokens before it in its text
    after = np.repeat(lengths, lengths) - 1 - before
    is_kept: Bools = (before < head) | (after < size - head)
    return is_kept


def _place_windows(bounds: Int64s, size: int, stride: int) -> tuple[Int64s, Int64s, Int64s]:
    """Place windows over each text, one every `stride` tokens.

    The first is at its start, and the last reaches its end. The last window is moved back so that it is full,
    because it counts as much as the others.

    Args:
        bounds: int64 (n+1,), bounds of the texts in the tokens.
        size: the tokens of a window.
        stride: the tokens from one start to the next.

    Returns:
        The first token of each window and the token after its last one, int64 (N,), and the bounds of the
        texts in the windows, int64 (n+1,).
    """
    surplus = np.maximum(np.diff(bounds) - size, 0)
    counts = 1 + -(-surplus // stride)
    text_bounds = cumulative_bounds(counts)
    text = np.repeat(np.arange(len(counts)), counts)
    index_in_text = np.arange(len(text)) - text_bounds[text]
    start = bounds[text] + np.minimum(index_in_text * stride, surplus[text])
    return start, np.minimum(start + size, bounds[text + 1]), text_bounds
