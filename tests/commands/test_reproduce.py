"""`bertie reproduce`, as a user types it, on a table and a scale of seconds."""

import json
import random
import shutil
import signal
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from bertie.commands.main import main
from bertie.reproduction import runner
from bertie.training.checkpoints import RunDirectory

SCALE = """
name = "toy"
seeds = 2
pretrain_each_seed = true
vocabulary_size = 200
held_out = 0.2
learning_rates = [1e-3, 1e-2]
without = ["squad-v1"]

[passages]
training = 64
dev = 32

[pretraining]
batch_size = 8
warmup_steps = 2
log_every = 4
evaluate_every = 4
save_every = 4
held_out_examples = 16
precision = "float32"

[[pretraining.phases]]
steps = 8
max_seq_length = 32

[pretraining.model]
num_hidden_layers = 1
hidden_size = 16
num_attention_heads = 2
intermediate_size = 32
max_position_embeddings = 32

[finetuning]
epochs = 1
max_seq_length = 32
keep_best = false
"""
TABLE = """
title = "A toy"

[[columns]]
name = "perplexity"
outcome = "held_out/perplexity"
lower_is_better = true

[[columns]]
name = "SST-2"
outcome = "sst-2/dev/accuracy"

[[columns]]
name = "passages"
outcome = "passages/dev/accuracy"

[[columns]]
name = "SQuAD"
outcome = "squad-v1/dev/f1"

[[rows]]
name = "both ways"
paper = { perplexity = 3.0, "SST-2" = 90.0, SQuAD = 80.0 }

[[rows]]
name = "both ways, half"
after = 0.5
paper = { perplexity = 4.0 }

[[rows]]
name = "LTR + BiLSTM"
pretraining = { model.is_decoder = true, examples.pairs = "none" }
finetuning = { bilstm = true }
paper = { "SST-2" = 80.0, SQuAD = 70.0 }

[[claims]]
better = "both ways"
worse = "LTR + BiLSTM"
columns = ["passages"]
"""


