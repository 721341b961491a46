"""Check and record the arguments of the API.

The arguments are paths, settings as keywords, and what a run was started with. A run records the arguments
that started it in RUN/arguments.json, beside its settings, so that it resumes from its directory only.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count, islice
from pathlib import Path
from typing import Any, Literal

import pydantic

from bertie.base.arguments import advise
from bertie.base.cluster import connect
from bertie.base.errors import DataError, SettingsError
from bertie.base.executor import Executor
from bertie.base.files import read_json
from bertie.base.processors import available_cpus
from bertie.base.settings import ARGUMENTS_FILE, SETTINGS_FILE, Tree, merge, read_settings
from bertie.base.storage import as_path
from bertie.base.texts import count_noun, is_table, list_items

PathLike = str | Path
# Inputs that a run's settings recognize by a fingerprint, wherever they are.
FINGERPRINTED = ("corpus", "model", "train", "dev", "data")
PATHS = (*FINGERPRINTED, "init")
IN_MEMORY = "in_memory"  # key of the names of inputs that were objects in memory
MAX_MESSAGES = 10  # about skipped inputs; all of them are in a file


def as_paths(paths: PathLike | Iterable[PathLike], name: str = "inputs") -> list[Path]:
    """Return a list of paths, given one path or several; URLs become `RemotePath`s.

    `name` is the name of the argument, for error messages.

    Raises:
        DataError: an argument is not a path.
    """
    if isinstance(paths, str | Path):
        paths = [paths]
    elif is_table(paths) or advise(paths):
        problem = f"expected a path or a list of paths, got {type(paths).__name__}"
        raise DataError(f"{name}: {problem}{_advise(paths, name)}")
    listed = list_items(paths, name, "a path or a list of paths")
    for i, path in enumerate(listed):
        if not isinstance(path, str | Path):
            problem = f"expected a path, got {type(path).__name__}"
            raise DataError(f"{name}[{i}]: {problem}{_advise(path, name)}")
        if path == "":  # which is the current folder for `Path`
            raise DataError(f"{name}[{i}]: expected a path, got an empty string")
    return [as_path(path) for path in listed]


def _advise(value: Any, name: str) -> str:
    """Return advice on what to pass instead of a value that is not a path."""
    if not is_table(value):  # a row of a table counts as one
        return advise(value)
    is_text = name == "inputs"
    return "; write the table to a .csv, .jsonl or .parquet file, and pass the file" if is_text else ""


def nest_settings(*layers: Mapping[str, Any] | None) -> Tree:
    """Merge settings into one tree; a dotted key belongs to an inner section.

    Later layers take precedence.

    Raises:
        SettingsError: a key is not a string.

    Example:
        >>> nest_settings({"batch_size": 64}, {"optimizer.learning_rate": 1e-3})
        {'batch_size': 64, 'optimizer': {'learning_rate': 0.001}}
    """
    tree: Tree = {}
    for key, value in (item for layer in layers for item in (layer or {}).items()):
        if not isinstance(key, str):
            raise SettingsError(f"settings: the key {key!r} is not the name of a setting")
        *sections, name = key.split(".")
        branch: Tree = {name: value}
        for section in reversed(sections):
            branch = {section: branch}
        tree = merge(tree, branch)
    return tree


def record_arguments(arguments: Mapping[str, Any]) -> Tree:
    """Return the arguments of a run as they are written to its arguments.json.

    Paths become absolute. Data in memory cannot be recorded, so only their names are listed.
    """
    recorded: Tree = {}
    in_memory: list[str] = []
    for key, value in arguments.items():
        if key in PATHS and isinstance(value, str | Path):
            recorded[key] = str(as_path(value).absolute())
        elif key in PATHS and not isinstance(value, float | None):  # dev can be a fraction
            in_memory.append(key)
        elif value is not None:
            recorded[key] = value
    return recorded | ({IN_MEMORY: in_memory} if in_memory else {})


class _RecordedArguments(pydantic.BaseModel):
    """The content of a run's arguments.json.

    The arguments without a field here are strings.
    """

    model_config = pydantic.ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, str]

    dev: str | float | None = None
    columns: dict[str, str | list[str] | None] | None = None
    in_memory: list[str] = []


def recorded_arguments(run: Path) -> Tree:
    """Return the arguments that a run recorded; runs of earlier versions have none.

    Raises:
        DataError: arguments.json is not JSON.
        SettingsError: an argument has a wrong type.
    """
    path, remedy = run / ARGUMENTS_FILE, "restore it, or start again in another directory"
    try:
        content = read_json(path) if path.exists() else {}
        return _RecordedArguments.model_validate(content).model_dump(exclude_unset=True)
    except pydantic.ValidationError as error:
        key = ".".join(map(str, error.errors()[0]["loc"])) or "the content"
        raise SettingsError(f"{path}: damaged ({key}); {remedy}") from None
    except DataError as error:
        raise DataError(f"{error}; {remedy}") from None


def check_command(run: Path, command: Literal["pretrain", "finetune", "search"]) -> None:
    """Check that the run in a directory, if there is one, is of this command.

    Raises:
        SettingsError: it is of another one, or its settings are damaged.
    """
    if (run / SETTINGS_FILE).exists():
        keys = read_settings(run / SETTINGS_FILE).keys()
        found = "pretrain" if "phases" in keys else "search" if "learning_rates" in keys else "finetune"
        if found == "finetune" and "epochs" not in keys:
            raise SettingsError(
                f"{run / SETTINGS_FILE}: damaged or empty; restore it, or start again in another directory"
            )
        if found != command:
            raise SettingsError(
                f"{run}: holds a run of `bertie {found}`; choose another directory, or resume it with that "
                f"command"
            )


def recall_arguments(run: Path, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> Tree:
    """Complete the arguments of a resumed run with the recorded arguments.

    Args:
        run: the directory of the run.
        given: the arguments of this call. None, or the default value, means that it gave none.
        defaults: the default values that are not None.

    Raises:
        SettingsError: there is no run, an argument contradicts a recorded one, or data were in memory
            and are not given again.
    """
    if not (run / SETTINGS_FILE).exists():
        raise SettingsError(f"{run}: no run to resume here; start one without --resume (resume=True)")
    recorded = recorded_arguments(run)
    in_memory = recorded.get(IN_MEMORY, [])
    arguments = dict(given)
    for key, value in given.items():
        if value is None or (isinstance(value, str) and value == defaults.get(key)):
            arguments[key] = recorded.get(key, value)
            continue
        (now,) = record_arguments({key: value}).values()
        # The fraction of a dev set that is drawn has no fingerprint.
        is_drawn = isinstance(now, float) or isinstance(recorded.get(key), float)
        is_known = key in in_memory or (key in recorded and key in FINGERPRINTED and not is_drawn)
        if recorded and not is_known and now != recorded.get(key):
            raise SettingsError(
                f"{run}: {key} was {recorded.get(key)!r} when the run started and is {now!r} now; leave it "
                f"out to resume the run, or choose another directory"
            )
    if lost := [key for key in in_memory if arguments.get(key) is None]:
        raise SettingsError(
            f"{run}: this run started with data in memory, which are not recorded; pass "
            f"{' and '.join(lost)} again"
        )
    return arguments


def require_arguments(run: Path, arguments: Mapping[str, Any], resume: bool, **descriptions: str) -> None:
    """Check that the arguments with these descriptions are given.

    Raises:
        SettingsError: an argument is missing.
    """
    missing = [
        f"{description} (--{key}, {key}=…)"
        for key, description in descriptions.items()
        if arguments[key] is None
    ]
    if missing and resume:
        raise SettingsError(
            f"{run}: an earlier version of bertie started this run and did not record its arguments; pass "
            f"{' and '.join(missing)} again"
        )
    if missing:
        raise SettingsError(f"nothing to start from; pass {' and '.join(missing)}")


def free_directory(name: str) -> Path:
    """Return the first of `name`, `name-2`, `name-3`, … that does not exist."""
    candidates = (Path(name if number == 1 else f"{name}-{number}") for number in count(1))
    return next(path for path in candidates if not path.exists())


def count_processes(workers: int | None) -> int:
    """Return the number of processes to use.

    It is the number of available processors if none is given.

    Raises:
        SettingsError: `workers` is less than 1.
    """
    if workers is None:
        return available_cpus()
    if workers < 1:
        raise SettingsError(f"workers = {workers}: expected at least 1, or None for all processors")
    return workers


@contextmanager
def open_workers(
    workers: int | None, scheduler: str | None, reads: Sequence[Path], writes: Path | None = None
) -> Iterator[int | Executor]:
    """Yield the number of local processes, or the workers of a Dask scheduler.

    Args:
        workers: the number of processes, as in `count_processes`.
        scheduler: the address of a Dask scheduler; None for local processes.
        reads, writes: as in `connect`.

    Raises:
        SettingsError, BertieError: as in `connect` and `count_processes`, or both `workers` and `scheduler`
            are given.
    """
    if scheduler is None:
        yield count_processes(workers)
        return
    if workers is not None:
        raise SettingsError("workers: the scheduler has its own workers; omit workers, or scheduler")
    with connect(scheduler, reads, writes) as cluster:
        yield cluster


def absolute_if(scheduler: str | None, files: list[Path]) -> list[Path]:
    """Make paths absolute for the workers of a scheduler.

    Workers have another current directory.
    """
    return [file.absolute() for file in files] if scheduler else files


def print_skipped(counts: Mapping[str, int], messages: Iterable[str]) -> None:
    """Print the first messages about skipped inputs, and a count of each reason."""
    for message in islice(messages, MAX_MESSAGES):
        print(message, file=sys.stderr)
    if sum(counts.values()) > MAX_MESSAGES:
        print("…", file=sys.stderr)
    if counts:
        nouns = (reason.replace("_", " ").removesuffix("s") for reason in counts)
        reasons = map(count_noun, counts.values(), nouns)
        print(f"skipped: {', '.join(reasons)}", file=sys.stderr)
