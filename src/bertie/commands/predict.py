"""`bertie predict`: answer texts with a trained model."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from itertools import islice, tee
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from bertie.commands.options import (
    Device,
    Force,
    InputFile,
    InputFormat,
    Json,
    NoVerify,
    Precision,
    PrecisionChoice,
    RowOnError,
    Scheduler,
    SkippedRows,
    connect_to_workers,
    local_path_argument,
    output_option,
    parse_columns,
    print_truncated,
    reject_conll_on_workers,
    writable_stdout,
)

if TYPE_CHECKING:
    from bertie.base.progress import Progress
    from bertie.inference.predictor import Predictor
    from bertie.inference.records import Record
    from bertie.inference.results import Method
    from bertie.inference.writers import OutputFormat

    Answered = Iterator[tuple[Record, Any]]  # each record with its results

CHUNK = 1024  # records in memory at a time: enough to batch texts of similar length

TopK = Annotated[
    int,
    typer.Option(
        min=1,
        help="The number of results for each text, labels included. Tables of a multi-label model have "
        "every label with a probability above its threshold, 0.5 unless it was tuned.",
    ),
]

Columns = Annotated[
    list[str] | None,
    typer.Option(
        "--column",
        metavar="NAME=COLUMN",
        help="The column of text, pair (optional), words (lists, for a tagger), question, context or "
        "endings (one column of lists, or several separated by commas; by default endings, or ending0, "
        "ending1, …). Default: the columns of the model's fine-tuning.",
    ),
]

Output = Annotated[
    Path | None,
    output_option(
        "A file to write, or its URL. .jsonl: each row with all results under `prediction`, like "
        "--json. .csv or .tsv: each row with the best result. .conll: the tag of each word."
    ),
]


def predict(
    directory: Annotated[Path, local_path_argument("A model directory.", "DIR")],
    text: Annotated[list[str] | None, typer.Option(help="A text, or a question; may be repeated.")] = None,
    pair: Annotated[
        list[str] | None,
        typer.Option(
            help="The second text or a question's context: one for each --text, or one for all. For multiple "
            "choice, an ending; may be repeated."
        ),
    ] = None,
    input: InputFile = None,
    columns: Columns = None,
    format: InputFormat = None,
    output: Output = None,
    top_k: TopK = 5,
    on_error: RowOnError = "stop",
    device: Device = "auto",
    precision: Precision = "float32",
    scheduler: Scheduler = None,
    as_json: Json = False,
    force: Force = False,
    no_verify: NoVerify = False,
) -> None:
    """Fill [MASK], classify, tag, answer or choose with a model.

    The output appears whole or not at all, even if the command is killed.
    """
    import bertie
    from bertie.base.outputs import lock_output
    from bertie.base.rows import DELIMITERS
    from bertie.inference.records import find_input, read_records, table_columns
    from bertie.inference.writers import output_format, with_free_columns

    _check_texts(text, pair, input)
    written: OutputFormat = output_format(output) if output else ("jsonl" if as_json else "text")
    file, read = find_input(input, format)
    _check_skips(read, on_error, file, scheduler)
    lock = lock_output(output, force=force, inputs=[file] if file else []) if output else nullcontext()
    names: dict[str, str] = {}
    with lock as path:
        model = bertie.load(directory, device, precision)
        method = _check_method(model, directory, [read, written])
        if file and read == "conll":
            answered = _tag_file(model, file)
            written = "conll" if written == "text" else written
        else:
            skipped = SkippedRows() if on_error == "skip" else None
            names = _read_columns(method, columns or [], _remembered_columns(model, read))
            records = (
                _text_records(method, text, pair or [])
                if text
                else read_records(file, read, names, skipped=skipped)
            )
            records = with_free_columns(records, written, method)
            top_k = len(model.labels) if written in DELIMITERS and model.is_multilabel else top_k
            answer = partial(_answer_on_workers, scheduler, device, precision) if scheduler else _answer
            answered = answer(model, records, top_k, written == "conll", skipped)
        thresholds = model.decision_thresholds if model.is_multilabel else None
        table = table_columns(file, read, names) if written in DELIMITERS else []
        _write(answered, path, written, method, thresholds, table)


def _check_texts(text: list[str] | None, pair: list[str] | None, input: str | None) -> None:
    """Raise SettingsError unless there is one source of texts.

    A pair is allowed only with texts.
    """
    from bertie.base.errors import SettingsError

    if (not text) == (input is None):
        raise SettingsError("give either --text or --input")
    if pair and not text:
        raise SettingsError("--pair goes with --text; for a table give its column: --column pair=COLUMN")


def _check_skips(read: str, on_error: str, file: Path | None, scheduler: str | None) -> None:
    """Raise SettingsError if rows are to be skipped in a file that has none."""
    from bertie.base.errors import SettingsError

    reject_conll_on_workers(read, scheduler)
    if read == "conll" and on_error == "skip":
        raise SettingsError(
            f"--on-error skip: {file} is no table, and its sentences are read together; correct the file, "
            f"and leave the option out"
        )


def _check_method(model: "Predictor", directory: Path, formats: Sequence[str | None]) -> "Method":
    """Return the method of the model's head; check that it fits the formats."""
    from bertie.base.errors import ModelError, SettingsError

    if model.engine.architecture == "BertLMHeadModel":
        raise ModelError(
            f"{directory}: a left-to-right language model, with which bertie does not predict tokens; "
            f"fine-tune it for a task, or to get its vectors, run bertie embed {shlex.quote(str(directory))}"
        )
    if model.method is None:
        raise ModelError(
            f"{directory}: an encoder without a head, which fine-tuning adds; to get its vectors, run "
            f"bertie embed {shlex.quote(str(directory))}"
        )
    if "conll" in formats and model.method != "tag":
        raise SettingsError(
            f"{directory}: .conll needs a model that tags words, but this model's method is {model.method}"
        )
    return model.method


