"""`bertie reproduce` on a table and a scale that take seconds."""

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
from safetensors.torch import load_file

from bertie.base.locks import lock_file
from bertie.base.settings import read_toml
from bertie.commands.main import main
from bertie.reproduction import pretrained_models, report, runner
from bertie.reproduction.example_scores import read_example_scores, score_of
from bertie.reproduction.tables import UNCASED_NOTE
from bertie.training.checkpoints import RunDirectory

SCALE = """
name = "toy"
seeds = 2
pretrain_each_seed = true
vocabulary_size = 200
held_out = 0.2
learning_rates = [1e-3, 1e-2]
excluded = ["squad-v1"]
blimp_pairs = 3

[training_held_out]
sst-2 = 0.25

[same_article]
training = 32
dev = 16

[split_pairs]
training = 64
dev = 32

[pretraining]
batch_size = 8
warmup_steps = 2
log_every = 4
evaluate_every = 4
save_every = 4
keep_checkpoints = 3
held_out_examples = 16
precision = "float32"

[[pretraining.phases]]
steps = 8
max_seq_length = 32

[trunk]
batch_size = 16

[[trunk.phases]]
steps = 4
max_seq_length = 16
pairs = "none"

[pretraining.model]
num_hidden_layers = 1
hidden_size = 16
num_attention_heads = 2
intermediate_size = 32
max_position_embeddings = 32

[finetuning]
epochs = 1
warmup_ratio = 0.1
max_seq_length = 32
keep_best = false
"""
LAST_LINE = "keep_best = false\n"
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
name = "split_pairs"
outcome = "split_pairs/dev/accuracy"

[[columns]]
name = "SST-2 held out"
outcome = "sst-2/held_out/accuracy"

[[columns]]
name = "BLiMP"
outcome = "blimp/accuracy"

[[columns]]
name = "SQuAD"
outcome = "squad-v1/dev/f1"

[[rows]]
name = "both ways"
paper = { perplexity = 3.0, "SST-2" = 90.0, SQuAD = 80.0 }

[[rows]]
name = "both ways, half"
pretraining_fraction = 0.5
paper = { perplexity = 4.0 }

[[rows]]
name = "LTR + BiLSTM"
pretraining = { model.is_decoder = true, examples.pairs = "none", examples.mask_probability = 0.8 }
finetuning = { bilstm = true }
paper = { "SST-2" = 80.0, SQuAD = 70.0 }

[[rows]]
name = "no pre-training"
pretraining_fraction = 0.0

[[claims]]
better = "both ways"
worse = "LTR + BiLSTM"
columns = ["split_pairs"]
"""
NEAR = """
title = "Near"

[[columns]]
name = "perplexity"
outcome = "held_out/perplexity"
lower_is_better = true

[[rows]]
name = "near"
pretraining = { examples.pairs = "near" }
"""
MADE_FROM_OTHERS = "these cells were made from another corpus, row or scale, or from other examples"


def reproduce(
    folder: Path, table: str = "toy", out: str = "out", corpus: tuple[object, ...] = (), device: str = "cpu"
) -> int:
    """Run the command on the files of `folder`, and return its exit status."""
    source = corpus or ("--text", folder / "text")
    arguments = [folder / f"{table}.toml", *source, "--data", folder, "--out", folder / out]
    arguments += ["--scale", folder / "scale.toml", "--device", device, "--workers", "1"]
    sys.argv = ["bertie", "reproduce", *map(str, arguments)]
    with pytest.raises(SystemExit) as exit_info:
        main()
    return exit_info.value.code or 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Return a folder with text, an SST-2 in which one word gives the label, a scale, a table, and `out`."""
    folder = tmp_path_factory.mktemp("reproduce")
    rng = random.Random(0)
    nouns = ["cat", "dog", "house", "river", "mountain", "garden", "window", "table", "letter", "song"]
    (folder / "text").mkdir()
    for number in range(40):
        lines = [f"The {rng.choice(nouns)} is near the {rng.choice(nouns)}." for _ in range(12)]
        (folder / "text" / f"{number:02}.txt").write_text("\n".join(lines))
    (folder / "glue" / "SST-2").mkdir(parents=True)
    for part, count in (("train", 64), ("dev", 20)):
        labels = [rng.randrange(2) for _ in range(count)]
        lines = [f"the {nouns[label]} is near\t{label}" for label in labels]
        (folder / "glue" / "SST-2" / f"{part}.tsv").write_text("\n".join(["sentence\tlabel", *lines]) + "\n")
    (folder / "blimp").mkdir()
    for name in ("agreement", "order"):
        pairs = [
            {"sentence_good": f"the {noun} is near", "sentence_bad": f"{noun} the near is"} for noun in nouns
        ]
        rows = [json.dumps(pair | {"linguistics_term": name}) for pair in pairs]
        (folder / "blimp" / f"{name}.jsonl").write_text("\n".join(rows))
    (folder / "scale.toml").write_text(SCALE)
    (folder / "toy.toml").write_text(TABLE)
    assert reproduce(folder) == 0
    return folder


