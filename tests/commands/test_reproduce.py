"""`bertie reproduce`, as a user types it, on a table and a scale of seconds."""

import json
import random
import re
import shutil
import signal
import sys
import tomllib
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import tomli_w
import torch

from bertie.base.settings import read_toml
from bertie.commands.main import main
from bertie.reproduction import runner
from bertie.reproduction.locks import taken
from bertie.training.checkpoints import RunDirectory

SCALE = """
name = "toy"
seeds = 2
pretrain_each_seed = true
vocabulary_size = 200
held_out = 0.2
learning_rates = [1e-3, 1e-2]
without = ["squad-v1"]

[halves]
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
LAST = "keep_best = false\n"
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
name = "halves"
outcome = "halves/dev/accuracy"

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
columns = ["halves"]
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


def corpus_of(folder: Path) -> Path:
    """What the command has made of the text."""
    (manifest,) = (folder / "out").glob("corpus/*/manifest.json")
    return manifest.parent


def test_every_cell_has_its_outcomes_and_the_table_names_them(folder):
    cells = cells_of(folder / "out")
    rows = ("both-ways", "both-ways-half", "ltr-bilstm")
    assert cells.keys() == {f"{row}/seed-{seed}" for row in rows for seed in (0, 1)}
    for outcomes in cells.values():
        assert {"held_out/perplexity", "sst-2/dev/accuracy", "halves/dev/accuracy"} < outcomes.keys()
    whole, half = (cells[f"{row}/seed-0"] for row in rows[:2])
    assert (whole["held_out/step"], half["held_out/step"]) == (8, 4)
    assert whole["held_out/perplexity"] < half["held_out/perplexity"]
    text = (folder / "out" / "toy.md").read_text()
    assert text.startswith("# A toy\n")
    perplexities = [cells[f"both-ways/seed-{seed}"]["held_out/perplexity"] for seed in (0, 1)]
    assert f"| 3.0 / {np.mean(perplexities):.2f} ± {np.std(perplexities, ddof=1):.2f} |" in text
    assert "SQuAD" not in text  # the scale is without it
    assert text.count("| both ways | both ways, half | perplexity | 1.00 |") == 1
    assert text.count("| both ways | LTR + BiLSTM | halves | – |") == 1
    assert "Of 3: " in text
    labels = {
        part: [
            line.split("\t")[1]
            for line in (folder / "glue" / "SST-2" / f"{part}.tsv").read_text().split("\n")[1:-1]
        ]
        for part in ("train", "dev")
    }
    commonest = Counter(labels["train"]).most_common(1)[0][0]
    chance = 100 * labels["dev"].count(commonest) / len(labels["dev"])
    assert f"| *the commonest label* (dotted) |  | {chance:.2f} | " in text
    ElementTree.parse(folder / "out" / "toy.svg")


def test_a_pair_set_too_large_is_refused_before_anything_is_begun(folder, capsys):
    whole = (folder / "scale.toml").read_text()
    (folder / "scale.toml").write_text(whole.replace("training = 64", "training = 1000000"))
    assert reproduce(folder, out="fewer", corpus=("--corpus", corpus_of(folder))) != 0
    (folder / "scale.toml").write_text(whole)
    assert "halves: 1,000,000 pairs wanted, and only" in capsys.readouterr().err
    assert not (folder / "fewer" / "cells").exists()


def test_rows_and_seeds_share_what_they_have_in_common(folder):
    """Two rows are one pre-training, begun from different checkpoints; models of fine-tuning are not kept."""
    runs = [path for path in (folder / "out" / "pretraining").iterdir() if path.is_dir()]
    assert len(runs) == 4
    assert all((run / "model" / "model.safetensors").exists() for run in runs)
    assert len(list((folder / "out" / "finetuning").glob("*/result.json"))) == 3 * 2 * 2 * 2
    assert not list((folder / "out" / "finetuning").rglob("*.safetensors"))
    assert not list((folder / "out").rglob("optimizer.safetensors"))


def test_of_several_rates_the_best_on_dev_counts(folder, monkeypatch):
    shutil.copytree(folder / "out", folder / "rates")
    shutil.rmtree(folder / "rates" / "cells" / "toy" / "both-ways")
    shutil.rmtree(folder / "rates" / "finetuning")
    scores = {}
    whole = runner.finetune

    def record(task, start, training, dev, settings, run, **options):
        found = whole(task, start, training, dev, settings, run, **options)
        scores[task.name, settings.seed, settings.optimizer.learning_rate] = found.scores["dev"]["accuracy"]
        return found

    monkeypatch.setattr(runner, "finetune", record)
    assert reproduce(folder, out="rates") == 0
    assert len(scores) == 8
    cells = cells_of(folder / "rates")
    for seed in (0, 1):
        best = max(scores["sst-2", seed, rate] for rate in (1e-3, 1e-2))
        assert cells[f"both-ways/seed-{seed}"]["sst-2/dev/accuracy"] == best


def test_tables_share_what_they_have_in_common(folder, monkeypatch):
    def fail(*_, **__):
        raise AssertionError

    (folder / "twin.toml").write_text(TABLE.replace('"A toy"', '"Another"'))
    monkeypatch.setattr(runner, "pretrain", fail)
    monkeypatch.setattr(runner, "finetune", fail)
    assert reproduce(folder, table="twin") == 0
    one, other = ((folder / "out" / f"{name}.md").read_text().split("\n")[1:] for name in ("toy", "twin"))
    assert one == [line.replace("twin.svg", "toy.svg") for line in other]


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
    shutil.rmtree(folder / "failing" / "finetuning")
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
    assert "\n- both ways, seed 0: no memory for this one\n" in text
    assert "; 5 of 6 cells done." in text
    assert "(1 of 2 seeds)" in text
    assert "no memory for this one" in error.read_text()
    assert "both-ways/seed-1" in cells_of(folder / "failing")
    monkeypatch.undo()
    assert reproduce(folder, out="failing") == 0  # tried again
    assert cells_of(folder / "failing") == cells_of(folder / "out")
    assert not error.exists()


def test_what_the_system_refuses_loses_no_other_cell(folder, capsys):
    """A file where the folder of a cell should be, so that not even its error can be written."""
    shutil.copytree(folder / "out", folder / "refused")
    cell = folder / "refused" / "cells" / "toy" / "both-ways" / "seed-0"
    shutil.rmtree(cell)
    cell.touch()
    shutil.rmtree(cell.with_name("seed-1"))
    assert reproduce(folder, out="refused") == 1
    assert (
        f"- both ways, seed 0: [Errno 17] File exists: '{cell}" in (folder / "refused" / "toy.md").read_text()
    )
    assert "both-ways/seed-1" in cells_of(folder / "refused")


def test_a_stopped_table_goes_on_to_the_same_numbers(folder, monkeypatch, capsys):
    """Stopped within the second pre-training, at its fourth step."""
    calls = []
    log = RunDirectory.log

    def log_and_stop(run, row):
        log(run, row)
        if row["kind"] == "evaluation" and row["step"] == 4 and len(calls) < 2:
            calls.append(row)
            if len(calls) == 2:
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(RunDirectory, "log", log_and_stop)
    corpus = ("--corpus", corpus_of(folder))
    assert reproduce(folder, out="stopped", corpus=corpus) == 130
    assert cells_of(folder / "stopped").keys() == {"both-ways/seed-0", "both-ways-half/seed-0"}
    told = capsys.readouterr().err
    assert "toy: 6 of 6 cells to run\n" in told
    assert re.search(r"toy: 4 of 6 cells to run, about \d+:\d\d left\n", told)
    assert "; 2 of 6 cells done." in (folder / "stopped" / "toy.md").read_text()
    assert reproduce(folder, out="stopped", corpus=corpus) == 0
    assert cells_of(folder / "stopped") == cells_of(folder / "out")


def test_what_another_process_has_taken_is_left_to_it(folder, monkeypatch, capsys):
    """A cell, and the pre-training of another one: the rest is done before these are waited for."""
    out, shared = folder / "out", folder / "shared"
    cells = shared / "cells" / "toy"
    for part in ("corpus", "tokenizer", "pretraining"):
        shutil.copytree(out / part, shared / part)
    (pretraining,) = {
        path.parent
        for path in shared.glob("pretraining/*/settings.toml")
        if read_toml(path)["model"].get("is_decoder") and read_toml(path)["seed"] == 1
    }
    with ExitStack() as others:
        others.enter_context(taken(cells / "both-ways" / "seed-0"))
        others.enter_context(taken(pretraining))

        def end_of_the_others(_):
            left = {"both-ways/seed-0", "ltr-bilstm/seed-1"}
            assert cells_of(shared).keys() == cells_of(out).keys() - left
            done = cells / "both-ways" / "seed-0"
            done.mkdir()
            shutil.copy(out / done.relative_to(shared) / "result.json", done)
            others.close()

        monkeypatch.setattr(runner.time, "sleep", end_of_the_others)
        assert reproduce(folder, out="shared") == 0
    assert capsys.readouterr().err.count("other processes are at all of these; waiting") == 1
    assert cells_of(shared) == cells_of(out)
    assert not list((cells / "both-ways" / "seed-0").glob("sst-2*"))  # the other one's
    assert (shared / "toy.md").read_text() == (out / "toy.md").read_text()


def test_what_is_wrong_is_said_before_anything_is_trained(folder, capsys):
    for change, told in (
        (('name = "SST-2"', 'name = "SST2"'), "'SST-2' is not one of SQuAD, SST2, halves, perplexity"),
        (("bilstm = true", "bilstn = true"), "unknown setting 'bilstn'; did you mean 'bilstm'?"),
        (("model.is_decoder", "model.is_decodr"), "unknown setting 'model.is_decodr'"),
        (("after = 0.5", "after = 1.5"), "rows.1.after = 1.5"),
    ):
        (folder / "wrong.toml").write_text(TABLE.replace(*change))
        assert reproduce(folder, "wrong", "wrong", ("--corpus", corpus_of(folder))) == 2
        assert told in capsys.readouterr().err
        assert not (folder / "wrong").exists()


def test_cells_of_another_scale_are_not_mixed_in(folder, capsys):
    (folder / "scale.toml").write_text(SCALE.replace("epochs = 1", "epochs = 2"))
    try:
        assert reproduce(folder) == 2
    finally:
        (folder / "scale.toml").write_text(SCALE)
    assert "these cells are of another corpus, row or scale, or of other examples" in capsys.readouterr().err


def test_cells_of_other_examples_are_not_mixed_in(folder, capsys):
    file = folder / "glue" / "SST-2" / "dev.tsv"
    whole = file.read_text()
    file.write_text(whole + "the cat is near\t1\n")
    try:
        assert reproduce(folder) == 2
        (folder / "other.toml").write_text(TABLE)
        assert reproduce(folder, table="other") == 0  # another table shares the pre-trainings alone
    finally:
        file.write_text(whole)
    assert "these cells are of another corpus, row or scale, or of other examples" in capsys.readouterr().err
    runs = {path.parent.name.rpartition("-") for path in (folder / "out").glob("finetuning/*/result.json")}
    counts = Counter(name for name, _, _ in runs)
    assert counts["sst-2-0.001"] == 2 * counts["halves-0.001"] == 12


def test_other_text_is_another_corpus(folder, capsys):
    shutil.copytree(folder / "text", folder / "elsewhere" / "text")
    shutil.copytree(folder / "glue", folder / "elsewhere" / "glue")
    for name in ("toy.toml", "scale.toml"):
        shutil.copy(folder / name, folder / "elsewhere")
    shutil.copytree(folder / "out", folder / "elsewhere" / "out")
    assert reproduce(folder / "elsewhere") == 0  # the same, at another place
    (folder / "elsewhere" / "text" / "00.txt").write_text("The river is near the house.\n" * 3)
    assert reproduce(folder / "elsewhere") == 2
    assert "these cells are of another corpus" in capsys.readouterr().err
    assert len(list((folder / "elsewhere" / "out" / "corpus").glob("*/manifest.json"))) == 2


def test_one_pretraining_counts_once(folder):
    (folder / "scale.toml").write_text(SCALE.replace("each_seed = true", "each_seed = false"))
    try:
        assert reproduce(folder, out="once", corpus=("--corpus", corpus_of(folder))) == 0
    finally:
        (folder / "scale.toml").write_text(SCALE)
    assert len(cells_of(folder / "once")) == 6
    text = (folder / "once" / "toy.md").read_text()
    assert re.search(r"\| both ways \| 3\.0 / [0-9.]+ \(1 of 2 seeds\) \|", text)
    assert re.search(r"\| both ways \| both ways, half \| perplexity \| 1\.00 \| [0-9.]+ \| unresolved", text)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ((LAST, f"{LAST}[tasks.sst2]\nepochs = 2\n"), "no task 'sst2'; did you mean 'sst-2'"),
        ((LAST, f'{LAST}[folders]\nsst2 = "x"\n'), "no task 'sst2'"),
        ((LAST, f"{LAST}[tasks.features]\nhiden_size = 2\n"), "did you mean 'hidden_size'"),
        (('["squad-v1"]', '["squad"]'), "no task 'squad'"),
        (("held_out = 0.2", "held_out = 0.0"), "the corpus has no held-out documents"),
    ],
)
def test_a_scale_that_cannot_be_is_refused(folder, capsys, change, message):
    (folder / "scale.toml").write_text(SCALE.replace(*change))
    try:
        assert reproduce(folder, out="cannot") == 2
    finally:
        (folder / "scale.toml").write_text(SCALE)
    assert message in capsys.readouterr().err
    assert not (folder / "cannot" / "cells").exists()


def test_other_claims_and_fewer_rows_are_of_the_same_cells(folder, monkeypatch):
    monkeypatch.setattr(runner, "finetune", None)
    shutil.copytree(folder / "out", folder / "claims")
    table = tomllib.loads(TABLE)
    table["rows"][0]["paper"]["perplexity"] = 2.5
    table["rows"].pop(1)
    table["claims"].append({"better": "LTR + BiLSTM", "worse": "both ways", "columns": ["SST-2"]})
    (folder / "toy.toml").write_text(tomli_w.dumps(table))
    (folder / "scale.toml").write_text(SCALE.replace("seeds = 2", "seeds = 1"))
    try:
        assert reproduce(folder, out="claims") == 0
    finally:
        (folder / "toy.toml").write_text(TABLE)
        (folder / "scale.toml").write_text(SCALE)
    text = (folder / "claims" / "toy.md").read_text()
    assert "| both ways | 2.5 / " in text
    assert "; 2 of 2 cells done." in text


def test_a_score_that_is_none_is_named_before_anything_is_trained(folder, capsys):
    (folder / "none.toml").write_text(TABLE.replace("sst-2/dev/accuracy", "sst-2/dev/acuracy"))
    assert reproduce(folder, "none", out="nothing") == 2
    said = capsys.readouterr().err
    assert "bertie: SST-2: no outcome 'sst-2/dev/acuracy'; there are sst-2/dev/accuracy, " in said
    assert not (folder / "nothing" / "pretraining").exists()


def test_a_figure_of_pre_training_that_is_none_is_named(folder):
    (folder / "none.toml").write_text(TABLE.replace("held_out/perplexity", "held_out/surprise"))
    assert reproduce(folder, "none") == 1
    text = (folder / "out" / "none.md").read_text()
    assert "perplexity: no outcome 'held_out/surprise'; there are held_out/step, " in text


def test_a_checkpoint_that_was_not_kept_is_named(folder):
    (folder / "third.toml").write_text(TABLE.replace("after = 0.5", "after = 0.25"))
    assert reproduce(folder, "third") == 1
    error = folder / "out" / "cells" / "third" / "both-ways-half" / "seed-0" / "error.txt"
    assert "not evaluated at step 2; let evaluate_every divide it" in error.read_text()