def _remembered_columns(model: "Predictor", read: str) -> dict[str, str]:
    """Return the fine-tuning's columns that a file of this format can have.

    A tagger that has none, because it was fine-tuned on CoNLL files or elsewhere, reads the column `words`.
    """
    from bertie.base.rows import DELIMITERS

    if read == "text":
        return {}
    columns = model.input_columns or ({"words": "words"} if model.method == "tag" else {})
    # A csv file cannot hold lists of words.
    return {r: c for r, c in columns.items() if r != "words" or read not in DELIMITERS}


def _read_columns(method: "Method", columns: list[str], defaults: Mapping[str, str]) -> dict[str, str]:
    """Return the column of each text that the method reads."""
    from bertie.inference.dispatch import REQUIRED_FIELDS

    optional = {"classify": ("pair",), "regress": ("pair",), "tag": ("words",)}.get(method, ())
    names = parse_columns(columns, REQUIRED_FIELDS[method], optional, defaults)
    for role, other in (("text", "words"), ("words", "text")):
        if any(option.startswith(f"{role}=") for option in columns):
            names.pop(other, None)
    return names


def _text_records(method: "Method", texts: list[str], pairs: list[str]) -> "Iterator[Record]":
    """Yield a record for each --text, with its --pair."""
    from bertie.base.errors import SettingsError
    from bertie.inference.dispatch import REQUIRED_FIELDS
    from bertie.inference.records import Record

    names = [*REQUIRED_FIELDS[method], "pair"][:2]
    if pairs and method in ("fill_mask", "tag"):
        raise SettingsError("--pair: this model reads one text at a time; leave it out")
    if not pairs and method in ("next_sentence", "answer", "choose"):
        raise SettingsError(f"--text is the {names[0]}; give the {names[1]} with --pair")
    seconds: list[Any] = pairs
    if method == "choose" or len(pairs) == 1:
        seconds = [pairs if method == "choose" else pairs[0]] * len(texts)
    if len(seconds) not in (0, len(texts)):
        raise SettingsError(f"{len(pairs)} --pair for {len(texts)} --text; give one for each, or one for all")
    rows = zip(texts, seconds, strict=True) if seconds else zip(texts, strict=True)
    for number, row in enumerate(rows, 1):
        yield Record(f"--text {number}", dict(zip(names, row, strict=False)), row)