@pytest.fixture(autouse=True)
def no_drawing_of_results(folder, monkeypatch) -> None:
    """Draw nothing after the picture of `folder`, since pictures take 40 percent of the tests' time."""
    monkeypatch.setattr(report, "draw_results", lambda *_: "<svg></svg>")


def read_cells(out: Path) -> dict[str, dict[str, float]]:
    """Return the outcomes of the cells that are done, by ROW/seed-N."""
    results = out.glob("cells/toy/*/*/result.json")
    return {f"{path.parts[-3]}/{path.parts[-2]}": json.loads(path.read_text()) for path in results}


def corpus_of(folder: Path) -> Path:
    """Return the corpus that the command has prepared."""
    (manifest,) = (folder / "out").glob("corpus/*/manifest.json")
    return manifest.parent


def test_report_has_the_outcomes_of_every_cell(folder):
    cells = read_cells(folder / "out")
    rows = ("both-ways", "both-ways-half", "ltr-bilstm", "no-pre-training")
    assert cells.keys() == {f"{row}/seed-{seed}" for row in rows for seed in (0, 1)}
    for name, outcomes in cells.items():
        scores = {
            f"{task}/accuracy@{rate}"
            for task in ("sst-2/dev", "sst-2/held_out", "split_pairs/dev")
            for rate in (0.001, 0.01)
        }
        assert {"blimp/accuracy", *scores} < outcomes.keys()
        assert ("held_out/loss" in outcomes) == (not name.startswith("no-pre-training"))
    whole, half = (cells[f"{row}/seed-0"] for row in rows[:2])
    assert (whole["held_out/step"], half["held_out/step"]) == (8, 4)
    assert whole["held_out/perplexity"] < half["held_out/perplexity"]
    text = (folder / "out" / "toy.md").read_text()
    assert text.startswith("# A toy\n")
    perplexities = [cells[f"both-ways/seed-{seed}"]["held_out/perplexity"] for seed in (0, 1)]
    assert f"| 3.0 / {np.mean(perplexities):.2f} ± {np.std(perplexities, ddof=1):.2f} |" in text
    assert "SQuAD" not in text  # the scale excludes it
    assert text.count(f"| both ways | both ways, half | perplexity | {np.log(4 / 3):.2f} |") == 1
    assert text.count("| both ways | LTR + BiLSTM | split_pairs | – |") == 1
    assert re.search(r"\n3 statements .*: \d held, \d reversed, \d unresolved, \d at chance\.", text)
    labels = {
        part: [
            line.split("\t")[1]
            for line in (folder / "glue" / "SST-2" / f"{part}.tsv").read_text().split("\n")[1:-1]
        ]
        for part in ("train", "dev")
    }
    majority_class = Counter(labels["train"]).most_common(1)[0][0]
    baseline = 100 * labels["dev"].count(majority_class) / len(labels["dev"])
    assert re.search(rf"\| \*baseline\* \(dotted line\) \| [0-9.]+ \| {baseline:.2f} \| ", text)
    ElementTree.parse(folder / "out" / "toy.svg")


