"""Prepare a corpus: tokenize documents and write them as shards.

The work is done in tasks on worker processes, in two passes. First, each task reads some of the
inputs and writes a part: token ids, and a hash of each document. Then the parts are assembled into
shards (`assembly.py`).

Parts and shards are written atomically, so a run that was killed resumes where it stopped. The
result depends on the inputs and the settings only, not on the number of workers. A task holds some
megabytes of text in memory.
"""

import hashlib
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bertie.base.errors import BertieError, DataError, SettingsError
from bertie.base.executor import Executor, run_tasks
from bertie.base.files import (
    atomic_directory,
    atomic_file,
    read_json,
    remove_directory,
    remove_temporary_files,
    remove_temporary_names,
    write_json,
)
from bertie.base.locks import LockedError, lock_directory, lock_file
from bertie.base.progress import Progress
from bertie.base.storage import check_readable
from bertie.corpus.assembly import (
    DUPLICATE,
    Parts,
    assemble_shards,
    assign_documents,
    part_directory,
    write_hashes,
)
from bertie.corpus.documents import Document, InputError, InputErrors, OnError
from bertie.corpus.formats import Format
from bertie.corpus.input_languages import Language, group_by_language
from bertie.corpus.input_splits import InputSplit, read_splits, split_inputs
from bertie.corpus.preparation_plan import (
    ManifestSettings,
    TaskList,
    discard,
    is_prepared,
    make_plan,
    read_plan,
    remove_leftovers,
    start_or_resume,
)
from bertie.corpus.shards import (
    Corpus,
    Manifest,
    Shard,
    count_split,
    record_file,
    write_manifest,
    write_shard,
)
from bertie.corpus.sources import LanguageColumn
from bertie.corpus.word_counts import batch_documents
from bertie.text.tokenizer import Tokenizer

SKIPPED_FILE = "skipped.txt"
UInt64s = npt.NDArray[np.uint64]
Task = tuple[str, list[InputSplit]]  # the language of the splits, and the splits


def prepare(
    inputs: Sequence[Path],
    tokenizer_directory: Path,
    output: Path,
    workers: int | Executor,
    held_out: float = 0.005,
    language: Language = "en",
    format: Format | None = None,
    column: str = "text",
    on_error: OnError = "stop",
    force: bool = False,
    language_column: str | None = None,
) -> Manifest:
    """Prepare the corpus `output` for pre-training from the documents of `inputs`.

    Of documents with the same text, the first is kept. Documents are held out by a hash of their
    text. If a run with the same inputs, tokenizer and settings was stopped, this call resumes it.

        manifest = prepare(list_inputs(["text/"]), Path("tokenizer"), Path("corpus"), workers=4)
        print(f"{manifest.train.documents:,} documents, {manifest.train.tokens:,} tokens")

    Args:
        inputs: the files, as `bertie.corpus.readers.list_inputs` returns them.
        tokenizer_directory: the tokenizer, which is copied to the corpus.
        output: the directory to write.
        workers: the number of processes, or a cluster.
        held_out: the expected fraction of the documents to hold out for evaluation, in [0, 1).
        language: the code of the language, or the paths or the codes of several (see `group_by_language`).
        format: the format of all files; None to detect the format of each.
        column: the key or column that holds the text, in JSON lines and tables.
        on_error: "stop" raises at the first unreadable input; "skip" counts such inputs in the
            manifest and lists them in `skipped.txt`. Empty files are always skipped.
        force: replace a corpus, or an unfinished one of another call, in `output`.
        language_column: the key or column that gives the language of each document, for several codes.

    Raises:
        DataError: an input cannot be read, no document of a language has text, or `output` has other
            contents, such as a corpus without `force`.
        ModelError: the tokenizer cannot be read.
        SettingsError: `held_out` is out of range, the language is unknown, `output` cannot be created,
            or a table has no such column.
        BertieError: another process writes to `output`, workers die, or a package is missing.
    """
    options = (held_out, language, format, column, language_column)
    work = _Work.make(inputs, tokenizer_directory, output, workers, *options)
    with lock_directory(output):
        plan = work.plan()
        if is_prepared(output, plan, force):
            return Corpus.open(output).manifest
        tasks = work.start(plan, on_error)
        work.write_parts(tasks, range(len(tasks)), on_error, workers)
        return _assemble_corpus(output, workers)


