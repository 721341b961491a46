"""`bertie reproduce --model`: a table from a given model, on data and a grid that take seconds."""

import random
import re
import shutil
import signal
import sys
import zipfile
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from tests.inference.small_models import save_small

import bertie
from bertie.base.errors import SettingsError
from bertie.base.locks import lock_directory, lock_file
from bertie.commands.main import main
from bertie.reproduction import budget, checkpoint_runner
from bertie.reproduction.budget import Cost, choose_cap
from bertie.reproduction.checkpoint_tables import read_checkpoint_table, read_found_tasks
from bertie.reproduction.tables import UNCASED_NOTE
from bertie.tasks.glue import SUBMISSION_FILES
from bertie.training.checkpoints import RunDirectory
from bertie.training.finetuning import finetune

TABLE = """
title = "A toy"
average = true

[search]
batch_sizes = [8]
learning_rates = [1e-3, 1e-2]
epochs = [1]
finetuning.max_seq_length = 32
finetuning.keep_best = false
finetuning.patience = 1

[[rows]]
name = "SST-2"
outcome = "sst-2/dev/accuracy"
official_size = 67349
paper = { "BERT-Base, test" = 93.5 }

[[rows]]
name = "QQP"
outcome = "qqp/dev/f1"
paper = { "BERT-Base, test" = 71.2 }

[[rows]]
name = "RTE"
outcome = "rte/dev/accuracy"
paper = { "BERT-Base, test" = 66.4 }

[[rows]]
name = "RTE again, not in the average"
outcome = "rte/dev/accuracy"
"""
SCALE = """
name = "small"
pretrain_each_seed = false
learning_rates = [1e-3]

[tasks.features]
hidden_size = 4
epochs = 1
batch_size = 4
max_seq_length = 32
"""
WORDS = ["cat", "mat", "paris", "sat"]
SENTENCES = "the O\ncat B-A\nsat O\n\non O\nparis B-B\n\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with a model, a table, SST-2, RTE, named entities, and `out` with the table's runs."""
    folder = tmp_path_factory.mktemp("from model")
    save_small(folder, "encoder").rename(folder / "model")
    rng = random.Random(0)
    for task, header, labels in (
        ("SST-2", "sentence\tlabel", ("0", "1")),
        ("RTE", "index\tsentence1\tsentence2\tlabel", ("entailment", "not_entailment")),
    ):
        (folder / "data" / "glue" / task).mkdir(parents=True)
        for part, count in (("train", 48 if task == "RTE" else 64), ("dev", 16), ("test", 10)):
            lines = [header if part != "test" else header.removesuffix("\tlabel")]
            for i in range(count):
                chosen = rng.randrange(2)
                fields = [f"the {WORDS[chosen]} is near"]
                fields = [str(i), "the cat sat", *fields] if task == "RTE" else fields
                lines.append("\t".join([*fields, *[labels[chosen]] * (part != "test")]))
            if task == "SST-2" and part == "test":
                lines = ["index\tsentence", *(f"{i}\t{line}" for i, line in enumerate(lines[1:]))]
            (folder / "data" / "glue" / task / f"{part}.tsv").write_text("\n".join(lines) + "\n")
    (folder / "data" / "ner" / "toy").mkdir(parents=True)
    for part, count in (("train", 8), ("dev", 3)):
        (folder / "data" / "ner" / "toy" / f"{part}.txt").write_text(SENTENCES * count)
    (folder / "toy.toml").write_text(TABLE)
    (folder / "small.toml").write_text(SCALE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bertie.api.search.write_search_report", lambda *arguments, **options: None)
        assert run(folder) == 0
    return folder


@pytest.fixture(autouse=True)
def no_search_reports(monkeypatch):
    """Do not draw the pictures of reports, which takes ten times as long as training."""
    monkeypatch.setattr("bertie.api.search.write_search_report", lambda *arguments, **options: None)


def run(
    folder: Path, *options: object, table: str = "toy.toml", out: str = "out", model: str = "model"
) -> int:
    """Run the command on the files of `folder`, and return its exit status."""
    path = folder / table if table.endswith(".toml") else table
    arguments = [path, "--model", folder / model, "--data", folder / "data", "--out", folder / out]
    sys.argv = ["bertie", "reproduce", *map(str, [*arguments, "--device", "cpu", *options])]
    with pytest.raises(SystemExit) as exit_info:
        main()
    return exit_info.value.code or 0


def fields(folder: Path, row: str, out: str = "out", table: str = "toy") -> list[str]:
    """Return the fields of a row in the report."""
    lines = (folder / out / f"{table}.md").read_text().split("\n")
    (line,) = (line for line in lines if line.startswith(f"| {row} |"))
    return [field.strip() for field in line.strip("|").split("|")]


def test_report_has_our_scores_beside_the_papers(folder):
    scores = {}
    for task in ("sst-2", "rte"):
        trials = folder / "out" / "toy" / task / "trials"
        results = [
            checkpoint_runner.read_json(path)["dev"]["accuracy"] for path in trials.glob("*/result.json")
        ]
        assert len(results) == 2
        scores[task] = max(results)
    _, ours, majority, paper, trained_on, official, settings = fields(folder, "SST-2")
    assert (ours, paper, trained_on, official) == (f"{scores['sst-2']:.1f}", "93.5", "64 of 64", "67,349")
    assert float(majority) > 0
    assert settings.startswith("batch 8, rate 0.0")
    assert fields(folder, "QQP")[1:4] == ["–", "", "71.2"]
    average = fields(folder, "Average of these 2 of the paper's 3")
    assert average[1] == f"{np.mean(list(scores.values())):.1f}"
    assert average[3] == f"{(93.5 + 66.4) / 2:.1f}"
    text = (folder / "out" / "toy.md").read_text()
    assert f"- rte, in {folder}/data/glue: train.tsv, 48 rows; dev.tsv, 16 rows; test.tsv, 10 rows" in text
    assert f"- qqp: no {folder}/data/glue/QQP/train.tsv, or a dev file is missing" in text
    assert "glue.zip: not written, because no run has predictions for CoLA, MRPC" in text
    assert len((folder / "out/toy/sst-2/submission/SST-2.tsv").read_text().split("\n")) == 1 + 10 + 1


def test_the_runs_use_the_given_device(folder):
    """Not "auto", which is a GPU where there is one."""
    settings = [path.read_text() for path in (folder / "out").glob("toy/*/trials/*/settings.toml")]
    assert len(settings) == 4
    assert all('device = "cpu"\n' in text for text in settings)


def test_the_same_call_repeats_nothing(folder, monkeypatch):
    monkeypatch.setattr(checkpoint_runner, "search", None)
    monkeypatch.setattr(checkpoint_runner, "measure_search", None)
    options = {"model": folder / "model", "data": folder / "data", "out": folder / "out"}
    scores = bertie.reproduce(str(folder / "toy.toml"), **options)
    assert list(scores) == ["SST-2", "RTE", "RTE again, not in the average"]
    assert f"{scores['SST-2']:.1f}" == fields(folder, "SST-2")[1]


def test_a_stopped_table_resumes_to_the_same_scores(folder, monkeypatch, capsys):
    """Stop in the first run of the second task."""
    log, stopped = RunDirectory.log, []

    def log_and_stop(directory, row):
        log(directory, row)
        if "/rte/" in str(directory.path) and not stopped:
            stopped.append(row)
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "log", log_and_stop)
        assert run(folder, out="stopped") == 130
    message = f"stopped and saved in {folder / 'stopped'}; the same command resumes"
    assert message in capsys.readouterr().err
    assert fields(folder, "RTE", "stopped")[1] == "–"
    searched = []
    search = checkpoint_runner.search

    def record(*arguments, **options):
        searched.append(options["task"])
        return search(*arguments, **options)

    monkeypatch.setattr(checkpoint_runner, "search", record)
    assert run(folder, out="stopped") == 0
    assert searched == ["rte"]
    assert fields(folder, "RTE", "stopped") == fields(folder, "RTE")
    assert fields(folder, "SST-2", "stopped") == fields(folder, "SST-2")


