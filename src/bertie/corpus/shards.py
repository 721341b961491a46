"""The on-disk format of a prepared corpus: documents as token ids, memory-mapped, with a manifest.

    CORPUS/
      manifest.json                 what is here: counts, settings, size and SHA-256 of the files below
      skipped.txt                   a line about each input that could not be read, if there are any
      tokenizer/                    the tokenizer that made the ids
      train-00000/ …                the shards of the training split
        tokens.bin                  uint16 (below 65,536 ids, else uint32)
        sentence_ends.bin           int64
        document_ends.bin           int64
      held_out-00000/ …             the shards of the held-out split

The arrays are raw and little-endian; their lengths follow from the sizes of the files.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pydantic

from bertie.base.errors import DataError
from bertie.base.files import read_json, sha256, write_json
from bertie.text.tokenizer import Tokenizer

FORMAT_VERSION = 1

Split = Literal["train", "held_out"]


@dataclass(frozen=True)
class Shard:
    """Documents as token ids. Sentences are contiguous runs of tokens, documents of sentences.

    tokens         uint16 or uint32 (T,)  ids, without special tokens
    sentence_ends  int64 (S,)             where each sentence ends in `tokens`, exclusive
    document_ends  int64 (D,)             where each document ends in `sentence_ends`, exclusive

    No sentence and no document is empty.
    """

    tokens: npt.NDArray[np.uint16] | npt.NDArray[np.uint32]
    sentence_ends: npt.NDArray[np.int64]
    document_ends: npt.NDArray[np.int64]


class Counts(pydantic.BaseModel, frozen=True):
    """How much text a split holds."""

    documents: int = 0
    sentences: int = 0
    tokens: int = 0


class FileRecord(pydantic.BaseModel, frozen=True):
    """A file's size in bytes and its SHA-256 in hexadecimal."""

    size: int
    sha256: str


class Manifest(pydantic.BaseModel, frozen=True):
    """What a corpus holds and how it was made. Files are named relative to the corpus."""

    format_version: int = FORMAT_VERSION
    tokenizer_fingerprint: str
    vocabulary_size: int
    settings: dict[str, float | str | None]
    train: Counts
    held_out: Counts
    duplicates_dropped: int  # documents whose text an earlier one has
    empty_documents_dropped: int
    empty_sentences_dropped: int
    skipped: dict[str, int] = {}  # files and documents that could not be read, by reason
    files: dict[str, FileRecord]