def prepare_part(
    inputs: Sequence[Path],
    tokenizer_directory: Path,
    output: Path,
    workers: int,
    job: int,
    jobs: int,
    held_out: float = 0.005,
    language: Language = "en",
    format: Format | None = None,
    column: str = "text",
    on_error: OnError = "stop",
    language_column: str | None = None,
) -> None:
    """Write the parts of job `job` of `jobs` equal jobs, which `join` assembles to the corpus `output`.

    The jobs may run at the same time, on machines that share a file system, each with the same arguments.
    A job that was stopped resumes; a finished one has nothing to do. Each job lists all inputs.

    Args:
        job: the number of the job, from 1.
        jobs: the number of jobs.
        inputs, tokenizer_directory, output, workers, held_out, language, format, column, on_error,
            language_column: as in `prepare`.

    Raises:
        SettingsError: there is no such job, or as in `prepare`.
        DataError: the corpus was started with other arguments, or as in `prepare`.
        BertieError: another process runs the same job, or as in `prepare`.
    """
    if not 1 <= job <= jobs:
        raise SettingsError(f"part {job}/{jobs}: expected I/N with I from 1 to N, such as 1/{max(jobs, 1)}")
    options = (held_out, language, format, column, language_column)
    work = _Work.make(inputs, tokenizer_directory, output, workers, *options)
    with lock_directory(output, shared=True):
        plan = work.plan(jobs)
        with lock_file(output / "parts", wait=True):
            remove_temporary_names(output / "tokenizer")
            if is_prepared(output, plan, force=False):
                return
            tasks = work.start(plan, on_error)
        try:
            with lock_file(output / "parts" / f"job-{job}"):
                work.write_parts(tasks, range(job - 1, len(tasks), jobs), on_error, workers)
        except LockedError:
            raise BertieError(
                f"{output}: another process is writing part {job}/{jobs}; wait for it, or choose another part"
            ) from None


def join(output: Path, workers: int) -> Manifest:
    """Assemble the corpus `output` from the parts that all jobs of `prepare_part` have written.

    Neither the inputs nor the original tokenizer are read. The bytes are those that `prepare` writes.

    Raises:
        DataError: `output` has no parts, a job is not finished, or no document of a language has text.
        BertieError: a process is writing to `output`, or workers die.
    """
    is_finished = (output / "manifest.json").exists()
    if not is_finished and not (output / "parts/plan.json").exists():
        raise DataError(f"{output}: no parts to join; run `bertie prepare --part I/N` first, with this --out")
    if is_finished:
        remove_leftovers(output)
        return Corpus.open(output).manifest
    with lock_directory(output):
        plan, tasks = read_plan(output)
        parts = [part_directory(output / "parts", index) for index in range(len(tasks.languages))]
        jobs = plan.get("jobs", 1)
        missing = sorted({index % jobs + 1 for index, part in enumerate(parts) if not part.exists()})
        if missing:
            names = ", ".join(f"{job}/{jobs}" for job in missing)
            again = "run `bertie prepare` with each of these --part" if jobs > 1 else "run `bertie prepare`"
            raise DataError(f"{output}: not finished: part {names}; {again} again, then join")
        return _assemble_corpus(output, workers)


