"""`bertie vocab`: its options reach the learner."""

from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bertie.commands.main import app
from bertie.text.learning import Merges, learn_vocabulary

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
