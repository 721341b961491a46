"""Tokens that Hugging Face's files add to a vocabulary, such as [E1].

A special added token is recognised in texts and is always one token. Any other added token is an
ordinary entry of the vocabulary.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bertie.base.errors import ModelError
from bertie.text.encoding import EncodeRows
from bertie.text.vocabulary import Vocabulary

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]

PLACEHOLDER = "."  # always exactly one token


class AddedTokens(NamedTuple):
    """The tokens that a tokenizer directory adds to its vocabulary.

    ids      the ids of all added tokens
    special  the special added tokens, without the five of BERT
    """

    ids: dict[str, int]
    special: tuple[str, ...]


def extend_vocabulary(vocabulary: Vocabulary, added: AddedTokens, source: str) -> Vocabulary:
    """Append added tokens to a vocabulary, unless it already contains them.

    Ids between the vocabulary and an added token stay unused.

    Args:
        vocabulary: the vocabulary.
        added: the added tokens.
        source: the origin of the tokens in messages, such as the path of the directory.

    Raises:
        ModelError: an added token has the id of another token.
    """
    tokens = list(vocabulary.tokens)
    for token, token_id in sorted(added.ids.items(), key=lambda item: item[1]):
        if token not in vocabulary.ids and len(tokens) <= token_id < 2 * len(tokens):
            tokens += [""] * (token_id + 1 - len(tokens))
        if token not in vocabulary.ids and token_id < len(tokens):
            tokens[token_id] = tokens[token_id] or token
        if token_id >= len(tokens) or tokens[token_id] != token:
            found = f"is {tokens[token_id]!r}" if token_id < len(tokens) else "does not exist"
            raise ModelError(
                f"{source}: the added token {token!r} has the id {token_id}, which {found} in the "
                "vocabulary; the files are of different models, so copy all of them again from one model"
            )
    for token in added.special:
        if token not in vocabulary.ids and token not in added.ids:
            tokens.append(token)  # as `transformers` does
    return Vocabulary(tokens, source)


def encode_with_special_tokens(
    texts: Sequence[str],
    special: Mapping[str, int],
    encode: EncodeRows,
    rows: Int32s,
) -> tuple[Int32s, Int64s]:
    """Encode texts in which special tokens are recognised.

    Every text is split at its special tokens. The special tokens are replaced by a placeholder, all
    parts are encoded, and the token rows of the parts are joined into the rows of the text.

    Args:
        texts: the texts.
        special: the ids of the special tokens.
        encode: encodes texts without recognising special tokens.
        rows: where to write token rows.

    Returns:
        Token rows and bounds, in the form that `encode` returns.
    """
    pattern = re.compile("(" + "|".join(map(re.escape, sorted(special, key=len, reverse=True))) + ")")
    parts_of_texts = [pattern.split(text) for text in texts]  # plain, special, plain, …
    parts = list(chain.from_iterable(parts_of_texts))
    is_special = np.array([i % 2 for of_text in parts_of_texts for i in range(len(of_text))], dtype=bool)
    rows, bounds = encode(
        [PLACEHOLDER if flag else part for flag, part in zip(is_special, parts, strict=True)], None, rows
    )
    lengths = np.fromiter(map(len, parts), np.int64, len(parts))
    special_parts = np.flatnonzero(is_special)
    special_rows = bounds[special_parts]
    rows[special_rows, 0] = [special[parts[part]] for part in special_parts]
    rows[special_rows, 2] = lengths[special_parts]
    # Offsets and word indices count from the beginning of a part. Add the sizes of the parts before it.
    counts = np.diff(bounds)
    words = np.zeros(len(parts), dtype=np.int64)
    words[counts > 0] = rows[bounds[1:][counts > 0] - 1, 3] + 1
    part_bounds = np.array([0, *accumulate(map(len, parts_of_texts))])  # the parts of each text
    for column, sizes in ((1, lengths), (2, lengths), (3, words)):
        preceding = np.cumsum(sizes) - sizes
        preceding -= np.repeat(preceding[part_bounds[:-1]], np.diff(part_bounds))
        rows[: bounds[-1], column] += np.repeat(preceding, counts).astype(np.int32)
    return rows, bounds[part_bounds]
