"""Damage one file of a directory, run a command that reads it, and judge the outcome."""

import hashlib
import json
import random
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.faults.template import Job, Template

SECONDS = 60  # after which a command counts as hung; the slowest takes 2 on an idle machine
KINDS_OF_DAMAGE = ("flip", "cut", "zero", "swap", "delete", "directory", "dangling link", "another's")


def damage(file: Path, kind: str, other: Path, rng: random.Random) -> None:
    """Damage a file; `other` is the file of this name in another directory of the same kind."""
    content = bytearray(file.read_bytes())
    start = rng.randrange(max(1, len(content)))
    length, bit = rng.choice([1, 8, len(content)]), rng.randrange(8)
    if kind == "flip":
        content[start : start + 1] = bytes(byte ^ 1 << bit for byte in content[start : start + 1])
    elif kind == "cut":
        del content[start:]
    elif kind == "zero":
        content[start : start + length] = bytes(len(content[start : start + length]))
    elif kind == "swap":
        middle = len(content) // 2
        content = content[middle:] + content[:middle]
    elif kind == "another's":
        content = bytearray(other.read_bytes() if other.is_file() else b"")
    if kind in ("delete", "directory", "dangling link"):
        file.unlink()
    if kind == "directory":
        file.mkdir()
    elif kind == "dangling link":
        file.symlink_to("absent")
    elif kind != "delete":
        file.write_bytes(content)


@dataclass(frozen=True)
class Reader:
    """A command that reads a kind of directory.

    arguments   of `bertie`, given the directory and a folder for the command's output
    result      the result of the command, given the directory and the folder
    """

    arguments: Callable[[Path, Path], list[object]]
    result: Callable[[Path, Path], object]


def hash_files(folder: Path, *patterns: str) -> dict[str, str]:
    """Return the hashes of files by their names."""
    files = {file for pattern in patterns for file in folder.glob(pattern) if file.is_file()}
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def try_cases(
    template: Template, reader: Reader, directory: Path, other: Path, folder: Path, numbers: range
) -> dict[str, int]:
    """Damage a copy of a directory once for each number, and read it.

    A number gives the file, the kind of damage and the seed of its place.

    Returns:
        The number of cases of each outcome: `refused` in one line, or the `same` result.

    Raises:
        AssertionError: a command ended otherwise. The message has the file, the damage and the output.
    """
    files = sorted(file.relative_to(directory) for file in directory.rglob("*") if file.is_file())
    shutil.copytree(directory, folder / "whole")
    expected = _read(template, reader, folder / "whole", folder)
    assert expected[0] == 0, expected
    outcomes = {"refused": 0, "same": 0}
    for number in numbers:
        rng = random.Random(number)
        name, kind = files[number % len(files)], KINDS_OF_DAMAGE[number // len(files) % len(KINDS_OF_DAMAGE)]
        copy = folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(directory, copy)
        damage(copy / name, kind, other / name, rng)
        status, output, result = _read(template, reader, copy, folder)
        case = f"{number}: {kind} of {name}: {status} {output}"
        if status == 0:
            assert result == expected[2], f"silent change, {case}"
            outcomes["same"] += 1
        else:
            lines = [line for line in output.splitlines() if line.startswith(("bertie: ", "Traceback"))]
            assert status == 2, case
            assert len(lines) == 1, case
            assert output.splitlines()[-1].startswith("bertie: "), case
            outcomes["refused"] += 1
    return outcomes


def _read(template: Template, reader: Reader, directory: Path, folder: Path) -> tuple[int, str, object]:
    """Return the exit status, the output and the result of the reader of a directory."""
    output = folder / "output"
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir()
    log = folder / "log"
    arguments = [str(argument) for argument in reader.arguments(directory, output)]
    forked = template.start(Job(arguments, cwd=str(folder), log=str(log)))
    timer = threading.Timer(SECONDS, forked.kill)
    timer.start()
    status = forked.join()
    timer.cancel()
    text = log.read_text(errors="replace")
    return status, text, json.dumps(reader.result(directory, output), sort_keys=True) if status == 0 else None
