"""Parts -> shards: duplicates found, documents held out, everything of one split joined and cut evenly.

A part holds what one task of `preparation.py` made of its share of the inputs: a shard of all its documents
and their hashes. Documents are named by their place in the order of all inputs. Memory does not grow with
the corpus: hashes are compared bucket by bucket, all else is mapped from disk.
"""

import os
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bertie.base.executor import run_tasks
from bertie.base.files import atomic_directory, write_errors
from bertie.base.progress import Progress
from bertie.corpus.shards import (
    FileRecord,
    Shard,
    Split,
    map_array,
    read_shard,
    record_file,
    select_documents,
    shard_name,
    write_shard,
)

Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]

SHARD_TOKENS = 1 << 25  # 64 MB: few files, and many shards to share out in a large corpus
# A random next sentence is drawn from its own shard; so large a one seldom gives the same document again.
MIN_SHARD_DOCUMENTS = 1000
MIN_DOCUMENTS_TO_HOLD_OUT = 20  # from so many on, the held-out split is not left empty
MIN_HELD_OUT = 2  # documents: a random next sentence needs another one
BUCKET_DOCUMENTS = 1 << 20  # whose hashes are compared at a time, in some 100 MB
CHUNK_TOKENS = 1 << 22  # copied from a part to a shard at a time, or one document of more

TRAIN, HELD_OUT, DUPLICATE = range(3)  # a document's fate
FATE_OF_SPLIT: dict[Split, int] = {"train": TRAIN, "held_out": HELD_OUT}


def part_directory(parts: Path, index: int) -> Path:
    return parts / f"{index:06d}"


def write_hashes(part: Path, hashes: UInt64s) -> None:
    """Write the hashes, uint64 (D, 2), of a part's documents, sorted so that each bucket is one run."""
    order = np.argsort(hashes[:, 0], kind="stable")
    rows = np.stack([hashes[order, 0], hashes[order, 1], order.astype(np.uint64)])
    (part / "hashes.bin").write_bytes(rows.astype("<u8").tobytes())


def read_hashes(part: Path) -> UInt64s:
    """(high half, low half, place in the part) in the order of the high half: uint64 (3, D)."""
    return map_array(part / "hashes.bin", np.uint64).reshape(3, -1)