@dataclass(frozen=True)
class Corpus:
    """A prepared corpus, opened for reading; the shards of a split are in the order of the text."""

    path: Path
    manifest: Manifest
    train: list[Shard]
    held_out: list[Shard]

    @classmethod
    def open(cls, path: str | Path) -> "Corpus":
        """Open the corpus at `path`; its files are mapped into memory, not read.

        Raises:
            DataError: this is no prepared corpus, it is of another format version, a file is missing or of
                the wrong size, or the tokenizer in it is not the one that made the ids.
            ModelError: the tokenizer in it has changed and cannot be read.
        """
        path = Path(path)
        manifest = _read_manifest(path)
        _check_tokenizer(path, manifest)
        for name, record in manifest.files.items():
            if name.startswith("tokenizer/"):
                continue
            if not (path / name).is_file():
                raise DataError(f"{path / name}: missing; copy the corpus again or prepare it anew")
            size = (path / name).stat().st_size
            if size != record.size:
                raise DataError(
                    f"{path / name}: {size:,} bytes where the manifest has {record.size:,}; "
                    f"copy the corpus again or prepare it anew"
                )
        shards: dict[str, list[Shard]] = {"train": [], "held_out": []}
        for directory in sorted({Path(name).parent.name for name in manifest.files} - {"tokenizer"}):
            split = directory.rpartition("-")[0]
            shards[split].append(read_shard(path / directory, manifest.vocabulary_size))
        return cls(path, manifest, **shards)

    @property
    def tokenizer_directory(self) -> Path:
        return self.path / "tokenizer"

    @property
    def fingerprint(self) -> str:
        """Names the content: two corpora with the same one give the same examples."""
        return hashlib.sha256(self.manifest.model_dump_json().encode()).hexdigest()[:16]

    def verify(self) -> None:
        """Read every file of the shards and compare its SHA-256 with the manifest's.

        The tokenizer was looked at when the corpus was opened; the same one may stand in other files.

        Raises:
            DataError: a file has changed.
        """
        for name, record in self.manifest.files.items():
            if not name.startswith("tokenizer/") and sha256(self.path / name) != record.sha256:
                raise DataError(
                    f"{self.path / name}: damaged (SHA-256 differs); copy it again or prepare anew"
                )


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Write the manifest of the corpus at `path`, which completes it."""
    write_json(path / "manifest.json", manifest.model_dump())


def shard_name(split: Split, number: int) -> str:
    return f"{split}-{number:05d}"


def write_shard(directory: Path, pieces: Iterable[Shard], vocabulary_size: int) -> None:
    """Write one shard, the documents of all `pieces` in order, in memory one piece at a time.

    A document may go on in the next piece; its end stands where it ends, counted in sentences of that piece.
    """
    tokens = sentences = 0
    with (
        (directory / "tokens.bin").open("wb") as tokens_file,
        (directory / "sentence_ends.bin").open("wb") as sentences_file,
        (directory / "document_ends.bin").open("wb") as documents_file,
    ):
        for piece in pieces:
            tokens_file.write(piece.tokens.astype(_token_type(vocabulary_size)).tobytes())
            sentences_file.write((piece.sentence_ends + tokens).astype("<i8").tobytes())
            documents_file.write((piece.document_ends + sentences).astype("<i8").tobytes())
            tokens += len(piece.tokens)
            sentences += len(piece.sentence_ends)


def read_shard(directory: Path, vocabulary_size: int) -> Shard:
    """The shard in `directory`, its arrays mapped into memory, read-only."""
    return Shard(
        map_array(directory / "tokens.bin", _token_type(vocabulary_size)),
        map_array(directory / "sentence_ends.bin", np.dtype("<i8")),
        map_array(directory / "document_ends.bin", np.dtype("<i8")),
    )


def select_documents(shard: Shard, first: int, kept: npt.NDArray[np.bool_]) -> Shard:
    """Those of the documents from `first` on that `kept`, bool (n,), marks, as a shard in memory."""
    document_ends = shard.document_ends[first : first + len(kept)]
    sentence_start = shard.document_ends[first - 1] if first else 0
    sentence_ends = shard.sentence_ends[sentence_start : document_ends[-1]]
    token_start = shard.sentence_ends[sentence_start - 1] if sentence_start else 0
    sentences = np.diff(document_ends, prepend=sentence_start)
    tokens = np.diff(sentence_ends, prepend=token_start)
    kept_sentences = np.repeat(kept, sentences)
    kept_tokens = np.repeat(kept_sentences, tokens)
    return Shard(
        shard.tokens[token_start : sentence_ends[-1]][kept_tokens],
        np.cumsum(tokens[kept_sentences]),
        np.cumsum(sentences[kept]),
    )


def record_file(path: Path) -> FileRecord:
    return FileRecord(size=path.stat().st_size, sha256=sha256(path))


def count_split(split: Split, files: dict[str, FileRecord], vocabulary_size: int) -> Counts:
    """How much text the files of a split's shards hold, by their sizes."""

    def length(file: str, dtype: npt.DTypeLike) -> int:
        shards = (record for name, record in files.items() if Path(name).match(f"{split}-*/{file}"))
        return sum(record.size for record in shards) // np.dtype(dtype).itemsize

    return Counts(
        documents=length("document_ends.bin", "<i8"),
        sentences=length("sentence_ends.bin", "<i8"),
        tokens=length("tokens.bin", _token_type(vocabulary_size)),
    )


def map_array(path: Path, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """A file as an array, read-only. An empty file, which cannot be mapped, is an empty array."""
    if path.stat().st_size == 0:
        return np.empty(0, dtype)
    return np.asarray(np.memmap(path, dtype, mode="r"))


def _token_type(vocabulary_size: int) -> npt.DTypeLike:
    return np.dtype("<u2" if vocabulary_size <= 1 << 16 else "<u4")


def _check_tokenizer(path: Path, manifest: Manifest) -> None:
    """Raises DataError where the tokenizer in the corpus is another than the one that made the ids.

    Where its files are as they were, it is not loaded, which would take some tenths of a second.
    """
    recorded = {name: record for name, record in manifest.files.items() if name.startswith("tokenizer/")}
    files = [file for file in (path / "tokenizer").glob("*") if file.is_file()]
    if {f"tokenizer/{file.name}": record_file(file) for file in files} == recorded:
        return
    if not files:
        raise DataError(f"{path / 'tokenizer'}: missing; copy the corpus again or prepare it anew")
    found, expected = Tokenizer.load(path / "tokenizer").fingerprint, manifest.tokenizer_fingerprint
    if found != expected:
        raise DataError(
            f"{path / 'tokenizer'}: this tokenizer ({found[:16]}) is not the one that made the corpus "
            f"({expected[:16]}); put that one back, or prepare the corpus anew"
        )


def _read_manifest(path: Path) -> Manifest:
    file = path / "manifest.json"
    if not file.is_file():
        raise DataError(f"{path}: not a prepared corpus; run `bertie prepare`")
    content = read_json(file)
    version = content.get("format_version") if isinstance(content, dict) else None
    if version != FORMAT_VERSION:
        raise DataError(
            f"{file}: format version {version} where {FORMAT_VERSION} is expected; prepare the corpus anew"
        )
    try:
        return Manifest.model_validate(content)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise DataError(f"{file}: {key}: {first['msg']}; prepare the corpus anew") from None
