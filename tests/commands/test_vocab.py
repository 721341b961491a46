"""`bertie vocab`: its options, its report of missing characters, and what it refuses to overwrite."""

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
def test_merges_option_selects_the_criterion(tmp_path: Path, merges: Merges) -> None:
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
    """Run `bertie vocab` on a folder and write the tokenizer into the same folder."""
    (folder / "text.txt").write_text(text)
    arguments = ["vocab", folder, "--out", folder / "out", "--workers", 1, *options]
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_output_inside_the_input_folder_is_not_read(tmp_path: Path) -> None:
    first, second = (learn(tmp_path, TEXT, "--size", 100) for _ in range(2))
    assert first.exit_code == 0
    assert "33 words, 12 unique" in first.stderr
    assert "33 words, 12 unique" in second.stderr


def test_missing_characters_and_unknown_words_are_reported(tmp_path: Path) -> None:
    text = "".join(chr(0x4E00 + index) * (2 if index < 90 else 1) for index in range(120))
    stderr = learn(tmp_path, text, "--size", 500, "--alphabet", 90).stderr
    expected = "30 rare characters are not in the vocabulary, so 14.29% of the words become [UNK]; a larger "
    assert f"{expected}alphabet or size includes them" in stderr
    assert "fewer than 500 entries: there are no more pairs to merge" in stderr
    assert "rare characters" not in learn(tmp_path, text, "--size", 500).stderr


def test_a_model_directory_is_not_overwritten(tmp_path: Path) -> None:
    assert learn(tmp_path, TEXT, "--size", 100).exit_code == 0
    (tmp_path / "out/config.json").write_text("{}")
    before = {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()}
    result = learn(tmp_path, TEXT, "--size", 120)
    assert isinstance(result.exception, DataError)
    assert "holds other files than a tokenizer" in str(result.exception)
    assert {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()} == before
