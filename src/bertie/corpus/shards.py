"""The on-disk format of a prepared corpus.

Documents are stored as token ids, in files that are mapped into memory:

    CORPUS/
      manifest.json                 counts, settings, and the size and SHA-256 of the files
      skipped.txt                   one line about each input that could not be read, if any
      tokenizer/                    the tokenizer that made the ids
      train-00000/ …                the shards of the training split
        tokens.bin                  uint16; uint32 if the vocabulary has more than 65,536 entries
        sentence_ends.bin           int64
        document_ends.bin           int64
        block_ends.bin              int64; missing in older corpora
      held_out-00000/ …             the shards of the held-out split

In a corpus of several languages, each shard has one language: train-de-00000/, train-en-00000/ …

The arrays are raw and little-endian. Their lengths follow from the sizes of the files.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import pydantic

from bertie.base.arrays import Bools, Int64s, UInt16s, UInt32s
from bertie.base.errors import DataError, SettingsError
from bertie.base.files import local_path, read_json, sha256, write_json
from bertie.base.schemas import describe_problem
from bertie.text.tokenizer import Tokenizer

FORMAT_VERSION = 1
MANIFEST_FILE = "manifest.json"

# It determines the order of examples: if it changes, every seed gives another stream.
BLOCK_TOKENS = 16_384  # about 200 examples of length 128, so that the cost of a call hardly matters

Split = Literal["train", "held_out"]

COPY_AGAIN = "copy the corpus again or prepare it again"
CHECKED_AT_ONCE = 1 << 20  # ends, so that a large shard needs no memory
# The files of a corpus; their names become paths.
FILE_NAME = re.compile(
    r"tokenizer/[^/\0]+|(train|held_out)(-[\w-]+)?-\d+/(tokens|sentence_ends|document_ends|block_ends)\.bin"
)


@dataclass(frozen=True)
class Shard:
    """Documents as token ids.

    A sentence is a contiguous run of tokens, and a document is a contiguous run of sentences.
    Neither is ever empty.

    Attributes:
        tokens: ids without special tokens, uint16 or uint32 (T,).
        sentence_ends: the end of each sentence in `tokens`, exclusive, int64 (S,).
        document_ends: the end of each document in `sentence_ends`, exclusive, int64 (D,).
        block_ends: the result of `cut_blocks`, stored because computing it reads a page of
            `sentence_ends` for each block; None if it is not stored.
    """

    tokens: UInt16s | UInt32s
    sentence_ends: Int64s
    document_ends: Int64s
    block_ends: Int64s | None = None


class SplitCounts(pydantic.BaseModel, frozen=True):
    """The amount of text in a split."""

    documents: int = 0
    sentences: int = 0
    tokens: int = 0


class FileRecord(pydantic.BaseModel, frozen=True):
    """The size of a file in bytes, and its SHA-256 in hexadecimal."""

    size: int
    sha256: str


class Manifest(pydantic.BaseModel, frozen=True):
    """The contents of a corpus, and how it was made.

    Attributes:
        format_version: the version of the on-disk format.
        tokenizer_fingerprint: the fingerprint of the tokenizer that made the ids.
        vocabulary_size: the number of entries in its vocabulary.
        settings: the settings of `bertie prepare` that determine the content.
        train: the amount of text in the training split.
        held_out: the amount of text in the held-out split.
        duplicates_dropped: the number of documents with the same text as an earlier one.
        empty_documents_dropped: the number of documents without a token.
        empty_sentences_dropped: the number of sentences without a token.
        skipped: the number of files and documents that could not be read, for each reason.
        files: all files but the manifest and skipped.txt, by their paths relative to the corpus.
    """

    format_version: int = FORMAT_VERSION
    tokenizer_fingerprint: str
    vocabulary_size: int = pydantic.Field(gt=0)
    settings: dict[str, float | str | None]
    train: SplitCounts
    held_out: SplitCounts
    duplicates_dropped: int
    empty_documents_dropped: int
    empty_sentences_dropped: int
    skipped: dict[str, int] = {}
    files: dict[str, FileRecord]

    @pydantic.field_validator("files")
    @classmethod
    def _names_are_known(cls, files: dict[str, FileRecord]) -> dict[str, FileRecord]:
        for name in files:
            if not FILE_NAME.fullmatch(name):
                raise ValueError(f"{name!r} is not a file of a corpus")
        for folder in {Path(name).parent.name for name in files} - {"tokenizer"}:
            for name in ("tokens", "sentence_ends", "document_ends"):
                if f"{folder}/{name}.bin" not in files:
                    raise ValueError(f"{folder}/{name}.bin is missing")
        return files


@dataclass(frozen=True, repr=False)
class Corpus:
    """A prepared corpus, opened for reading.

    Attributes:
        path: the directory of the corpus.
        manifest: the contents of the corpus, and how it was made.
        train: the shards of the training split, in the order of the inputs.
        held_out: the shards of the held-out split, in the order of the inputs.
        train_languages: the language of each shard in `train`, such as "de"; "" in a corpus that was
            prepared as one language.

    Example:
        >>> corpus = bertie.Corpus.open("corpus")
        >>> corpus.manifest.train.documents + corpus.manifest.held_out.documents
        40

        The inputs of `prepare` are files. Write texts in memory to one first, for example as JSON lines:

        >>> import json
        >>> with open("texts.jsonl", "w") as file:
        ...     for number in range(8):
        ...         _ = file.write(json.dumps({"text": f"Text {number}. The cat sat."}) + "\\n")
        >>> bertie.prepare("texts.jsonl", tokenizer="tokenizer", out="small", held_out=0)
        Corpus('small': 8 documents with 56 tokens for training, 0 held out)
    """

    path: Path
    manifest: Manifest
    train: list[Shard]
    held_out: list[Shard]
    train_languages: list[str]

    @classmethod
    def open(cls, path: str | Path) -> "Corpus":
        """Open a corpus, and map its arrays into memory without reading them.

        Args:
            path: a directory that `prepare` wrote.

        Raises:
            DataError: the directory is not a prepared corpus, has another format version, lacks a
                file, or has a file of the wrong size, or its tokenizer is not the one that made the
                ids.
            ModelError: its tokenizer has changed and cannot be read.

        Example:
            >>> bertie.Corpus.open("corpus").path
            PosixPath('corpus')
        """
        path = local_path(path)
        file = path / MANIFEST_FILE
        if not file.is_file():
            advice = "" if path.exists() else ", or give the new path of a corpus that has moved"
            raise DataError(f"{path}: not a prepared corpus; run `bertie prepare`{advice}")
        manifest = read_manifest(path, read_json(file))
        _check_tokenizer(path, manifest)
        for name, record in manifest.files.items():
            if not name.startswith("tokenizer/"):
                _check_size(path / name, record)
        shards: dict[str, list[Shard]] = {"train": [], "held_out": []}
        languages: list[str] = []
        for directory in sorted({Path(name).parent.name for name in manifest.files} - {"tokenizer"}):
            split, language = split_shard_name(directory)
            shards[split].append(read_shard(path / directory, manifest.vocabulary_size))
            if split == "train":
                languages.append(language)
        return cls(path, manifest, **shards, train_languages=languages)

    def __repr__(self) -> str:
        train, held_out = self.manifest.train, self.manifest.held_out
        return (
            f"Corpus({str(self.path)!r}: {train.documents:,} documents with {train.tokens:,} tokens for "
            f"training, {held_out.documents:,} held out)"
        )

    def documents(self, split: Split = "train") -> Iterator[list[UInt16s | UInt32s]]:
        """Yield the documents of a split, in the order of the inputs.

        Args:
            split: "train" or "held_out".

        Returns:
            For each document, the token ids of each sentence, without special tokens.

        Raises:
            SettingsError: there is no such split.

        Example:
            >>> corpus = bertie.Corpus.open("corpus")
            >>> tokenizer = bertie.Tokenizer.load(corpus.tokenizer_directory)
            >>> for sentences in corpus.documents("held_out"):
            ...     print(tokenizer.decode(sentences[1]))
            ...     break
            the cat sat on the mat.
        """
        if split not in get_args(Split):
            raise SettingsError(f"split={split!r}: expected 'train' or 'held_out'")
        return _iterate_documents(self.train if split == "train" else self.held_out)

    @property
    def tokenizer_directory(self) -> Path:
        """The directory of the tokenizer that made the ids."""
        return self.path / "tokenizer"

    @property
    def fingerprint(self) -> str:
        """A hash of the manifest.

        Corpora with the same fingerprint give the same examples.
        """
        return hashlib.sha256(self.manifest.model_dump_json().encode()).hexdigest()[:16]

    def verify(self, part: int = 0, parts: int = 1) -> None:
        """Read every file of the shards and compare its SHA-256 with the manifest.

        The files of the tokenizer are not compared. `open` has checked its fingerprint, and the
        same tokenizer may be saved in different files.

        Args:
            part: which of `parts` equal shares of the files to read, from 0 on, so that several
                processes can divide the work.
            parts: the number of shares.

        Raises:
            DataError: a file has changed.

        Example:
            >>> bertie.Corpus.open("corpus").verify()
        """
        files = [name for name in self.manifest.files if not name.startswith("tokenizer/")]
        for name in files[part::parts]:
            if sha256(self.path / name) != self.manifest.files[name].sha256:
                raise DataError(
                    f"{self.path / name}: damaged (its SHA-256 differs from the manifest); {COPY_AGAIN}"
                )
        self.check_structure(part, parts)

    def check_structure(self, part: int = 0, parts: int = 1) -> None:
        """Check the structure of the shards.

        This takes a fifth of the time of `verify`, which includes it.

        Args:
            part, parts: as in `verify`.

        Raises:
            DataError: a shard is damaged so that a compiled kernel would leave its arrays.

        Example:
            >>> bertie.Corpus.open("corpus").check_structure()
        """
        names = sorted({Path(name).parent.name for name in self.manifest.files} - {"tokenizer"})
        for name in names[part::parts]:
            check_shard(self.path / name, self.manifest.vocabulary_size)


def _iterate_documents(shards: Iterable[Shard]) -> Iterator[list[UInt16s | UInt32s]]:
    for shard in shards:
        sentence = token = 0
        for document_end in shard.document_ends:
            ends = shard.sentence_ends[sentence:document_end]
            yield [shard.tokens[begin:end] for begin, end in zip([token, *ends], ends, strict=False)]
            sentence, token = document_end, ends[-1]


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Write the manifest of the corpus at `path`, which marks it as complete."""
    write_json(path / "manifest.json", manifest.model_dump())