def test_cells_of_another_process_are_left_to_it(folder, monkeypatch, capsys):
    """The first task is locked: the second one is run before waiting."""
    shared = folder / "shared" / "toy"
    with ExitStack() as other_process:
        other_process.enter_context(lock_directory(shared, shared=True))
        other_process.enter_context(lock_file(shared / "sst-2"))

        def finish_the_other(_):
            assert fields(folder, "RTE", "shared") == fields(folder, "RTE")
            assert fields(folder, "SST-2", "shared")[1] == "–"
            shutil.copytree(folder / "out" / "toy" / "sst-2", shared / "sst-2")
            other_process.close()

        monkeypatch.setattr(checkpoint_runner.time, "sleep", finish_the_other)
        assert run(folder, out="shared") == 0
    assert capsys.readouterr().err.count("all of these are running in other processes; waiting") == 1
    assert fields(folder, "SST-2", "shared") == fields(folder, "SST-2")
    assert not [*shared.rglob("*.lock")]


def test_a_budget_caps_the_training_examples(folder, monkeypatch, capsys):
    costs = {"sst-2": Cost(0, 0.9, 64), "rte": Cost(0, 0.9, 48)}
    monkeypatch.setattr(
        checkpoint_runner, "measure_search", lambda examples, *arguments: costs[examples.task.name]
    )
    assert run(folder, "--budget", 1, out="capped") == 0
    err = capsys.readouterr().err
    assert "toy: about 1:41 for all training examples\n" in err
    assert "toy: about 0:59 with at most 33 training examples a task, to fit --budget 1\n" in err
    assert "toy: 2 of 2 runs left, about 0:59\n" in err
    assert fields(folder, "SST-2", "capped")[4] == "33 of 64"
    assert "Capped at 33 training examples a task" in (folder / "capped" / "toy.md").read_text()
    rows = [path.read_text() for path in (folder / "capped").glob("toy/*/trials/*/settings.toml")]
    assert len(rows) == 4
    assert all("max_training_examples = 33\n" in row for row in rows)
    assert run(folder, "--budget", 2, out="capped") == 2
    started = f"{folder}/capped/toy: started with another budget; give the same, or choose another --out"
    assert started in capsys.readouterr().err


