"""A folder with the corpus and the complete run that the fault tests start from."""

import random
from pathlib import Path

import pytest
from tests.faults.runs import RECIPE, finish, start_bertie, start_pretraining

ROWS = "".join(f"{'good' if n % 2 else 'bad'} word{n},{n % 2}\n" for n in range(16))
SHORT_RECIPE = """
batch_size = 4
warmup_steps = 1
log_every = 1
evaluate_every = 3
save_every = 1
keep_checkpoints = 2
held_out_examples = 4
device = "cpu"
[[phases]]
steps = 4
max_seq_length = 16
[model]
hidden_size = 8
num_hidden_layers = 1
num_attention_heads = 2
intermediate_size = 8
max_position_embeddings = 16
"""


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


@pytest.fixture(scope="session")
def inputs(folder: Path) -> Path:
    """The folder, with labelled rows, two texts with a mask, and a recipe of four steps."""
    (folder / "rows.csv").write_text("text,label\n" + ROWS)
    (folder / "few.txt").write_text("word1 [MASK]\nword2 [MASK]\n")
    (folder / "short.toml").write_text(SHORT_RECIPE)
    return folder