def test_too_many_split_pairs_fail_before_anything_is_written(folder, capsys):
    (folder / "scale.toml").write_text(SCALE.replace("training = 64", "training = 1000000"))
    assert reproduce(folder, out="fewer", corpus=("--corpus", corpus_of(folder))) != 0
    (folder / "scale.toml").write_text(SCALE)
    message = "split_pairs: 1,000,000 pairs are needed, but the text can be split at only"
    assert message in capsys.readouterr().err
    assert not (folder / "fewer" / "cells").exists()


def test_rows_share_pretraining_runs(folder):
    """Two rows fine-tune from two checkpoints of one run; fine-tuned models are not kept."""
    runs = [path for path in (folder / "out" / "pretraining").iterdir() if path.is_dir()]
    assert len(runs) == 4 + 4 + 2  # and trunks of two networks, and random weights
    assert all((run / "model" / "model.safetensors").exists() for run in runs)
    assert len(list((folder / "out" / "finetuning").glob("*/result.json"))) == 4 * 2 * 2 * 2
    assert not list((folder / "out" / "finetuning").rglob("*.safetensors"))
    assert not list((folder / "out").rglob("optimizer.safetensors"))


def test_the_best_learning_rate_on_dev_counts(folder, monkeypatch, capsys):
    shutil.copytree(folder / "out", folder / "rates")
    shutil.rmtree(folder / "rates" / "cells" / "toy" / "both-ways")
    shutil.rmtree(folder / "rates" / "finetuning")
    scores = {}
    original = runner.finetune

    def record(task, initial_model, training, dev, settings, run, **options):
        evaluation = original(task, initial_model, training, dev, settings, run, **options)
        key = task.name, settings.seed, settings.optimizer.learning_rate
        scores[key] = evaluation.scores["dev"]["accuracy"]
        return evaluation

    monkeypatch.setattr(runner, "finetune", record)
    assert reproduce(folder, out="rates") == 0
    assert len(scores) == 8
    notes = [line for line in capsys.readouterr().err.splitlines() if "also training inputs" in line]
    assert len(notes) == len(set(notes)) > 0  # and not for each of the seeds and rates
    cells = read_cells(folder / "rates")
    for seed in (0, 1):
        for rate in (1e-3, 1e-2):
            outcome = cells[f"both-ways/seed-{seed}"][f"sst-2/dev/accuracy@{rate:g}"]
            assert outcome == scores["sst-2", seed, rate]
    best = max(sum(scores["sst-2", seed, rate] for seed in (0, 1)) / 2 for rate in (1e-3, 1e-2))
    lines = (folder / "rates" / "toy.md").read_text().split("\n")
    results = next(line for line in lines if line.startswith("| both ways |"))
    assert f"| 90.0 / {best:.2f} ± " in results


def test_cells_with_the_best_rate_of_each_seed_are_collected_again(folder, monkeypatch):
    """Earlier versions wrote them; the fine-tuning runs are there, and nothing is trained."""

    def fail(*_, **__):
        raise AssertionError

    shutil.copytree(folder / "out", folder / "earlier")
    for file in (folder / "earlier" / "cells").rglob("result.json"):
        outcomes = json.loads(file.read_text())
        former = {name.partition("@")[0]: 12.34 for name in outcomes}
        file.write_text(json.dumps(former))
    monkeypatch.setattr(pretrained_models, "pretrain", fail)
    monkeypatch.setattr(runner, "finetune", fail)
    assert reproduce(folder, out="earlier") == 0
    assert read_cells(folder / "earlier") == read_cells(folder / "out")