def reproduce(folder: Path, table: str = "toy", out: str = "out", corpus: tuple[object, ...] = ()) -> int:
    """The exit status of the command; it uses what `folder` holds."""
    source = corpus or ("--text", folder / "text")
    arguments = [folder / f"{table}.toml", *source, "--data", folder, "--out", folder / out]
    arguments += ["--scale", folder / "scale.toml", "--device", "cpu", "--workers", "1"]
    sys.argv = ["bertie", "reproduce", *map(str, arguments)]
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code or 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Text, an SST-2 whose label is a word, a scale, a table, and what the command makes of them in `out`."""
    folder = tmp_path_factory.mktemp("reproduce")
    chance = random.Random(0)
    things = ["cat", "dog", "house", "river", "mountain", "garden", "window", "table", "letter", "song"]
    (folder / "text").mkdir()
    for number in range(40):
        lines = [f"The {chance.choice(things)} is near the {chance.choice(things)}." for _ in range(12)]
        (folder / "text" / f"{number:02}.txt").write_text("\n".join(lines))
    (folder / "glue" / "SST-2").mkdir(parents=True)
    for part, count in (("train", 64), ("dev", 20)):
        labels = [chance.randrange(2) for _ in range(count)]
        lines = [f"the {things[label]} is near\t{label}" for label in labels]
        (folder / "glue" / "SST-2" / f"{part}.tsv").write_text("\n".join(["sentence\tlabel", *lines]) + "\n")
    (folder / "scale.toml").write_text(SCALE)
    (folder / "toy.toml").write_text(TABLE)
    assert reproduce(folder) == 0
    return folder


def cells_of(out: Path) -> dict[str, dict[str, float]]:
    found = out.glob("cells/toy/*/*/result.json")
    return {f"{path.parts[-3]}/{path.parts[-2]}": json.loads(path.read_text()) for path in found}


def test_every_cell_has_its_outcomes_and_the_table_names_them(folder):
    cells = cells_of(folder / "out")
    rows = ("both-ways", "both-ways-half", "ltr-bilstm")
    assert cells.keys() == {f"{row}/seed-{seed}" for row in rows for seed in (0, 1)}
    for outcomes in cells.values():
        assert {"held_out/perplexity", "sst-2/dev/accuracy", "passages/dev/accuracy"} < outcomes.keys()
    whole, half = (cells[f"{row}/seed-0"] for row in rows[:2])
    assert (whole["held_out/step"], half["held_out/step"]) == (8, 4)
    assert whole["held_out/perplexity"] < half["held_out/perplexity"]
    text = (folder / "out" / "toy.md").read_text()
    assert text.startswith("# A toy\n")
    assert "| 3.0 / " in text
    assert "SQuAD" not in text  # the scale is without it
    assert text.count("| both ways | both ways, half | perplexity | 1.00 |") == 1
    assert text.count("| both ways | LTR + BiLSTM | passages | – |") == 1
    assert "Of 3: " in text
    ElementTree.parse(folder / "out" / "toy.svg")


def test_rows_and_seeds_share_what_they_have_in_common(folder):
    """Two rows are one pre-training, begun from different checkpoints; models of fine-tuning are not kept."""
    runs = list((folder / "out" / "pretraining").iterdir())
    assert len(runs) == 4
    assert all((run / "model" / "model.safetensors").exists() for run in runs)
    assert not list((folder / "out" / "cells").rglob("*.safetensors"))
    assert not list((folder / "out").rglob("optimizer.safetensors"))


def test_of_several_rates_the_best_on_dev_counts(folder):
    directory = folder / "out" / "cells" / "toy" / "both-ways" / "seed-0"
    scores = [
        json.loads((directory / f"sst-2-{rate}" / "scores.json").read_text())["scores"]["dev"]["accuracy"]
        for rate in ("0.001", "0.01")
    ]
    assert cells_of(folder / "out")["both-ways/seed-0"]["sst-2/dev/accuracy"] == max(scores)


def test_what_is_done_is_not_done_again(folder, monkeypatch):
    def fail(*_, **__):
        raise AssertionError

    before = (folder / "out" / "toy.md").read_text()
    monkeypatch.setattr(runner, "pretrain", fail)
    monkeypatch.setattr(runner, "finetune", fail)
    assert reproduce(folder) == 0
    assert (folder / "out" / "toy.md").read_text() == before


def test_a_failing_cell_is_written_down_and_loses_no_other(folder, monkeypatch, capsys):
    shutil.copytree(folder / "out", folder / "failing")
    shutil.rmtree(folder / "failing" / "cells" / "toy" / "both-ways")
    whole = runner.finetune

    def fail_with_seed_0(task, start, training, dev, settings, run, **options):
        if settings.seed == 0:
            raise torch.OutOfMemoryError("no memory for this one")
        return whole(task, start, training, dev, settings, run, **options)

    monkeypatch.setattr(runner, "finetune", fail_with_seed_0)
    assert reproduce(folder, out="failing") == 1
    assert "1 of 6 cells failed; toy.md names them" in capsys.readouterr().err
    text = (folder / "failing" / "toy.md").read_text()
    error = folder / "failing" / "cells" / "toy" / "both-ways" / "seed-0" / "error.txt"
    assert f"- both ways, seed 0: {error}" in text
    assert "no memory for this one" in error.read_text()
    assert "both-ways/seed-1" in cells_of(folder / "failing")
    monkeypatch.undo()
    assert reproduce(folder, out="failing") == 0  # tried again
    assert cells_of(folder / "failing") == cells_of(folder / "out")
    assert not error.exists()


def test_a_stopped_table_goes_on_to_the_same_numbers(folder, monkeypatch):
    """Stopped within a pre-training, at its fourth step."""
    calls = []
    log = RunDirectory.log

    def log_and_stop(run, row):
        log(run, row)
        if row["kind"] == "evaluation" and row["step"] == 4 and not calls:
            calls.append(row)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(RunDirectory, "log", log_and_stop)
    assert reproduce(folder, out="stopped", corpus=("--corpus", folder / "out" / "corpus-toy")) == 130
    assert cells_of(folder / "stopped") == {}
    assert reproduce(folder, out="stopped", corpus=("--corpus", folder / "out" / "corpus-toy")) == 0
    assert cells_of(folder / "stopped") == cells_of(folder / "out")


def test_what_is_wrong_is_said_before_anything_is_trained(folder, capsys):
    for change, told in (
        (('name = "SST-2"', 'name = "SST2"'), "'SST-2' is not one of SQuAD, SST2, passages, perplexity"),
        (("bilstm = true", "bilstn = true"), "unknown setting 'bilstn'; did you mean 'bilstm'?"),
        (("model.is_decoder", "model.is_decodr"), "unknown setting 'model.is_decodr'"),
        (("after = 0.5", "after = 1.5"), "rows.1.after = 1.5"),
    ):
        (folder / "wrong.toml").write_text(TABLE.replace(*change))
        assert reproduce(folder, "wrong", "wrong", ("--corpus", folder / "out" / "corpus-toy")) == 2
        assert told in capsys.readouterr().err
        assert not (folder / "wrong").exists()


def test_cells_of_another_scale_are_not_mixed_in(folder, capsys):
    (folder / "scale.toml").write_text(SCALE.replace("epochs = 1", "epochs = 2"))
    try:
        assert reproduce(folder) == 2
    finally:
        (folder / "scale.toml").write_text(SCALE)
    assert "these cells are of another corpus, table or scale; name another --out" in capsys.readouterr().err


def test_a_checkpoint_that_was_not_kept_is_named(folder):
    (folder / "third.toml").write_text(TABLE.replace("after = 0.5", "after = 0.25"))
    assert reproduce(folder, "third") == 1
    error = folder / "out" / "cells" / "third" / "both-ways-half" / "seed-0" / "error.txt"
    assert "not evaluated at step 2; let evaluate_every divide it" in error.read_text()
