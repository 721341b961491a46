"""Prepare a corpus for pre-training."""

import sys
from collections.abc import Iterable
from pathlib import Path

from bertie.api.arguments import PathLike, absolute_if, as_paths, open_workers, print_skipped
from bertie.corpus import preparation
from bertie.corpus.assembly import MIN_DOCUMENTS_TO_HOLD_OUT
from bertie.corpus.documents import OnError
from bertie.corpus.formats import Format
from bertie.corpus.input_languages import Language
from bertie.corpus.readers import check_columns, list_inputs
from bertie.corpus.shards import Corpus, Manifest


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

    Splits documents into sentences, drops duplicate documents and keeps a held-out part. A stopped run
    resumes when the same call is made again.

    Args:
        inputs: a file, folder or pattern of text, or several of them.
        tokenizer: a tokenizer directory, such as `learn_vocabulary` writes.
        out: the corpus directory to write.
        held_out: the fraction of documents kept for evaluation, from 0 to below 1.
        format: the format of every input; detected file by file if not given.
        column: the key or column of the text in JSON lines, csv, tsv, Parquet and Arrow files.
        language: the ISO 639-1 code of the language, or the path of each: {"de": "texts/german", "en": …},
            or the codes in `language_column`: ["de", "en"].
        language_column: the key or column that gives the language of each document, as one of the codes.
        on_error: "stop" at an unreadable input, or "skip" and count it.
        workers: processes to use; all available processors if not given.
        scheduler: the address of a Dask scheduler, as `tcp://HOST:PORT`, whose workers do the work instead
            of local processes; they need the same file system, at the same paths.
        force: replace a corpus that is in `out` already.

    Returns: the corpus; `corpus.manifest` has its counts.

    Raises:
        DataError: an input cannot be read, there is no text, or `out` holds more than the parts of a
            stopped run. With `force`, it may hold a corpus.
        ModelError: the tokenizer cannot be read.
        SettingsError: an argument is out of range or unknown, a table has no such column, or no scheduler
            is at the address.
        BertieError: the scheduler has no workers, or a worker differs from this process.

    Example:
        >>> corpus = bertie.prepare("text/", tokenizer="tokenizer", out="corpus", held_out=0.2)
        >>> corpus.manifest.train.documents > 0
        True
    """
    output, tokenizer_directory = Path(out), Path(tokenizer)
    files = absolute_if(scheduler, list_inputs(as_paths(inputs), [output, tokenizer_directory]))
    check_columns(files, format, column, language_column)
    options = (held_out, language, format, column, on_error, force, language_column)
    with open_workers(workers, scheduler, files[:1], writes=output) as pool:
        written = output.absolute() if scheduler else output
        manifest = preparation.prepare(files, tokenizer_directory, written, pool, *options)
    _print_summary(manifest, output)
    return Corpus.open(output)


def _print_summary(manifest: Manifest, output: Path) -> None:
    """Print the counts of a corpus to stderr."""
    for split, counts in (("training", manifest.train), ("held out", manifest.held_out)):
        print(f"{split}: {counts.documents:,} documents, {counts.tokens:,} tokens", file=sys.stderr)
    if not manifest.held_out.documents:
        print(
            "warning: no held-out documents, which pretrain needs to measure its progress; prepare "
            f"{MIN_DOCUMENTS_TO_HOLD_OUT} or more documents, with --held-out above 0",
            file=sys.stderr,
        )
    print(
        f"dropped: {manifest.duplicates_dropped:,} duplicate and "
        f"{manifest.empty_documents_dropped:,} empty documents",
        file=sys.stderr,
    )
    print_skipped(manifest.skipped, preparation.read_skipped(output))
    if manifest.skipped:
        print(f"all skipped inputs are listed in {output / preparation.SKIPPED_FILE}", file=sys.stderr)
