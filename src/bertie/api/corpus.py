"""Prepare a corpus for pre-training."""

import sys
from collections.abc import Iterable
from pathlib import Path

from bertie.api.arguments import (
    PathLike,
    absolute_if,
    as_paths,
    count_processes,
    open_workers,
    print_skipped,
)
from bertie.base.arguments import checked
from bertie.base.errors import SettingsError
from bertie.base.storage import RemotePath, as_path, fetch_directory
from bertie.base.texts import count_noun
from bertie.corpus import preparation
from bertie.corpus.assembly import HELD_OUT_ADVICE
from bertie.corpus.documents import OnError
from bertie.corpus.formats import Format
from bertie.corpus.input_languages import Language
from bertie.corpus.manifest import MANIFEST_FILE, Manifest
from bertie.corpus.part_writer import SKIPPED_FILE
from bertie.corpus.preparation import PreparationOptions
from bertie.corpus.prepared import Corpus
from bertie.corpus.readers import check_columns, list_inputs
from bertie.corpus.remote_corpora import fetch_corpus, staged_output


@checked
def prepare(
    inputs: PathLike | Iterable[PathLike],
    *,
    tokenizer: PathLike,
    out: PathLike,
    held_out: float = 0.005,
    format: Format | None = None,
    column: str = "text",
    language: Language = "en",
    language_column: str | None = None,
    on_error: OnError = "stop",
    workers: int | None = None,
    scheduler: str | None = None,
    force: bool = False,
) -> Corpus:
    """Turn text into a corpus of tokens for pre-training, like `bertie prepare`.

    Splits documents into sentences, drops duplicate documents and keeps a held-out part. The same call
    resumes a stopped run.

    Args:
        inputs: a file, folder, pattern or URL of text, or several of them.
        tokenizer: a tokenizer directory, such as `learn_vocabulary` writes, or its URL.
        out: the corpus directory to write, or its URL, such as s3://BUCKET/corpus.
        held_out: the fraction of documents kept for evaluation, from 0 to below 1.
        format: the format of every input; detected file by file if not given.
        column: the key or column of the text in JSON lines, csv, tsv, Parquet and Arrow files.
        language: one ISO 639-1 code for all inputs; a dict from each code to its file or folder, such as
            {"de": "texts/german", "en": …}; or, with `language_column`, the list of the codes that occur
            in that column, such as ["de", "en"].
        language_column: the key or column that gives the language of each document, as one of the codes.
        on_error: "stop" at an unreadable input, or "skip" and count it.
        workers: processes to use; all available processors if not given.
        scheduler: a Dask scheduler, `tcp://HOST:PORT`, for its workers instead of local processes.
        force: replace a corpus that is in `out` already.

    Returns: the corpus; `corpus.manifest` has its counts.

    Raises:
        DataError: an input cannot be read, there is no text, or `out` holds other files.
        ModelError: the tokenizer cannot be read.
        SettingsError: an argument is wrong, a table has no such column, or there is no such scheduler.
        BertieError: the scheduler has no workers, or a worker differs from this process.

    Example:
        >>> corpus = bertie.prepare("text/", tokenizer="tokenizer", out="corpus", held_out=0.2)
        >>> corpus.manifest.train.documents > 0
        True
    """
    output, tokenizer_directory = as_path(out), fetch_directory(as_path(tokenizer))
    files = absolute_if(scheduler, list_inputs(as_paths(inputs), [output, tokenizer_directory]))
    check_columns(files, format, column, language_column)
    with staged_output(output, force, MANIFEST_FILE) as folder:
        force = force or folder != output  # a folder of the cache has only what an earlier run left
        options = PreparationOptions(held_out, language, format, column, language_column, on_error)
        (written,) = absolute_if(scheduler, [folder])
        with open_workers(workers, scheduler, files[:1], writes=folder) as pool:
            manifest = preparation.prepare(files, tokenizer_directory, written, pool, options, force)
        _print_summary(manifest, folder)
    return Corpus.open(fetch_corpus(output))