def test_the_estimate_leaves_out_the_compilation_of_kernels(folder, monkeypatch, capsys):
    runs = []

    def compile_at_first(task, start, training, dev, settings, run, **options):
        result = finetune(task, start, training, dev, settings, run, **options)
        runs.append(run)
        if len(runs) == 1:
            log = run / "metrics.jsonl"
            log.write_text(re.sub(r'("tokens_per_second"): [^,}]+', r"\1: 0.1", log.read_text()))
        return result

    monkeypatch.setattr(budget, "finetune", compile_at_first)
    assert run(folder, out="estimated") == 0
    assert "toy: about 0:" in capsys.readouterr().err


def test_a_budget_that_is_too_small_says_what_is_enough():
    costs = [Cost(100, 1, 1000), Cost(10, 0, 500)]
    with pytest.raises(SettingsError) as error:
        choose_cap(costs, 60)
    assert "32 training examples a task take about 2.4 minutes; give at least --budget 3" in str(error.value)
    assert choose_cap(costs, 180) == 70
    assert choose_cap(costs, 1110) == 0


def test_a_submission_is_written_once_all_tasks_are_there(folder):
    shutil.copytree(folder / "out", folder / "whole")
    for name in SUBMISSION_FILES:
        file = folder / "whole" / "toy" / "others" / "submission" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if name not in ("SST-2.tsv", "RTE.tsv"):
            file.write_text("index\tprediction\n0\t0\n")
    assert run(folder, out="whole") == 0
    with zipfile.ZipFile(folder / "whole" / "toy" / "glue.zip") as archive:
        assert sorted(archive.namelist()) == sorted(SUBMISSION_FILES)
        expected = (folder / "whole/toy/rte/submission/RTE.tsv").read_bytes()
        assert archive.read("RTE.tsv") == expected
    assert "not written" not in (folder / "whole" / "toy.md").read_text()


