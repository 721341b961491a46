"""Run bertie on a disk that is too small for it, then again with enough space."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

PAGE = 4096  # bytes that a tmpfs allocates at a time, on most machines


def run_twice(run: Callable[[list[str]], int], arguments: list[str], size: int) -> None:
    """Run a command on a small disk, and again on a larger one, as its error says.

    Mounts a file system with `size` free bytes on the folder `disk`, which only this process and its
    children see; runs the command; copies the disk to `copy/full`; enlarges it; runs the command again; and
    copies the disk to `copy/room`. Prints what the commands print, and then their exit statuses.

    Args:
        run: runs `bertie ARGUMENTS`, and returns its exit status.
    """
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size + PAGE}", "tmpfs", "disk"], check=True)
    filler = Path("disk/filler")  # because a size of 0 would be no limit
    filler.write_bytes(bytes(PAGE))
    first, second = Path("first.log"), Path("second.log")
    statuses = [_fork(run, arguments, first)]
    filler.unlink()
    shutil.copytree("disk", "copy/full", symlinks=True)
    subprocess.run(["mount", "-o", "remount,size=100m", "disk"], check=True)
    advice = first.read_text().splitlines()[-1]
    again = [*arguments, "--resume"] if advice.endswith("with --resume") else arguments
    statuses.append(_fork(run, again, second))
    shutil.copytree("disk", "copy/room", symlinks=True)
    print(first.read_text() + second.read_text(), *statuses, sep="\n")


def _fork(run: Callable[[list[str]], int], arguments: list[str], log: Path) -> int:
    if pid := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    status = 1
    try:
        sys.stdout = sys.stderr = log.open("w", buffering=1)
        status = run(arguments)
    finally:
        os._exit(status)
