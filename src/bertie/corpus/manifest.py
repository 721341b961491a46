"""The manifest of a prepared corpus: its contents, and the size and SHA-256 of each file."""

import re
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import pydantic

from bertie.base.errors import DataError
from bertie.base.files import sha256, write_json
from bertie.base.schemas import describe_problem
from bertie.corpus.shards import COPY_AGAIN, token_dtype

FORMAT_VERSION = 1
MANIFEST_FILE = "manifest.json"

Split = Literal["train", "held_out"]

# The files of a corpus; their names become paths.
FILE_NAME = re.compile(
    r"tokenizer/[^/\0]+|(train|held_out)(-[\w-]+)?-\d+/(tokens|sentence_ends|document_ends|block_ends)\.bin"
)


class FileRecord(pydantic.BaseModel, frozen=True):
    """The size of a file in bytes, and its SHA-256 in hexadecimal."""

    size: int
    sha256: str


class SplitCounts(pydantic.BaseModel, frozen=True):
    """The amount of text in a split."""

    documents: int = 0
    sentences: int = 0
    tokens: int = 0


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


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Write the manifest of the corpus at `path`, which marks it as complete."""
    write_json(path / "manifest.json", manifest.model_dump())


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
        tokens=total_length("tokens.bin", token_dtype(vocabulary_size)),
    )


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
