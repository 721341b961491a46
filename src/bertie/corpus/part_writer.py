"""Write one part of a corpus, which has the documents of one task.

A part has token ids, and a hash of each document.
"""

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bertie.base.arrays import UInt64s
from bertie.base.checksums import verify, write_sums
from bertie.base.files import atomic_directory, read_json, write_json
from bertie.corpus.documents import Document, InputErrors, OnError
from bertie.corpus.input_splits import InputSplit, read_splits
from bertie.corpus.shards import Shard, write_shard
from bertie.corpus.word_counts import batch_documents
from bertie.text.tokenizer import Tokenizer

SKIPPED_FILE = "skipped.txt"
COUNTS_FILE = "counts.json"


class Task(NamedTuple):
    """The inputs of one part, which are all in one language."""

    language: str
    splits: list[InputSplit]


@dataclass(frozen=True)
class TaskContext:
    """The arguments that all tasks share.

    The fingerprint identifies the content of the tokenizer's directory.
    """

    tokenizer_directory: Path
    fingerprint: str
    column: str
    on_error: OnError


def write_part(context: TaskContext, argument: tuple[Path, Task]) -> None:
    """Read the inputs of a task, and write the directory of its part, atomically.

    Raises:
        InputError: an input cannot be read, and `context.on_error` is "stop".
    """
    part, (language, splits) = argument
    tokenizer = load_tokenizer(context)
    encoder, errors = _Encoder(tokenizer, language), InputErrors(context.on_error)
    batches = batch_documents(read_splits(splits, context.column, errors))
    with atomic_directory(part, has_twins=True) as temporary:
        write_shard(temporary, map(encoder.encode, batches), len(tokenizer.vocabulary))
        write_hashes(temporary, np.concatenate([np.empty((0, 2), np.uint64), *encoder.hashes]))
        (temporary / SKIPPED_FILE).write_bytes(encode_messages(errors.messages))
        write_json(temporary / COUNTS_FILE, encoder.counts | {"skipped": errors.counts})
        write_sums(temporary)


@dataclass(frozen=True)
class PartCounts:
    """The number of documents that a part keeps, and of everything left out."""

    documents: int
    empty_documents: int
    empty_sentences: int
    skipped: Mapping[str, int]


def verify_part(part: Path) -> PartCounts:
    """Verify the files that `write_part` wrote, and return the counts.

    Raises:
        ModelError: a file is damaged.
    """
    verify(part, remedy=f"remove {part} and run the same `bertie prepare` again")
    return PartCounts(**read_json(part / COUNTS_FILE))


@cache
def load_tokenizer(context: TaskContext) -> Tokenizer:
    """Load the tokenizer of a task once in each process.

    Forked workers inherit their parent's.
    """
    tokenizer = Tokenizer.load(context.tokenizer_directory)
    tokenizer.encode_batch(["a"], add_special_tokens=False)  # builds the trie and loads the kernels
    return tokenizer


class _Encoder:
    """Encode documents as shards of ids, and hash and count them.

    Sentences without tokens and documents without sentences are left out.

    Attributes:
        counts: the number of documents kept, and of empty documents and sentences left out.
        hashes: for each batch, the hashes of the documents kept that end in it, uint64 (D, 2).
    """

    def __init__(self, tokenizer: Tokenizer, language: str) -> None:
        self.tokenizer = tokenizer
        self.language = language
        self.counts = {"documents": 0, "empty_documents": 0, "empty_sentences": 0}
        self.hashes: list[UInt64s] = []
        self._pending_sentences = 0  # of a document that continues in the next batch
        self._running_hash = _new_hash()

    def encode(self, documents: list[Document]) -> Shard:
        """Encode the next documents, or pieces of documents.

        Returns:
            A piece of a shard for `write_shard`.
        """
        sentences = [document.split_sentences(self.language) for document in documents]
        flat_sentences = [sentence for group in sentences for sentence in group]
        encoding = self.tokenizer.encode_batch(flat_sentences, add_special_tokens=False)
        is_nonempty = np.diff(encoding.bounds) > 0
        sentence_ends = encoding.bounds[1:][is_nonempty]
        sentences_before = np.concatenate([[0], np.cumsum(is_nonempty)])
        is_last_piece = np.array([not document.is_continued for document in documents])
        document_ends = sentences_before[np.cumsum([len(group) for group in sentences])][is_last_piece]
        is_kept = np.diff(document_ends, prepend=-self._pending_sentences) > 0
        last_end = document_ends[-1] if len(document_ends) else -self._pending_sentences
        self._pending_sentences = len(sentence_ends) - last_end
        self.counts["documents"] += int(np.count_nonzero(is_kept))
        self.counts["empty_documents"] += int(np.count_nonzero(~is_kept))
        self.counts["empty_sentences"] += int(np.count_nonzero(~is_nonempty))
        self.hashes.append(self._hash(documents)[is_kept])
        return Shard(encoding.input_ids.view(np.uint32), sentence_ends, document_ends[is_kept])

    def _hash(self, documents: list[Document]) -> UInt64s:
        """Hash the text of each document that ends in this batch: uint64 (D, 2).

        With 128 bits, no two of a trillion different documents are likely to have the same hash.
        """
        digests = []
        for document in documents:
            self._running_hash.update(document.text.encode())
            if not document.is_continued:
                digests.append(self._running_hash.digest())
                self._running_hash = _new_hash()
        return np.frombuffer(b"".join(digests), dtype="<u8").reshape(-1, 2)


def _new_hash() -> "hashlib.blake2b":
    return hashlib.blake2b(digest_size=16)


def write_hashes(part: Path, hashes: UInt64s) -> None:
    """Write the hashes of a part's documents, uint64 (D, 2).

    The hashes are sorted by their high halves, so that each bucket of `assembly.py` is contiguous.
    """
    order = np.argsort(hashes[:, 0], kind="stable")
    rows = np.stack([hashes[order, 0], hashes[order, 1], order.astype(np.uint64)])
    (part / "hashes.bin").write_bytes(rows.astype("<u8").tobytes())


def encode_messages(messages: Iterable[str]) -> bytes:
    """Encode messages about skipped inputs as the lines of `SKIPPED_FILE`."""
    # The names of files need not be UTF-8.
    return b"".join(os.fsencode(message) + b"\n" for message in messages)