def _answer(
    model: "Predictor", records: "Iterator[Record]", top_k: int, words: bool, skipped: SkippedRows | None
) -> "Answered":
    """Yield each record with its results; with `words`, with the tag of each word."""
    from bertie.inference.dispatch import answer_records

    texts_of_record = 0
    while chunk := list(islice(records, CHUNK)):
        texts_of_record = len(chunk[0].texts)
        yield from zip(chunk, answer_records(model, chunk, top_k, words, skipped), strict=True)
    _report(model, skipped, texts_of_record)


def _answer_on_workers(
    scheduler: str,
    device: str,
    precision: PrecisionChoice,
    model: "Predictor",
    records: "Iterator[Record]",
    top_k: int,
    words: bool,
    skipped: SkippedRows | None,
) -> "Answered":
    """Yield what `_answer` yields, with chunks answered by the workers of a cluster."""
    from bertie.inference.dispatch import answer_remotely

    texts_of_record = 0
    chunks, sent = tee(iter(lambda: list(islice(records, CHUNK)), []))
    with connect_to_workers(scheduler, model.path, device, precision) as (cluster, remote):
        function = partial(answer_remotely, remote, top_k, words, skipped is not None)
        for chunk, answers in zip(chunks, cluster.map(function, sent), strict=True):
            texts_of_record = len(chunk[0].texts)
            model.num_truncated += answers.num_truncated
            for error in answers.skipped:
                assert skipped is not None
                skipped(error)
            yield from zip(chunk, answers.results, strict=True)
    _report(model, skipped, texts_of_record)


def _report(model: "Predictor", skipped: SkippedRows | None, texts_of_record: int) -> None:
    """Print how many rows were skipped and how many texts truncated."""
    from bertie.model.formats.directory import read_metadata

    if skipped:
        skipped.report("answer")
    is_single = model.method in ("classify", "regress") and texts_of_record == 1
    if model.num_truncated:
        pooling = read_metadata(model.path).classifier_pooling
        how = model.long_texts if is_single else None
        print_truncated(model.num_truncated, model.max_seq_length, how, pooling)


def _tag_file(model: "Predictor", file: Path) -> "Answered":
    """Yield each sentence of a CoNLL file, read in its document, with its tags."""
    from bertie.inference.records import Record
    from bertie.tasks.conll import read_conll

    sentences = read_conll(file, labelled=False)
    tags = model.tag_words(sentences.words, sentences.document_bounds.tolist())
    for words, tagged in zip(sentences.words, tags, strict=True):
        yield Record(str(file), {"words": words}, (words,)), tagged


def _write(
    answered: "Answered",
    output: Path | None,
    written: "OutputFormat",
    method: "Method",
    thresholds: Mapping[str, float] | None,
    columns: Sequence[str],
) -> None:
    """Write results to a file with progress on stderr, or to stdout."""
    from bertie.base.files import atomic_file
    from bertie.base.progress import Progress
    from bertie.inference.writers import write_results

    with ExitStack() as stack:
        if output:
            temporary = stack.enter_context(atomic_file(output))
            stream: TextIO = stack.enter_context(
                temporary.open("w", encoding="utf-8", errors="backslashreplace", newline="")
            )
            answered = _with_progress(answered, stack.enter_context(Progress("predicting", unit="texts")))
        else:
            stream = writable_stdout()
        write_results(answered, stream, written, method, thresholds, columns)


def _with_progress(answered: "Answered", progress: "Progress") -> "Answered":
    for record, results in answered:
        yield record, results
        progress.advance()
