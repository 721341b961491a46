"""Every file of every kind of directory, damaged in eight ways: one line, or the same result."""

import random
import shutil
from pathlib import Path

import pytest
from tests.faults.conftest import SHORT_RECIPE
from tests.faults.damage import Reader, hash_files, try_cases
from tests.faults.runs import template
from tests.inference.small_models import save_small

TEXT = "the cat sat on [MASK]"


def _log(directory: Path, output: Path) -> object:
    return (output.parent / "log").read_text()


READERS = {
    "tokenizer": Reader(lambda path, _: ["tokenize", path, TEXT], _log),
    "corpus": Reader(
        lambda path, out: ["pretrain", path.parent / "r.toml", "--corpus", path, "--out", out / "run"],
        lambda _, out: hash_files(out / "run/model", "*.safetensors", "vocab.txt"),
    ),
    "run": Reader(
        lambda path, _: ["pretrain", "--resume", "--out", path],
        lambda path, _: hash_files(path / "model", "*.safetensors", "*.json", "vocab.txt"),
    ),
    "model": Reader(lambda path, _: ["predict", path, "--text", TEXT, "--json"], _log),
    "export": Reader(lambda path, _: ["predict", path, "--text", "the cat", "--json"], _log),
    "sentence-transformers": Reader(lambda path, _: ["embed", path, "--text", TEXT], _log),
    "google": Reader(
        lambda path, out: ["convert", path, out / "model", "--to", "bertie"],
        lambda _, out: hash_files(out / "model", "*.safetensors", "*.json", "vocab.txt"),
    ),
}


@pytest.fixture(scope="session")
def directories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two directories of each kind, in `first` and `second`."""
    place = tmp_path_factory.mktemp("directories")
    warm = template().warm
    (place / "r.toml").write_text(SHORT_RECIPE)
    for seed, name in enumerate(("first", "second")):
        path = place / name
        path.mkdir()
        words = [f"word{number}" for number in range(50)]
        rng = random.Random(seed + 2)
        lines = [" ".join(rng.sample(words, 9)) + "." if n % 10 else "" for n in range(300)]
        (path / "text.txt").write_text("\n".join(lines) + "\n")
        vocab = ["vocab", path / "text.txt", "--size", 100 + seed, "--out", path / "tokenizer"]
        prepare = ["prepare", path / "text.txt", "--tokenizer", path / "tokenizer", "--held-out", "0.1"]
        pretrain = ["pretrain", place / "r.toml", "--corpus", path / "corpus", "--out", path / "run"]
        warm(*vocab, "--workers", 1)
        warm(*prepare, "--out", path / "corpus", "--workers", 1)
        warm(*pretrain, "--set", f"seed={seed}")
        for name in ("model", "checkpoints/step-00000004"):  # so that --resume trains the last step
            shutil.rmtree(path / "run" / name)
        save_small(path, "masked LM").rename(path / "model")
        save_small(path, ("regression", "classifier")[seed]).rename(path / "labels")
        save_small(path, "encoder")
        warm("export", path / "labels", "--onnx", path / "export")
        warm("convert", path / "encoder", path / "sentence-transformers", "--to", "sentence-transformers")
        warm("convert", path / "labels", path / "google", "--to", "tensorflow")
    return place


@pytest.mark.parametrize("kind", READERS)
def test_some_damage_is_one_line_or_harmless(directories: Path, tmp_path: Path, kind: str) -> None:
    (tmp_path / "r.toml").write_text(SHORT_RECIPE)
    first, second = directories / "first" / kind, directories / "second" / kind
    outcomes = try_cases(template(), READERS[kind], first, second, tmp_path, range(3, 500, 62))
    assert outcomes["refused"] > 0
    assert sum(outcomes.values()) == 9


@pytest.mark.slow
@pytest.mark.parametrize("kind", READERS)
def test_damage_is_one_line_or_harmless(directories: Path, tmp_path: Path, kind: str) -> None:
    (tmp_path / "r.toml").write_text(SHORT_RECIPE)
    first, second = directories / "first" / kind, directories / "second" / kind
    outcomes = try_cases(template(), READERS[kind], first, second, tmp_path, range(500))
    print(kind, outcomes)
    assert sum(outcomes.values()) == 500