def test_tables_share_pretraining_and_finetuning_runs(folder, monkeypatch):
    def fail(*_, **__):
        raise AssertionError

    (folder / "twin.toml").write_text(TABLE.replace('"A toy"', '"Another"'))
    monkeypatch.setattr(pretrained_models, "pretrain", fail)
    monkeypatch.setattr(runner, "finetune", fail)
    assert reproduce(folder, table="twin") == 0
    one, other = ((folder / "out" / f"{name}.md").read_text().split("\n")[1:] for name in ("toy", "twin"))
    assert one == [line.replace("twin.svg", "toy.svg") for line in other]


def test_the_same_command_repeats_nothing(folder, monkeypatch):
    def fail(*_, **__):
        raise AssertionError

    before = (folder / "out" / "toy.md").read_text()
    left = [corpus_of(folder) / name for name in ("parts", ".parts.bertie-tmp")]  # of a killed prepare
    for path in left:
        path.mkdir()
    monkeypatch.setattr(pretrained_models, "pretrain", fail)
    monkeypatch.setattr(runner, "finetune", fail)
    assert reproduce(folder) == 0
    assert (folder / "out" / "toy.md").read_text() == before
    assert not [path for path in left if path.exists()]


def test_an_out_with_former_names_is_continued(folder, monkeypatch):
    """The task, its outcomes and some settings had other names when the OUT was made."""
    former_names = {
        "split_pairs": "halves",
        "pretraining_fraction": "after",
        "excluded": "without",
        "mask_probability": "mask_share",
        "warmup_ratio": "warmup_share",
    }

    def with_former_names(path):
        text = path.read_text()
        for current, former in former_names.items():
            text = text.replace(current, former)
        path.write_text(text)

    before = read_cells(folder / "out")
    report = (folder / "out" / "toy.md").read_text()
    shutil.copytree(folder, folder.with_name("former"))
    former = folder.with_name("former")
    for path in (*former.glob("*.toml"), *former.glob("out/cells/**/*.toml"), *former.rglob("result.json")):
        with_former_names(path)
    assert "halves/dev/accuracy@0.01" in read_cells(former / "out")["both-ways/seed-0"]
    assert 'name = "halves"' in (former / "toy.toml").read_text()
    monkeypatch.setattr(pretrained_models, "pretrain", None)
    monkeypatch.setattr(runner, "finetune", None)
    assert reproduce(former) == 0
    # The column keeps the name that the user gave it.
    assert (former / "out" / "toy.md").read_text() == report.replace("split_pairs", "halves")
    shutil.rmtree(former / "out" / "cells")
    assert reproduce(former) == 0  # from the same runs
    assert read_cells(former / "out") == before


def test_a_failing_cell_is_reported_and_stops_no_other(folder, monkeypatch, capsys):
    shutil.copytree(folder / "out", folder / "failing")
    shutil.rmtree(folder / "failing" / "cells" / "toy" / "both-ways")
    shutil.rmtree(folder / "failing" / "finetuning")
    original = runner.finetune

    def fail_with_seed_0(task, initial_model, training, dev, settings, run, **options):
        if settings.seed == 0:
            raise torch.OutOfMemoryError("no memory for this one")
        return original(task, initial_model, training, dev, settings, run, **options)

    monkeypatch.setattr(runner, "finetune", fail_with_seed_0)
    assert reproduce(folder, out="failing") == 1
    assert "1 of 8 cells failed; see toy.md" in capsys.readouterr().err
    text = (folder / "failing" / "toy.md").read_text()
    error = folder / "failing" / "cells" / "toy" / "both-ways" / "seed-0" / "error.txt"
    assert "\n- both ways, seed 0: no memory for this one\n" in text
    assert "; 7 of 8 cells done." in text
    assert "(1 of 2 seeds)" in text
    assert "no memory for this one" in error.read_text()
    assert "both-ways/seed-1" in read_cells(folder / "failing")
    monkeypatch.undo()
    assert reproduce(folder, out="failing") == 0  # the failed cell is retried
    assert read_cells(folder / "failing") == read_cells(folder / "out")
    assert not error.exists()