def shard_name(split: Split, index: int, language: str = "") -> str:
    """Return the directory name of a shard, with its language in a corpus of several."""
    return "-".join(filter(None, (split, language, f"{index:05d}")))


def split_shard_name(name: str) -> tuple[str, str]:
    """Return the split and the language in the directory name of a shard.

    The language is "" if there is none.

    Example:
        >>> split_shard_name("held_out-zh-tw-00000"), split_shard_name("train-00001")
        (('held_out', 'zh-tw'), ('train', ''))
    """
    split, *language, _ = name.split("-")
    return split, "-".join(language)


def write_shard(directory: Path, pieces: Iterable[Shard], vocabulary_size: int) -> None:
    """Write one shard from consecutive pieces, with one piece in memory at a time.

    A document may continue in the next piece. Only its last piece has an entry for it in
    `document_ends`.
    """
    tokens = sentences = 0
    with (
        (directory / "tokens.bin").open("wb") as tokens_file,
        (directory / "sentence_ends.bin").open("wb") as sentences_file,
        (directory / "document_ends.bin").open("wb") as documents_file,
    ):
        for piece in pieces:
            tokens_file.write(piece.tokens.astype(_token_dtype(vocabulary_size)).tobytes())
            sentences_file.write((piece.sentence_ends + tokens).astype("<i8").tobytes())
            documents_file.write((piece.document_ends + sentences).astype("<i8").tobytes())
            tokens += len(piece.tokens)
            sentences += len(piece.sentence_ends)


