"""Assemble the parts of a corpus into shards.

`part_writer.py` writes the parts: each has a shard of all documents that one task read, and a hash of each
document. Assembly finds duplicates, holds documents out, and writes the documents of each split as
shards of about equal size. A document is identified by its index in the order of all inputs.

Memory does not grow with the corpus: hashes are compared bucket by bucket, and everything else is
mapped from disk.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

from bertie.base.arrays import Int64s, UInt8s, UInt64s
from bertie.base.executor import Executor, run_tasks
from bertie.base.files import add_path_to_errors, atomic_directory, atomic_file
from bertie.base.progress import Progress
from bertie.corpus.manifest import FileRecord, Split, record_file, shard_name
from bertie.corpus.shards import Shard, map_array, read_shard, select_documents, write_block_ends, write_shard

SHARD_TOKENS = 1 << 25  # 64 MB: few files, and still many shards in a large corpus
# A random next sentence is drawn from the same shard; with so many documents it rarely comes from
# the same document.
MIN_SHARD_DOCUMENTS = 1000
# More than this, and shards get larger instead: a process maps four files of each, and Linux allows it
# 65,530 mappings (vm.max_map_count).
MAX_SHARDS = 4096
MIN_DOCUMENTS_TO_HOLD_OUT = 20  # a corpus of at least so many documents has a held-out split
MIN_HELD_OUT_DOCUMENTS = 2  # a random next sentence needs another document
HELD_OUT_ADVICE = (
    f"prepare {MIN_DOCUMENTS_TO_HOLD_OUT} or more documents, with --held-out (held_out=…) above 0; a plain "
    "text file is one document; `split --number=l/100 FILE` divides it into 100"
)
RUN_PARTS = 256  # parts whose hashes are sorted at a time, in about 100 MB
BUCKET_DOCUMENTS = 1 << 20  # documents whose hashes are compared at a time, in about 100 MB
COPY_TOKENS = 1 << 22  # copied from a part to a shard at a time; a longer document is copied whole

# The assignment of a document.
TRAIN, HELD_OUT, DUPLICATE = range(3)
ASSIGNMENT_OF_SPLIT: dict[Split, int] = {"train": TRAIN, "held_out": HELD_OUT}


@dataclass(frozen=True)
class Parts:
    """The parts of a corpus in preparation.

    Attributes:
        directory: the folder that holds the parts.
        offsets: the index of the first document of each part, and the number of all documents,
            int64 (parts + 1,).
        vocabulary_size: the number of entries in the tokenizer's vocabulary.
        languages: in a corpus of several languages, the language of each part; the parts of a
            language are consecutive.
    """

    directory: Path
    offsets: Int64s
    vocabulary_size: int
    languages: tuple[str, ...] = ()

    @property
    def document_count(self) -> int:
        """The number of documents in all parts."""
        return int(self.offsets[-1])

    def groups(self) -> list[tuple[str, range]]:
        """Return the languages and the indices of their parts.

        If there is only one language, it is "".
        """
        if not self.languages:
            return [("", range(len(self.offsets) - 1))]
        starts = [i for i, code in enumerate(self.languages) if i == 0 or code != self.languages[i - 1]]
        stops = [*starts[1:], len(self.languages)]
        return [(self.languages[a], range(a, b)) for a, b in zip(starts, stops, strict=True)]

    def documents_of(self, indices: range) -> range:
        """Return the indices of the documents in consecutive parts."""
        return range(int(self.offsets[indices.start]), int(self.offsets[indices.stop]))

    def read(self, index: int) -> Shard:
        """Return the documents of a part, mapped into memory."""
        return read_shard(part_directory(self.directory, index), self.vocabulary_size)

    def read_hashes(self, index: int) -> UInt64s:
        """Return the hashes of a part's documents: uint64 (3, documents).

        `part_writer.write_hashes` wrote them. The rows are the high half, the low half, and the index of the
        document in its part. The columns are sorted by the high half.
        """
        path = part_directory(self.directory, index) / "hashes.bin"
        return map_array(path, np.uint64).reshape(3, -1)

    def read_assignments(self) -> UInt8s:
        """Return the assignments that `assign_documents` wrote: uint8 (documents,)."""
        return map_array(self.directory / "assignments.bin", np.uint8)


def part_directory(directory: Path, index: int) -> Path:
    """Return the directory of a part."""
    return directory / f"{index:06d}"


def assign_documents(parts: Parts, held_out: float) -> None:
    """Assign each document to a split, or mark it as a duplicate.

    The assignments are written beside the parts. Of documents with the same hash, the first is
    kept. A document is held out if the high half of its hash, divided by 2⁶⁴, is below `held_out`,
    so the choice does not depend on the order of the inputs. At least one document stays in the
    training split. A corpus of MIN_DOCUMENTS_TO_HOLD_OUT or more documents holds out at least
    MIN_HELD_OUT_DOCUMENTS, unless `held_out` is 0. In several languages, if too few documents are held out,
    the documents of the largest language are held out too, unless none would be left for training.
    """
    assignments = _create_assignments(parts)
    runs = _sort_hashes(parts)
    bucket_count = -(-parts.document_count // BUCKET_DOCUMENTS)
    edges = [(bucket << 64) // bucket_count for bucket in range(bucket_count + 1)]
    unique_count = held_out_count = 0
    languages = [parts.documents_of(indices) for _, indices in parts.groups()]
    lowest: list[list[int]] = [[] for _ in languages]  # the documents of each with the lowest hashes
    highest = -1  # the document with the highest hash
    for start, stop in pairwise(edges):
        high, low, documents = _read_bucket(runs, start, stop)
        order = np.lexsort((documents, low, high))
        high, low, documents = high[order], low[order], documents[order]
        is_duplicate = np.zeros(len(order), dtype=np.bool_)
        is_duplicate[1:] = (high[1:] == high[:-1]) & (low[1:] == low[:-1])
        assignments[documents[is_duplicate]] = DUPLICATE
        documents, high = documents[~is_duplicate], high[~is_duplicate]
        chosen = documents[high < np.uint64(int(held_out * 2**64))]
        assignments[chosen] = HELD_OUT
        unique_count += len(documents)
        held_out_count += len(chosen)
        for found, of_language in zip(lowest, languages, strict=True):
            if missing := MIN_HELD_OUT_DOCUMENTS - len(found):
                is_inside = (documents >= of_language.start) & (documents < of_language.stop)
                found.extend(documents[is_inside][:missing].tolist())
        if len(documents):
            highest = int(documents[-1])
    if parts.languages:
        held_out_count -= _keep_few_for_training(parts, assignments)
    if held_out_count == unique_count:
        assignments[highest] = TRAIN
    elif held_out_count < MIN_HELD_OUT_DOCUMENTS and held_out and unique_count >= MIN_DOCUMENTS_TO_HOLD_OUT:
        sizes = [np.count_nonzero(assignments[x.start : x.stop] != DUPLICATE) for x in languages]
        if max(sizes) > MIN_HELD_OUT_DOCUMENTS:
            assignments[lowest[int(np.argmax(sizes))]] = HELD_OUT
    assignments.flush()


def _keep_few_for_training(parts: Parts, assignments: UInt8s) -> int:
    """Return documents of some languages to the training split; return their number.

    These are languages with fewer than MIN_HELD_OUT_DOCUMENTS held-out documents, and those with no others.
    """
    count = 0
    for _, indices in parts.groups():
        documents = parts.documents_of(indices)
        of_language = assignments[documents.start : documents.stop]
        held_out = np.flatnonzero(of_language == HELD_OUT)
        if len(held_out) < MIN_HELD_OUT_DOCUMENTS or not (of_language == TRAIN).any():
            of_language[held_out] = TRAIN
            count += len(held_out)
    return count


def _create_assignments(parts: Parts) -> "np.memmap[tuple[int], np.dtype[np.uint8]]":
    """Create the file of assignments, all TRAIN, and map it into memory."""
    path = parts.directory / "assignments.bin"
    with add_path_to_errors(path), path.open("wb") as file:
        # Allocate the space now: on a full disk, writing to a mapping would kill the process.
        os.posix_fallocate(file.fileno(), 0, parts.document_count)
    return np.memmap(path, np.uint8, "r+", shape=(parts.document_count,))


def _sort_hashes(parts: Parts) -> list[UInt64s]:
    """Sort the hashes of every RUN_PARTS parts, in files beside the parts.

    Every bucket reads all runs. Reading all parts for it would take hours in a corpus of 10 TB, which
    has over 600,000 parts.

    Returns:
        The runs, mapped into memory, uint64 (3, n) each. The rows are the high half, the low half, and
        the index of the document; the columns are sorted by the high half.
    """
    runs = []
    for first in range(0, len(parts.offsets) - 1, RUN_PARTS):
        path = parts.directory / f"hashes-{first:06d}.bin"
        if not path.exists():
            offsets = parts.offsets[:-1][first : first + RUN_PARTS].tolist()
            hashes = [
                parts.read_hashes(first + index) + np.array([[0], [0], [offset]], dtype=np.uint64)
                for index, offset in enumerate(offsets)
            ]
            rows = np.concatenate(hashes, axis=1)
            with atomic_file(path) as temporary:
                temporary.write_bytes(rows[:, np.argsort(rows[0], kind="stable")].astype("<u8").tobytes())
        runs.append(map_array(path, np.uint64).reshape(3, -1))
    return runs


def _read_bucket(runs: list[UInt64s], start: int, stop: int) -> UInt64s:
    """Return the hashes of a run in a range: uint64 (3, n).

    Their high half is in [start, stop).
    """
    buckets = []
    for run in runs:
        begin = np.searchsorted(run[0], np.uint64(start), "left")
        end = np.searchsorted(run[0], np.uint64(stop - 1), "right")  # 2**64 does not fit in uint64
        buckets.append(run[:, begin:end])
    return np.concatenate(buckets, axis=1)


@dataclass(frozen=True)
class _ShardPlan:
    """A shard to write: the documents of one split in a range of documents.

    Attributes:
        directory: the directory of the shard.
        assignment: TRAIN or HELD_OUT; documents with another assignment are left out.
        start: the index of the first document of the range.
        stop: the end of the range, exclusive.
    """

    directory: Path
    assignment: int
    start: int
    stop: int


def assemble_shards(parts: Parts, output: Path, workers: int | Executor) -> dict[str, FileRecord]:
    """Write the shards that do not exist yet.

    Returns:
        The records of the files of all shards, by their paths relative to `output`.
    """
    plans = [
        _ShardPlan(output / shard_name(split, index, language), assignment, start, stop)
        for split, assignment in ASSIGNMENT_OF_SPLIT.items()
        for language, indices in parts.groups()
        for index, (start, stop) in enumerate(_cut_into_shards(parts, assignment, indices))
    ]
    files: dict[str, FileRecord] = {}
    with Progress("writing shards", total=len(plans), unit="shards") as progress:
        for _, records in run_tasks(partial(_assemble_shard, parts), plans, workers):
            files |= records
            progress.advance()
    return files


def _cut_into_shards(parts: Parts, assignment: int, indices: range) -> list[tuple[int, int]]:
    """Cut documents into ranges with about equally many tokens of a split.

    They are the documents of some consecutive parts. Each range has at least MIN_SHARD_DOCUMENTS documents of
    the split, unless there is only one range.
    """
    total_documents = total_tokens = 0
    for documents, lengths in _document_lengths(parts, assignment, indices):
        total_documents += len(documents)
        total_tokens += int(lengths.sum())
    if not total_documents:
        return []
    most = MAX_SHARDS // len(parts.groups())
    shard_count = max(1, min(total_tokens // SHARD_TOKENS, total_documents // MIN_SHARD_DOCUMENTS, most))
    cuts = [int(parts.offsets[indices.start])]
    seen_documents = seen_tokens = cut_documents = cut_tokens = 0
    for documents, lengths in _document_lengths(parts, assignment, indices):
        ends = seen_tokens + np.cumsum(lengths)
        while len(cuts) < shard_count:
            # Divide the tokens that are left, so that a very long document does not make the shards
            # after it small.
            target_tokens = (total_tokens - cut_tokens) // (shard_count + 1 - len(cuts))
            last_by_tokens = int(np.searchsorted(ends, cut_tokens + target_tokens))
            last = max(last_by_tokens, cut_documents + MIN_SHARD_DOCUMENTS - 1 - seen_documents)
            if last >= len(documents) or total_documents - (seen_documents + last + 1) < MIN_SHARD_DOCUMENTS:
                break
            cuts.append(int(documents[last]) + 1)
            cut_documents, cut_tokens = seen_documents + last + 1, int(ends[last])
        seen_documents += len(documents)
        seen_tokens += int(lengths.sum())
    return list(pairwise([*cuts, int(parts.offsets[indices.stop])]))


def _document_lengths(parts: Parts, assignment: int, indices: range) -> Iterator[tuple[Int64s, Int64s]]:
    """Yield the documents of one split in some parts, part by part.

    Yields:
        The indices of the documents, and their lengths in tokens, int64 (n,) each.
    """
    assignments = parts.read_assignments()
    for index in indices:
        start, stop = parts.offsets[index : index + 2]
        shard = parts.read(index)
        selected = np.flatnonzero(assignments[start:stop] == assignment)
        token_ends = np.concatenate([[0], shard.sentence_ends[shard.document_ends - 1]])
        yield selected + start, np.diff(token_ends)[selected]


def _assemble_shard(parts: Parts, plan: _ShardPlan) -> dict[str, FileRecord]:
    """Write one shard unless it exists, and return the records of its files."""
    directory = plan.directory
    if not directory.exists():
        with atomic_directory(directory, has_twins=True) as temporary:
            write_shard(temporary, _select_pieces(parts, plan), parts.vocabulary_size)
            write_block_ends(temporary, parts.vocabulary_size)
    return {f"{directory.name}/{file.name}": record_file(file) for file in directory.iterdir()}


def _select_pieces(parts: Parts, plan: _ShardPlan) -> Iterator[Shard]:
    """Yield the documents of a shard, about COPY_TOKENS at a time."""
    assignments = parts.read_assignments()
    first_part = int(np.searchsorted(parts.offsets, plan.start, "right")) - 1
    stop_part = int(np.searchsorted(parts.offsets, plan.stop, "left"))
    for index in range(first_part, stop_part):
        offset, next_offset = parts.offsets[index : index + 2]
        begin, end = max(plan.start, offset), min(plan.stop, next_offset)
        if begin == end:
            continue  # a part without documents
        part = parts.read(index)
        token_ends = part.sentence_ends[part.document_ends - 1]
        first, stop = int(begin - offset), int(end - offset)  # indices in the part
        while first < stop:
            copied_tokens = token_ends[first - 1] if first else 0
            last = max(first + 1, int(np.searchsorted(token_ends, copied_tokens + COPY_TOKENS, "right")))
            last = min(last, stop)
            is_selected = assignments[first + offset : last + offset] == plan.assignment
            yield select_documents(part, first, is_selected)
            first = last
