"""Texts with places to be guessed: [MASK]."""

from collections.abc import Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt

from bertie.inference.results import RowError
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import MASK

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]


def encode_masks(texts: Sequence[str], tokenizer: Tokenizer, max_length: int) -> tuple[Int32s, Int64s]:
    """[CLS] text [SEP] for each text, [MASK] where it is asked for; where each begins, and the end.

    To the tokenizer [MASK] in a text is plain text, so the parts between are encoded.
    """
    parts = [text.split(MASK) for text in texts]
    for row, (text, its_parts) in enumerate(zip(texts, parts, strict=True)):
        if len(its_parts) == 1:
            raise RowError(row, f"no {MASK} in it: {text[:60]!r}; put one where a word is to be guessed")
    encoding = tokenizer.encode_batch(list(chain.from_iterable(parts)), add_special_tokens=False)
    counts = np.fromiter(map(len, parts), np.int64, len(parts))
    text_of_part = np.repeat(np.arange(len(texts)), counts)
    part_of_piece = np.repeat(np.arange(len(encoding)), np.diff(encoding.bounds))
    # Before each part stands [CLS] or [MASK], behind each text [SEP].
    openers = encoding.bounds[:-1] + np.arange(len(encoding)) + text_of_part
    firsts = np.flatnonzero(np.diff(text_of_part, prepend=-1))
    total = len(encoding.input_ids) + len(encoding) + len(texts)
    input_ids = np.full(total, tokenizer.vocabulary.sep_id, dtype=np.int32)
    input_ids[openers] = tokenizer.vocabulary.mask_id
    input_ids[openers[firsts]] = tokenizer.vocabulary.cls_id
    input_ids[np.arange(len(part_of_piece)) + part_of_piece + 1 + text_of_part[part_of_piece]] = (
        encoding.input_ids
    )
    bounds = np.append(openers[firsts], total)
    lengths = np.diff(bounds)
    if (too_long := np.flatnonzero(lengths > max_length)).size:
        row = int(too_long[0])
        size = f"the text has {lengths[row]:,} word pieces, the model at most {max_length:,}"
        raise RowError(row, f"{size}: {texts[row][:60]!r}")
    return input_ids, bounds


def fill(text: str, place: int, piece: str) -> str:
    """`text` with the [MASK] number `place` replaced; a continuation joins the word before it."""
    parts = text.split(MASK)
    before, after = MASK.join(parts[: place + 1]), MASK.join(parts[place + 1 :])
    if piece.startswith("##"):
        return before.rstrip() + piece[2:] + after
    return before + piece + after
