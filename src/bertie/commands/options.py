"""Options and helpers that several commands share."""

import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO

import typer

import bertie
from bertie.base.checksums import NO_VERIFY
from bertie.base.files import local_path
from bertie.base.storage import as_path
from bertie.corpus.documents import OnError as OnErrorChoice
from bertie.corpus.formats import Format as FormatChoice

if TYPE_CHECKING:
    from bertie.base.cluster import DaskCluster
    from bertie.corpus.input_languages import Language
    from bertie.inference.dispatch import RemoteModel
    from bertie.model.config import ClassifierPooling
    from bertie.model.formats.directory import LongTexts


def _parse_path(value: str) -> Path:
    """Parse a path or a URL; typer adds the name of the option to an error."""
    if not value:
        raise typer.BadParameter("expected a path, got an empty string")
    return as_path(value)


def _parse_local_path(value: str) -> Path:
    """Parse a path."""
    return local_path(value) if value else _parse_path(value)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"bertie {bertie.__version__}")
        raise typer.Exit


def _skip_verification(wanted: bool) -> None:
    if wanted:
        os.environ[NO_VERIFY] = "1"  # for processes that the command starts, too


NoVerify = Annotated[
    bool,
    typer.Option(
        "--no-verify",
        callback=_skip_verification,
        help="Load models and tokenizers even if their files differ from their SHA256SUMS.",
    ),
]
_INPUTS = typer.Argument(
    metavar="INPUT",
    parser=_parse_path,
    help="Files, folders or patterns of text, also compressed: .gz, .bz2, .xz, .zst; or their URLs, such as "
    "s3://BUCKET/FOLDER.",
)
Inputs = Annotated[list[Path], _INPUTS]
OptionalInputs = Annotated[list[Path] | None, _INPUTS]
Format = Annotated[
    FormatChoice | None, typer.Option(help="The format of every input; by default detected file by file.")
]
Column = Annotated[
    str, typer.Option(help="The key or column of the text in jsonl, csv, tsv, parquet and arrow files.")
]
OnError = Annotated[
    OnErrorChoice,
    typer.Option(
        help="At binary, damaged or malformed input: stop, or skip it (one document if the file has many, "
        "otherwise the file). Empty files are always skipped. Skipped input is reported and counted."
    ),
]
Languages = Annotated[
    list[str] | None,
    typer.Option(
        "--language",
        metavar="CODE|CODE=PATH",
        help="The ISO 639-1 code of the language, such as de, for splitting sentences; en by default. For "
        "inputs of several languages, repeat the option: CODE=PATH with the file or folder of each, or each "
        "CODE in --language-column.",
    ),
]
LanguageColumn = Annotated[
    str | None,
    typer.Option(
        help="For inputs of several languages: the key or column that gives the language of each document "
        "in jsonl, csv, tsv, parquet and arrow files, as one of the codes in --language."
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(min=1, help="The number of worker processes; by default one for each processor."),
]
Scheduler = Annotated[
    str | None,
    typer.Option(
        metavar="tcp://HOST:PORT",
        help="The address of a Dask scheduler, whose workers do the work instead of local processes. They "
        "need the same files at the same paths.",
    ),
]
Device = Annotated[str, typer.Option(help="Where to compute: auto, cpu, cuda, cuda:1, …")]
PrecisionChoice = Literal["float32", "bfloat16", "int8"]
Precision = Annotated[
    PrecisionChoice,
    typer.Option(
        help="The precision of matrix products. bfloat16 is faster on hardware that supports it, but the "
        "results have only about 3 correct digits; for exported models it needs OpenVINO. int8 is fastest "
        "on a CPU, and the least accurate; a model in ONNX must have been exported with --int8."
    ),
]
InputFile = Annotated[
    str | None,
    typer.Option(
        "--input",
        help="A file, or its URL: .csv, .tsv, .jsonl, .parquet, .conll (words), or plain text with one text "
        "a line; for questions, also SQuAD's .json; - is standard input. Every row gets an answer, a blank "
        "line an empty one.",
    ),
]
InputFormat = Annotated[
    Literal["text", "jsonl", "csv", "tsv", "parquet", "conll"] | None,
    typer.Option("--format", help="The format of the input; by default from the file's name."),
]
TextColumn = Annotated[
    list[str] | None,
    typer.Option("--column", metavar="text=COLUMN", help="The column of the text in a table."),
]
RowOnError = Annotated[
    OnErrorChoice,
    typer.Option(
        "--on-error",
        help="At a row without a text, or a malformed row of a table: stop, or skip and report it. A row "
        "without a text then counts as blank, and a malformed one is left out.",
    ),
]
AllowPickle = Annotated[
    bool,
    typer.Option(
        "--allow-pickle",
        help="Also read pytorch_model.bin, a pickle. bertie loads only tensors from it, but reading a pickle "
        "can run code: allow it only for files from a source you trust.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Force = Annotated[bool, typer.Option("--force", help="Replace the output if it exists already.")]


def path_option(help: str, *names: str) -> Any:
    """Return an option for a path or a URL; an empty string is refused."""
    return typer.Option(*names, parser=_parse_path, metavar="PATH", help=help)


def output_option(help: str) -> Any:
    """Return the option --out for a file, which is also --output; an empty string is refused."""
    return path_option(help, "--out", "--output")


def local_path_option(help: str, *names: str, metavar: str = "PATH") -> Any:
    """Return an option for a path; an empty string is refused."""
    return typer.Option(*names, parser=_parse_local_path, metavar=metavar, help=help)


def local_path_argument(help: str, metavar: str) -> Any:
    """Return an argument for a path; an empty string is refused."""
    return typer.Argument(parser=_parse_local_path, metavar=metavar, help=help)


def assignments_option(examples: str) -> Any:
    """Return the option --set, with examples of the command's settings."""
    help = f"Change a setting, such as {examples}; may be repeated."
    return typer.Option("--set", metavar="KEY=VALUE", help=help)


Version = Annotated[
    bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version.")
]


class SkippedRows:
    """Reports skipped rows: the first ones each, and all of them as a count."""

    SHOWN = 5

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, error: Exception) -> None:
        self.count += 1
        if self.count <= self.SHOWN:
            print(f"skipped: {error}", file=sys.stderr)

    def report(self, lacking: str) -> None:
        """Print the number of rows, and what they lack, such as an answer."""
        if self.count:
            print(f"rows that were skipped and have no {lacking}: {self.count:,}", file=sys.stderr)


def print_truncated(
    number: int,
    max_seq_length: int,
    long_texts: "LongTexts | None" = None,
    pooling: "ClassifierPooling" = "pooler",
) -> None:
    """Print how many texts a model has truncated, if there are any.

    See `describe_truncated`.
    """
    from bertie.tasks.long_texts import describe_truncated

    if number:
        print(describe_truncated(f"{number:,}", max_seq_length, long_texts, pooling), file=sys.stderr)


def parse_columns(
    assignments: Iterable[str],
    roles: Iterable[str],
    optional: Iterable[str] = (),
    defaults: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the column of each role, from options of the form NAME=COLUMN.

    The column of a role without an option is from `defaults`, or else has the name of the role. An
    `optional` role has a column only if an option or `defaults` gives one.

    Raises:
        SettingsError: an option has another form, or its role is unknown.
    """
    from bertie.base.errors import SettingsError

    defaults = defaults or {}
    columns = {role: defaults.get(role, role) for role in roles}
    known = [*columns, *optional]
    columns |= {role: defaults[role] for role in optional if role in defaults}
    given: dict[str, str] = {}
    for assignment in assignments:
        role, _, column = assignment.partition("=")
        if role not in known or not column:
            raise SettingsError(
                f"--column {assignment}: expected NAME=COLUMN with NAME one of {', '.join(known)}; "
                f"for example --column {known[0]}={column or role}"
            )
        if role in given:
            raise SettingsError(
                f"--column {assignment}: {role} has the column {given[role]!r} already; omit one"
            )
        given[role] = columns[role] = column
    return columns


def given_options(context: typer.Context) -> set[str]:
    """Return the options of the command line that were given, such as {"--size"}."""
    given = set()
    for parameter in context.command.params:
        source = parameter.name and context.get_parameter_source(parameter.name)
        if source and source.name == "COMMANDLINE" and parameter.opts[0].startswith("--"):
            given.add(parameter.opts[0])
    return given


def parse_languages(options: Iterable[str] | None) -> "Language":
    """Return the languages of the options --language.

    This is one code, several codes, or the paths by code of --language CODE=PATH.

    Raises:
        SettingsError: only some of the options have a path, or two paths have the same code.
    """
    from bertie.base.errors import SettingsError

    options = list(options or ["en"])
    if not any("=" in option for option in options):
        return options[0] if len(options) == 1 else options
    paths: dict[str, str | Path] = {}
    for option in options:
        code, _, path = option.partition("=")
        if not path or code in paths:
            raise SettingsError(
                f"--language {option}: expected CODE=PATH once for each language, such as de=texts/german"
            )
        paths[code] = path
    return paths


@contextmanager
def connect_to_workers(
    scheduler: str, directory: Path, device: str, precision: PrecisionChoice
) -> "Iterator[tuple[DaskCluster, RemoteModel]]":
    """Connect to workers that see a model directory, and describe the model for them."""
    from bertie.base.cluster import connect
    from bertie.inference.dispatch import RemoteModel

    files = sorted(path for path in directory.iterdir() if path.is_file())
    with connect(scheduler, reads=files) as cluster:
        yield cluster, RemoteModel.of(directory, device, precision)


def reject_conll_on_workers(format: str, scheduler: str | None) -> None:
    """Raise SettingsError for a CoNLL file and a scheduler.

    The sentences of such a file are read in their documents.
    """
    from bertie.base.errors import SettingsError

    if format == "conll" and scheduler:
        raise SettingsError("--scheduler: the sentences of a .conll file are read together; leave it out")


@contextmanager
def exit_when_stopped(message: Callable[[], str]) -> Iterator[None]:
    """If Ctrl-C or SIGTERM stops the command, print the message, and exit with 128 + the signal's number.

    Between the steps of a run, any signal raises Stopped.
    """
    from bertie.training.signals import Stopped

    received = signal.SIGINT

    def terminate(number: int, _: FrameType | None) -> None:
        nonlocal received
        received = signal.Signals(number)
        signal.raise_signal(signal.SIGINT)

    handler = signal.getsignal(signal.SIGTERM)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as it is in a script's job in the background
        signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    except (Stopped, KeyboardInterrupt) as stopped:
        print(f"bertie: {message()}", file=sys.stderr)
        sys.exit(128 + (stopped.number if isinstance(stopped, Stopped) else received))
    finally:
        signal.signal(signal.SIGTERM, handler)


def resumed_by_same_command(out: Path) -> str:
    """Return the message of a stopped command that the same command resumes."""
    return f"stopped and saved in {out}; the same command resumes"


def how_to_resume(command: str, out: Path) -> str:
    """Return the message of a stopped run that `bertie COMMAND --resume` continues, if it has begun."""
    from bertie.base.settings import SETTINGS_FILE

    if not (out / SETTINGS_FILE).exists():
        return f"stopped before the run began, so nothing is saved in {out}; run the command again"
    return (
        f"stopped and saved in {out}; continue with: bertie {command} --resume --out {shlex.quote(str(out))}"
    )


@contextmanager
def exit_on_interrupt(message: Callable[[], str]) -> Iterator[None]:
    """If Ctrl-C stops the command, print the message and exit with 130."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"bertie: stopped; {message()}", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)


def check_stdout(advice: str = "redirect it to a file") -> None:
    """Check that standard output, to which a command writes its results, is not closed.

    Raises:
        BertieError: it is closed, as by `>&-`.
    """
    if sys.stdout is None:
        raise bertie.BertieError(f"standard output is closed; {advice}")


def writable_stdout() -> TextIO:
    """Return standard output, in UTF-8.

    Unpaired surrogates, which JSON may contain, are escaped.

    Raises:
        BertieError: it is closed.
    """
    check_stdout("write to a file with --out")
    if isinstance(sys.stdout, TextIOWrapper):  # otherwise a caller has replaced it
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    return sys.stdout
