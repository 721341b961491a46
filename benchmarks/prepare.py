"""Measure `bertie prepare`: its time, and the memory of its largest process.

    python benchmarks/prepare.py [WORKERS=2] [INPUT …]

The whole command is timed, up to its last fsync. The inputs are made from the 200 MB of
Wikipedia in a temporary folder, which takes up to 3 GB:

  xz          the 20 original .xz files
  document    one plain file of 100 MB, which is one document
  tiny        100,000 plain files of a paragraph each
  jsonl-x1    one file of 62.5 MB; jsonl-x4 and jsonl-x16 are 250 MB and 1 GB

Without arguments, all inputs are measured in this order.
"""

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

from bertie.corpus.readers import list_inputs, read_documents
from measure import DATA, UNCASED, run

WIKIPEDIA = DATA / "text/wikipedia/*.xz"
JSONL_BYTES = 62_500_000


def repeat_articles() -> Iterator[str]:
    """Yield the articles over and over, with a different text each time."""
    for copy in count():
        for path in list_inputs([WIKIPEDIA]):
            for document in read_documents(path):
                yield f"{document.text}\nCopy {copy}." if copy else document.text


def use_files(_: Path) -> list[Path]:
    return list_inputs([WIKIPEDIA])


def write_document(folder: Path) -> list[Path]:
    texts = (f"{text}\n\n" for text in repeat_articles())
    return [write_up_to(folder / "document.txt", 100_000_000, texts)]


def write_tiny_files(folder: Path) -> list[Path]:
    paragraphs = (line for text in repeat_articles() for line in text.split("\n") if len(line) > 500)
    for number in range(100_000):
        path = folder / f"{number // 1000:03}" / f"{number:06}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text(next(paragraphs))
    return [folder]


def write_jsonl(factor: int) -> Callable[[Path], list[Path]]:
    def write(folder: Path) -> list[Path]:
        lines = (json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in repeat_articles())
        return [write_up_to(folder / "articles.jsonl", factor * JSONL_BYTES, lines)]

    return write


def write_up_to(path: Path, size: int, parts: Iterator[str]) -> Path:
    """Write parts to a file until it has `size` bytes."""
    with path.open("wb") as file:
        while file.tell() < size:
            file.write(next(parts).encode())
    return path


INPUTS: dict[str, Callable[[Path], list[Path]]] = {
    "xz": use_files,
    "document": write_document,
    "tiny": write_tiny_files,
    "jsonl-x1": write_jsonl(1),
    "jsonl-x4": write_jsonl(4),
    "jsonl-x16": write_jsonl(16),
}


def measure(name: str, workers: int) -> None:
    """Prepare one of the inputs and print its figures."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "in").mkdir()
        inputs = INPUTS[name](folder / "in")
        size = sum(
            len(document.text.encode()) for path in list_inputs(inputs) for document in read_documents(path)
        )
        options: list[str | Path] = ["--tokenizer", UNCASED, "--out", folder / "corpus"]
        arguments = [sys.executable, "-m", "bertie.commands.main", "prepare", *inputs, *options]
        arguments += ["--workers", str(workers)]
        finished = run(arguments)
        seconds = finished.seconds.clock
        print(
            f"{name:10} {size / 1e6:7.1f} MB of text  {seconds:6.1f} s  {size / 1e6 / seconds:5.1f} MB/s"
            f"  {finished.seconds.processor:6.1f} s of CPU time  {finished.peak:5.0f} MiB peak memory"
        )


if __name__ == "__main__":
    for name in sys.argv[2:] or INPUTS:
        measure(name, int(sys.argv[1]) if sys.argv[1:] else 2)
