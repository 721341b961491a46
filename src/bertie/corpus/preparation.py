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
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bertie import __version__
from bertie.base.errors import DataError, SettingsError
from bertie.base.executor import Executor, run_tasks
from bertie.base.files import (
    atomic_directory,
    atomic_file,
    read_json,
    remove_directory,
    remove_temporary_files,
    write_json,
)
from bertie.base.locks import lock_directory
from bertie.base.progress import Progress
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
# The files and directories that a run writes.
_KNOWN_NAME = re.compile(
    r"\.lock|parts|tokenizer|(train|held_out)-([a-z-]+-)?\d{5}|skipped\.txt|manifest\.json"
)

UInt64s = npt.NDArray[np.uint64]
ManifestSettings = dict[str, float | str | None]
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
    groups = group_by_language(inputs, language, language_column)
    settings = _make_settings(held_out, groups, format, column, language_column)
    tokenizer = Tokenizer.load(tokenizer_directory)
    tokenizer.encode("")  # compiles the kernels once, if need be, and not in every worker
    with lock_directory(output):
        plan = _make_plan(groups, tokenizer, settings)
        if _is_prepared(output, plan, force):
            return Corpus.open(output).manifest
        errors = InputErrors(on_error)
        tasks = _list_tasks(groups, format, errors, language_column)
        _start_or_resume(output, plan, tokenizer)
        context = _TaskContext(output / "tokenizer", tokenizer.fingerprint, column, on_error)
        part_counts = _write_parts(tasks, output, context, workers)
        _write_skipped(output, len(tasks), errors)
        _check_text(output, inputs, tasks, part_counts)
        return _assemble_corpus(output, tokenizer, settings, held_out, tasks, part_counts, errors, workers)


def _make_settings(
    held_out: float, languages: Iterable[str], format: Format | None, column: str, language_column: str | None
) -> ManifestSettings:
    if not 0 <= held_out < 1:
        raise SettingsError(f"held_out = {held_out}: expected a fraction of the documents, from 0 to below 1")
    settings = ManifestSettings(held_out=held_out, language=",".join(languages), format=format, column=column)
    return settings | ({"language_column": language_column} if language_column else {})


def _list_tasks(
    groups: Mapping[str, Sequence[Path]],
    format: Format | None,
    errors: InputErrors,
    language_column: str | None,
) -> list[Task]:
    """Split the inputs into tasks; those of each language are consecutive."""
    tasks: list[Task] = []
    for code, files in groups.items():
        column = LanguageColumn(language_column, code, tuple(groups)) if language_column else None
        tasks += [(code, task) for task in split_inputs(files, format, errors, column)]
    return tasks


def read_skipped(corpus: Path) -> Iterator[str]:
    """Yield the messages about the inputs of a corpus that could not be read."""
    if (corpus / SKIPPED_FILE).exists():
        with (corpus / SKIPPED_FILE).open("rb") as lines:
            yield from (os.fsdecode(line.rstrip(b"\n")) for line in lines)


def _make_plan(
    groups: Mapping[str, Sequence[Path]], tokenizer: Tokenizer, settings: ManifestSettings
) -> dict[str, Any]:
    """Return everything that determines the corpus.

    A run resumes only if its plan is the same. `on_error` is not part of the plan, so that a run that
    stopped at an unreadable input can resume and skip this input.
    """
    return {
        "bertie": __version__,  # another version may split the inputs differently
        "tokenizer": tokenizer.fingerprint,
        "settings": settings,
        "inputs": " ".join(map(_fingerprint_inputs, groups.values())),
    }


def _fingerprint_inputs(inputs: Sequence[Path]) -> str:
    """Hash the path, the size and the time of the last change of every input."""
    digest = hashlib.sha256()
    for path in inputs:
        status = path.stat()
        digest.update(os.fsencode(f"{os.path.abspath(path)}\0{status.st_size}\0{status.st_mtime_ns}\0"))
    return digest.hexdigest()


def _reject_other_files(output: Path) -> None:
    """Raise DataError if `output` holds anything but a corpus, finished or not."""
    is_started = any((output / name).is_file() for name in ("parts/plan.json", "manifest.json"))
    for name in sorted(file.name for file in output.iterdir()):
        if name != ".lock" and not (is_started and _KNOWN_NAME.fullmatch(name)):
            raise DataError(f"{output}: contains other files ({name}); choose a new directory")


def _is_prepared(output: Path, plan: dict[str, Any], force: bool) -> bool:
    """Return whether a killed run with this plan had already written the whole corpus.

    With `force`, remove a corpus of another plan.

    Raises:
        DataError: there is a corpus of another plan, finished or not, and `force` is false; or
            `output` has other contents.
    """
    _reject_other_files(output)
    is_finished, parts = (output / "manifest.json").exists(), output / "parts"
    has_same_plan = (parts / "plan.json").exists() and read_json(parts / "plan.json") == plan
    if is_finished:
        remove_directory(parts)
    if has_same_plan:
        return is_finished
    if force:
        _discard(output)
    elif is_finished:
        raise DataError(
            f"{output}: already contains a prepared corpus; choose another directory, or replace it "
            f"with --force"
        )
    elif parts.exists():
        raise DataError(
            f"{output}: contains an unfinished corpus of other inputs or settings; choose another "
            f"directory, or replace it with --force"
        )
    return False


