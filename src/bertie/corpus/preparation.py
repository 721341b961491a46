"""Prepare a corpus: tokenize documents and write them as shards.

The work is done in tasks on worker processes, in two passes. First, each task reads some of the
inputs and writes a part (`part_writer.py`): token ids, and a hash of each document. Then the parts
are assembled into shards (`assembly.py`).

Parts and shards are written atomically, so a run that was killed resumes where it stopped. The
result depends on the inputs and the settings only, not on the number of workers. A task holds some
megabytes of text in memory.
"""

import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bertie.base.errors import BertieError, DataError, SettingsError
from bertie.base.executor import Executor, run_tasks
from bertie.base.files import (
    atomic_file,
    file_stamp,
    remove_directory,
    remove_temporary_files,
    remove_temporary_names,
)
from bertie.base.locks import LockedError, lock_directory, lock_file
from bertie.base.progress import Progress, byte_unit
from bertie.base.storage import check_readable
from bertie.corpus.assembly import (
    DUPLICATE,
    Parts,
    assemble_shards,
    assign_documents,
    part_directory,
)
from bertie.corpus.documents import InputError, InputErrors, OnError
from bertie.corpus.formats import Format
from bertie.corpus.input_languages import Language, group_by_language
from bertie.corpus.input_splits import split_inputs
from bertie.corpus.manifest import Manifest, count_split, record_file, write_manifest
from bertie.corpus.part_writer import (
    SKIPPED_FILE,
    PartCounts,
    Task,
    TaskContext,
    encode_messages,
    load_tokenizer,
    verify_part,
    write_part,
)
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
from bertie.corpus.prepared import Corpus
from bertie.corpus.sources import LanguageColumn
from bertie.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class PreparationOptions:
    """How the documents are read and divided.

    held_out         the expected fraction of the documents to hold out for evaluation, in [0, 1)
    language         the code of the language, or the paths or the codes of several (see
                     `group_by_language`)
    format           the format of all files; None to detect the format of each
    column           the key or column that holds the text, in JSON lines and tables
    language_column  the key or column that gives the language of each document, for several codes
    on_error         "stop" raises at the first unreadable input; "skip" counts such inputs in the manifest
                     and lists them in `skipped.txt`. Empty files are always skipped.

    Raises:
        SettingsError: `held_out` is out of range.
    """

    held_out: float = 0.005
    language: Language = "en"
    format: Format | None = None
    column: str = "text"
    language_column: str | None = None
    on_error: OnError = "stop"

    def __post_init__(self) -> None:
        if not 0 <= self.held_out < 1:
            raise SettingsError(
                f"held_out = {self.held_out}: expected a fraction of the documents, from 0 to below 1"
            )

    def in_manifest(self, languages: Iterable[str]) -> ManifestSettings:
        """Return what determines the corpus, given the codes of its languages."""
        settings = ManifestSettings(
            held_out=self.held_out, language=",".join(languages), format=self.format, column=self.column
        )
        return settings | ({"language_column": self.language_column} if self.language_column else {})


