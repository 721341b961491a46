"""Tokenize and truncate the texts of requests before they are queued."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from starlette.exceptions import HTTPException

from bertie.base.arrays import Int32s
from bertie.inference.server.operations import EncodedText
from bertie.text.encoding import Encoding
from bertie.text.tokenizer import Tokenizer


class Truncation(NamedTuple):
    """How to shorten long texts.

    Attributes:
        max_length: the largest number of tokens, with special tokens.
        allowed: truncate longer texts, or reject them.
        left: drop the first tokens instead of the last.
        truncated: the name of the texts, for errors.
    """

    max_length: int
    allowed: bool = True
    left: bool = False
    truncated: str = "`inputs`"


def encode_singles(
    tokenizer: Tokenizer, items: Sequence[str | list[int]], truncation: Truncation
) -> list[EncodedText]:
    """Encode texts; lists of token ids are used as they are.

    Raises:
        HTTPException: an input is too long, and truncation is not allowed.
    """
    texts = [item for item in items if isinstance(item, str)]
    encoded = iter(_split(tokenizer.encode_batch(texts)))
    rows = []
    for item in items:
        row = next(encoded) if isinstance(item, str) else _from_ids(item)
        rows.append(_truncate(tokenizer, row, truncation, has_special_tokens=isinstance(item, str)))
    return rows


def encode_pairs(
    tokenizer: Tokenizer, items: Sequence[Sequence[str]], truncation: Truncation
) -> list[EncodedText]:
    """Encode items of one text or two.

    Raises:
        HTTPException: an input is too long, and truncation is not allowed.
    """
    rows: list[EncodedText | None] = [None] * len(items)
    for size in {len(item) for item in items}:
        indices = [i for i, item in enumerate(items) if len(item) == size]
        first, pairs = ([items[i][part] for i in indices] for part in (0, -1))
        encoding = tokenizer.encode_batch(first, pairs if size == 2 else None)
        for i, row in zip(indices, _split(encoding), strict=True):
            rows[i] = _truncate(tokenizer, row, truncation)
    return [row for row in rows if row is not None]


def _split(encoding: Encoding) -> list[EncodedText]:
    return [
        EncodedText(encoding.input_ids[start:end], encoding.token_type_ids[start:end])
        for start, end in pairwise(encoding.bounds.tolist())
    ]


def _from_ids(ids: list[int]) -> EncodedText:
    return EncodedText(np.array(ids, np.int32), np.zeros(len(ids), np.int32))


def _truncate(
    tokenizer: Tokenizer, row: EncodedText, truncation: Truncation, has_special_tokens: bool = True
) -> EncodedText:
    length, limit = len(row.input_ids), truncation.max_length
    if length <= limit:
        return row
    if not truncation.allowed:
        raise HTTPException(
            413,
            f"{truncation.truncated} must have at most {limit} tokens. Given: {length}; "
            "shorten the text or leave `truncate` out",
        )
    if not has_special_tokens:
        kept = slice(-limit, None) if truncation.left else slice(limit)
        return EncodedText(row.input_ids[kept], row.token_type_ids[kept], is_truncated=True)
    return _truncate_segments(tokenizer, row, truncation)


def _truncate_segments(tokenizer: Tokenizer, row: EncodedText, truncation: Truncation) -> EncodedText:
    """Shorten the longer segment until both fit.

    On the right, `Tokenizer.encode` does the same.
    """
    first = int(np.count_nonzero(row.token_type_ids == 0))
    segments = [row.input_ids[1 : first - 1], row.input_ids[first:-1]]  # without special tokens
    specials = 3 if first < len(row.input_ids) else 2
    room = truncation.max_length - specials
    # The same as to drop a token of the longer segment, or of the second, until both fit.
    kept = min(len(segments[0]), max(room - len(segments[1]), (room + 1) // 2))
    cls_id, sep_id = tokenizer.vocabulary.cls_id, tokenizer.vocabulary.sep_id
    ids: list[Int32s] = [np.array([cls_id], np.int32)]
    types: list[Int32s] = [np.zeros(1, np.int32)]
    for i, (segment, size) in enumerate(zip(segments[: specials - 1], (kept, room - kept), strict=False)):
        ids += [
            segment[len(segment) - size :] if truncation.left else segment[:size],
            np.array([sep_id], np.int32),
        ]
        types.append(np.full(size + 1, i, np.int32))
    return EncodedText(np.concatenate(ids), np.concatenate(types), is_truncated=True)