def _start_or_resume(output: Path, plan: dict[str, Any], tokenizer: Tokenizer) -> None:
    """Record the plan of a new run, and write the tokenizer."""
    parts = output / "parts"
    if not parts.exists():
        with atomic_directory(parts) as temporary:
            write_json(temporary / "plan.json", plan)
    with atomic_directory(output / "tokenizer") as temporary:
        tokenizer.save(temporary)


def _discard(output: Path) -> None:
    """Remove everything that runs write; last the files by which a run recognizes a corpus."""
    last = [output / "parts", output / "manifest.json"]
    for path in [*(path for path in output.iterdir() if path not in last), *last]:
        if path.is_dir():
            remove_directory(path)
        elif path.name != ".lock":
            path.unlink(missing_ok=True)


def _check_text(
    output: Path, inputs: Sequence[Path], tasks: Sequence[Task], part_counts: Sequence["_PartCounts"]
) -> None:
    """Check that each language has a document with text; otherwise remove the output.

    Raises:
        DataError: a language has none.
    """
    languages = {code for code, _ in tasks}
    found = {code for (code, _), counts in zip(tasks, part_counts, strict=True) if counts.documents}
    if found and found == languages:
        return
    first_error = next(read_skipped(output), None)
    _discard(output)
    if not found:
        message = f"{inputs[0]}: no text in any document of this file or the other inputs"
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


def _write_parts(
    tasks: list[Task], output: Path, context: _TaskContext, workers: int | Executor
) -> list[_PartCounts]:
    """Write the parts that do not exist yet, and return the counts of all parts."""
    parts = [part_directory(output / "parts", index) for index in range(len(tasks))]
    sizes = [sum(split.size for split in splits) for _, splits in tasks]
    missing = [index for index, part in enumerate(parts) if not part.exists()]
    done = sum(sizes) - sum(sizes[index] for index in missing)
    total = round(sum(sizes) / 1e6)
    with Progress("preparing documents", total, unit="MB", done=round(done / 1e6)) as progress:
        arguments = [(parts[index], tasks[index]) for index in missing]
        try:
            for position, _ in run_tasks(partial(_write_part, context), arguments, workers):
                done += sizes[missing[position]]
                progress.update(round(done / 1e6))
        except InputError as error:  # other inputs are another plan, which only `force` may put in its place
            again = "run again with --force (force=True), or skip such inputs with --on-error skip"
            raise DataError(f"{error}; then {again}") from None
    return [_PartCounts(**read_json(part / "counts.json")) for part in parts]


def _write_part(context: _TaskContext, argument: tuple[Path, Task]) -> None:
    part, (language, splits) = argument
    tokenizer = _load_tokenizer(context.tokenizer_directory, context.fingerprint)
    encoder, errors = _Encoder(tokenizer, language), InputErrors(context.on_error)
    batches = batch_documents(read_splits(splits, context.column, errors))
    with atomic_directory(part, has_twins=True) as temporary:
        write_shard(temporary, map(encoder.encode, batches), len(tokenizer.vocabulary))
        write_hashes(temporary, np.concatenate([np.empty((0, 2), np.uint64), *encoder.hashes]))
        (temporary / SKIPPED_FILE).write_bytes(_encode_messages(errors))
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


def _encode_messages(errors: InputErrors) -> bytes:
    # The names of files need not be UTF-8.
    return b"".join(os.fsencode(message) + b"\n" for message in errors.messages)


def _write_skipped(output: Path, part_count: int, errors: InputErrors) -> None:
    """Write all messages about skipped inputs to one file, if there are any."""
    with atomic_file(output / SKIPPED_FILE) as temporary, temporary.open("wb") as file:
        file.write(_encode_messages(errors))
        for index in range(part_count):
            with (part_directory(output / "parts", index) / SKIPPED_FILE).open("rb") as lines:
                shutil.copyfileobj(lines, file)
    if not (output / SKIPPED_FILE).stat().st_size:
        (output / SKIPPED_FILE).unlink()


def _assemble_corpus(
    output: Path,
    tokenizer: Tokenizer,
    settings: ManifestSettings,
    held_out: float,
    tasks: list[Task],
    part_counts: list[_PartCounts],
    errors: InputErrors,
    workers: int | Executor,
) -> Manifest:
    """Assemble all parts into shards, write the manifest, and remove the parts."""
    offsets = np.cumsum([0, *(counts.documents for counts in part_counts)])
    codes = tuple(code for code, _ in tasks)
    languages = codes if len(set(codes)) > 1 else ()
    parts = Parts(output / "parts", offsets, len(tokenizer.vocabulary), languages)
    assign_documents(parts, held_out)
    files = assemble_shards(parts, output, workers)
    files |= {f"tokenizer/{file.name}": record_file(file) for file in (output / "tokenizer").iterdir()}
    skipped = sum((Counter(counts.skipped) for counts in part_counts), errors.counts)
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