def test_a_system_error_stops_no_other_cell(folder, capsys):
    """A file is in the place of a cell's directory, so that not even the error can be written."""
    shutil.copytree(folder / "out", folder / "refused")
    cell = folder / "refused" / "cells" / "toy" / "both-ways" / "seed-0"
    shutil.rmtree(cell)
    cell.touch()
    shutil.rmtree(cell.with_name("seed-1"))
    assert reproduce(folder, out="refused") == 1
    assert (
        f"- both ways, seed 0: [Errno 17] File exists: '{cell}" in (folder / "refused" / "toy.md").read_text()
    )
    assert "both-ways/seed-1" in read_cells(folder / "refused")


def test_a_stopped_table_resumes_to_the_same_outcomes(folder, monkeypatch, capsys):
    """Stop in the second row's own run, at its fourth step; both rows have a trunk."""
    calls = []
    log = RunDirectory.log

    def log_and_stop(run, row):
        log(run, row)
        if row["kind"] == "evaluation" and row["step"] == 4 and len(calls) < 4:
            calls.append(row)
            if len(calls) == 4:
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(RunDirectory, "log", log_and_stop)
    corpus = ("--corpus", corpus_of(folder))
    assert reproduce(folder, out="stopped", corpus=corpus) == 130
    assert read_cells(folder / "stopped").keys() == {"both-ways/seed-0", "both-ways-half/seed-0"}
    progress = capsys.readouterr().err
    assert "toy: 8 of 8 cells to run\n" in progress
    assert re.search(r"toy: 6 of 8 cells to run, about \d+:\d\d left\n", progress)
    assert "; 2 of 8 cells done." in (folder / "stopped" / "toy.md").read_text()
    assert reproduce(folder, out="stopped", corpus=corpus) == 0
    assert read_cells(folder / "stopped") == read_cells(folder / "out")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_between_runs_stops_the_table_with_one_line(folder, monkeypatch, capsys, number):
    monkeypatch.setattr(runner, "score_minimal_pairs", lambda *_: signal.raise_signal(number))
    out, corpus = f"stopped-by-{number}", ("--corpus", corpus_of(folder))
    assert reproduce(folder, out=out, corpus=corpus) == 128 + number
    message = f"bertie: stopped and saved in {folder / out}; the same command resumes"
    assert capsys.readouterr().err.splitlines()[-1] == message
    assert not list((folder / out).rglob("*.lock"))
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_cells_of_other_processes_are_waited_for(folder, monkeypatch, capsys):
    """A cell, and the pre-training of another one, are locked: all others are run before waiting."""
    out, shared = folder / "out", folder / "shared"
    cells = shared / "cells" / "toy"
    for part in ("corpus", "tokenizer", "pretraining"):
        shutil.copytree(out / part, shared / part)
    runs = {path.parent: read_toml(path) for path in shared.glob("pretraining/*/settings.toml")}
    (pretraining,) = {
        run
        for run, settings in runs.items()
        if settings["model"].get("is_decoder") and settings["seed"] == 1 and settings["batch_size"] == 8
    }
    with ExitStack() as other_locks:
        other_locks.enter_context(lock_file(cells / "both-ways" / "seed-0"))
        other_locks.enter_context(lock_file(pretraining))

        def finish_the_others(_):
            locked = {"both-ways/seed-0", "ltr-bilstm/seed-1"}
            assert read_cells(shared).keys() == read_cells(out).keys() - locked
            done = cells / "both-ways" / "seed-0"
            done.mkdir()
            shutil.copy(out / done.relative_to(shared) / "result.json", done)
            other_locks.close()

        monkeypatch.setattr(runner.time, "sleep", finish_the_others)
        assert reproduce(folder, out="shared") == 0
    assert capsys.readouterr().err.count("all of these are running in other processes; waiting") == 1
    assert read_cells(shared) == read_cells(out)
    assert not list((cells / "both-ways" / "seed-0").glob("sst-2*"))  # run by the other process
    assert (shared / "toy.md").read_text() == (out / "toy.md").read_text()


