"""A folder with the corpus and the complete run that the fault tests start from."""

import random
from pathlib import Path

import pytest
from tests.faults.runs import RECIPE, finish, start_bertie, start_pretraining


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a text, a tokenizer, a corpus and the run `undisturbed`."""
    folder = tmp_path_factory.mktemp("faults")
    rng = random.Random(1)
    words = [f"word{number}" for number in range(50)]
    lines = [" ".join(rng.sample(words, 9)) + "." if n % 10 else "" for n in range(800)]
    (folder / "text.txt").write_text("\n".join(lines) + "\n")
    (folder / "recipe.toml").write_text(RECIPE)
    for arguments in (
        ["vocab", "text.txt", "--size", "150", "--out", "tokenizer", "--workers", "1"],
        ["prepare", "text.txt", "--tokenizer", "tokenizer", "--out", "corpus", "--held-out", "0.1"],
    ):
        finish(start_bertie(folder, *arguments))
    finish(start_pretraining(folder, "undisturbed"))
    return folder