@dataclass(frozen=True)
class _Work:
    """The inputs and the settings of a corpus, which `prepare` writes whole and a job writes in part."""

    groups: Mapping[str, Sequence[Path]]
    tokenizer: Tokenizer
    output: Path
    settings: ManifestSettings
    format: Format | None
    column: str
    language_column: str | None

    @classmethod
    def make(
        cls,
        inputs: Sequence[Path],
        tokenizer_directory: Path,
        output: Path,
        workers: int | Executor,
        held_out: float,
        language: Language,
        format: Format | None,
        column: str,
        language_column: str | None,
    ) -> "_Work":
        check_readable(inputs, here=workers == 1)
        groups = group_by_language(inputs, language, language_column)
        settings = _make_settings(held_out, groups, format, column, language_column)
        tokenizer = Tokenizer.load(tokenizer_directory)
        tokenizer.encode("")  # compiles the kernels once, if need be, and not in every worker
        return cls(groups, tokenizer, output, settings, format, column, language_column)

    def plan(self, jobs: int = 1) -> dict[str, Any]:
        return make_plan(self.groups, self.tokenizer, self.settings, jobs)

    def start(self, plan: Mapping[str, Any], on_error: OnError) -> list[Task]:
        """Split the inputs into tasks, those of each language consecutive, and record the plan."""
        errors = InputErrors(on_error)
        codes = tuple(self.groups)
        tasks: list[Task] = []
        for code, files in self.groups.items():
            column = LanguageColumn(self.language_column, code, codes) if self.language_column else None
            tasks += [(code, task) for task in split_inputs(files, self.format, errors, column)]
        first_input = str(next(iter(self.groups.values()))[0])
        languages = [code for code, _ in tasks]
        start_or_resume(
            self.output,
            plan,
            TaskList(languages, first_input, dict(errors.counts), errors.messages),
            self.tokenizer,
        )
        return tasks

    def write_parts(
        self, tasks: list[Task], indices: range, on_error: OnError, workers: int | Executor
    ) -> None:
        """Write the parts with these indices that do not exist yet."""
        parts = {index: part_directory(self.output / "parts", index) for index in indices}
        sizes = {index: sum(split.size for split in tasks[index][1]) for index in indices}
        missing = [index for index, part in parts.items() if not part.exists()]
        done = sum(sizes.values()) - sum(sizes[index] for index in missing)
        total = round(sum(sizes.values()) / 1e6)
        context = _TaskContext(self.output / "tokenizer", self.tokenizer.fingerprint, self.column, on_error)
        with Progress("preparing documents", total, unit="MB", done=round(done / 1e6)) as progress:
            arguments = [(parts[index], tasks[index]) for index in missing]
            try:
                for position, _ in run_tasks(partial(_write_part, context), arguments, workers):
                    done += sizes[missing[position]]
                    progress.update(round(done / 1e6))
            except InputError as error:  # other inputs are another plan, which only `force` may replace
                again = "run again with --force (force=True), or skip such inputs with --on-error skip"
                raise DataError(f"{error}; then {again}") from None


def _make_settings(
    held_out: float, languages: Iterable[str], format: Format | None, column: str, language_column: str | None
) -> ManifestSettings:
    if not 0 <= held_out < 1:
        raise SettingsError(f"held_out = {held_out}: expected a fraction of the documents, from 0 to below 1")
    settings = ManifestSettings(held_out=held_out, language=",".join(languages), format=format, column=column)
    return settings | ({"language_column": language_column} if language_column else {})


def read_skipped(corpus: Path) -> Iterator[str]:
    """Yield the messages about the inputs of a corpus that could not be read."""
    if (corpus / SKIPPED_FILE).exists():
        with (corpus / SKIPPED_FILE).open("rb") as lines:
            yield from (os.fsdecode(line.rstrip(b"\n")) for line in lines)


def _check_text(output: Path, tasks: TaskList, part_counts: Sequence["_PartCounts"]) -> None:
    """Check that each language has a document with text; otherwise remove the output.

    Raises:
        DataError: a language has none.
    """
    languages = set(tasks.languages)
    found = {code for code, counts in zip(tasks.languages, part_counts, strict=True) if counts.documents}
    if found and found == languages:
        return
    first_error = next(read_skipped(output), None)
    discard(output)
    if not found:
        message = f"{tasks.first_input}: no text in any document of this file or the other inputs"
        raise DataError(f"{message}; {first_error or 'add files that hold text'}")
    raise DataError(
        f"no document of language {min(languages - found)} has text; add such documents, or leave this "
        f"language out"
    )


