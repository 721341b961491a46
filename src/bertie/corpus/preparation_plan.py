"""Record the plan of a preparation, and check it before a run resumes.

The plan is kept with the parts.
"""

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bertie import __version__
from bertie.base.checksums import verify, write_sums
from bertie.base.errors import DataError
from bertie.base.files import atomic_directory, read_json, remove_directory, write_json
from bertie.base.locks import lock_directory
from bertie.text.tokenizer import Tokenizer

# The files and directories that a run writes.
_KNOWN_NAME = re.compile(
    r"\.lock|parts|tokenizer|(train|held_out)-([a-z-]+-)?\d{5}|skipped\.txt|manifest\.json"
)
_LOCKS = (".lock", ".parts.lock")

ManifestSettings = dict[str, float | str | None]


@dataclass(frozen=True)
class TaskList:
    """The facts about the tasks of a run that assembly needs.

    Attributes:
        languages: the language of each task.
        first_input: the path of the first input, for an error message.
        skipped: the number of inputs that could not be split into tasks, for each reason.
        messages: one line for each of these inputs.
    """

    languages: list[str]
    first_input: str
    skipped: dict[str, int]
    messages: list[str]


def make_plan(
    groups: Mapping[str, Sequence[Path]], tokenizer: Tokenizer, settings: ManifestSettings, jobs: int
) -> dict[str, Any]:
    """Return everything that determines the corpus.

    A run resumes only if its plan is the same. `on_error` is not part of the plan, so that a run that
    stopped at an unreadable input can resume and skip this input.
    """
    return {
        "bertie": __version__,  # another version may split the inputs differently
        "tokenizer": tokenizer.fingerprint,
        "settings": settings,
        "inputs": " ".join(map(_fingerprint_inputs, groups.values())),
    } | ({"jobs": jobs} if jobs > 1 else {})


def _fingerprint_inputs(inputs: Sequence[Path]) -> str:
    """Hash the path, the size and the time of the last change of every input."""
    digest = hashlib.sha256()
    for path in inputs:
        status = path.stat()
        digest.update(
            os.fsencode(f"{os.path.normpath(path.absolute())}\0{status.st_size}\0{status.st_mtime_ns}\0")
        )
    return digest.hexdigest()


def _reject_other_files(output: Path) -> None:
    """Raise DataError if `output` holds anything but a corpus, finished or not."""
    is_started = any((output / name).is_file() for name in ("parts/plan.json", "manifest.json"))
    for name in sorted(file.name for file in output.iterdir()):
        if name not in _LOCKS and not (is_started and _KNOWN_NAME.fullmatch(name)):
            raise DataError(f"{output}: contains other files ({name}); choose a new directory")


def is_prepared(output: Path, plan: dict[str, Any], force: bool) -> bool:
    """Return whether a killed run with this plan had already written the whole corpus.

    With `force`, remove a corpus of another plan.

    Raises:
        DataError: there is a corpus of another plan, finished or not, and `force` is false; or
            `output` has other contents.
    """
    _reject_other_files(output)
    is_finished, parts = (output / "manifest.json").exists(), output / "parts"
    has_same_plan = (parts / "plan.json").exists() and read_json(parts / "plan.json") == plan
    if is_finished:
        remove_directory(parts)
    if has_same_plan:
        return is_finished
    # Other jobs may write there.
    remedy = "remove it" if "jobs" in plan else "replace it with --force (force=True)"
    if force:
        discard(output)
    elif is_finished:
        raise DataError(
            f"{output}: already contains a prepared corpus; choose another directory, or {remedy}"
        )
    elif parts.exists():
        _check_jobs(output, plan)
        raise DataError(
            f"{output}: contains an unfinished corpus of other inputs or settings; choose another "
            f"directory, or {remedy}"
        )
    return False


def remove_leftovers(output: Path) -> None:
    """Remove what a killed process left in a complete corpus.

    Raises:
        BertieError: another process writes to `output`.
    """
    with lock_directory(output):
        remove_directory(output / "parts")


def _check_jobs(output: Path, plan: Mapping[str, Any]) -> None:
    """Raise DataError if only the number of jobs differs from the recorded plan."""
    recorded = read_json(output / "parts/plan.json")
    jobs, others = plan.get("jobs"), recorded.get("jobs")
    if {**recorded, "jobs": None} == {**plan, "jobs": None}:
        was = f"with --part I/{others}" if others else "without --part"
        remedy = f"pass --part I/{others}" if others else "leave --part out"
        now = f"with --part I/{jobs}" if jobs else "without it"
        raise DataError(f"{output}: the corpus was started {was}, not {now}; {remedy}, or remove this folder")


def start_or_resume(output: Path, plan: Mapping[str, Any], tasks: TaskList, tokenizer: Tokenizer) -> None:
    """Record the plan and the tasks of a new run, then write the tokenizer.

    The run resumes by them.
    """
    parts = output / "parts"
    if not parts.exists():
        with atomic_directory(parts) as temporary:
            write_json(temporary / "tasks.json", asdict(tasks))
            write_json(temporary / "plan.json", plan)
            write_sums(temporary)
    elif not (parts / "tasks.json").exists():  # a run of an earlier version
        write_json(parts / "tasks.json", asdict(tasks))
    if not (output / "tokenizer").exists():
        with atomic_directory(output / "tokenizer") as temporary:
            tokenizer.save(temporary)


def read_plan(output: Path) -> tuple[dict[str, Any], TaskList]:
    """Return the recorded plan and the tasks of the unfinished corpus in `output`.

    Raises:
        ModelError: one of their files is damaged.
    """
    parts = output / "parts"
    verify(parts, remedy=f"remove {output} and prepare the corpus again")
    return read_json(parts / "plan.json"), TaskList(**read_json(parts / "tasks.json"))


def discard(output: Path) -> None:
    """Remove everything that runs write.

    The files by which a run recognizes a corpus are removed last.
    """
    last = [output / "parts", output / "manifest.json"]
    for path in [*(path for path in output.iterdir() if path not in last), *last]:
        if path.is_dir():
            remove_directory(path)
        elif path.name not in _LOCKS:
            path.unlink(missing_ok=True)
