"""Encoded texts, and the kernel that assembles them from the tokens of their parts."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bertie.base.kernels import kernel

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Encoding:
    """Encoded texts, or pairs of texts, in flat arrays of T tokens.

    The tokens of text i are at bounds[i] to bounds[i + 1]. `len(encoding)` is the number of texts.

    Attributes:
        input_ids: int32 (T,), the ids of the tokens.
        token_type_ids: int32 (T,), 0 in the first text of a pair, 1 in the second.
        offsets: int32 (T, 2), the first character of the token in its text, and the end; (0, 0) for
            special tokens.
        word_ids: int32 (T,), the index of the token's word in its text; -1 for special tokens.
        bounds: int64 (n + 1,), where the tokens of each text begin and end.
        num_truncated: how many texts, or pairs, were truncated to the maximum length.

    Example:
        >>> from bertie.text.tokenizer import Tokenizer
        >>> from bertie.text.vocabulary import Vocabulary
        >>> special_tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        >>> vocabulary = Vocabulary([*special_tokens, "he", "play", "##ing"])
        >>> encoding = Tokenizer(vocabulary).encode_batch(["He", "playing"])
        >>> encoding.input_ids.tolist()
        [2, 5, 3, 2, 6, 7, 3]
        >>> encoding.bounds.tolist()
        [0, 3, 7]
        >>> encoding.input_ids[encoding.bounds[1] : encoding.bounds[2]].tolist()
        [2, 6, 7, 3]
        >>> encoding.offsets[4:6].tolist()
        [[0, 4], [4, 7]]
        >>> encoding.word_ids.tolist()
        [-1, 0, -1, -1, 0, 0, -1]
    """

    input_ids: Int32s
    token_type_ids: Int32s
    offsets: Int32s
    word_ids: Int32s
    bounds: Int64s
    num_truncated: int = 0

    def __len__(self) -> int:
        return len(self.bounds) - 1


@kernel
def assemble(
    rows: Int32s,
    row_bounds: Int64s,
    room: int,
    cls_id: int,
    sep_id: int,
    bounds: Int64s,
    input_ids: Int32s,
    token_type_ids: Int32s,
    offsets: Int32s,
    word_ids: Int32s,
) -> None:
    """Truncate encoded texts, join pairs, and add special tokens.

    Args:
        rows, row_bounds: token rows and their bounds, as `encode_texts` returns them: all first
            texts, then the second texts of the pairs, if any.
        room: the maximum number of tokens without special tokens.
        cls_id, sep_id: the ids of [CLS] and [SEP], or -1 to add none.
        bounds: the bounds of the encoded texts; bounds[0] is read, the others are written.
        input_ids, token_type_ids, offsets, word_ids: the arrays of `Encoding`, written from
            bounds[0] on.
    """
    n = len(bounds) - 1
    parts = (len(row_bounds) - 1) // max(n, 1)
    kept = np.zeros(2, dtype=np.int64)  # tokens of each part
    t = bounds[0]
    for i in range(n):
        for part in range(parts):
            text = part * n + i
            kept[part] = row_bounds[text + 1] - row_bounds[text]
        while kept[0] + kept[1] > room:
            kept[0 if kept[0] > kept[1] else 1] -= 1
        if cls_id >= 0:
            input_ids[t], token_type_ids[t], word_ids[t] = cls_id, 0, -1
            offsets[t, 0], offsets[t, 1] = 0, 0
            t += 1
        for part in range(parts):
            begin = row_bounds[part * n + i]
            for row in range(begin, begin + kept[part]):
                input_ids[t] = rows[row, 0]
                offsets[t, 0] = rows[row, 1]
                offsets[t, 1] = rows[row, 2]
                word_ids[t] = rows[row, 3]
                token_type_ids[t] = part
                t += 1
            if cls_id >= 0:
                input_ids[t], token_type_ids[t], word_ids[t] = sep_id, part, -1
                offsets[t, 0], offsets[t, 1] = 0, 0
                t += 1
        bounds[i + 1] = t
