"""Compare the tokenizer with the fastest peer on one core: on lines, on documents and on one string.

All encode the same 4 MB of Wikipedia with the original uncased vocabulary. bertie returns ids, segments, word
indices and offsets; the peers use their fastest function from texts to ids. `tokenizers` 1.0, which cannot be
installed beside `transformers`, runs in a separate environment, `.venv-tokenizers`, if there is one.
"""

import importlib
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from bertie.text.tokenizer import Tokenizer
from measure import UNCASED, WIKIPEDIA, Row, Seconds, compare, take_turns, version

CHARACTERS, DOCUMENT_CHARACTERS = 4_000_000, 3_000
NEXT_PYTHON = Path(__file__).parents[1] / ".venv-tokenizers" / "bin" / "python"
NEXT = Path(__file__).with_name("next_tokenizers.py")
BAR = 2.0
CLAIMS = {
    "lines": "tokenize lines",
    "documents": "tokenize documents of 3 kB",
    "string": "tokenize one string",
}


def make_inputs() -> dict[str, list[str]]:
    """Return the same text as lines, as documents of 3 kB and as one string."""
    text = WIKIPEDIA.read_text(encoding="utf-8")[:CHARACTERS]
    lines = [line for line in text.split("\n") if line]
    documents: list[list[str]] = [[]]
    for line in lines:
        documents[-1].append(line)
        if sum(map(len, documents[-1])) > DOCUMENT_CHARACTERS:
            documents.append([])
    return {"lines": lines, "documents": ["\n".join(part) for part in documents], "string": [text]}


def load_peers(file: str) -> dict[str, Callable[[list[str]], object]]:
    """Return, for each installed peer, its fastest function from texts to ids."""
    peers = {}
    for package, loader, method in (
        ("tokenizers", "from_file", "encode_batch_fast"),
        ("tokie", "from_json", "encode_batch_flat"),
        ("iree-tokenizer", "from_file", "encode_batch_to_array"),
    ):
        try:
            module = importlib.import_module(package.replace("-", "."))
        except ImportError:
            print(f"{package} is not installed, and is left out", file=sys.stderr)
            continue
        peers[version(package)] = getattr(getattr(module.Tokenizer, loader)(file), method)
    return peers


class NextTokenizers:
    """`tokenizers` 1.0 in a process of its environment, which measures its processor time.

    Attributes:
        name: package and version
        seconds: what each call took
    """

    def __init__(self, stack: ExitStack, file: str, texts: Path) -> None:
        self.process = stack.enter_context(
            subprocess.Popen(
                [NEXT_PYTHON, NEXT, file, texts], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        )
        assert self.process.stdin is not None
        stack.callback(self.process.stdin.close)
        self.name = self._read().strip()
        self.seconds: list[Seconds] = []

    def _read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def encode(self) -> None:
        """Let the process encode the texts."""
        assert self.process.stdin is not None
        print(file=self.process.stdin, flush=True)
        self.seconds.append(Seconds(*json.loads(self._read())))


def compare_peers(kind: str, texts: list[str], tokenizer: Tokenizer, folder: Path, rounds: int) -> Row:
    """Compare all peers on the same texts; the row is about the fastest, its note about the others."""
    file = str(folder / "tokenizer.json")
    peers = load_peers(file)

    def make_work(encode: Callable[[list[str]], object]) -> Callable[[], object]:
        return lambda: encode(texts)

    sides = {"bertie": make_work(tokenizer.encode_batch), **{name: make_work(peers[name]) for name in peers}}
    with ExitStack() as stack:
        if NEXT_PYTHON.exists():
            (folder / "texts.json").write_text(json.dumps(texts), encoding="utf-8")
            other = NextTokenizers(stack, file, folder / "texts.json")
            sides[other.name] = other.encode
        seconds = take_turns(sides, 2 * rounds + 1)
        if NEXT_PYTHON.exists():
            seconds[other.name] = other.seconds[1:]  # the first round is not timed
    size = sum(len(text.encode()) for text in texts) / 1e6
    rates = {name: size / statistics.median(taken.processor for taken in seconds[name]) for name in sides}
    fastest, *others = sorted(rates.keys() - {"bertie"}, key=rates.__getitem__, reverse=True)
    return compare(
        f"tokenizer-{kind}",
        f"{CLAIMS[kind]}, {size:.1f} MB",
        fastest,
        "MB/s",
        size,
        seconds["bertie"],
        seconds[fastest],
        BAR,
        note="; ".join(f"{name} {rates[name]:.1f} MB/s" for name in others) + ".",
    )


def rows(rounds: int) -> Iterator[Row]:
    """Compare lines, documents and one string."""
    tokenizer = Tokenizer.load(UNCASED)
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(folder)
        for kind, texts in make_inputs().items():
            yield compare_peers(kind, texts, tokenizer, Path(folder), rounds)
