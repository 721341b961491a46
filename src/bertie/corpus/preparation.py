"""Documents -> shards, as idempotent tasks on the executor.

First each task reads its share of the inputs and writes a part: token ids, and a hash of each document.
Then the parts are assembled into shards (assembly.py). Parts and shards appear whole or not at all, so a run
that was killed goes on where it was. What is written follows from the inputs and the settings alone, not
from the number of workers. A task holds some megabytes of text at a time.
"""

import hashlib
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bertie import __version__
from bertie.base.errors import DataError, SettingsError
from bertie.base.executor import run_tasks
from bertie.base.files import atomic_directory, atomic_file, lock_directory, read_json, write_json
from bertie.base.progress import Progress
from bertie.corpus.assembly import (
    DUPLICATE,
    assemble_shards,
    decide_fates,
    part_directory,
    read_fates,
    write_hashes,
)
from bertie.corpus.documents import Document, OnError, Problems
from bertie.corpus.formats import Format
from bertie.corpus.input_splits import InputSplit, cut_into_tasks, read_splits
from bertie.corpus.shards import (
    Manifest,
    Shard,
    count_split,
    record_file,
    write_manifest,
    write_shard,
)
from bertie.corpus.word_counts import batch_documents
from bertie.text.tokenizer import Tokenizer

SKIPPED_FILE = "skipped.txt"
# What a run makes in its output, and the names under which that is written or replaced.
_MADE = r"(parts|tokenizer|(train|held_out)-\d{5}|skipped\.txt|manifest\.json)"
_TEMPORARY = re.compile(rf"\.{_MADE}(\.\d+)?\.(tmp|old)")
_OWN = re.compile(rf"\.lock|{_MADE}|{_TEMPORARY.pattern}")

UInt64s = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class _Work:
    """What every task needs to know; the fingerprint stands for what the tokenizer's directory holds."""

    tokenizer_directory: Path
    fingerprint: str
    language: str
    column: str
    on_error: OnError


def prepare(
    inputs: Sequence[Path],
    tokenizer_directory: Path,
    output: Path,
    workers: int,
    held_out: float = 0.005,
    language: str = "en",
    format: Format | None = None,
    column: str = "text",
    on_error: OnError = "stop",
) -> Manifest:
    """Make the corpus `output` from the documents of `inputs`; give its manifest.

    A document is held out by its hash, so on average `held_out` of them are; of equal documents the first
    is kept. `language` is for splitting sentences, `format` for files whose format is not to be detected,
    `column` names the text in jsonl and tables. What cannot be read ends the run or, if `on_error` is
    "skip", is left out, counted in the manifest and named in `skipped.txt`; so are empty files always.
    If an earlier run of the same work was stopped, this one goes on from its parts.

    Raises:
        DataError: an input cannot be read, as in `read_documents`; there is no text; or `output` holds
            another corpus or anything else.
        ModelError: the tokenizer cannot be read.
        SettingsError: `held_out` is no share, or a table has no such column.
        BertieError: another process writes to `output`, workers keep dying, or the package that reads such
            files is not installed.
    """
    if not 0 <= held_out < 1:
        raise SettingsError(f"held_out = {held_out}: expected a share of the documents, from 0 to below 1")
    settings = {"held_out": held_out, "language": language, "format": format, "column": column}
    tokenizer = Tokenizer.load(tokenizer_directory)
    problems = Problems(on_error)
    tasks = cut_into_tasks(inputs, format, problems)
    plan = {
        "bertie": __version__,  # another may cut the inputs into other tasks
        "tokenizer": tokenizer.fingerprint,
        # Not `on_error`: a run that has met bad input may go on by leaving it out.
        "settings": settings,
        "inputs": _fingerprint(inputs),
    }
    parts = output / "parts"
    _refuse_foreign(output)
    is_new = not output.exists()
    with lock_directory(output):
        if not parts.exists():
            with atomic_directory(parts) as temporary:
                write_json(temporary / "plan.json", plan)
        elif read_json(parts / "plan.json") != plan:
            raise DataError(
                f"{output}: holds unfinished work on other inputs or settings; remove it or name another"
            )
        with atomic_directory(output / "tokenizer") as temporary:
            tokenizer.save(temporary)
        work = _Work(output / "tokenizer", tokenizer.fingerprint, language, column, on_error)
        counts = _write_parts(tasks, output, work, workers)
        skipped = sum((Counter(part["skipped"]) for part in counts), problems.counts)
        _write_skipped(output, len(tasks), problems)
        offsets = np.cumsum([0, *(part["documents"] for part in counts)])
        if not offsets[-1]:
            first = list(islice(read_skipped(output), 1))
            (output / SKIPPED_FILE).unlink(missing_ok=True)
            shutil.rmtree(output / "tokenizer")
            shutil.rmtree(parts)
            (output / ".lock").unlink()
            if is_new:
                output.rmdir()
            nothing = f"{inputs[0]}: no text in any document here, nor in the other inputs"
            raise DataError("; ".join([nothing, *first]))
        decide_fates(parts, offsets, held_out)
        files = assemble_shards(output, offsets, len(tokenizer.vocabulary), workers)
        files |= {f"tokenizer/{file.name}": record_file(file) for file in (output / "tokenizer").iterdir()}
        manifest = Manifest(
            tokenizer_fingerprint=tokenizer.fingerprint,
            vocabulary_size=len(tokenizer.vocabulary),
            settings=settings,
            train=count_split("train", files, len(tokenizer.vocabulary)),
            held_out=count_split("held_out", files, len(tokenizer.vocabulary)),
            duplicates_dropped=int(np.count_nonzero(read_fates(parts) == DUPLICATE)),
            empty_documents_dropped=sum(part["empty_documents"] for part in counts),
            empty_sentences_dropped=sum(part["empty_sentences"] for part in counts),
            skipped=dict(sorted(skipped.items())),
            files=dict(sorted(files.items())),
        )
        for leftover in list(output.glob(".*")):  # of killed processes
            if _TEMPORARY.fullmatch(leftover.name):
                leftover.unlink() if leftover.is_file() else shutil.rmtree(leftover)
        write_manifest(output, manifest)
        shutil.rmtree(parts)
    return manifest