@checked
def prepare_part(
    inputs: PathLike | Iterable[PathLike],
    part: int,
    parts: int,
    *,
    tokenizer: PathLike,
    out: PathLike,
    held_out: float = 0.005,
    format: Format | None = None,
    column: str = "text",
    language: Language = "en",
    language_column: str | None = None,
    on_error: OnError = "stop",
    workers: int | None = None,
) -> None:
    """Prepare part `part` of `parts` of a corpus, like `bertie prepare --part I/N`.

    The parts may be prepared at the same time, by processes or machines that share a file system. The
    call is the same for each, except for `part`. `join_parts` makes the corpus of them. A stopped part
    resumes when the same call is made again.

    Args:
        part: the number of the part, from 1 to `parts`.
        parts: the number of parts.
        inputs, tokenizer, out, held_out, format, column, language, language_column, on_error, workers: as
            in `prepare`.

    Raises:
        DataError, ModelError, SettingsError: as in `prepare`, or the parts in `out` were started with
            other arguments, or there is no such part.
        BertieError: another process prepares the same part.

    Example:
        >>> for part in (1, 2):
        ...     bertie.prepare_part("text/", part, 2, tokenizer="tokenizer", out="joined", held_out=0.2)
        >>> bertie.join_parts("joined").manifest.train.documents > 0
        True
    """
    output, tokenizer_directory = _require_local(out), fetch_directory(as_path(tokenizer))
    files = list_inputs(as_paths(inputs), [output, tokenizer_directory])
    check_columns(files, format, column, language_column)
    options = PreparationOptions(held_out, language, format, column, language_column, on_error)
    cpus = count_processes(workers)
    preparation.prepare_part(files, tokenizer_directory, output, cpus, part, parts, options)


@checked
def join_parts(out: PathLike, *, workers: int | None = None) -> Corpus:
    """Join the parts of a corpus, like `bertie prepare --join`.

    Neither inputs nor settings are needed. The files are the same, byte for byte, as after one `prepare`.

    Args:
        out: the directory that `prepare_part` wrote.
        workers: processes to use; all available processors if not given.

    Raises:
        DataError: there are no parts, some are missing, or they hold no text.
        SettingsError: `workers` is less than 1.
        BertieError: another process is writing there.

    Example:
        >>> bertie.prepare_part("text/", 1, 1, tokenizer="tokenizer", out="whole", held_out=0.2)
        >>> bertie.join_parts("whole").manifest.train.documents > 0
        True
    """
    output = _require_local(out)
    manifest = preparation.join(output, count_processes(workers))
    _print_summary(manifest, output)
    return Corpus.open(output)


def _require_local(out: PathLike) -> Path:
    path = as_path(out)
    if isinstance(path, RemotePath):
        raise SettingsError(f"{path}: parts need a shared file system; choose a folder on one")
    return path


def _print_summary(manifest: Manifest, output: Path) -> None:
    """Print the counts of a corpus to stderr."""
    for split, counts in (("training", manifest.train), ("held out", manifest.held_out)):
        documents = count_noun(counts.documents, "document")
        print(f"{split}: {documents}, {count_noun(counts.tokens, 'token')}", file=sys.stderr)
    if not manifest.held_out.documents:
        print(
            "warning: no held-out documents, which pretrain needs to measure its progress; "
            f"{HELD_OUT_ADVICE}",
            file=sys.stderr,
        )
    print(
        f"dropped: {manifest.duplicates_dropped:,} duplicate and "
        f"{manifest.empty_documents_dropped:,} empty documents",
        file=sys.stderr,
    )
    print_skipped(manifest.skipped, preparation.read_skipped(output))
    if manifest.skipped:
        print(f"all skipped inputs are listed in {output / SKIPPED_FILE}", file=sys.stderr)
