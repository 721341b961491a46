"""Run bertie on a disk that is too small for it, then again with enough space.

    python small_disk.py DISK SIZE COPY COMMAND...

Run this in a separate mount namespace. It mounts a file system of SIZE bytes on DISK, runs `bertie
COMMAND`, copies the disk to COPY/full, enlarges it, runs the command again as its error says, and
copies the disk to COPY/room. It prints the two exit statuses.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from bertie.commands.main import main


def run(arguments: list[str], log: Path) -> int:
    process = os.fork()
    if process == 0:
        sys.argv = ["bertie", *arguments]
        sys.stderr = log.open("w", buffering=1)
        main()
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    sys.stderr.write(log.read_text())
    return status


disk, size, copy, *command = sys.argv[1:]
if command[0] in ("pretrain", "finetune"):  # import once what both processes below need
    import torch._dynamo  # noqa: F401

    import bertie.training.pretraining  # noqa: F401
subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", disk], check=True)
first, second = Path("first.log"), Path("second.log")
statuses = [run(command, first)]
shutil.copytree(disk, Path(copy) / "full", symlinks=True)
subprocess.run(["mount", "-o", "remount,size=100m", disk], check=True)
advice = first.read_text().splitlines()[-1]
statuses.append(run([*command, "--resume"] if advice.endswith("with --resume") else command, second))
shutil.copytree(disk, Path(copy) / "room", symlinks=True)
print(*statuses, flush=True)
