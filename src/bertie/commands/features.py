"""`bertie features`: write contextual vectors of texts."""

from collections.abc import Callable, Generator, Iterable, Iterator, Sized
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import typer

from bertie.commands.options import (
    Device,
    Force,
    InputFormat,
    NoVerify,
    Precision,
    PrecisionChoice,
    Scheduler,
    TextColumn,
    connect_to_workers,
    local_path_argument,
    output_option,
    parse_columns,
    reject_conll_on_workers,
)

if TYPE_CHECKING:
    from bertie.inference.features import Features, LayerSelection
    from bertie.model.engines.loading import LoadedEngine

Number = TypeVar("Number", int, float)
Text = TypeVar("Text", bound=Sized)

CHUNK_BYTES = 1 << 29  # of vectors in memory at a time; a single text may need more


Layers = Annotated[
    str,
    typer.Option(
        help="Layers, separated by commas: 0 is the output of the embeddings, 1 of the first layer, -1 "
        "of the last. Each becomes a column."
    ),
]
Words = Annotated[
    bool,
    typer.Option(
        "--words",
        help="One vector for each word, instead of each token: the vector of its first token, as in "
        "Section 5.3. Always on for .conll files.",
    ),
]

Pool = Annotated[
    Literal["mean", "max"] | None,
    typer.Option(
        help="Pool the vectors of a text's tokens, or words, into one. For the model's own embedding, which "
        "also counts [CLS] and [SEP] and may be normalized, use `bertie embed`."
    ),
]

Input = Annotated[
    str,
    typer.Option(
        help="A file, or its URL: .csv, .tsv, .jsonl, .parquet, .conll (words), or plain text with one text "
        "a line; - is standard input. A blank text has no vectors.",
    ),
]
Output = Annotated[
    Path,
    output_option("The file to write, or its URL: .parquet or .arrow, with one row for each text."),
]


def features(
    directory: Annotated[Path, local_path_argument("A model directory; its head is ignored.", "DIR")],
    output: Output,
    input: Input = "-",
    columns: TextColumn = None,
    format: InputFormat = None,
    layers: Layers = "-1",
    combine: Annotated[
        Literal["concat", "sum", "mean"] | None,
        typer.Option(help="Combine the selected layers into one column."),
    ] = None,
    weights: Annotated[
        str | None, typer.Option(help="The weights of the sum, one for each layer, separated by commas.")
    ] = None,
    words: Words = False,
    pool: Pool = None,
    float16: Annotated[
        bool, typer.Option("--float16", help="Write 16-bit instead of 32-bit numbers.")
    ] = False,
    device: Device = "auto",
    precision: Precision = "float32",
    scheduler: Scheduler = None,
    force: Force = False,
    no_verify: NoVerify = False,
) -> None:
    """Write the contextual vectors of texts (Section 5.3).

    The output appears whole or not at all, even if the command is killed.
    """
    import numpy as np

    from bertie.base.outputs import check_suffix, lock_output
    from bertie.inference.feature_files import SUFFIXES, Unit, write_features
    from bertie.inference.features import LayerSelection
    from bertie.inference.records import find_input, read_records
    from bertie.model.engines.loading import load_engine

    check_suffix(output, SUFFIXES)
    numbers = None if weights is None else _parse_numbers("--weights", weights, float)
    selection = LayerSelection(_parse_numbers("--layers", layers, int), combine, numbers)
    file, read = find_input(input, format)
    reject_conll_on_workers(read, scheduler)
    with lock_output(output, force=force, inputs=[file] if file else []) as path:
        loaded = load_engine(directory, device, precision)
        selection = selection.resolve(loaded.metadata.config.num_hidden_layers)
        if read == "conll":
            assert file is not None
            features = _word_features(loaded, selection, file)
        else:
            records = read_records(file, read, parse_columns(columns or [], ["text"]), whole_rows=False)
            chunks = _chunks((record.texts[0] for record in records), _chunk_size(loaded, selection))
            if scheduler:
                where = (scheduler, directory, device, precision)
                features = _features_on_workers(where, selection, chunks, words)
            else:
                features = _text_features(loaded, selection, chunks, words)
        unit: Unit = "words" if words or read == "conll" else "tokens"
        dtype = np.float16 if float16 else np.float32
        with closing(_with_progress(features)) as shown:  # ends the progress bar
            write_features(shown, path, unit, dtype, pool)


