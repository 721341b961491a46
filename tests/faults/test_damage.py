"""A damaged or changed corpus or checkpoint is reported in one line."""

import shutil
from pathlib import Path

import pytest
from tests.faults.runs import assert_same_run, error_line, fork_pretraining

from bertie.base.errors import DataError
from bertie.corpus.prepared import Corpus
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import Vocabulary

Capsys = pytest.CaptureFixture[str]


@pytest.fixture
def corpus(folder: Path, tmp_path: Path) -> Path:
    return shutil.copytree(folder / "corpus", tmp_path / "corpus")


def pretraining_error(folder: Path, corpus: Path, capsys: Capsys) -> str:
    """Return the error of pre-training on a corpus, after the corpus's path."""
    run = corpus.parent / "run"
    line = error_line(capsys, "pretrain", folder / "recipe.toml", "--corpus", corpus, "--out", run)
    assert not run.exists()
    return line.removeprefix(f"bertie: {corpus}/")


@pytest.mark.parametrize("file", ["tokens.bin", "sentence_ends.bin", "document_ends.bin"])
def test_truncated_shard_is_reported(folder: Path, corpus: Path, capsys: Capsys, file: str) -> None:
    path = corpus / "train-00000" / file
    path.write_bytes(path.read_bytes()[:-8])
    size = path.stat().st_size
    expected = (
        f"train-00000/{file}: {size:,} bytes, but the manifest says {size + 8:,}; copy the corpus again"
    )
    assert pretraining_error(folder, corpus, capsys).startswith(expected)


def test_missing_shard_is_reported(folder: Path, corpus: Path, capsys: Capsys) -> None:
    shutil.rmtree(corpus / "train-00000")
    line = pretraining_error(folder, corpus, capsys)
    assert line.startswith("train-00000/")
    assert ".bin: missing; copy the corpus again" in line


def test_flipped_bit_fails_verification(corpus: Path) -> None:
    path = corpus / "held_out-00000/tokens.bin"
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"held_out-00000/tokens\.bin: damaged \(its SHA-256 differs"):
        Corpus.open(corpus).verify()


def test_tokenizer_of_another_corpus_is_reported(folder: Path, corpus: Path, capsys: Capsys) -> None:
    """Two tokens are exchanged, so all files keep their sizes."""
    before = Tokenizer.load(corpus / "tokenizer")
    tokens = before.vocabulary.tokens
    Tokenizer(Vocabulary([*tokens[:-2], tokens[-1], tokens[-2]])).save(corpus / "tokenizer")
    after = Tokenizer.load(corpus / "tokenizer")
    assert pretraining_error(folder, corpus, capsys).startswith(
        f"tokenizer: this tokenizer ({after.fingerprint[:16]}) is not the one that made the corpus "
        f"({before.fingerprint[:16]}); restore that one"
    )


def test_missing_tokenizer_is_reported(folder: Path, corpus: Path, capsys: Capsys) -> None:
    shutil.rmtree(corpus / "tokenizer")
    assert pretraining_error(folder, corpus, capsys).startswith("tokenizer: missing; copy the corpus again")


def test_tokenizer_with_other_files_is_the_same(corpus: Path) -> None:
    (corpus / "tokenizer/tokenizer.json").unlink()
    (corpus / "tokenizer/README").write_text("Ours.")
    opened = Corpus.open(corpus)
    opened.verify()
    assert opened.train


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.safetensors", "state.json"])
def test_run_resumes_once_a_truncated_checkpoint_is_removed(
    folder: Path, tmp_path: Path, capsys: Capsys, file: str
) -> None:
    """The error cites it; once removed, the run resumes from the checkpoint before it."""
    run = shutil.copytree(folder / "undisturbed", tmp_path / "run")
    for name in ("corpus", "recipe.toml"):
        (tmp_path / name).symlink_to(folder / name)
    path = run / "checkpoints/step-00000060" / file
    path.write_bytes(path.read_bytes()[:-100])
    options = ["--corpus", tmp_path / "corpus", "--out", run, "--resume"]
    line = error_line(capsys, "pretrain", folder / "recipe.toml", *options)
    assert line.startswith(f"bertie: {path}: ")
    shutil.rmtree(path.parent)
    process = fork_pretraining(tmp_path, "run", "--resume")
    process.join()
    assert process.exitcode == 0
    assert_same_run(run, folder / "undisturbed")