def cut_blocks(shard: Shard) -> Int64s:
    """Return where blocks end in `shard.document_ends`.

    Blocks are the units of the order of examples. The last document of a block is the one that reaches the
    next multiple of BLOCK_TOKENS, counted from the start of the shard. A document longer than BLOCK_TOKENS is
    therefore the last one of its block.

    Returns:
        The ends, exclusive: int64 (blocks,).
    """
    multiples = np.arange(BLOCK_TOKENS, len(shard.tokens), BLOCK_TOKENS)
    sentences = np.searchsorted(shard.sentence_ends, multiples)
    documents = np.searchsorted(shard.document_ends, sentences, side="right")
    return np.unique(np.append(documents + 1, len(shard.document_ends)))


def write_block_ends(directory: Path, vocabulary_size: int) -> None:
    """Store the ends of the blocks of the shard in `directory`."""
    block_ends = cut_blocks(read_shard(directory, vocabulary_size))
    (directory / "block_ends.bin").write_bytes(block_ends.astype("<i8").tobytes())


def read_shard(directory: Path, vocabulary_size: int) -> Shard:
    """Return the shard in `directory`, its arrays mapped into memory, read-only."""
    block_ends = directory / "block_ends.bin"
    return Shard(
        map_array(directory / "tokens.bin", _token_dtype(vocabulary_size)),
        map_array(directory / "sentence_ends.bin", np.dtype("<i8")),
        map_array(directory / "document_ends.bin", np.dtype("<i8")),
        map_array(block_ends, np.dtype("<i8")) if block_ends.exists() else None,
    )