def _word_features(loaded: "LoadedEngine", selection: "LayerSelection", file: Path) -> "Iterator[Features]":
    """Yield the vectors of the words of a CoNLL file, read in their documents."""
    from bertie.inference.features import compute_features, encode_sentences
    from bertie.tasks.conll import read_conll

    sentences = read_conll(file, labelled=False)
    encoded = encode_sentences(sentences, loaded.metadata.tokenizer, _max_seq_length(loaded))
    first = 0
    for chunk in _chunks(sentences.words, _chunk_size(loaded, selection)):
        part = encoded.slice(first, first + len(chunk))
        yield compute_features(loaded.engine, part, selection, loaded.metadata.config)
        first += len(chunk)


def _text_features(
    loaded: "LoadedEngine", selection: "LayerSelection", chunks: Iterable[list[str]], words: bool
) -> "Iterator[Features]":
    """Yield the vectors of the tokens of texts, or of their words."""
    from bertie.inference.features import compute_features, encode_texts

    for chunk in chunks:
        encoded = encode_texts(chunk, loaded.metadata.tokenizer, _max_seq_length(loaded), words)
        yield compute_features(loaded.engine, encoded, selection, loaded.metadata.config)


def _features_on_workers(
    where: tuple[str, Path, str, PrecisionChoice],
    selection: "LayerSelection",
    chunks: Iterable[list[str]],
    words: bool,
) -> "Iterator[Features]":
    """Yield what `_text_features` yields, computed by the workers of a cluster."""
    from bertie.inference.dispatch import compute_features_remotely

    with connect_to_workers(*where) as (cluster, remote):
        yield from cluster.map(partial(compute_features_remotely, remote, selection, words), chunks)


def _max_seq_length(loaded: "LoadedEngine") -> int:
    return loaded.metadata.max_seq_length or loaded.metadata.config.max_position_embeddings


def _chunk_size(loaded: "LoadedEngine", selection: "LayerSelection") -> int:
    """Return the number of vectors that fit into CHUNK_BYTES.

    This also limits the characters of a chunk: a token has at least one, except in scripts whose
    characters BERT decomposes. A syllable of Hangul has up to three tokens.
    """
    vector_size = selection.vector_size(loaded.metadata.config.hidden_size)
    return CHUNK_BYTES // (4 * len(selection.columns) * vector_size)


def _with_progress(parts: "Iterator[Features]") -> "Generator[Features, None, None]":
    """Yield the same parts, and show the number of written texts on stderr."""
    from bertie.base.progress import Progress

    with Progress("features", unit="texts") as progress:
        for part in parts:
            yield part
            progress.advance(len(part))


def _chunks(items: Iterable[Text], limit: int) -> Iterator[list[Text]]:
    """Split items into lists of about `limit` characters or words, at least one list."""
    chunk: list[Text] = []
    size, is_first = 0, True
    for item in items:
        chunk.append(item)
        size += len(item)
        if size >= limit:
            yield chunk
            chunk, size, is_first = [], 0, False
    if chunk or is_first:
        yield chunk


def _parse_numbers(option: str, text: str, kind: Callable[[str], Number]) -> list[Number]:
    from bertie.base.errors import SettingsError

    try:
        return [kind(number) for number in text.split(",")]
    except ValueError:
        raise SettingsError(f"{option} {text}: give numbers separated by commas, such as 1,2,-1") from None
