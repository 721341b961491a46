"""Run a command in a process, and kill it at one of its file operations."""

import os
import signal
import sys
from collections.abc import Sequence
from ctypes import c_int
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

from tests.faults.runs import FORKSERVER

from bertie.commands.main import main

# Audit events of Python that begin an operation on a file (docs.python.org, "Audit events table").
OPERATIONS = {"open", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate", "shutil.rmtree"}


def _run(
    arguments: Sequence[str], folder: str, killed_at: int, count: "Synchronized[c_int]", log: str
) -> None:
    def kill_or_count(event: str, event_arguments: tuple[Any, ...]) -> None:
        if event in OPERATIONS and isinstance(event_arguments[0], str | bytes | os.PathLike):
            path = os.path.abspath(os.fsdecode(event_arguments[0]))
            if path.startswith(folder) and path != log:
                count.value += 1
                if count.value == killed_at:
                    os.kill(os.getpid(), signal.SIGKILL)

    sys.argv = ["bertie", *arguments]
    with Path(log).open("w", buffering=1) as output:
        sys.stdout = sys.stderr = output
        sys.addaudithook(kill_or_count)
        main()


def run_and_kill(arguments: Sequence[object], folder: Path, killed_at: int = 0) -> tuple[int, int, str]:
    """Run `bertie ARGUMENTS`, and kill it at an operation on a file below `folder`; 0 for none.

    Returns:
        The exit status, the number of operations, and the last line of the output.
    """
    count = FORKSERVER.Value(c_int, 0)
    log = folder.with_name(f"{folder.name}.log")
    process = FORKSERVER.Process(
        target=_run, args=([*map(str, arguments)], f"{folder}/", killed_at, count, str(log))
    )
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode, count.value, (log.read_text().splitlines() or [""])[-1]