@dataclass(frozen=True)
class _TaskContext:
    """The arguments that all tasks share.

    The fingerprint identifies the content of the tokenizer's directory.
    """

    tokenizer_directory: Path
    fingerprint: str
    column: str
    on_error: OnError


@dataclass(frozen=True)
class _PartCounts:
    """The number of documents that a part keeps, and of everything left out."""

    documents: int
    empty_documents: int
    empty_sentences: int
    skipped: Mapping[str, int]


def _write_part(context: _TaskContext, argument: tuple[Path, Task]) -> None:
    part, (language, splits) = argument
    tokenizer = _load_tokenizer(context.tokenizer_directory, context.fingerprint)
    encoder, errors = _Encoder(tokenizer, language), InputErrors(context.on_error)
    batches = batch_documents(read_splits(splits, context.column, errors))
    with atomic_directory(part, has_twins=True) as temporary:
        write_shard(temporary, map(encoder.encode, batches), len(tokenizer.vocabulary))
        write_hashes(temporary, np.concatenate([np.empty((0, 2), np.uint64), *encoder.hashes]))
        (temporary / SKIPPED_FILE).write_bytes(_encode_messages(errors.messages))
        write_json(temporary / "counts.json", encoder.counts | {"skipped": errors.counts})


@cache  # once in each worker
def _load_tokenizer(directory: Path, fingerprint: str) -> Tokenizer:
    """Load a tokenizer; `fingerprint` identifies the one that the directory holds."""
    return Tokenizer.load(directory)


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


def _encode_messages(messages: Iterable[str]) -> bytes:
    # The names of files need not be UTF-8.
    return b"".join(os.fsencode(message) + b"\n" for message in messages)


def _write_skipped(output: Path, tasks: TaskList) -> None:
    """Write all messages about skipped inputs to one file, if there are any."""
    with atomic_file(output / SKIPPED_FILE) as temporary, temporary.open("wb") as file:
        file.write(_encode_messages(tasks.messages))
        for index in range(len(tasks.languages)):
            with (part_directory(output / "parts", index) / SKIPPED_FILE).open("rb") as lines:
                shutil.copyfileobj(lines, file)
    if not (output / SKIPPED_FILE).stat().st_size:
        (output / SKIPPED_FILE).unlink()


def _assemble_corpus(output: Path, workers: int | Executor) -> Manifest:
    """Assemble all parts into shards as the recorded plan says, write the manifest, and remove the parts."""
    plan, tasks = read_plan(output)
    settings, tokenizer = plan["settings"], Tokenizer.load(output / "tokenizer")
    folders = (part_directory(output / "parts", index) for index in range(len(tasks.languages)))
    part_counts = [_PartCounts(**read_json(folder / "counts.json")) for folder in folders]
    _write_skipped(output, tasks)
    _check_text(output, tasks, part_counts)
    offsets = np.cumsum([0, *(counts.documents for counts in part_counts)])
    languages = tuple(tasks.languages) if len(set(tasks.languages)) > 1 else ()
    parts = Parts(output / "parts", offsets, len(tokenizer.vocabulary), languages)
    assign_documents(parts, settings["held_out"])
    files = assemble_shards(parts, output, workers)
    files |= {f"tokenizer/{file.name}": record_file(file) for file in (output / "tokenizer").iterdir()}
    skipped = sum((Counter(counts.skipped) for counts in part_counts), Counter(tasks.skipped))
    manifest = Manifest(
        tokenizer_fingerprint=tokenizer.fingerprint,
        vocabulary_size=parts.vocabulary_size,
        settings=settings,
        train=count_split("train", files, parts.vocabulary_size),
        held_out=count_split("held_out", files, parts.vocabulary_size),
        duplicates_dropped=int(np.count_nonzero(parts.read_assignments() == DUPLICATE)),
        empty_documents_dropped=sum(counts.empty_documents for counts in part_counts),
        empty_sentences_dropped=sum(counts.empty_sentences for counts in part_counts),
        skipped=dict(sorted(skipped.items())),
        files=dict(sorted(files.items())),
    )
    remove_temporary_files(output)  # of killed workers
    write_manifest(output, manifest)
    remove_directory(parts.directory)
    return manifest
