"""`bertie prepare` from start to last sync, on inputs of every shape: time, and the largest process's memory.

    python benchmarks/prepare.py [WORKERS=2] [INPUT …]

The inputs, all made of the 200 MB of Wikipedia in a temporary folder (3 GB at most at a time):
  xz          the 20 .xz files as they are
  document    one plain file of 100 MB, which is one document
  tiny        100,000 plain files of a paragraph or two
  jsonl-x1    62.5 MB in one file; jsonl-x4, jsonl-x16: 250 MB and 1 GB
Without names, all of them in turn.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

from bertie.corpus.readers import list_inputs, read_documents

DATA = Path(os.environ.get("BERTIE_DATA") or Path(__file__).parents[2] / "shared" / "data")
WIKIPEDIA = DATA / "text/wikipedia/*.xz"
JSONL_BYTES = 62_500_000


def texts() -> Iterator[str]:
    """Articles, over and over, but no two of them equal."""
    for copy in count():
        for path in list_inputs([WIKIPEDIA]):
            for document in read_documents(path):
                yield f"{document.text}\nCopy {copy}." if copy else document.text


def use_files(_: Path) -> list[Path]:
    return list_inputs([WIKIPEDIA])


def write_document(folder: Path) -> list[Path]:
    return [write_up_to(folder / "document.txt", 100_000_000, (f"{text}\n\n" for text in texts()))]


def write_tiny(folder: Path) -> list[Path]:
    paragraphs = (line for text in texts() for line in text.split("\n") if len(line) > 500)
    for number in range(100_000):
        path = folder / f"{number // 1000:03}" / f"{number:06}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text(next(paragraphs))
    return [folder]


def write_jsonl(factor: int) -> Callable[[Path], list[Path]]:
    def write(folder: Path) -> list[Path]:
        lines = (json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts())
        return [write_up_to(folder / "articles.jsonl", factor * JSONL_BYTES, lines)]

    return write


def write_up_to(path: Path, size: int, parts: Iterator[str]) -> Path:
    with path.open("wb") as file:
        while file.tell() < size:
            file.write(next(parts).encode())
    return path


INPUTS: dict[str, Callable[[Path], list[Path]]] = {
    "xz": use_files,
    "document": write_document,
    "tiny": write_tiny,
    "jsonl-x1": write_jsonl(1),
    "jsonl-x4": write_jsonl(4),
    "jsonl-x16": write_jsonl(16),
}


def measure(name: str, workers: int) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "in").mkdir()
        inputs = INPUTS[name](folder / "in")
        size = sum(
            len(document.text.encode()) for path in list_inputs(inputs) for document in read_documents(path)
        )
        tokenizer = next((DATA / "vocab").glob("*uncased*"))
        options = ["--tokenizer", tokenizer, "--out", folder / "corpus", "--workers", workers]
        arguments = [sys.executable, "-m", "bertie.commands.main", "prepare", *inputs, *options]
        log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT)
        actions = [(os.POSIX_SPAWN_DUP2, log, 1), (os.POSIX_SPAWN_DUP2, log, 2)]
        started = time.perf_counter()
        process = os.posix_spawn(
            sys.executable, [str(a) for a in arguments], os.environ, file_actions=actions
        )
        # The usage of a process has that of the children it waited for: the peak is the largest one's.
        _, status, usage = os.wait4(process, 0)
        seconds = time.perf_counter() - started
        os.close(log)
        if status:
            sys.exit((folder / "log").read_text())
        print(
            f"{name:10} {size / 1e6:7.1f} MB of text  {seconds:6.1f} s  {size / 1e6 / seconds:5.1f} MB/s"
            f"  {usage.ru_utime + usage.ru_stime:6.1f} s of CPU  {usage.ru_maxrss / 1e3:5.0f} MB at most"
        )


if __name__ == "__main__":
    for name in sys.argv[2:] or INPUTS:
        measure(name, int(sys.argv[1]) if sys.argv[1:] else 2)
