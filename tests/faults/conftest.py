"""A folder with the corpus and the complete run that the fault tests start from."""

import random
from pathlib import Path
from typing import Any

import pytest
from tests.faults.commands import COMMANDS, Undisturbed, arguments_of, read_result, run
from tests.faults.runs import RECIPE, template

from bertie.tasks.glue import SUBMISSION_FILES

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
TABLE = """
title = "A table"
[[columns]]
name = "SST-2"
outcome = "sst-2/dev/accuracy"
[[rows]]
name = "one"
paper = { "SST-2" = 90.0 }
"""
GIVEN_TABLE = """
title = "A table from a given model"
[search]
batch_sizes = [16]
learning_rates = [1e-3]
epochs = [1]
finetuning.max_seq_length = 16
[[rows]]
name = "SST-2"
outcome = "sst-2/dev/accuracy"
"""
SCALE = """
name = "small"
seeds = 1
pretrain_each_seed = false
vocabulary_size = 200
held_out = 0.2
learning_rates = [1e-3]
excluded = []
blimp_pairs = 3
[pretraining]
batch_size = 4
warmup_steps = 1
log_every = 2
evaluate_every = 2
save_every = 1
keep_checkpoints = 2
held_out_examples = 4
[[pretraining.phases]]
steps = 2
max_seq_length = 16
[pretraining.model]
hidden_size = 8
num_hidden_layers = 1
num_attention_heads = 2
intermediate_size = 8
max_position_embeddings = 16
[finetuning]
epochs = 1
max_seq_length = 16
"""

# Two rows whose runs continue one trunk, and a row with random weights.
TRUNK_TABLE = """
title = "A table of rows with a trunk"
[[columns]]
name = "perplexity"
outcome = "held_out/perplexity"
lower_is_better = true
[[columns]]
name = "SST-2"
outcome = "sst-2/dev/accuracy"
[[rows]]
name = "both"
paper = { "SST-2" = 90.0 }
[[rows]]
name = "no pairs"
pretraining = { examples.pairs = "none" }
[[rows]]
name = "random"
pretraining_fraction = 0.0
"""
TRUNK_SCALE = """
[trunk]
batch_size = 8
[[trunk.phases]]
steps = 4
max_seq_length = 16
pairs = "none"
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
    vocab = ["vocab", folder / "text.txt", "--size", "150", "--out", folder / "tokenizer"]
    prepare = ["prepare", folder / "text.txt", "--tokenizer", folder / "tokenizer", "--held-out", "0.1"]
    pretrain = ["pretrain", folder / "recipe.toml", "--corpus", folder / "corpus"]
    template().warm(*vocab, "--workers", 1)
    template().warm(*prepare, "--out", folder / "corpus", "--workers", 1)
    template().warm(*pretrain, "--out", folder / "undisturbed")
    return folder


@pytest.fixture(scope="session")
def inputs(folder: Path) -> Path:
    """The folder, with what every command of `commands.py` reads."""
    (folder / "rows.csv").write_text("text,label\n" + ROWS)
    (folder / "few.txt").write_text("word1 [MASK]\nword2 [MASK]\n")
    (folder / "more.txt").write_text("word3 word4 word5 word6.\n" * 20)
    (folder / "short.toml").write_text(SHORT_RECIPE)
    (folder / "table.toml").write_text(TABLE)
    (folder / "given.toml").write_text(GIVEN_TABLE)
    (folder / "scale.toml").write_text(SCALE)
    (folder / "trunk-table.toml").write_text(TRUNK_TABLE)
    (folder / "trunk-scale.toml").write_text(SCALE.replace("seeds = 1", "seeds = 2") + TRUNK_SCALE)
    (folder / "data/glue/SST-2").mkdir(parents=True)
    for part in ("train", "dev"):
        rows = "".join(f"{'good' if n % 2 else 'bad'} word{n}\t{n % 2}\n" for n in range(16))
        (folder / f"data/glue/SST-2/{part}.tsv").write_text(f"sentence\tlabel\n{rows}")
    (folder / "glue-run/submission").mkdir(parents=True)
    for name in SUBMISSION_FILES:
        (folder / "glue-run/submission" / name).write_text("index\tprediction\n0\t1\n")
    return folder


@pytest.fixture(scope="session")
def undisturbed(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """Return a function that returns the operations and the result of a command that nothing disturbs."""
    results: dict[str, tuple[int, dict[str, Any]]] = {}

    def get(verb: str) -> tuple[int, dict[str, Any]]:
        if verb not in results:
            folder = tmp_path_factory.mktemp("undisturbed")
            template().warm(*arguments_of(verb, inputs), folder / COMMANDS[verb][1])
            folder /= verb
            status, operations, output = run(verb, inputs, folder)
            assert status == 0, output
            results[verb] = operations, read_result(folder)
        return results[verb]

    return get
