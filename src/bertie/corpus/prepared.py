"""A prepared corpus.

    CORPUS/
      manifest.json                 counts, settings, and the size and SHA-256 of the files
      skipped.txt                   one line about each input that could not be read, if any
      tokenizer/                    the tokenizer that made the ids
      train-00000/ …                the shards of the training split, see `bertie.corpus.shards`
      held_out-00000/ …             the shards of the held-out split

In a corpus of several languages, each shard has one language: train-de-00000/, train-en-00000/ …
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from bertie.base.arrays import UInt16s, UInt32s
from bertie.base.errors import DataError, SettingsError
from bertie.base.files import local_path, read_json, sha256
from bertie.corpus.manifest import (
    MANIFEST_FILE,
    FileRecord,
    Manifest,
    Split,
    read_manifest,
    record_file,
    split_shard_name,
)
from bertie.corpus.shards import COPY_AGAIN, Shard, check_shard, read_shard
from bertie.text.tokenizer import Tokenizer


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
