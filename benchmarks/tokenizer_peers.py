"""Compare the tokenizer with the fastest peer on one core: on lines, on documents and on one string.

All encode 4 MB of Wikipedia with the original uncased vocabulary, in each round another 4 MB. A further row
has the same lines in all rounds, which favours peers that keep the tokens of words. bertie returns ids,
segments, word indices and offsets; the peers use their fastest function from texts to ids. `tokenizers` 1.0,
which cannot be installed beside `transformers`, runs in a separate environment, `.venv-tokenizers`, if there
is one.
"""

import importlib
import json
import lzma
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import cycle
from operator import attrgetter
from pathlib import Path

from bertie.text.tokenizer import Tokenizer
from measure import DATA, UNCASED, WIKIPEDIA, Row, Seconds, compare, take_turns, version

CHARACTERS, DOCUMENT_CHARACTERS = 4_000_000, 3_000
NEXT_PYTHON = Path(__file__).parents[1] / ".venv-tokenizers" / "bin" / "python"
NEXT = Path(__file__).with_name("next_tokenizers.py")
BAR = 2.0
CLAIMS = {
    "lines": "tokenize lines",
    "documents": "tokenize documents of 3 kB",
    "string": "tokenize one string",
}


def make_inputs(text: str | None = None) -> dict[str, list[str]]:
    """Return a text, by default the first of Wikipedia, as lines, as documents of 3 kB and as one string."""
    text = WIKIPEDIA.read_text(encoding="utf-8")[:CHARACTERS] if text is None else text
    lines = [line for line in text.split("\n") if line]
    documents: list[list[str]] = [[]]
    for line in lines:
        documents[-1].append(line)
        if sum(map(len, documents[-1])) > DOCUMENT_CHARACTERS:
            documents.append([])
    return {"lines": lines, "documents": ["\n".join(part) for part in documents], "string": [text]}


def read_texts(number: int) -> list[str]:
    """Return so many texts of Wikipedia, each of the same number of characters."""
    texts: list[str] = []
    for file in sorted((DATA / "text" / "wikipedia").glob("*.xz")):
        text = lzma.decompress(file.read_bytes()).decode()
        texts += [text[i : i + CHARACTERS] for i in range(0, len(text) - CHARACTERS + 1, CHARACTERS)]
        if len(texts) >= number:
            return texts[:number]
    raise SystemExit(f"{DATA / 'text' / 'wikipedia'}: {len(texts)} of {number} texts of 4 MB")


def load_peers(file: str) -> dict[str, Callable[[list[str]], object]]:
    """Return, for each installed peer, its fastest function from texts to ids."""
    peers: dict[str, Callable[[list[str]], object]] = {}
    for package, loader, method, options in (
        ("tokenizers", "Tokenizer.from_file", "encode_batch_fast", {}),
        ("tokie", "Tokenizer.from_json", "encode_batch_flat", {}),
        ("iree-tokenizer", "Tokenizer.from_file", "encode_batch_to_array", {}),
        ("nanotoken", "Tokenizer", "encode_batch", {"parallel": False}),
    ):
        try:
            module = importlib.import_module(package.replace("-", "."))
        except ImportError:
            print(f"{package} is not installed, and is left out", file=sys.stderr)
            continue
        load = attrgetter(loader)(module)
        peers[version(package)] = partial(getattr(load(file), method), **options)
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


def compare_peers(
    name: str, claim: str, texts: list[list[str]], tokenizer: Tokenizer, folder: Path, rounds: int
) -> Row:
    """Compare all peers; the row is about the fastest, its note about the others.

    `texts` are the texts of each round, the first of which is not timed, or of all rounds.
    """
    file = str(folder / "tokenizer.json")

    def make_work(encode: Callable[[list[str]], object]) -> Callable[[], object]:
        inputs = cycle(texts)
        return lambda: encode(next(inputs))

    encoders = {"bertie": tokenizer.encode_batch, **load_peers(file)}
    sides = {side: make_work(encode) for side, encode in encoders.items()}
    with ExitStack() as stack:
        if NEXT_PYTHON.exists():
            (folder / "texts.json").write_text(json.dumps(texts), encoding="utf-8")
            other = NextTokenizers(stack, file, folder / "texts.json")
            sides[other.name] = other.encode
        seconds = take_turns(sides, rounds)
        if NEXT_PYTHON.exists():
            seconds[other.name] = other.seconds[1:]  # the first round is not timed
    size = statistics.mean(sum(len(text.encode()) for text in part) for part in texts) / 1e6
    rates = {side: size / statistics.median(taken.processor for taken in seconds[side]) for side in sides}
    fastest, *others = sorted(rates.keys() - {"bertie"}, key=rates.__getitem__, reverse=True)
    return compare(
        name,
        f"{claim}, {size:.1f} MB",
        fastest,
        "MB/s",
        size,
        seconds["bertie"],
        seconds[fastest],
        BAR,
        note="; ".join(f"{side} {rates[side]:.1f} MB/s" for side in others) + ".",
    )


def rows(rounds: int) -> Iterator[Row]:
    """Compare lines, documents and one string, and the same lines in all rounds."""
    tokenizer = Tokenizer.load(UNCASED)
    turns = 2 * rounds + 1
    inputs = [make_inputs(text) for text in read_texts(1 + turns)]
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(folder)
        for kind, claim in CLAIMS.items():
            texts = [parts[kind] for parts in inputs]
            yield compare_peers(f"tokenizer-{kind}", claim, texts, tokenizer, Path(folder), turns)
        claim = "tokenize the same lines again"
        yield compare_peers("tokenizer-again", claim, [inputs[0]["lines"]], tokenizer, Path(folder), turns)
