"""`bertie predict`"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from bertie.commands.options import Device, InputFile, InputFormat, Json, Precision, parse_columns

if TYPE_CHECKING:
    from bertie.base.progress import Progress
    from bertie.inference.predictor import Predictor
    from bertie.inference.records import Record
    from bertie.inference.results import Method
    from bertie.inference.writers import OutputFormat

CHUNK = 1024  # records in memory at a time: enough for batches of texts of one length


def predict(
    directory: Annotated[Path, typer.Argument(help="A model directory.")],
    text: Annotated[
        list[str] | None, typer.Option(help="A text, or a question; may be given several times.")
    ] = None,
    pair: Annotated[
        list[str] | None,
        typer.Option(
            help="What goes with --text: a second text, or the context of a question; one for all or one for "
            "each. For multiple choice: an ending; give all of them."
        ),
    ] = None,
    input: InputFile = None,
    columns: Annotated[
        list[str] | None,
        typer.Option(
            "--column",
            metavar="NAME=COLUMN",
            help="Where a table has text, pair (without it there is none), question, context or endings (a "
            "column of lists, or several with commas between; without it also ending0, ending1, …).",
        ),
    ] = None,
    format: InputFormat = None,
    output: Annotated[
        Path | None,
        typer.Option(
            help="A file to write: .jsonl, each row with all answers under `prediction`, as --json prints "
            "them; .csv or .tsv, with the best; .conll, with the tag of each word."
        ),
    ] = None,
    top_k: Annotated[
        int,
        typer.Option(
            min=1,
            help="How many answers for each text, labels too; a table has all that are likelier than not.",
        ),
    ] = 5,
    device: Device = "auto",
    precision: Precision = "float32",
    as_json: Json = False,
) -> None:
    """Answer with a trained model; its head decides: words for [MASK], labels, entities, spans."""
    import bertie
    from bertie.base.errors import ModelError, SettingsError
    from bertie.base.files import atomic_file
    from bertie.base.progress import Progress
    from bertie.inference.dispatch import ASKED
    from bertie.inference.records import DELIMITERS, find_input, read_records
    from bertie.inference.writers import output_format, write_results

    if (not text) == (input is None):
        raise SettingsError("nothing to predict, or too much: give either --text or --input")
    if pair and not text:
        raise SettingsError("--pair goes with --text; of a table, name the column: --column pair=COLUMN")
    to_standard_output: OutputFormat = "jsonl" if as_json else "text"
    written = output_format(output) if output else to_standard_output
    file, read = find_input(input, format)
    model = bertie.load(directory, device, precision)
    method = model.method
    if method is None:
        raise ModelError(f"{directory}: an encoder without a head answers nothing; fine-tune it")
    if "conll" in (read, written) and method != "tag":
        raise SettingsError(f"{directory}: .conll is for words and their tags, but this model can {method}")
    if file and read == "conll":
        answered = _tag_file(model, file)
        written = "conll" if written == "text" else written
    else:
        more = ("pair",) if method in ("classify", "rate") else ()
        names = parse_columns(columns or [], ASKED[method], more)
        records = _given(method, text, pair or []) if text else read_records(file, read, names)
        if written in DELIMITERS and model.is_multilabel:
            top_k = len(model.labels)
        answered = _answer(model, records, top_k, words=written == "conll")
    with ExitStack() as stack:
        if output:
            temporary = stack.enter_context(atomic_file(output))
            stream: TextIO = stack.enter_context(temporary.open("w", encoding="utf-8", newline=""))
            answered = _counted(answered, stack.enter_context(Progress("predicting", unit="texts")))
        else:
            stream = sys.stdout
        assert isinstance(stream, TextIOWrapper)
        # Half of a surrogate pair, which JSON can name, is then its own escape.
        stream.reconfigure(encoding="utf-8", errors="backslashreplace")
        write_results(answered, stream, written, method, model.is_multilabel)


def _given(method: "Method", texts: list[str], pairs: list[str]) -> "Iterator[Record]":
    """The texts of the options."""
    from bertie.base.errors import SettingsError
    from bertie.inference.dispatch import ASKED
    from bertie.inference.records import Record

    names = [*ASKED[method], "pair"][:2]
    if pairs and method in ("fill_mask", "tag"):
        raise SettingsError("--pair: this model reads one text at a time")
    if not pairs and method in ("next_sentence", "answer", "choose"):
        raise SettingsError(f"--text is the {names[0]}; give the {names[1]} with --pair")
    seconds: list[Any] = pairs
    if method == "choose" or len(pairs) == 1:
        seconds = [pairs if method == "choose" else pairs[0]] * len(texts)
    if len(seconds) not in (0, len(texts)):
        raise SettingsError(f"{len(pairs)} --pair for {len(texts)} --text; give one for each, or one for all")
    for number, asked in enumerate(zip(texts, seconds, strict=True) if seconds else zip(texts), 1):
        yield Record(f"--text {number}", dict(zip(names, asked, strict=False)), asked)


def _answer(
    model: "Predictor", records: "Iterator[Record]", top_k: int, words: bool
) -> "Iterator[tuple[Record, Any]]":
    """Each record with its answers, or with `words` the tag of each word."""
    from bertie.inference.dispatch import ask

    while chunk := list(islice(records, CHUNK)):
        yield from zip(chunk, ask(model, chunk, top_k, words), strict=True)


def _counted(
    answered: "Iterator[tuple[Record, Any]]", progress: "Progress"
) -> "Iterator[tuple[Record, Any]]":
    """The same, and on stderr how many there were."""
    for record, answers in answered:
        yield record, answers
        progress.advance()


def _tag_file(model: "Predictor", file: Path) -> "Iterator[tuple[Record, Any]]":
    """Each sentence of CoNLL columns with the tags of its words, seen with its document as in evaluation."""
    from bertie.inference.records import Record
    from bertie.tasks.ner import read_conll

    found = read_conll(file, labelled=False)
    for words, tagged in zip(
        found.words, model.tag_words(found.words, found.documents.tolist()), strict=True
    ):
        yield Record(str(file), {"words": words}, (words,)), tagged
