"""`bertie prepare`"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from bertie.commands.options import CPUS, Column, Format, Inputs, Language, OnError, Workers, print_skipped


def prepare(
    inputs: Inputs,
    tokenizer: Annotated[Path, typer.Option(help="A tokenizer directory, such as `bertie vocab` writes.")],
    out: Annotated[Path, typer.Option(help="The corpus to write.")],
    held_out: Annotated[
        float, typer.Option(help="Share of the documents kept to judge the model by.")
    ] = 0.005,
    format: Format = None,
    column: Column = "text",
    language: Language = "en",
    on_error: OnError = "stop",
    workers: Workers = CPUS,
) -> None:
    """Turn text into a corpus of word pieces, ready for pre-training."""
    from bertie.corpus.preparation import SKIPPED_FILE, read_skipped
    from bertie.corpus.preparation import prepare as run
    from bertie.corpus.readers import list_inputs

    files = list_inputs(inputs, [out, tokenizer])
    manifest = run(files, tokenizer, out, workers, held_out, language, format, column, on_error)
    for split, counts in (("train", manifest.train), ("held out", manifest.held_out)):
        print(f"{split}: {counts.documents:,} documents, {counts.tokens:,} tokens", file=sys.stderr)
    duplicates, empty = manifest.duplicates_dropped, manifest.empty_documents_dropped
    print(f"dropped: {duplicates:,} duplicates, {empty:,} empty documents", file=sys.stderr)
    print_skipped(manifest.skipped, read_skipped(out))
    if manifest.skipped:
        print(f"all that was skipped: {out / SKIPPED_FILE}", file=sys.stderr)
    print(out)
