"""A prepared corpus is opened as it was written, and damaged files are named."""

import json
from pathlib import Path

import numpy as np
import pytest
from tests.corpus.google_oracle import Document
from tests.corpus.shards_for_tests import list_documents, make_shard

from bertie.base.errors import DataError, SettingsError
from bertie.corpus.manifest import Manifest, SplitCounts, count_split, record_file, shard_name, write_manifest
from bertie.corpus.prepared import Corpus
from bertie.corpus.shards import write_shard


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus"
    contents: dict[str, list[list[Document]]] = {
        "train": [[[[1, 2], [3]], [[4]]], [[[5, 6, 7]]]],
        "held_out": [[[[8], [9]]]],
    }
    for split, shards in contents.items():
        for number, documents in enumerate(shards):
            directory = path / shard_name(split, number)  # type: ignore[arg-type]
            directory.mkdir(parents=True)
            write_shard(directory, [make_shard(documents)], 100)
    (path / "tokenizer").mkdir()
    (path / "tokenizer/vocab.txt").write_text("[PAD]\n")
    files = {f"{file.parent.name}/{file.name}": record_file(file) for file in path.glob("*/*")}
    manifest = Manifest(
        tokenizer_fingerprint="f",
        vocabulary_size=100,
        settings={"held_out": 0.25},
        train=count_split("train", files, 100),
        held_out=count_split("held_out", files, 100),
        duplicates_dropped=0,
        empty_documents_dropped=0,
        empty_sentences_dropped=0,
        files=files,
    )
    write_manifest(path, manifest)
    return path


def test_open_reads_both_splits(corpus: Path) -> None:
    opened = Corpus.open(corpus)
    assert [list_documents(shard) for shard in opened.train] == [[[[1, 2], [3]], [[4]]], [[[5, 6, 7]]]]
    assert [list_documents(shard) for shard in opened.held_out] == [[[[8], [9]]]]
    assert opened.manifest.train == SplitCounts(documents=3, sentences=4, tokens=7)
    assert opened.manifest.held_out == SplitCounts(documents=1, sentences=2, tokens=2)
    assert (opened.tokenizer_directory / "vocab.txt").is_file()
    opened.verify()


def test_documents_have_the_sentences_that_were_written(corpus: Path) -> None:
    opened = Corpus.open(corpus)
    train = [[sentence.tolist() for sentence in document] for document in opened.documents()]
    assert train == [[[1, 2], [3]], [[4]], [[5, 6, 7]]]
    (held_out,) = opened.documents("held_out")
    assert [sentence.tolist() for sentence in held_out] == [[8], [9]]
    with pytest.raises(SettingsError, match="split='test': expected 'train' or 'held_out'"):
        opened.documents("test")  # type: ignore[arg-type]


def test_repr_of_a_corpus_is_one_line(corpus: Path) -> None:
    counts = "3 documents with 7 tokens for training, 1 held out"
    assert repr(Corpus.open(corpus)) == f"Corpus({str(corpus)!r}: {counts})"


def test_mapped_arrays_are_read_only(corpus: Path) -> None:
    with pytest.raises(ValueError, match="read-only"):
        Corpus.open(corpus).train[0].tokens[0] = 1


def test_directory_without_manifest_is_not_a_corpus(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"not a prepared corpus; run `bertie prepare`"):
        Corpus.open(tmp_path)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("format_version", 2, r"manifest.json: format version 2, expected 1"),
        ("vocabulary_size", "many", r"manifest.json: vocabulary_size: "),
        (
            "files",
            {"train-00000/tokens.bin": {"size": 6}},
            r"manifest.json: files.train-00000/tokens.bin.sha256",
        ),
    ],
)
def test_open_rejects_an_invalid_manifest(corpus: Path, key: str, value: object, message: str) -> None:
    content = json.loads((corpus / "manifest.json").read_text())
    (corpus / "manifest.json").write_text(json.dumps({**content, key: value}))
    with pytest.raises(DataError, match=message):
        Corpus.open(corpus)


def test_damaged_files_are_named(corpus: Path) -> None:
    file = corpus / "train-00001/tokens.bin"
    data = bytearray(file.read_bytes())
    data[2] ^= 1
    file.write_bytes(data)
    with pytest.raises(DataError, match=r"train-00001/tokens.bin: damaged"):
        Corpus.open(corpus).verify()
    found = []
    for share in range(4):
        try:
            Corpus.open(corpus).verify(share, 4)
        except DataError:
            found.append(share)
    assert len(found) == 1
    file.write_bytes(data[:-2])
    with pytest.raises(DataError, match=r"train-00001/tokens.bin: 4 bytes, but the manifest says 6"):
        Corpus.open(corpus)
    file.unlink()
    with pytest.raises(DataError, match=r"train-00001/tokens.bin: missing"):
        Corpus.open(corpus)


def test_structure_is_checked_although_the_checksums_agree(corpus: Path) -> None:
    """As in a corpus that a faulty version wrote."""
    name = "train-00001/document_ends.bin"
    np.array([2], "<i8").tofile(corpus / name)  # the shard has one sentence
    content = json.loads((corpus / "manifest.json").read_text())
    content["files"][name] = record_file(corpus / name).model_dump()
    (corpus / "manifest.json").write_text(json.dumps(content))
    opened, found = Corpus.open(corpus), []
    with pytest.raises(DataError, match=rf"{name}: damaged"):
        opened.verify()
    for part in range(3):
        try:
            opened.check_structure(part, 3)
        except DataError:
            found.append(part)
    assert len(found) == 1


@pytest.mark.parametrize("name", ["tokens", "sentence_ends", "document_ends"])
def test_manifest_without_a_file_of_a_shard_is_rejected(corpus: Path, name: str) -> None:
    content = json.loads((corpus / "manifest.json").read_text())
    del content["files"][f"train-00001/{name}.bin"]
    (corpus / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=rf"manifest\.json: files: .*train-00001/{name}\.bin is missing"):
        Corpus.open(corpus)


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "/etc/passwd", "train-00000/../x.bin", "train/tokens.bin"]
)
def test_manifest_names_only_files_of_a_corpus(tmp_path: Path, name: str) -> None:
    manifest = {
        "format_version": 1,
        "tokenizer_fingerprint": "x",
        "vocabulary_size": 90,
        "settings": {},
        "train": {},
        "held_out": {},
        "duplicates_dropped": 0,
        "empty_documents_dropped": 0,
        "empty_sentences_dropped": 0,
        "files": {name: {"size": 1, "sha256": ""}},
    }
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match=r"manifest\.json: files: .* is not a file of a corpus"):
        Corpus.open(tmp_path)