def check_shard(directory: Path, vocabulary_size: int) -> None:
    """Check the structure of a shard, which the compiled kernels trust.

    With it, they stay inside their arrays.

    Raises:
        DataError: ends do not increase or leave the array, or an id is not in the vocabulary.
    """
    shard = read_shard(directory, vocabulary_size)
    if shard.block_ends is not None:
        _check_ends(directory / "block_ends.bin", shard.block_ends, len(shard.document_ends))
    _check_ends(directory / "document_ends.bin", shard.document_ends, len(shard.sentence_ends))
    _check_ends(directory / "sentence_ends.bin", shard.sentence_ends, len(shard.tokens))
    if len(shard.tokens) and (highest := int(shard.tokens.max())) >= vocabulary_size:
        raise DataError(
            f"{directory / 'tokens.bin'}: damaged, with the id {highest:,} in a vocabulary of "
            f"{vocabulary_size:,}; {COPY_AGAIN}"
        )


def _check_ends(path: Path, ends: Int64s, length: int) -> None:
    """Check that ends increase from above 0 to the length of their array."""
    previous = 0
    for start in range(0, len(ends), CHECKED_AT_ONCE):
        chunk = ends[start : start + CHECKED_AT_ONCE]
        if chunk[0] <= previous or (chunk[1:] <= chunk[:-1]).any():
            raise DataError(f"{path}: damaged: its ends do not increase; {COPY_AGAIN}")
        previous = int(chunk[-1])
    if previous != length:
        raise DataError(f"{path}: damaged: it ends at {previous:,}, not at {length:,}; {COPY_AGAIN}")


def select_documents(shard: Shard, first: int, is_selected: Bools) -> Shard:
    """Copy some of a shard's documents to a new shard in memory.

    Args:
        shard: the shard.
        first: the index of the first document to consider.
        is_selected: whether each document from `first` on is copied, bool (n,).
    """
    document_ends = shard.document_ends[first : first + len(is_selected)]
    sentence_start = shard.document_ends[first - 1] if first else 0
    sentence_ends = shard.sentence_ends[sentence_start : document_ends[-1]]
    token_start = shard.sentence_ends[sentence_start - 1] if sentence_start else 0
    sentences = np.diff(document_ends, prepend=sentence_start)  # per document
    tokens = np.diff(sentence_ends, prepend=token_start)  # per sentence
    is_sentence_selected = np.repeat(is_selected, sentences)
    is_token_selected = np.repeat(is_sentence_selected, tokens)
    return Shard(
        shard.tokens[token_start : sentence_ends[-1]][is_token_selected],
        np.cumsum(tokens[is_sentence_selected]),
        np.cumsum(sentences[is_selected]),
    )