def prepare(
    inputs: Sequence[Path],
    tokenizer_directory: Path,
    output: Path,
    workers: int | Executor,
    options: PreparationOptions = PreparationOptions(),
    force: bool = False,
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
        options: how the documents are read and divided.
        force: replace a corpus, or an unfinished one of another call, in `output`.

    Raises:
        DataError: an input cannot be read, no document of a language has text, or `output` has other
            contents, such as a corpus without `force`.
        ModelError: the tokenizer cannot be read.
        SettingsError: the language is unknown, `output` cannot be created, or a table has no such column.
        BertieError: another process writes to `output`, workers die, or a package is missing.
    """
    preparation = _Preparation.create(inputs, tokenizer_directory, output, workers, options)
    with lock_directory(output):
        plan = preparation.plan()
        if is_prepared(output, plan, force):
            return Corpus.open(output).manifest
        tasks = preparation.start(plan)
        preparation.write_parts(tasks, range(len(tasks)))
        return _assemble_corpus(output, workers)


def prepare_part(
    inputs: Sequence[Path],
    tokenizer_directory: Path,
    output: Path,
    workers: int,
    job: int,
    jobs: int,
    options: PreparationOptions,
) -> None:
    """Write the parts of job `job` of `jobs` equal jobs.

    `join` assembles the parts of all jobs to the corpus `output`. The jobs may run at the same time, on
    machines that share a file system, each with the same arguments. A job that was stopped resumes; a
    finished one has nothing to do. Each job lists all inputs.

    Args:
        job: the number of the job, from 1.
        jobs: the number of jobs.
        inputs, tokenizer_directory, output, workers, options: as in `prepare`.

    Raises:
        SettingsError: there is no such job, or as in `prepare`.
        DataError: the corpus was started with other arguments, or as in `prepare`.
        BertieError: another process runs the same job, or as in `prepare`.
    """
    if not 1 <= job <= jobs:
        raise SettingsError(f"part {job}/{jobs}: expected I/N with I from 1 to N, such as 1/{max(jobs, 1)}")
    preparation = _Preparation.create(inputs, tokenizer_directory, output, workers, options)
    with lock_directory(output, shared=True):
        plan = preparation.plan(jobs)
        with lock_file(output / "parts", wait=True):
            remove_temporary_names(output / "tokenizer")
            if is_prepared(output, plan, force=False):
                return
            tasks = preparation.start(plan)
        try:
            with lock_file(output / "parts" / f"job-{job}"):
                preparation.write_parts(tasks, range(job - 1, len(tasks), jobs))
        except LockedError:
            raise BertieError(
                f"{output}: another process is writing part {job}/{jobs}; wait for it, or choose another part"
            ) from None


def join(output: Path, workers: int) -> Manifest:
    """Assemble the corpus `output` from the parts of all jobs.

    `prepare_part` has written them. Neither the inputs nor the original tokenizer are read. The corpus has
    the same bytes as one by `prepare`.

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


def read_skipped(corpus: Path) -> Iterator[str]:
    """Yield the messages about the inputs of a corpus that could not be read."""
    if (corpus / SKIPPED_FILE).exists():
        with (corpus / SKIPPED_FILE).open("rb") as lines:
            yield from (os.fsdecode(line.rstrip(b"\n")) for line in lines)


@dataclass(frozen=True)
class _Preparation:
    """The inputs and the settings of a corpus.

    `prepare` writes the whole corpus, and a job writes some of its parts.
    """

    groups: Mapping[str, Sequence[Path]]
    tokenizer: Tokenizer
    output: Path
    workers: int | Executor
    options: PreparationOptions

    @classmethod
    def create(
        cls,
        inputs: Sequence[Path],
        tokenizer_directory: Path,
        output: Path,
        workers: int | Executor,
        options: PreparationOptions,
    ) -> "_Preparation":
        check_readable(inputs, here=workers == 1)
        groups = group_by_language(inputs, options.language, options.language_column)
        return cls(groups, Tokenizer.load(tokenizer_directory), output, workers, options)

    def plan(self, jobs: int = 1) -> dict[str, Any]:
        """Return everything that determines the corpus, as `make_plan` does."""
        return make_plan(self.groups, self.tokenizer, self.options.in_manifest(self.groups), jobs)

    def start(self, plan: Mapping[str, Any]) -> list[Task]:
        """Split the inputs into tasks, one language after the other, and record the plan."""
        errors = InputErrors(self.options.on_error)
        tasks: list[Task] = []
        for code, files in self.groups.items():
            column = None
            if self.options.language_column:
                column = LanguageColumn(self.options.language_column, code, tuple(self.groups))
            splits_of_tasks = split_inputs(files, self.options.format, errors, column)
            tasks += [Task(code, splits) for splits in splits_of_tasks]
        task_list = TaskList(
            languages=[task.language for task in tasks],
            first_input=str(next(iter(self.groups.values()))[0]),
            skipped=dict(errors.counts),
            messages=errors.messages,
        )
        start_or_resume(self.output, plan, task_list, self.tokenizer)
        return tasks

    def write_parts(self, tasks: Sequence[Task], indices: range) -> None:
        """Write the parts with these indices that do not exist yet.

        Raises:
            DataError: an input cannot be read, or changes before it is read.
        """
        parts = {index: part_directory(self.output / "parts", index) for index in indices}
        sizes = {index: sum(split.size for split in tasks[index].splits) for index in indices}
        missing = [index for index, part in parts.items() if not part.exists()]
        done = sum(sizes.values()) - sum(sizes[index] for index in missing)
        size, unit = byte_unit(sum(sizes.values()))
        total = -(-sum(sizes.values()) // size)
        column, on_error = self.options.column, self.options.on_error
        context = TaskContext(self.output / "tokenizer", self.tokenizer.fingerprint, column, on_error)
        arguments = [(parts[index], tasks[index]) for index in missing]
        stamps = {split.path: file_stamp(split.path) for _, task in arguments for split in task.splits}
        again = "run again with --force (force=True)"
        if indices.step > 1:  # the other parts are of other jobs
            again = f"remove {self.output} and run all parts again"
        if arguments:
            load_tokenizer(context)  # compiles the kernels once, if need be, and not in every worker
        with Progress("preparing documents", total, unit, done=-(-done // size)) as progress:
            try:
                for position, _ in run_tasks(partial(write_part, context), arguments, self.workers):
                    for split in arguments[position][1].splits:
                        if file_stamp(split.path) not in (None, stamps[split.path]):
                            raise DataError(f"{split.path}: changed after it was listed; {again}")
                    done += sizes[missing[position]]
                    progress.update(-(-done // size))
            except InputError as error:  # other inputs are another plan, which only `force` may replace
                named = (path for path in stamps if str(error).startswith(f"{path}:"))
                if gone := next((path for path in named if not path.exists()), None):
                    raise DataError(
                        f"{gone}: removed after it was listed; restore it and run the same command again; "
                        f"without it, {again}"
                    ) from None
                skip = "skip such inputs with --on-error skip (on_error='skip')"
                raise DataError(f"{error}; then {again}, or {skip}") from None


def _assemble_corpus(output: Path, workers: int | Executor) -> Manifest:
    """Assemble all parts into shards as the recorded plan says.

    Write the manifest, and remove the parts.

    Raises:
        DataError: the tokenizer has changed, or no document of a language has text.
        ModelError: a part or the plan is damaged.
    """
    plan, tasks = read_plan(output)
    settings, tokenizer = plan["settings"], Tokenizer.load(output / "tokenizer")
    if tokenizer.fingerprint != plan["tokenizer"]:
        raise DataError(
            f"{output / 'tokenizer'}: changed since the corpus was started; remove {output} and prepare the "
            f"corpus again"
        )
    folders = [part_directory(output / "parts", index) for index in range(len(tasks.languages))]
    part_counts = [verify_part(folder) for folder in folders]
    _write_skipped(output, tasks, folders)
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


def _write_skipped(output: Path, tasks: TaskList, parts: Iterable[Path]) -> None:
    """Write all messages about skipped inputs to one file, if there are any."""
    with atomic_file(output / SKIPPED_FILE) as temporary, temporary.open("wb") as file:
        file.write(encode_messages(tasks.messages))
        for part in parts:
            with (part / SKIPPED_FILE).open("rb") as lines:
                shutil.copyfileobj(lines, file)
    if not (output / SKIPPED_FILE).stat().st_size:
        (output / SKIPPED_FILE).unlink()


def _check_text(output: Path, tasks: TaskList, part_counts: Sequence[PartCounts]) -> None:
    """Check that each language has a document with text; otherwise remove the output.

    Raises:
        DataError: a language has no such document.
    """
    languages = set(tasks.languages)
    found = {code for code, counts in zip(tasks.languages, part_counts, strict=True) if counts.documents}
    if found and found == languages:
        return
    first_error = next(read_skipped(output), None)
    discard(output)
    if not found:
        cause = first_error or f"the first one is {tasks.first_input}"
        raise DataError(f"the inputs contain no text ({cause}); add files that hold text")
    raise DataError(
        f"no document of language {min(languages - found)} has text; add such documents, or leave this "
        f"language out"
    )