def test_invalid_tables_fail_before_anything_is_written(folder, capsys):
    for change, message in (
        (
            ('name = "SST-2"', 'name = "SST2"'),
            "unknown column 'SST-2'; the columns are BLiMP, SQuAD, SST-2 held out, SST2, perplexity, ",
        ),
        (("bilstm = true", "bilstn = true"), "unknown setting 'bilstn'; did you mean 'bilstm'?"),
        (("model.is_decoder", "model.is_decodr"), "unknown setting 'model.is_decodr'"),
        (("fraction = 0.5", "fraction = 1.5"), "rows.1.pretraining_fraction = 1.5"),
    ):
        (folder / "wrong.toml").write_text(TABLE.replace(*change))
        assert reproduce(folder, "wrong", "wrong", ("--corpus", corpus_of(folder))) == 2
        assert message in capsys.readouterr().err
        assert not (folder / "wrong").exists()


def test_cells_of_another_scale_are_rejected(folder, capsys):
    (folder / "scale.toml").write_text(SCALE.replace("epochs = 1", "epochs = 2"))
    try:
        assert reproduce(folder) == 2
    finally:
        (folder / "scale.toml").write_text(SCALE)
    assert MADE_FROM_OTHERS in capsys.readouterr().err


def test_cells_with_another_near_distance_are_rejected(folder, capsys):
    """Earlier versions had no limit, so the settings of their cells have no distance."""
    (folder / "near.toml").write_text(NEAR)
    arguments = {"table": "near", "out": "near", "corpus": ("--corpus", corpus_of(folder))}
    assert reproduce(folder, **arguments) == 0
    settings = folder / "near" / "cells" / "near" / "near" / "settings.toml"
    assert "near_distance = 5" in settings.read_text()
    settings.write_text(settings.read_text().replace("near_distance = 5", ""))
    assert reproduce(folder, **arguments) == 2
    assert MADE_FROM_OTHERS in capsys.readouterr().err
    shutil.rmtree(settings.parent)  # as the error advises
    assert reproduce(folder, **arguments) == 0


def test_cells_of_other_examples_are_rejected(folder, capsys):
    file = folder / "glue" / "SST-2" / "dev.tsv"
    original = file.read_text()
    file.write_text(original + "the cat is near\t1\n")
    try:
        assert reproduce(folder) == 2
        (folder / "other.toml").write_text(TABLE)
        assert reproduce(folder, table="other") == 0  # another table shares only the pre-training runs
    finally:
        file.write_text(original)
    assert MADE_FROM_OTHERS in capsys.readouterr().err
    runs = {path.parent.name.rpartition("-") for path in (folder / "out").glob("finetuning/*/result.json")}
    counts = Counter(name for name, _, _ in runs)
    assert counts["sst-2-0.001"] == 2 * counts["halves-0.001"] == 16


def test_other_text_makes_another_corpus(folder, capsys):
    shutil.copytree(folder / "text", folder / "elsewhere" / "text")
    for data in ("glue", "blimp"):
        shutil.copytree(folder / data, folder / "elsewhere" / data)
    for name in ("toy.toml", "scale.toml"):
        shutil.copy(folder / name, folder / "elsewhere")
    shutil.copytree(folder / "out", folder / "elsewhere" / "out")
    assert reproduce(folder / "elsewhere") == 0  # the same files in another folder
    (folder / "elsewhere" / "text" / "00.txt").write_text("The river is near the house.\n" * 3)
    assert reproduce(folder / "elsewhere") == 2
    assert MADE_FROM_OTHERS in capsys.readouterr().err
    assert len(list((folder / "elsewhere" / "out" / "corpus").glob("*/manifest.json"))) == 2


