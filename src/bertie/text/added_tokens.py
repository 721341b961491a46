"""Added tokens: what Hugging Face's files add to a vocabulary, and those of them that a text may hold.

An added special token, such as [E1], stands for itself in a text. Any other is an entry of the vocabulary.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bertie.base.errors import ModelError
from bertie.base.files import read_json_object
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]

STAND_IN = "."  # one piece, whatever stands beside it


class AddedTokens(NamedTuple):
    """What a directory adds: the ids of all, and which are special, less BERT's own five."""

    ids: dict[str, int]
    special: tuple[str, ...]


def read_added_tokens(directory: Path, config: Mapping[str, Any], fast: Mapping[str, Any]) -> AddedTokens:
    """Collect them from where they have stood over the years.

    Args:
        directory: may hold `added_tokens.json` and `special_tokens_map.json`.
        config: the content of tokenizer_config.json.
        fast: that of tokenizer.json.

    Raises:
        DataError: a file is not JSON.
    """
    listed = [(entry["id"], entry) for entry in fast.get("added_tokens") or ()]
    listed += [(int(number), entry) for number, entry in config.get("added_tokens_decoder", {}).items()]
    ids = {entry["content"]: number for number, entry in listed}
    special = [entry["content"] for _, entry in listed if entry.get("special")]
    ids |= read_json_object(directory / "added_tokens.json")
    for settings in (config, read_json_object(directory / "special_tokens_map.json")):
        for key in ("additional_special_tokens", "extra_special_tokens"):  # the latter since transformers 5
            names = settings.get(key) or []
            names = names.values() if isinstance(names, dict) else names
            special += [name["content"] if isinstance(name, dict) else name for name in names]
    return AddedTokens(ids, tuple(token for token in dict.fromkeys(special) if token not in SPECIAL_TOKENS))


def extended(vocabulary: Vocabulary, added: AddedTokens, source: str) -> Vocabulary:
    """The vocabulary with the added tokens behind it.

    Raises:
        ModelError: an added token does not follow, or stands elsewhere in the vocabulary.
    """
    tokens = list(vocabulary.tokens)
    for token, number in sorted(added.ids.items(), key=lambda item: item[1]):
        if token not in vocabulary.ids:
            tokens.append(token)
        if number != vocabulary.ids.get(token, len(tokens) - 1):
            raise ModelError(
                f"{source}: the added token {token!r} has the id {number}, where the vocabulary makes it "
                f"{vocabulary.ids.get(token, len(tokens) - 1)}; fill gaps in vocab.txt with [unused1], …"
            )
    for token in added.special:
        if token not in vocabulary.ids and token not in added.ids:
            tokens.append(token)  # as `transformers` does it
    return Vocabulary(tokens, source)


def encode_around(
    texts: Sequence[str],
    special: Mapping[str, int],
    encode: Callable[[Sequence[str]], tuple[Int32s, Int64s]],
) -> tuple[Int32s, Int64s]:
    """Encode texts in which special tokens stand for themselves.

    Args:
        texts: to be encoded.
        special: the tokens and their ids.
        encode: what encodes texts without them, see `encode_kernel`.

    Returns:
        The same as `encode`: a row (id, start, end, word) for each piece, int32 (P, 4), and where those of
        each text end, int64 (texts + 1,).
    """
    pattern = re.compile("(" + "|".join(map(re.escape, sorted(special, key=len, reverse=True))) + ")")
    parts = [pattern.split(text) for text in texts]  # plain, special, plain, …
    flat = list(chain.from_iterable(parts))
    places = [place for part in parts for place in range(len(part))]
    pieces, bounds = encode(
        [STAND_IN if place % 2 else part for place, part in zip(places, flat, strict=True)]
    )
    lengths = np.fromiter(map(len, flat), np.int64, len(flat))
    of_special = np.flatnonzero(np.array(places) % 2)
    rows = bounds[of_special]
    pieces[rows, 0] = [special[flat[part]] for part in of_special]
    pieces[rows, 2] = lengths[of_special]
    counts = np.diff(bounds)
    words = np.zeros(len(flat), dtype=np.int64)
    words[counts > 0] = pieces[bounds[1:][counts > 0] - 1, 3] + 1
    ends = np.array([0, *accumulate(map(len, parts))])  # the parts of each text
    for column, sizes in ((1, lengths), (2, lengths), (3, words)):
        before = np.cumsum(sizes) - sizes
        before -= np.repeat(before[ends[:-1]], np.diff(ends))
        pieces[:, column] += np.repeat(before, counts).astype(np.int32)
    return pieces, bounds[ends]
