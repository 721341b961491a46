"""`bertie vocab`: its options reach the learner, what it leaves out is told, nothing else is overwritten."""

from collections import Counter
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from bertie.base.errors import DataError
from bertie.commands.main import app
from bertie.text.wordpiece_trainer import Merges, learn_vocabulary

TEXT = "the thin thief thought that this was the other thing " * 3 + "banana bandana band"


@pytest.mark.parametrize("merges", ["frequency", "likelihood"])
def test_merges(tmp_path: Path, merges: Merges) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    arguments = ["vocab", tmp_path / "text.txt", "--out", tmp_path / "out", "--size", 100, "--workers", 1]
    result = CliRunner().invoke(app, [*map(str, arguments), "--merges", merges])
    assert result.exit_code == 0, result.output
    counts = Counter(TEXT.split())
    expected = learn_vocabulary(sorted(counts), [counts[word] for word in sorted(counts)], 100, merges)
    assert (tmp_path / "out" / "vocab.txt").read_text().split() == expected
    other: Merges = "likelihood" if merges == "frequency" else "frequency"
    assert expected != learn_vocabulary(list(counts), counts.values(), 100, other)


def learn(folder: Path, text: str, *options: object) -> Result:
    """`bertie vocab`, whose input is the folder it writes below."""
    (folder / "text.txt").write_text(text)
    arguments = ["vocab", folder, "--out", folder / "out", "--workers", 1, *options]
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_its_own_vocabulary_is_no_text(tmp_path: Path) -> None:
    first, second = (learn(tmp_path, TEXT, "--size", 100) for _ in range(2))
    assert first.exit_code == 0
    assert "33 words, 12 different" in first.stderr
    assert "33 words, 12 different" in second.stderr


def test_characters_left_out_are_counted(tmp_path: Path) -> None:
    text = "".join(chr(0x4E00 + index) * (2 if index < 90 else 1) for index in range(120))
    told = learn(tmp_path, text, "--size", 500, "--alphabet", 90).stderr
    assert "30 rare characters left out, and so 14.29% of the words; a larger --alphabet" in told
    assert "there are no more pairs to merge" in told
    assert "left out" not in learn(tmp_path, text, "--size", 500).stderr


def test_a_models_tokenizer_is_not_overwritten(tmp_path: Path) -> None:
    assert learn(tmp_path, TEXT, "--size", 100).exit_code == 0
    (tmp_path / "out/config.json").write_text("{}")
    before = {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()}
    result = learn(tmp_path, TEXT, "--size", 120)
    assert isinstance(result.exception, DataError)
    assert "holds other files than a tokenizer" in str(result.exception)
    assert {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()} == before