def _fingerprint(inputs: Sequence[Path]) -> str:
    """A hash of which files these are, and when they were last changed."""
    digest = hashlib.sha256()
    for path in inputs:
        status = path.stat()
        digest.update(os.fsencode(f"{os.path.abspath(path)}\0{status.st_size}\0{status.st_mtime_ns}\0"))
    return digest.hexdigest()


def _refuse_foreign(output: Path) -> None:
    if (output / "manifest.json").exists():
        raise DataError(f"{output}: already holds a prepared corpus; name another directory")
    if output.is_file():
        raise DataError(f"{output}: is a file; name a new directory")
    names = {file.name for file in output.glob("*")}
    started = "parts" in names
    for name in sorted(names):
        if not _OWN.fullmatch(name) or not (started or name[0] == "."):
            raise DataError(f"{output}: holds other files ({name}); name a new directory")


def _write_parts(
    tasks: list[list[InputSplit]], output: Path, work: _Work, workers: int
) -> list[dict[str, Any]]:
    """Write the parts that are not there yet; give the counts of all."""
    parts = [part_directory(output / "parts", index) for index in range(len(tasks))]
    sizes = [sum(span.size for span in task) for task in tasks]
    missing = [index for index, part in enumerate(parts) if not part.exists()]
    done = sum(sizes) - sum(sizes[index] for index in missing)
    total = round(sum(sizes) / 1e6)
    with Progress("preparing documents", total, unit="MB", done=round(done / 1e6)) as progress:
        arguments = [(parts[index], tasks[index]) for index in missing]
        for position, _ in run_tasks(partial(_write_part, work), arguments, workers):
            done += sizes[missing[position]]
            progress.update(round(done / 1e6))
    return [read_json(part / "counts.json") for part in parts]


