"""`bertie embed`: one vector for each text, the model's own embedding."""

import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from bertie.commands.options import (
    Device,
    Force,
    NoVerify,
    Precision,
    RowOnError,
    SkippedRows,
    TextColumn,
    local_path_argument,
    output_option,
    parse_columns,
    print_truncated,
    writable_stdout,
)

if TYPE_CHECKING:
    from bertie.base.arrays import Float32s
    from bertie.base.errors import DataError
    from bertie.inference.embedding_files import TextChunk
    from bertie.inference.predictor import Predictor
    from bertie.model.formats.sentence_transformers import EmbeddingConfig

Input = Annotated[
    str | None,
    typer.Option(
        help="A file, or its URL: .csv, .tsv, .jsonl, .parquet, or plain text with one text a line; - is "
        "standard input. A blank text has no vector.",
    ),
]
Format = Annotated[
    Literal["text", "jsonl", "csv", "tsv", "parquet"] | None,
    typer.Option(help="The format of the input; by default from the file's name."),
]
Output = Annotated[
    Path | None,
    output_option(
        "The file to write, or its URL. .npy: an array with a row for each text. .parquet or .jsonl: "
        "each row of the input with its vector in the column `embedding`. Default: JSON lines on stdout."
    ),
]


def embed(
    directory: Annotated[Path, local_path_argument("A model directory; its head is ignored.", "DIR")],
    text: Annotated[list[str] | None, typer.Option(help="A text; may be repeated.")] = None,
    input: Input = None,
    columns: TextColumn = None,
    format: Format = None,
    output: Output = None,
    pooling: Annotated[
        Literal["mean", "cls", "max"] | None,
        typer.Option(help="How to pool the vectors of a text's tokens; by default as the model says."),
    ] = None,
    normalize: Annotated[
        bool | None,
        typer.Option(
            "--normalize/--no-normalize", help="Scale vectors to length 1; by default as the model says."
        ),
    ] = None,
    on_error: RowOnError = "stop",
    device: Device = "auto",
    precision: Precision = "float32",
    force: Force = False,
    no_verify: NoVerify = False,
) -> None:
    """Embed each text as one vector, like sentence-transformers.

    The vector is the model's own embedding, pooled, truncated and normalized as the model says.
    The output appears whole or not at all, even if the command is killed.
    """
    import bertie
    from bertie.base.errors import SettingsError
    from bertie.base.outputs import check_suffix, lock_output
    from bertie.inference.embedding_files import SUFFIXES, write_embeddings
    from bertie.inference.records import find_input

    if bool(text) == (input is not None):
        raise SettingsError("give either --text or --input (- is standard input)")
    file, read = find_input(input, format)
    if read == "conll":
        raise SettingsError(f"{file}: .conll files have words; bertie features writes their vectors")
    suffix = check_suffix(output, SUFFIXES) if output else None
    sources = [directory, file or directory]
    with lock_output(output, force=force, inputs=sources) if output else nullcontext() as path:
        model = bertie.load(directory, device, precision)
        column = parse_columns(columns or [], ["text"])["text"]
        skipped = SkippedRows() if on_error == "skip" else None
        chunks = _chunks(text, file, read, column, suffix, skipped)
        schema = _schema(path, file, read, column, on_error) if path and suffix == ".parquet" else None
        embedding = model.embedding.override(pooling, normalize)
        with closing(_embed(model, embedding, chunks, output is None)) as embedded:  # ends its progress bar
            if path:
                write_embeddings(embedded, path, model.config.hidden_size, schema)
            else:
                _print(embedded)
        if skipped:
            skipped.report("vector")


def _print(embedded: "Iterator[tuple[TextChunk, Float32s]]") -> None:
    """Print each row with its vector as a JSON object."""
    from bertie.inference.embedding_files import write_json_lines

    write_json_lines(embedded, writable_stdout())


def _chunks(
    texts: list[str] | None,
    file: Path | None,
    read: Any,
    column: str,
    suffix: str | None,
    skipped: "Callable[[DataError], None] | None",
) -> "Iterator[TextChunk]":
    """Return the texts of the options, of a file or of standard input, in chunks.

    The output's suffix determines the chunks.
    """
    from bertie.inference.embedding_files import (
        chunk_records,
        read_arrow_chunks,
        with_free_column,
        with_strings,
    )
    from bertie.inference.records import Record, read_records

    if texts:
        return chunk_records(
            Record(f"--text {i}", {"text": text}, (text,)) for i, text in enumerate(texts, 1)
        )
    if read == "parquet" and suffix == ".parquet":
        assert file is not None
        return read_arrow_chunks(file, column, skipped)
    records = read_records(file, read, {"text": column}, skipped=skipped)
    if suffix != ".npy":
        records = with_free_column(records)
    return chunk_records(with_strings(records, column) if suffix == ".parquet" else records)


def _embed(
    model: "Predictor", embedding: "EmbeddingConfig", chunks: "Iterator[TextChunk]", silent: bool
) -> "Generator[tuple[TextChunk, Float32s], None, None]":
    """Yield each chunk with its vectors.

    Blank texts have NaN, and are counted on stderr.
    """
    import numpy as np

    from bertie.base.progress import Progress
    from bertie.base.texts import is_blank

    blank_count = 0
    with Progress("embedding", unit="texts", silent=silent) as progress:
        for chunk in chunks:
            filled = [i for i, text in enumerate(chunk.texts) if not is_blank(text)]
            vectors = np.full((len(chunk.texts), model.config.hidden_size), np.nan, np.float32)
            vectors[filled] = model.embed(
                [chunk.texts[i] for i in filled], embedding.pooling, embedding.normalize
            )
            blank_count += len(chunk.texts) - len(filled)
            yield chunk, vectors
            progress.advance(len(chunk.texts))
    print_truncated(model.num_truncated, model.embedding.max_seq_length or model.max_seq_length)
    if blank_count:
        print(f"embedding: blank texts, which have no vector: {blank_count:,}", file=sys.stderr)


def _schema(path: Path, file: Path | None, read: Any, column: str, on_error: str) -> Any:
    """Return the Arrow schema for a Parquet file `path`.

    It is None if the first rows determine it.

    JSON lines are read once for it, because a column may be null, or missing, in any number of rows.

    Raises:
        DataError: the file has a column `embedding`, or one with values of several types.
    """
    from bertie.base.rows import DELIMITERS
    from bertie.base.tables import import_pyarrow, open_parquet
    from bertie.inference.embedding_files import COLUMN, infer_schema
    from bertie.inference.records import reject_column, table_columns

    if file and read == "parquet":
        with open_parquet(file) as parquet:
            reject_column(COLUMN, parquet.schema_arrow.names, str(file))
            return parquet.schema_arrow
    if file and read == "jsonl" and file.is_file():  # a pipe can be read only once
        skipped = None if on_error == "stop" else lambda error: None  # reported when the texts are embedded
        return infer_schema(_chunks(None, file, read, column, ".parquet", skipped), path)
    if file and read in DELIMITERS and file.is_file():  # it may have a header only
        pyarrow = import_pyarrow(path)
        names = table_columns(file, read, {"text": column})
        return pyarrow.schema([(name, pyarrow.string()) for name in names])
    return None