def test_a_shared_pretraining_counts_once(folder):
    (folder / "scale.toml").write_text(SCALE.replace("each_seed = true", "each_seed = false"))
    try:
        assert reproduce(folder, out="once", corpus=("--corpus", corpus_of(folder))) == 0
    finally:
        (folder / "scale.toml").write_text(SCALE)
    assert len(read_cells(folder / "once")) == 8
    text = (folder / "once" / "toy.md").read_text()
    assert re.search(r"\| both ways \| 3\.0 / [0-9.]+ \(1 of 2 seeds\) \|", text)
    assert re.search(
        r"\| both ways \| both ways, half \| perplexity \| 0\.29 \| [0-9.]+ \| – \| unresolved", text
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ((LAST_LINE, f"{LAST_LINE}[tasks.sst-3]\nepochs = 2\n"), "no task 'sst-3'; did you mean 'sst-2'"),
        ((LAST_LINE, f'{LAST_LINE}[folders]\nsst-3 = "x"\n'), "no task 'sst-3'"),
        ((LAST_LINE, f"{LAST_LINE}[tasks.features]\nhiden_size = 2\n"), "did you mean 'hidden_size'"),
        (('["squad-v1"]', '["squad"]'), "no task 'squad'"),
        (("held_out = 0.2", "held_out = 2"), "held_out = 2: expected a number less than 1"),
        (("warmup_steps", "warmup_stepz"), "row 'both ways', scale 'toy': unknown setting 'warmup_stepz'"),
    ],
)
def test_invalid_scales_fail_before_anything_is_written(folder, capsys, change, message):
    (folder / "scale.toml").write_text(SCALE.replace(*change))
    try:
        assert reproduce(folder, out="invalid") == 2
    finally:
        (folder / "scale.toml").write_text(SCALE)
    assert message in capsys.readouterr().err
    assert not (folder / "invalid").exists()


def test_a_missing_device_fails_before_anything_is_written(folder, capsys):
    assert reproduce(folder, out="missing", device="cuda:99") == 2
    assert "device = 'cuda:99': not available on this machine" in capsys.readouterr().err
    assert not (folder / "missing").exists()


def test_missing_files_fail_before_anything_is_written(folder, capsys):
    (folder / "blimp").rename(folder / "moved")
    try:
        assert reproduce(folder, out="missing") == 2
    finally:
        (folder / "moved").rename(folder / "blimp")
    assert "blimp: no such folder" in capsys.readouterr().err
    assert not (folder / "missing").exists()


def test_a_corpus_without_held_out_documents_fails_before_any_cell(folder, capsys):
    (folder / "scale.toml").write_text(SCALE.replace("held_out = 0.2", "held_out = 0.0"))
    try:
        assert reproduce(folder, out="invalid") == 2
    finally:
        (folder / "scale.toml").write_text(SCALE)
    assert "the corpus has no held-out documents" in capsys.readouterr().err
    assert not (folder / "invalid" / "cells").exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("result.json", b""),
        ("result.json", b"[1]"),
        ("result.json", b'{"blimp/accuracy": "high"}'),
        ("examples.npz", b""),
        ("examples.npz", b"PK"),
    ],
    ids=str,
)
def test_a_damaged_file_of_a_cell_is_one_line(folder, capsys, name, content):
    shutil.copytree(folder / "out", folder / "damaged")
    file = folder / "damaged" / "cells" / "toy" / "both-ways" / "seed-0" / name
    original = (file.parent / "result.json").read_bytes()
    file.write_bytes(content)
    try:
        assert reproduce(folder, out="damaged") == 2
        assert f"{file}: damaged; delete it" in capsys.readouterr().err.splitlines()[-1]
        for path in {file, file.with_name("result.json")}:  # as the error advises
            path.unlink()
        assert reproduce(folder, out="damaged") == 0
        assert (file.parent / "result.json").read_bytes() == original
    finally:
        shutil.rmtree(folder / "damaged")