def _write_part(work: _Work, argument: tuple[Path, list[InputSplit]]) -> None:
    part, task = argument
    tokenizer = _load_tokenizer(work.tokenizer_directory, work.fingerprint)
    encoder, problems = _Encoder(tokenizer, work.language), Problems(work.on_error)
    batches = batch_documents(read_splits(task, work.column, problems))
    with atomic_directory(part) as temporary:
        write_shard(temporary, map(encoder.encode, batches), len(tokenizer.vocabulary))
        write_hashes(temporary, np.concatenate([np.empty((0, 2), np.uint64), *encoder.hashes]))
        (temporary / SKIPPED_FILE).write_bytes(_lines(problems))
        write_json(temporary / "counts.json", encoder.counts | {"skipped": problems.counts})


def _write_skipped(output: Path, part_count: int, problems: Problems) -> None:
    """Write the lines about all inputs that could not be read as one file, unless there are none."""
    with atomic_file(output / SKIPPED_FILE) as temporary, temporary.open("wb") as file:
        file.write(_lines(problems))
        for index in range(part_count):
            with (part_directory(output / "parts", index) / SKIPPED_FILE).open("rb") as lines:
                shutil.copyfileobj(lines, file)
    if not (output / SKIPPED_FILE).stat().st_size:
        (output / SKIPPED_FILE).unlink()


def read_skipped(corpus: Path) -> Iterator[str]:
    """The lines about the inputs that could not be read."""
    if (corpus / SKIPPED_FILE).exists():
        with (corpus / SKIPPED_FILE).open("rb") as lines:
            yield from (os.fsdecode(line.rstrip(b"\n")) for line in lines)


def _lines(problems: Problems) -> bytes:
    # The names of files need not be UTF-8.
    return b"".join(os.fsencode(message) + b"\n" for message in problems.messages)


@cache
def _load_tokenizer(directory: Path, fingerprint: str) -> Tokenizer:
    """Once in each worker; the fingerprint stands for what the directory holds."""
    return Tokenizer.load(directory)


class _Encoder:
    """Documents -> shards of ids, and what is to be known about them at the end.

    A sentence is empty, and left out, if it has no tokens, a document if it has no sentences.
    """

    def __init__(self, tokenizer: Tokenizer, language: str) -> None:
        self.tokenizer = tokenizer
        self.language = language
        self.counts = {"documents": 0, "empty_documents": 0, "empty_sentences": 0}
        self.hashes: list[UInt64s] = []  # (D, 2) for each batch
        self._open_sentences = 0  # of a document that is not finished
        self._running_hash = _new_hash()

    def encode(self, documents: list[Document]) -> Shard:
        """The next documents, or pieces of them, as a shard."""
        sentences = [document.sentences(self.language) for document in documents]
        flat = [sentence for group in sentences for sentence in group]
        encoding = self.tokenizer.encode_batch(flat, add_special_tokens=False)
        nonempty = np.diff(encoding.bounds) > 0
        sentence_ends = encoding.bounds[1:][nonempty]
        sentences_before = np.concatenate([[0], np.cumsum(nonempty)])
        finished = np.array([not document.unfinished for document in documents])
        ends = sentences_before[np.cumsum([len(group) for group in sentences])][finished]
        kept = np.diff(ends, prepend=-self._open_sentences) > 0
        self._open_sentences = len(sentence_ends) - (ends[-1] if len(ends) else -self._open_sentences)
        self.counts["documents"] += int(np.count_nonzero(kept))
        self.counts["empty_documents"] += int(np.count_nonzero(~kept))
        self.counts["empty_sentences"] += int(np.count_nonzero(~nonempty))
        self.hashes.append(self._hash(documents)[kept])
        return Shard(encoding.input_ids.view(np.uint32), sentence_ends, ends[kept])

    def _hash(self, documents: list[Document]) -> UInt64s:
        """128 bits of the text of each document finished here: among a trillion, none are likely equal."""
        digests = []
        for document in documents:
            self._running_hash.update(document.text.encode())
            if not document.unfinished:
                digests.append(self._running_hash.digest())
                self._running_hash = _new_hash()
        return np.frombuffer(b"".join(digests), dtype="<u8").reshape(-1, 2)


def _new_hash() -> "hashlib.blake2b":
    return hashlib.blake2b(digest_size=16)
