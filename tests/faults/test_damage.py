"""A corpus or a checkpoint that was damaged or changed is named in one line, before any harm."""

import shutil
from pathlib import Path

import pytest
from tests.faults.runs import assert_same_run, fork_pretrain, refusal

from bertie.base.errors import DataError
from bertie.corpus.shards import Corpus
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import Vocabulary

Capsys = pytest.CaptureFixture[str]


@pytest.fixture
def corpus(folder: Path, tmp_path: Path) -> Path:
    return shutil.copytree(folder / "corpus", tmp_path / "corpus")


def refused_pretraining(folder: Path, corpus: Path, capsys: Capsys) -> str:
    run = corpus.parent / "run"
    line = refusal(capsys, "pretrain", folder / "recipe.toml", "--corpus", corpus, "--out", run)
    assert not run.exists()
    return line.removeprefix(f"bertie: {corpus}/")


@pytest.mark.parametrize("file", ["tokens.bin", "sentence_ends.bin", "document_ends.bin"])
def test_a_cut_off_shard(folder: Path, corpus: Path, capsys: Capsys, file: str) -> None:
    path = corpus / "train-00000" / file
    path.write_bytes(path.read_bytes()[:-8])
    size = path.stat().st_size
    expected = (
        f"train-00000/{file}: {size:,} bytes where the manifest has {size + 8:,}; copy the corpus again"
    )
    assert refused_pretraining(folder, corpus, capsys).startswith(expected)


def test_a_missing_shard(folder: Path, corpus: Path, capsys: Capsys) -> None:
    shutil.rmtree(corpus / "train-00000")
    line = refused_pretraining(folder, corpus, capsys)
    assert line.startswith("train-00000/")
    assert ".bin: missing; copy the corpus again" in line


def test_a_flipped_bit_is_found_by_verifying(corpus: Path) -> None:
    path = corpus / "held_out-00000/sentence_ends.bin"
    content = bytearray(path.read_bytes())
    content[5] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"held_out-00000/sentence_ends\.bin: damaged \(SHA-256 differs\)"):
        Corpus.open(corpus).verify()


def test_a_tokenizer_that_did_not_make_the_corpus(folder: Path, corpus: Path, capsys: Capsys) -> None:
    """As many entries, files of the same size: only the ids mean something else."""
    before = Tokenizer.load(corpus / "tokenizer")
    tokens = before.vocabulary.tokens
    Tokenizer(Vocabulary([*tokens[:-2], tokens[-1], tokens[-2]])).save(corpus / "tokenizer")
    after = Tokenizer.load(corpus / "tokenizer")
    assert refused_pretraining(folder, corpus, capsys).startswith(
        f"tokenizer: this tokenizer ({after.fingerprint[:16]}) is not the one that made the corpus "
        f"({before.fingerprint[:16]}); put that one back"
    )


def test_a_missing_tokenizer(folder: Path, corpus: Path, capsys: Capsys) -> None:
    shutil.rmtree(corpus / "tokenizer")
    assert refused_pretraining(folder, corpus, capsys).startswith("tokenizer: missing; copy the corpus again")


def test_the_same_tokenizer_in_other_files(corpus: Path) -> None:
    (corpus / "tokenizer/tokenizer.json").unlink()
    (corpus / "tokenizer/README").write_text("Ours.")
    opened = Corpus.open(corpus)
    opened.verify()
    assert opened.train


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.safetensors", "state.json"])
def test_a_cut_off_checkpoint(folder: Path, tmp_path: Path, capsys: Capsys, file: str) -> None:
    """It is named; without it the run goes on from the one before, to the same end."""
    run = shutil.copytree(folder / "undisturbed", tmp_path / "run")
    for name in ("corpus", "recipe.toml"):
        (tmp_path / name).symlink_to(folder / name)
    path = run / "checkpoints/step-00000060" / file
    path.write_bytes(path.read_bytes()[:-100])
    options = ["--corpus", tmp_path / "corpus", "--out", run, "--resume"]
    line = refusal(capsys, "pretrain", folder / "recipe.toml", *options)
    assert line.startswith(f"bertie: {path}: ")
    shutil.rmtree(path.parent)
    process = fork_pretrain(tmp_path, "run", "--resume")
    process.join()
    assert process.exitcode == 0
    assert_same_run(run, folder / "undisturbed")