def test_claims_rows_and_seeds_may_change(folder, monkeypatch):
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
    assert "; 3 of 3 cells done." in text


def test_an_uncased_corpus_for_a_cased_table_is_reported(folder, capsys):
    shutil.copytree(folder / "out", folder / "uncased")
    (folder / "toy.toml").write_text(f"cased = true\n{TABLE}")
    try:
        assert reproduce(folder, out="uncased", corpus=("--corpus", corpus_of(folder))) == 0
    finally:
        (folder / "toy.toml").write_text(TABLE)
    assert f"warning: {corpus_of(folder)}: {UNCASED_NOTE}\n" in capsys.readouterr().err
    assert f"\n{UNCASED_NOTE}\n" in (folder / "uncased" / "toy.md").read_text()
    assert UNCASED_NOTE not in (folder / "out" / "toy.md").read_text()


def test_an_unknown_score_fails_before_anything_is_trained(folder, capsys):
    (folder / "none.toml").write_text(TABLE.replace("sst-2/dev/accuracy", "sst-2/dev/acuracy"))
    assert reproduce(folder, "none", out="nothing") == 2
    err = capsys.readouterr().err
    assert "bertie: none, column 'SST-2': unknown outcome 'sst-2/dev/acuracy'; choose from " in err
    assert " sst-2/dev/accuracy, sst-2/held_out/accuracy" in err
    assert not (folder / "nothing" / "pretraining").exists()


def test_an_unknown_held_out_metric_fails_its_cell(folder):
    (folder / "none.toml").write_text(TABLE.replace("held_out/perplexity", "held_out/surprise"))
    assert reproduce(folder, "none") == 1
    text = (folder / "out" / "none.md").read_text()
    assert "column 'perplexity': unknown outcome 'held_out/surprise'; choose from held_out/step, " in text


def test_a_missing_evaluation_fails_its_cell(folder):
    (folder / "third.toml").write_text(TABLE.replace("fraction = 0.5", "fraction = 0.25"))
    assert reproduce(folder, "third") == 1
    error = folder / "out" / "cells" / "third" / "both-ways-half" / "seed-0" / "error.txt"
    assert "not evaluated at step 2; set evaluate_every to a divisor of it" in error.read_text()


def test_rows_continue_the_trunk_of_their_network_and_seed(folder):
    """Two rows share a trunk; the left-to-right row has its own, and the row without pre-training none."""
    runs = {path.parent: read_toml(path) for path in (folder / "out").glob("pretraining/*/settings.toml")}
    trunks = {run: settings for run, settings in runs.items() if settings["batch_size"] == 16}
    assert sorted((s["seed"], s["model"].get("is_decoder", False)) for s in trunks.values()) == [
        (0, False),
        (0, True),
        (1, False),
        (1, True),
    ]
    for run in runs.keys() - trunks.keys():
        (trunk,) = (
            trunk
            for trunk, settings in trunks.items()
            if settings["seed"] == runs[run]["seed"]
            and settings["model"].get("is_decoder") == runs[run]["model"].get("is_decoder")
        )
        first = load_file(run / "checkpoints" / "step-00000000" / "model.safetensors")
        last = load_file(trunk / "model" / "model.safetensors")
        name = "bert.embeddings.word_embeddings.weight"
        assert torch.equal(first[name], last[name])


def test_cells_keep_the_scores_of_their_examples(folder):
    for cell in (folder / "out" / "cells" / "toy").glob("*/seed-*"):
        outcomes = json.loads((cell / "result.json").read_text())
        examples = read_example_scores(cell)
        assert examples.keys() == {name for name in outcomes if not name.startswith("held_out/")} - {
            name for name in outcomes if "f1_macro" in name
        }
        for name, scores in examples.items():
            assert score_of(name.partition("@")[0], scores) == pytest.approx(outcomes[name])
        assert len(examples["blimp/accuracy"]) == 2 * 3
        assert len(examples["sst-2/held_out/accuracy@0.001"]) == 16
