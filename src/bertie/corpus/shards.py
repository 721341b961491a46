"""The arrays of a shard: documents as token ids, in files that are mapped into memory.

    tokens.bin                  uint16; uint32 if the vocabulary has more than 65,536 entries
    sentence_ends.bin           int64
    document_ends.bin           int64
    block_ends.bin              int64; missing in older corpora

The arrays are raw and little-endian. Their lengths follow from the sizes of the files.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bertie.base.arrays import Bools, Int64s, UInt16s, UInt32s
from bertie.base.errors import DataError

# It determines the order of examples: if it changes, every seed gives another stream.
BLOCK_TOKENS = 16_384  # about 200 examples of length 128, so that the cost of a call hardly matters

COPY_AGAIN = "copy the corpus again or prepare it again"
CHECKED_AT_ONCE = 1 << 20  # ends, so that a large shard needs no memory


@dataclass(frozen=True)
class Shard:
    """Documents as token ids.

    A sentence is a contiguous run of tokens, and a document is a contiguous run of sentences.
    Neither is ever empty.

    Attributes:
        tokens: ids without special tokens, uint16 or uint32 (T,).
        sentence_ends: the end of each sentence in `tokens`, exclusive, int64 (S,).
        document_ends: the end of each document in `sentence_ends`, exclusive, int64 (D,).
        block_ends: the result of `cut_blocks`, stored because computing it reads a page of
            `sentence_ends` for each block; None if it is not stored.
    """

    tokens: UInt16s | UInt32s
    sentence_ends: Int64s
    document_ends: Int64s
    block_ends: Int64s | None = None


def write_shard(directory: Path, pieces: Iterable[Shard], vocabulary_size: int) -> None:
    """Write one shard from consecutive pieces, with one piece in memory at a time.

    A document may continue in the next piece. Only its last piece has an entry for it in
    `document_ends`.
    """
    tokens = sentences = 0
    with (
        (directory / "tokens.bin").open("wb") as tokens_file,
        (directory / "sentence_ends.bin").open("wb") as sentences_file,
        (directory / "document_ends.bin").open("wb") as documents_file,
    ):
        for piece in pieces:
            tokens_file.write(piece.tokens.astype(token_dtype(vocabulary_size)).tobytes())
            sentences_file.write((piece.sentence_ends + tokens).astype("<i8").tobytes())
            documents_file.write((piece.document_ends + sentences).astype("<i8").tobytes())
            tokens += len(piece.tokens)
            sentences += len(piece.sentence_ends)


def cut_blocks(shard: Shard) -> Int64s:
    """Return where blocks end in `shard.document_ends`.

    Blocks are the units of the order of examples. The last document of a block is the one that reaches the
    next multiple of BLOCK_TOKENS, counted from the start of the shard. A document longer than BLOCK_TOKENS is
    therefore the last one of its block.

    Returns:
        The ends, exclusive: int64 (blocks,).
    """
    multiples = np.arange(BLOCK_TOKENS, len(shard.tokens), BLOCK_TOKENS)
    sentences = np.searchsorted(shard.sentence_ends, multiples)
    documents = np.searchsorted(shard.document_ends, sentences, side="right")
    return np.unique(np.append(documents + 1, len(shard.document_ends)))


def write_block_ends(directory: Path, vocabulary_size: int) -> None:
    """Store the ends of the blocks of the shard in `directory`."""
    block_ends = cut_blocks(read_shard(directory, vocabulary_size))
    (directory / "block_ends.bin").write_bytes(block_ends.astype("<i8").tobytes())


def read_shard(directory: Path, vocabulary_size: int) -> Shard:
    """Return the shard in `directory`, its arrays mapped into memory, read-only."""
    block_ends = directory / "block_ends.bin"
    return Shard(
        map_array(directory / "tokens.bin", token_dtype(vocabulary_size)),
        map_array(directory / "sentence_ends.bin", np.dtype("<i8")),
        map_array(directory / "document_ends.bin", np.dtype("<i8")),
        map_array(block_ends, np.dtype("<i8")) if block_ends.exists() else None,
    )


def check_shard(directory: Path, vocabulary_size: int) -> None:
    """Check the structure of a shard, which the compiled kernels trust.

    With it, they stay inside their arrays.

    Raises:
        DataError: ends do not increase or leave the array, or an id is not in the vocabulary.
    """
    shard = read_shard(directory, vocabulary_size)
    if shard.block_ends is not None:
        _check_ends(directory / "block_ends.bin", shard.block_ends, len(shard.document_ends))
    _check_ends(directory / "document_ends.bin", shard.document_ends, len(shard.sentence_ends))
    _check_ends(directory / "sentence_ends.bin", shard.sentence_ends, len(shard.tokens))
    if len(shard.tokens) and (highest := int(shard.tokens.max())) >= vocabulary_size:
        raise DataError(
            f"{directory / 'tokens.bin'}: damaged, with the id {highest:,} in a vocabulary of "
            f"{vocabulary_size:,}; {COPY_AGAIN}"
        )


def _check_ends(path: Path, ends: Int64s, length: int) -> None:
    """Check that ends increase from above 0 to the length of their array."""
    previous = 0
    for start in range(0, len(ends), CHECKED_AT_ONCE):
        chunk = ends[start : start + CHECKED_AT_ONCE]
        if chunk[0] <= previous or (chunk[1:] <= chunk[:-1]).any():
            raise DataError(f"{path}: damaged: its ends do not increase; {COPY_AGAIN}")
        previous = int(chunk[-1])
    if previous != length:
        raise DataError(f"{path}: damaged: it ends at {previous:,}, not at {length:,}; {COPY_AGAIN}")


def select_documents(shard: Shard, first: int, is_selected: Bools) -> Shard:
    """Copy some of a shard's documents to a new shard in memory.

    Args:
        shard: the shard.
        first: the index of the first document to consider.
        is_selected: whether each document from `first` on is copied, bool (n,).
    """
    document_ends = shard.document_ends[first : first + len(is_selected)]
    sentence_start = shard.document_ends[first - 1] if first else 0
    sentence_ends = shard.sentence_ends[sentence_start : document_ends[-1]]
    token_start = shard.sentence_ends[sentence_start - 1] if sentence_start else 0
    sentences = np.diff(document_ends, prepend=sentence_start)  # per document
    tokens = np.diff(sentence_ends, prepend=token_start)  # per sentence
    is_sentence_selected = np.repeat(is_selected, sentences)
    is_token_selected = np.repeat(is_sentence_selected, tokens)
    return Shard(
        shard.tokens[token_start : sentence_ends[-1]][is_token_selected],
        np.cumsum(tokens[is_sentence_selected]),
        np.cumsum(sentences[is_selected]),
    )


def map_array(path: Path, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Map a file into memory as a read-only array.

    An empty file cannot be mapped and gives an empty array.

    Raises:
        DataError: the file ends inside an item.
    """
    size = path.stat().st_size
    if size % np.dtype(dtype).itemsize:
        raise DataError(f"{path}: damaged: {size:,} bytes are no whole number of items; {COPY_AGAIN}")
    if size == 0:
        return np.empty(0, dtype)
    return np.asarray(np.memmap(path, dtype, mode="r"))


def token_dtype(vocabulary_size: int) -> npt.DTypeLike:
    return np.dtype("<u2" if vocabulary_size <= 1 << 16 else "<u4")
