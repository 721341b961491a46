"""Fork commands from a process that has imported bertie and compiled its kernels.

A forked command starts within milliseconds, where a new process needs seconds. The template is a
process with one thread, so that forking it is safe. It reads one JSON object a line from standard
input and answers with one number a line:

{"warm": ARGUMENTS}   run a command in the template itself; answers the exit status
{"start": JOB}        fork a command; answers the process id
{"wait": PID}         wait for a command; answers the exit status, negative for a signal
"""

import gc
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, TextIO


@dataclass(frozen=True)
class Job:
    """A command to fork.

    arguments  of `bertie`
    cwd        the current folder of the command
    log        the file that gets standard output and standard error
    watched    the folder below which operations on files are counted
    fault      what happens at the operation `at`, a name of `faults.FAULTS`
    at         the number of an operation, from 1; 0 for no fault
    files      the largest number of open files; 0 for no limit
    read_only  a folder on which an empty read-only file system is mounted
    clock      seconds that are added to the clock
    terminal   a terminal that gets standard output and standard error in place of the log
    disk_bytes free bytes of a disk on which the command runs twice (small_disk.py); None for no disk
    """

    arguments: list[str]
    cwd: str
    log: str
    watched: str = ""
    fault: str = ""
    at: int = 0
    files: int = 0
    read_only: str = ""
    clock: float = 0.0
    terminal: str = ""
    disk_bytes: int | None = None


class Template:
    """The process from which commands are forked."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )

    def warm(self, *arguments: object) -> None:
        """Run a command in the template itself, so that forked commands find its code warm."""
        assert self._ask("warm", [*map(str, arguments)]) == 0, arguments

    def start(self, job: Job) -> "Forked":
        return Forked(self, self._ask("start", asdict(job)), job)

    def wait(self, pid: int) -> int:
        return self._ask("wait", pid)

    def close(self) -> None:
        self._process.communicate()

    def _ask(self, question: str, value: Any) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({question: value}) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


@dataclass
class Forked:
    """A forked command."""

    template: Template
    pid: int
    job: Job
    exitcode: int | None = None

    def kill(self, number: int = signal.SIGKILL) -> None:
        os.kill(self.pid, number)

    def join(self) -> int:
        """Wait for the command and return its exit status, negative for a signal."""
        if self.exitcode is None:
            self.exitcode = self.template.wait(self.pid)
        return self.exitcode

    def has_workers(self) -> bool:
        """Return whether a process of the command's group is running."""
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return False
        return True

    @property
    def operations(self) -> int:
        """The number of operations on files, of a command that has not been killed."""
        return int(Path(f"{self.job.log}.count").read_text())

    @property
    def output(self) -> str:
        log = Path(self.job.log)  # the command creates it
        return log.read_text() if log.exists() else ""

    @property
    def last_line(self) -> str:
        return (self.output.splitlines() or [""])[-1]


def _serve() -> None:
    """Answer requests from standard input until it ends."""
    import typer.main
    from matplotlib.figure import Figure
    from numba.core import event
    from tests.faults import faults, small_demo

    from bertie.base import kernels
    from bertie.corpus import input_splits
    from bertie.training import planning

    small_demo.install()
    input_splits.TASK_BYTES = 1 << 15  # so that the small inputs of the tests are several tasks
    planning.MIN_BATCH_SECONDS = 0  # measure the speed of a network on one sequence
    event.unregister("numba:compile", kernels.notice)  # type: ignore[no-untyped-call]

    def save_nothing(figure: Figure, file: Any, **options: Any) -> None:
        file.write("<svg></svg>")

    Figure.savefig = save_nothing  # type: ignore[method-assign]  # drawing takes longer than training
    os.fsync = lambda handle: None  # matters only when the machine crashes
    typer.main.get_command = cache(typer.main.get_command)  # or each command would parse all signatures
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    null = open(os.devnull, "w")  # noqa: SIM115
    os.dup2(null.fileno(), 1)
    sys.stdout = null
    for line in sys.stdin:
        ((question, value),) = json.loads(line).items()
        if question == "warm":
            answer = faults.run_main(value)
        elif question == "start":
            answer = _fork(Job(**value), answers)
        else:
            answer = os.waitstatus_to_exitcode(os.waitpid(value, 0)[1])
        print(answer, file=answers)


def _fork(job: Job, answers: TextIO) -> int:
    from tests.faults import faults

    gc.freeze()  # the command would search all imported packages for garbage
    if pid := os.fork():
        return pid
    answers.close()
    status = 1
    try:
        status = faults.run_job(job)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    _serve()