def decide_fates(parts: Path, offsets: Int64s, held_out: float) -> None:
    """Write each document's fate, uint8, in the order of the inputs; part i begins at offsets[i]."""
    total = int(offsets[-1])
    path = parts / "fates.bin"
    with write_errors(path), path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, total)  # on a full disk, writing to a mapping kills the process
    fates = np.memmap(path, np.uint8, "r+", shape=(total,))
    bucket_count = -(-total // BUCKET_DOCUMENTS)
    edges = [(bucket << 64) // bucket_count for bucket in range(bucket_count + 1)]
    unique = held = 0
    lowest: list[int] = []  # the documents with the lowest hashes
    highest = -1  # and that with the highest
    for start, stop in pairwise(edges):
        high, low, places = _read_bucket(parts, offsets, start, stop)
        order = np.lexsort((places, low, high))
        high, low, places = high[order], low[order], places[order]
        repeated = np.zeros(len(order), dtype=np.bool_)
        repeated[1:] = (high[1:] == high[:-1]) & (low[1:] == low[:-1])
        fates[places[repeated]] = DUPLICATE
        places, high = places[~repeated], high[~repeated]
        chosen = places[high < np.uint64(int(held_out * 2**64))]
        fates[chosen] = HELD_OUT
        unique += len(places)
        held += len(chosen)
        if len(places):
            lowest = [*lowest, *places[:MIN_HELD_OUT].tolist()][:MIN_HELD_OUT]
            highest = int(places[-1])
    if held == unique:
        fates[highest] = TRAIN
    elif held < MIN_HELD_OUT and held_out and unique >= MIN_DOCUMENTS_TO_HOLD_OUT:
        fates[lowest] = HELD_OUT
    fates.flush()


def read_fates(parts: Path) -> npt.NDArray[np.uint8]:
    """Each document's fate, in the order of the inputs: uint8 (D,)."""
    return map_array(parts / "fates.bin", np.uint8)


def _read_bucket(parts: Path, offsets: Int64s, start: int, stop: int) -> UInt64s:
    """(high half, low half, place) of the documents whose high half is in [start, stop): uint64 (3, n)."""
    runs = []
    for index, offset in enumerate(offsets[:-1]):
        rows = read_hashes(part_directory(parts, index))
        begin = np.searchsorted(rows[0], np.uint64(start), "left")
        end = np.searchsorted(rows[0], np.uint64(stop - 1), "right")  # 2**64, the last edge, is no uint64
        runs.append(rows[:, begin:end] + np.array([[0], [0], [offset]], dtype=np.uint64))
    return np.concatenate(runs, axis=1)


def assemble_shards(
    output: Path, offsets: Int64s, vocabulary_size: int, workers: int
) -> dict[str, FileRecord]:
    """Write the shards that are not there yet; give the records of the files of all."""
    parts = output / "parts"
    arguments = [
        (output / shard_name(split, number), FATE_OF_SPLIT[split], start, stop)
        for split in FATE_OF_SPLIT
        for number, (start, stop) in enumerate(
            _cut_into_shards(parts, offsets, vocabulary_size, FATE_OF_SPLIT[split])
        )
    ]
    files: dict[str, FileRecord] = {}
    with Progress("assembling", total=len(arguments), unit="shards") as progress:
        for _, records in run_tasks(
            partial(_assemble_shard, parts, offsets, vocabulary_size), arguments, workers
        ):
            files |= records
            progress.advance()
    return files


def _cut_into_shards(parts: Path, offsets: Int64s, vocabulary_size: int, fate: int) -> list[tuple[int, int]]:
    """Ranges of documents that hold about equally many tokens of this fate, and enough documents."""
    fates = read_fates(parts)

    def documents() -> Iterator[tuple[Int64s, Int64s]]:
        """The places of a part's documents of this fate, and the tokens of each."""
        for index, (start, stop) in enumerate(pairwise(offsets)):
            shard = read_shard(part_directory(parts, index), vocabulary_size)
            places = np.flatnonzero(fates[start:stop] == fate)
            ends = np.concatenate([[0], shard.sentence_ends[shard.document_ends - 1]])
            yield places + start, np.diff(ends)[places]

    total_documents = total_tokens = 0
    for places, lengths in documents():
        total_documents += len(places)
        total_tokens += int(lengths.sum())
    if not total_documents:
        return []
    count = max(1, min(total_tokens // SHARD_TOKENS, total_documents // MIN_SHARD_DOCUMENTS))
    cuts = [0]
    seen_documents = seen_tokens = cut_documents = cut_tokens = 0
    for places, lengths in documents():
        ends = seen_tokens + np.cumsum(lengths)
        while len(cuts) < count:
            # An even share of what is left: a very long document does not make its successors' shards small.
            share = (total_tokens - cut_tokens) // (count + 1 - len(cuts))
            by_tokens = int(np.searchsorted(ends, cut_tokens + share))
            last = max(by_tokens, cut_documents + MIN_SHARD_DOCUMENTS - 1 - seen_documents)
            if last >= len(places) or total_documents - (seen_documents + last + 1) < MIN_SHARD_DOCUMENTS:
                break
            cuts.append(int(places[last]) + 1)
            cut_documents, cut_tokens = seen_documents + last + 1, int(ends[last])
        seen_documents += len(places)
        seen_tokens += int(lengths.sum())
    return list(pairwise([*cuts, int(offsets[-1])]))


def _assemble_shard(
    parts: Path, offsets: Int64s, vocabulary_size: int, argument: tuple[Path, int, int, int]
) -> dict[str, FileRecord]:
    """Write the documents of one fate between two places as one shard; give the records of its files."""
    directory, fate, start, stop = argument
    if not directory.exists():
        with atomic_directory(directory) as temporary:
            pieces = _select(parts, offsets, vocabulary_size, fate, start, stop)
            write_shard(temporary, pieces, vocabulary_size)
    return {f"{directory.name}/{file.name}": record_file(file) for file in directory.iterdir()}


def _select(
    parts: Path, offsets: Int64s, vocabulary_size: int, fate: int, start: int, stop: int
) -> Iterator[Shard]:
    """The documents of one fate between two places, some at a time."""
    fates = read_fates(parts)
    for index, offset in enumerate(offsets[:-1]):
        begin, end = max(start, offset), min(stop, offsets[index + 1])
        if begin >= end:
            continue
        part = read_shard(part_directory(parts, index), vocabulary_size)
        ends = part.sentence_ends[part.document_ends - 1]  # in tokens
        first = int(begin - offset)
        while first < end - offset:
            before = ends[first - 1] if first else 0
            last = max(first + 1, int(np.searchsorted(ends, before + CHUNK_TOKENS, "right")))
            last = min(last, int(end - offset))
            yield select_documents(part, first, fates[first + offset : last + offset] == fate)
            first = last
