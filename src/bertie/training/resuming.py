"""Check whether a run may be resumed, and with which settings."""

import os
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bertie.base.errors import DataError, SettingsError
from bertie.base.files import read_json_object
from bertie.base.locks import lock_directory
from bertie.base.settings import ARGUMENTS_FILE, SETTINGS_FILE, Settings, read_settings, resolve
from bertie.training.checkpoints import JOB, RunDirectory
from bertie.training.distributed import is_restarted, torchrun_job

RESUME_NOTE = "--resume resumes the run"
# A run that was killed before it had written its settings may have left these.
RUN_FILES = (ARGUMENTS_FILE, "metrics.jsonl", "checkpoints", "tensorboard")
# Suffixes of a job's logs, such as `2> RUN/log.txt`; no run writes files with these suffixes here.
LOG_SUFFIXES = (".log", ".out", ".err", ".txt")

# Settings that hold the hash of a run's input, with the name of that input in error messages. The model comes
# first: another tokenizer changes the hashes of the encoded examples, too.
FINGERPRINTS = {
    "initial_model_fingerprint": "initial model",
    "corpus_fingerprint": "corpus",
    "training_fingerprint": "training set",
    "dev_fingerprint": "dev set",
    "labels_fingerprint": "set of labels",
}


def check_changes(section: type[Settings], changes: Mapping[str, Any]) -> None:
    """Refuse to set the fingerprints of a run's inputs, which the run fills in.

    Raises:
        SettingsError: `changes` has a fingerprint, by its current or former name.
    """
    for key in changes:
        if name := FINGERPRINTS.get(section.renamed.get(key, key)):
            raise SettingsError(
                f"{key}: a run fills in this setting; leave it out, and choose the {name} with its option"
            )


@contextmanager
def lock_run(path: Path) -> Iterator[None]:
    """Lock the directory of a run to resume, from the first look to the last write.

    An OSError gets a note that contains `--resume` if the run can be resumed.

    Raises:
        BertieError: as in `lock_directory`.
    """
    with lock_directory(path):
        try:
            yield
        except OSError as error:
            if RunDirectory(path).settings_file.exists():
                error.add_note(RESUME_NOTE)
            raise


def continues_job(path: Path) -> bool:
    """Return whether the run in `path` belongs to this process's torchrun job.

    The job has started this process. torchrun starts all processes again, with the same command, when one of
    them fails or more join.
    """
    if not (path / SETTINGS_FILE).exists():
        return False
    job = torchrun_job()
    return is_restarted() or (job is not None and job == read_json_object(path / ARGUMENTS_FILE).get(JOB))


def check_run(run: RunDirectory, settings: Settings, resume: bool, may_change: Set[str]) -> None:
    """Refuse to overwrite a run, or to resume one with different settings or inputs.

    Args:
        run: the directory to write to, which may already hold a run.
        settings: settings of the run to start or resume, with their fingerprints filled in.
        resume: whether the user asked to resume.
        may_change: keys of settings that may differ from the resumed run's; `section.key` for a
            setting of an inner section.

    Raises:
        SettingsError: there is no run to resume; there is a run, or something else, but `resume` is
            false; a setting differs; or the settings of the run are damaged.
        DataError: the run started with different data or from a different model.
    """
    if not resume:
        check_new_run(run)
        return
    if not run.settings_file.exists():
        raise SettingsError(f"{run.path}: no run to resume here; start one without --resume (resume=True)")
    original = resolve(type(settings), read_settings(run.settings_file), source=str(run.settings_file))
    old_values, new_values = dict(_flatten(original)), dict(_flatten(settings))
    # A changed setting can change the encoded data, too; the error about the setting is the helpful one.
    for key in sorted(old_values | new_values, key=_check_order):
        old, new = old_values.get(key), new_values.get(key)
        if old == new or key in may_change:
            continue
        if input_name := FINGERPRINTS.get(key.rpartition(".")[2]):
            if old:  # runs of earlier versions lack some fingerprints
                raise DataError(
                    f"{run.path}: this run started with a different {input_name}; pass the original one"
                )
            continue
        raise SettingsError(
            f"{run.path}: {key} was {old!r} when the run started and is {new!r} now; resume "
            f"without this setting and without a recipe, or start a new run"
        )


def _check_order(key: str) -> int:
    """Return the place of a setting: before the fingerprints, which have the order of `FINGERPRINTS`."""
    name = key.rpartition(".")[2]
    return 1 + list(FINGERPRINTS).index(name) if name in FINGERPRINTS else 0


def check_new_run(run: RunDirectory) -> None:
    """Refuse to start a run in a directory that holds a run, or something else.

    Raises:
        SettingsError: there is a run, or another file than a log.
    """
    if run.settings_file.exists():
        raise SettingsError(
            f"{run.path}: already holds a run; pass --resume (resume=True), or choose another directory"
        )
    for name in sorted(os.listdir(run.path)) if run.path.exists() else ():
        if not name.startswith(".") and name not in RUN_FILES and not name.endswith(LOG_SUFFIXES):
            raise SettingsError(
                f"{run.path}: contains other files ({name}); choose an empty or a new directory"
            )
    if run.has_progress():
        raise SettingsError(
            f"{run.path}: holds checkpoints or metrics of another run, but no {SETTINGS_FILE}; restore "
            f"this file, or choose another directory"
        )


def _flatten(section: Settings, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (key, value) of every setting.

    Keys in inner sections are `section.key` or `section.0.key`.
    """
    for key, value in section:
        if isinstance(value, Settings):
            yield from _flatten(value, f"{prefix}{key}.")
        elif isinstance(value, tuple) and any(isinstance(item, Settings) for item in value):
            for i, item in enumerate(value):
                yield from _flatten(item, f"{prefix}{key}.{i}.")
        else:
            yield prefix + key, value