def test_another_model_is_rejected(folder, capsys):
    save_small(folder, "masked LM").rename(folder / "other")
    assert run(folder, model="other") == 2
    assert (
        "toy: started with another model; give the same, or choose another --out" in capsys.readouterr().err
    )


def test_table_7_has_fine_tuning_and_features(folder):
    """The model has fewer positions than the task's default length."""
    assert run(folder, "--scale", folder / "small.toml", "--restarts", 2, table="table7") == 0
    text = (folder / "out" / "table7.md").read_text()
    assert f"- {UNCASED_NOTE}\n" in text
    assert f"- ner, in {folder}/data/ner/toy: train.txt, 16 sentences; dev.txt, 6 sentences" in text
    ours = {name: fields(folder, name, table="table7")[1] for name in ("fine-tuning", "last")}
    assert all(score.endswith(" (2 runs)") for score in ours.values())
    assert len(list((folder / "out" / "table7").glob("features-*-seed-*/result.json"))) == 6 * 2


@pytest.mark.parametrize("content", ["", "[]", "{}"])
@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("plan.json", "restore it, or choose another --out"),
        ("rte/result.json", "delete it, and the same command computes it again"),
    ],
)
def test_a_damaged_file_is_one_line(folder, capsys, name, remedy, content):
    file = folder / "out" / "toy" / name
    original, row = file.read_text(), fields(folder, "RTE")
    file.write_text(content)
    try:
        assert run(folder) == 2
        assert capsys.readouterr().err.splitlines()[-1] == f"bertie: {file}: damaged; {remedy}"
        if name == "rte/result.json":  # as the error advises
            file.unlink()
            assert run(folder) == 0
            assert fields(folder, "RTE") == row
    finally:
        file.write_text(original)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["table1"], "table1 fine-tunes a given model; name it with --model DIR"),
        (["table5", "--model", "m"], "table5: its rows pre-train their own models; leave out --model"),
        (["table1", "--model", "m", "--text", "."], "leave out --text and --corpus"),
        (["table5", "--budget", "3"], "--budget and --restarts are for --model"),
        (
            ["table1", "--model", "model", "--data", "empty"],
            "empty: has no task of the table (mnli: no empty/glue, or a dev file is missing); give the "
            "folder with the tasks' folders, such as glue with the files from https://gluebenchmark.com/tasks",
        ),
    ],
)
def test_wrong_arguments_are_an_error(folder, arguments, message, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "empty").mkdir(exist_ok=True)
    data = [] if "--data" in arguments else ["--data", "data"]
    monkeypatch.setattr(sys, "argv", ["bertie", "reproduce", *arguments, *data, "--out", "new"])
    with pytest.raises(SystemExit) as exit_info:
        main()
    assert exit_info.value.code == 2
    assert message in capsys.readouterr().err
    assert not (folder / "new").exists()


def test_real_data_are_found_and_named(shared_data):
    tasks, missing = read_found_tasks(read_checkpoint_table("table4"), shared_data)
    assert tasks["swag"].folder == shared_data / "swag-layout"
    assert not missing
    tasks, _ = read_found_tasks(read_checkpoint_table("table7"), shared_data)
    assert tasks["ner"].folder == shared_data / "ner" / "bc5cdr"