def record_file(path: Path) -> FileRecord:
    """Return the size and the SHA-256 of a file."""
    return FileRecord(size=path.stat().st_size, sha256=sha256(path))


def count_split(split: Split, files: dict[str, FileRecord], vocabulary_size: int) -> SplitCounts:
    """Compute the amount of text in a split from the sizes of its files."""

    def total_length(file_name: str, dtype: npt.DTypeLike) -> int:
        records = (record for name, record in files.items() if Path(name).match(f"{split}-*/{file_name}"))
        return sum(record.size for record in records) // np.dtype(dtype).itemsize

    return SplitCounts(
        documents=total_length("document_ends.bin", "<i8"),
        sentences=total_length("sentence_ends.bin", "<i8"),
        tokens=total_length("tokens.bin", _token_dtype(vocabulary_size)),
    )


def map_array(path: Path, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Map a file into memory as a read-only array.

    An empty file cannot be mapped and gives an empty array.

    Raises:
        DataError: the file ends inside an item.
    """
    size = path.stat().st_size
    if size % np.dtype(dtype).itemsize:
        raise DataError(f"{path}: damaged: {size:,} bytes are no whole number of items; {COPY_AGAIN}")
    if size == 0:
        return np.empty(0, dtype)
    return np.asarray(np.memmap(path, dtype, mode="r"))


def _token_dtype(vocabulary_size: int) -> npt.DTypeLike:
    return np.dtype("<u2" if vocabulary_size <= 1 << 16 else "<u4")


def _check_size(path: Path, record: FileRecord) -> None:
    if not path.is_file():
        raise DataError(f"{path}: missing; {COPY_AGAIN}")
    size = path.stat().st_size
    if size != record.size:
        raise DataError(f"{path}: {size:,} bytes, but the manifest says {record.size:,}; {COPY_AGAIN}")


def _check_tokenizer(path: Path, manifest: Manifest) -> None:
    """Check that the tokenizer in the corpus is the one that made the ids.

    The tokenizer is loaded, which takes some tenths of a second, only if its files have changed.

    Raises:
        DataError: it is missing, or is another tokenizer.
        ModelError: it cannot be read.
    """
    recorded = {name: record for name, record in manifest.files.items() if name.startswith("tokenizer/")}
    files = [file for file in (path / "tokenizer").glob("*") if file.is_file()]
    if {f"tokenizer/{file.name}": record_file(file) for file in files} == recorded:
        return
    if not files:
        raise DataError(f"{path / 'tokenizer'}: missing; {COPY_AGAIN}")
    fingerprint, expected = Tokenizer.load(path / "tokenizer").fingerprint, manifest.tokenizer_fingerprint
    if fingerprint != expected:
        raise DataError(
            f"{path / 'tokenizer'}: this tokenizer ({fingerprint[:16]}) is not the one that made the corpus "
            f"({expected[:16]}); restore that one, or prepare the corpus again"
        )


def read_manifest(path: Path, content: Any) -> Manifest:
    """Return the manifest of the corpus at `path`, from the JSON value of its file.

    Raises:
        DataError: it is not a manifest of this format version.
    """
    file = path / MANIFEST_FILE
    version = content.get("format_version") if isinstance(content, dict) else None
    if version != FORMAT_VERSION:
        raise DataError(
            f"{file}: format version {version}, expected {FORMAT_VERSION}; prepare the corpus again"
        )
    try:
        manifest = Manifest.model_validate(content)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise DataError(
            f"{file}: {key}: {describe_problem(first['msg'])}; prepare the corpus again"
        ) from None
    for split in get_args(Split):
        if getattr(manifest, split) != count_split(split, manifest.files, manifest.vocabulary_size):
            raise DataError(
                f"{file}: damaged: {split} does not agree with the sizes of the files; {COPY_AGAIN}"
            )
    return manifest
