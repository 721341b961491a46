"""`bertie features`"""

from collections.abc import Callable, Iterable, Iterator, Sized
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import typer

from bertie.commands.options import Device, InputFile, InputFormat, Precision, parse_columns

if TYPE_CHECKING:
    from bertie.inference.features import Features

Number = TypeVar("Number", int, float)
Text = TypeVar("Text", bound=Sized)

CHUNK_BYTES = 1 << 29  # of vectors in memory at a time, or one text's


def features(
    directory: Annotated[Path, typer.Argument(help="A model directory; its head is ignored.")],
    output: Annotated[Path, typer.Option(help="The file to write: .parquet or .arrow, a row for each text.")],
    input: InputFile = "-",
    columns: Annotated[
        list[str] | None,
        typer.Option("--column", metavar="text=COLUMN", help="Where a table has the text."),
    ] = None,
    format: InputFormat = None,
    layers: Annotated[
        str,
        typer.Option(
            help="With commas between: 0 is the output of the embeddings, 1 that of the first layer, -1 that "
            "of the last. Each is a column."
        ),
    ] = "-1",
    combine: Annotated[
        Literal["concat", "sum", "mean"] | None, typer.Option(help="Make one column of all layers.")
    ] = None,
    weights: Annotated[
        str | None, typer.Option(help="Of the sum, one for each layer, with commas between.")
    ] = None,
    words: Annotated[
        bool,
        typer.Option(
            "--words",
            help="A vector for each word, that of its first piece as in Section 5.3, not for each piece. Of "
            ".conll files always.",
        ),
    ] = False,
    pool: Annotated[
        Literal["mean", "max"] | None,
        typer.Option(help="One vector for each text: of all its pieces, or words."),
    ] = None,
    float16: Annotated[
        bool, typer.Option("--float16", help="Write numbers of 16 bits, half the size, instead of 32.")
    ] = False,
    device: Device = "auto",
    precision: Precision = "float32",
) -> None:
    """Write the contextual vectors of texts, from any layers of a model (Section 5.3)."""
    import numpy as np

    from bertie.inference.feature_files import check_suffix, write_features
    from bertie.inference.features import LayerChoice, compute_features, read_sentences, read_texts
    from bertie.inference.records import find_input, read_records
    from bertie.model.engines.loading import load_engine
    from bertie.tasks.ner import read_conll

    check_suffix(output)
    choice = LayerChoice(
        _numbers("--layers", layers, int), combine, _numbers("--weights", weights, float) if weights else None
    )
    file, read = find_input(input, format)
    engine, metadata = load_engine(directory, device, precision)
    config, tokenizer = metadata.config, metadata.tokenizer
    max_seq_length = metadata.max_seq_length or config.max_position_embeddings
    choice = choice.of(config.num_hidden_layers)
    limit = CHUNK_BYTES // (4 * len(choice.columns) * choice.width(config.hidden_size))

    def of_words() -> "Iterator[Features]":
        assert file is not None
        sentences = read_conll(file, labelled=False)
        reading = read_sentences(sentences, tokenizer, max_seq_length)
        first = 0
        for chunk in _chunks(sentences.words, limit):
            part = reading.part(first, first + len(chunk))
            yield compute_features(engine, part, choice, config)
            first += len(chunk)

    def of_texts() -> "Iterator[Features]":
        records = read_records(file, read, parse_columns(columns or [], ["text"]), whole_rows=False)
        # A piece has one character at least, but for scripts whose characters BERT takes apart: of a syllable
        # of Hangul up to three.
        for chunk in _chunks((record.texts[0] for record in records), limit):
            reading = read_texts(chunk, tokenizer, max_seq_length, words)
            yield compute_features(engine, reading, choice, config)

    write_features(
        _shown(of_words() if read == "conll" else of_texts()),
        output,
        "words" if words or read == "conll" else "tokens",
        np.float16 if float16 else np.float32,
        pool,
    )


def _shown(parts: "Iterator[Features]") -> "Iterator[Features]":
    """The same parts, and on stderr how many texts are written."""
    from bertie.base.progress import Progress

    with Progress("features", unit="texts") as progress:
        for part in parts:
            yield part
            progress.advance(len(part))


def _chunks(items: Iterable[Text], limit: int) -> Iterator[list[Text]]:
    """The items in order, in lists of about `limit` characters or words; of none, one empty list."""
    chunk: list[Text] = []
    held, any_yet = 0, False
    for item in items:
        chunk.append(item)
        held += len(item)
        if held >= limit:
            yield chunk
            chunk, held, any_yet = [], 0, True
    if chunk or not any_yet:
        yield chunk


def _numbers(option: str, text: str, kind: Callable[[str], Number]) -> list[Number]:
    from bertie.base.errors import SettingsError

    try:
        return [kind(number) for number in text.split(",")]
    except ValueError:
        raise SettingsError(f"{option} {text}: give numbers with commas between, such as 1,2,-1") from None
