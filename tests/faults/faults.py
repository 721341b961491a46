"""Count the operations of a command on files, and disturb the command at one of them.

An operation changes something below a folder: it opens a file for writing, writes, truncates, waits
for the disk (fsync), renames, or removes or creates a file or directory. Worker processes count,
too; they are forked here, not spawned. Not seen are the writes of Rust and C++ (safetensors,
Parquet), but the opening, closing and renaming of their files are.
"""

import builtins
import ctypes
import errno
import io
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.faults import small_disk

if TYPE_CHECKING:
    from tests.faults.template import Job

# Audit events of Python that change a directory (docs.python.org, "Audit events table"), with the
# position of the file descriptor to which their path is relative.
EVENTS = {"os.mkdir": 2, "os.remove": 1, "os.rename": 2, "os.rmdir": 1, "os.truncate": None}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
ALLOCATING = {"open", "os.mkdir", "write", "fsync"}  # what a full disk refuses
CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000  # linux/sched.h

FORK = multiprocessing.get_context("fork")
_open = io.open


class Operations:
    """The operations below `folder` of this process and its workers."""

    def __init__(self, folder: str, fault: str, at: int) -> None:
        self.folder, self.fault, self.at = folder + "/", fault, at
        self.count = FORK.Value("i", 0)

    def happens(self, kind: str, path: str, tear: Callable[[], object] | None = None) -> None:
        """Count an operation that is about to happen; disturb the process if it is the one.

        `tear` does half of a write.
        """
        if not path.startswith(self.folder):
            return
        with self.count.get_lock():
            self.count.value += 1
            number = self.count.value
        if self.at == 0 or number < self.at:
            return
        if self.fault == "full" and kind in ALLOCATING:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), *([path] if kind != "write" else []))
        if number == self.at and self.fault == "kill":
            if tear is not None:
                tear()
            os.kill(os.getpid(), signal.SIGKILL)
        if number == self.at and self.fault.startswith("SIG"):
            os.kill(os.getpid(), signal.Signals[self.fault.removesuffix("-twice")])
        if number == self.at + 1 and self.fault.endswith("-twice"):
            os.kill(os.getpid(), signal.Signals[self.fault.removesuffix("-twice")])

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Count what Python's audit events report."""
        if event == "open":
            if isinstance(arguments[0], int) or not arguments[2] & WRITING:
                return
            self.happens(event, os.path.abspath(os.fsdecode(arguments[0])))
        elif event in EVENTS and not isinstance(arguments[0], int):
            position = EVENTS[event]
            directory = arguments[position] if position is not None else -1
            base = os.readlink(f"/proc/self/fd/{directory}") if directory >= 0 else os.getcwd()
            self.happens(event, os.path.normpath(os.path.join(base, os.fsdecode(arguments[0]))))

    def install(self) -> None:
        """Count the operations of this process and of its forks."""
        from bertie.base import files

        operations, fsync, exchange = self, os.fsync, files._exchange

        class CountedFile(io.FileIO):
            def write(self, data: Any) -> int:
                operations.happens("write", self._path(), lambda: os.write(self.fileno(), _half(data)))
                return super().write(data)

            def truncate(self, size: int | None = None) -> int:
                operations.happens("truncate", self._path())
                return super().truncate(size)

            def _path(self) -> str:
                return os.path.abspath(os.fsdecode(self.name))  # type: ignore[arg-type]

        def counted_open(file: Any, mode: str = "r", buffering: int = -1, *args: Any, **kwargs: Any) -> Any:
            if isinstance(file, int) or "opener" in kwargs or not set(mode) & set("wax+"):
                return _open(file, mode, buffering, *args, **kwargs)
            raw = CountedFile(file, mode.replace("b", "").replace("t", ""))
            if buffering == 0:
                return raw
            binary = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
            if "b" in mode:
                return binary
            text = io.TextIOWrapper(binary, *args, line_buffering=buffering == 1, **kwargs)
            text.mode = mode  # type: ignore[misc]
            return text

        def counted_fsync(handle: Any) -> None:
            number = handle if isinstance(handle, int) else handle.fileno()
            operations.happens("fsync", os.readlink(f"/proc/self/fd/{number}"))
            fsync(handle)

        def counted_exchange(first: Path, second: Path) -> bool:
            operations.happens("os.rename", os.path.abspath(first))
            return exchange(first, second)

        builtins.open = io.open = counted_open  # type: ignore[assignment]
        os.fsync = counted_fsync  # type: ignore[assignment]
        files._exchange = counted_exchange
        sys.addaudithook(self.audit)


def _half(data: Any) -> bytes:
    return bytes(memoryview(data).cast("B"))[: memoryview(data).nbytes // 2]


def run_main(arguments: list[str]) -> int:
    """Run `bertie ARGUMENTS` in this process, and return its exit status."""
    from bertie.commands.main import main

    sys.argv = ["bertie", *arguments]
    try:
        main()
    except SystemExit as exit:
        return exit.code if isinstance(exit.code, int) else bool(exit.code)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def run_job(job: "Job") -> int:
    """Run a command with its faults and limits in this process, and return its exit status."""
    os.setsid()  # one process group for it and its workers
    os.chdir(job.cwd)
    log = _open(job.log, "w", buffering=1)
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    sys.stdout = sys.stderr = log
    if job.terminal:
        for number in (1, 2):
            os.dup2(os.open(job.terminal, os.O_WRONLY | os.O_NOCTTY), number)
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which `nohup` ignores
    if job.read_only:
        mount_read_only(job.read_only)
    if job.files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (job.files, job.files))
    if job.clock:
        now, now_ns = time.time, time.time_ns
        time.time = lambda: now() + job.clock
        time.time_ns = lambda: now_ns() + int(job.clock * 1e9)
    operations = Operations(job.watched, job.fault, job.at)
    if job.watched:
        operations.install()
    if job.disk_bytes is not None:
        enter_mount_namespace()
        small_disk.run_twice(run_main, job.arguments, job.disk_bytes)
        return 0
    status = run_main(job.arguments)
    with _open(f"{job.log}.count", "w") as file:
        file.write(str(operations.count.value))
    return status


def enter_mount_namespace() -> None:
    """Let this process mount file systems, which only it and its children see."""
    user, group = os.getuid(), os.getgid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS | (CLONE_NEWUSER if user else 0)):
        raise OSError(ctypes.get_errno(), "unshare")
    if user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)


def mount_read_only(folder: str) -> None:
    """Mount a read-only file system on a folder, for this process only."""
    enter_mount_namespace()
    subprocess.run(["mount", "--bind", folder, folder], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)
