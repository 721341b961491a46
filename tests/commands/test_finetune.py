"""`bertie finetune`, `search`, `evaluate` and `submission`, as a user types them."""

import csv
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from bertie.commands.main import main
from bertie.commands.task_options import custom_task
from bertie.model.config import BertConfig
from bertie.model.formats.directory import ModelMetadata
from bertie.model.formats.weights import save_model
from bertie.model.heads import PreTrainingModel
from bertie.tasks.custom import CustomMultipleChoice
from bertie.tasks.registry import TASKS
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary

GOOD, BAD = ("good", "fine", "great"), ("bad", "poor", "awful")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A tiny model, and reviews whose label is in the words."""
    folder = tmp_path_factory.mktemp("finetune")
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    words = ["film", "the", "was", *GOOD, *BAD, *letters, *(f"##{letter}" for letter in letters)]
    tokenizer = Tokenizer(Vocabulary([*SPECIAL_TOKENS, *words]))
    config = BertConfig(
        vocab_size=len(tokenizer.vocabulary),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        initializer_range=0.1,
    )
    torch.manual_seed(0)
    metadata = ModelMetadata(config, PreTrainingModel.architecture, (), tokenizer)
    save_model(folder / "model", PreTrainingModel(config), metadata, "card")
    chance = np.random.default_rng(0)
    for name, count in (("train", 120), ("dev", 40)):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["review", "stars"])
            for _ in range(count):
                stars = int(chance.integers(2))
                writer.writerow([f"the film was {chance.choice((BAD, GOOD)[stars])}, a film", stars])
    return folder


class Done(NamedTuple):
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def bertie(monkeypatch, capsys) -> Callable[..., Done]:
    """Run a command in a folder, in this process: starting a new one takes seconds."""

    def run(folder: Path, *arguments: str) -> Done:
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "argv", ["bertie", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_status:
            main()
        return Done(exit_status.value.code or 0, *capsys.readouterr())

    return run


OWN = ["--train", "train.csv", "--dev", "dev.csv", "--text", "review", "--label", "stars", "--model", "model"]
FAST = ["--set", "optimizer.learning_rate=3e-3", "--set", "epochs=12"]


def test_ones_own_file(bertie, folder):
    done = bertie(folder, "finetune", *OWN, "--out", "run", *FAST, "--json")
    assert done.returncode == 0, done.stderr
    scores = json.loads(done.stdout)
    assert scores["dev"]["accuracy"] > 90
    assert scores == json.loads((folder / "run/scores.json").read_text())["scores"]
    assert "labels: 0 " in done.stderr
    assert (folder / "run/report.html").exists()
    columns = ["--text", "review", "--label", "stars"]
    again = bertie(folder, "evaluate", "--model", "run/model", "--data", "dev.csv", *columns, "--json")
    assert json.loads(again.stdout)["accuracy"] == scores["dev"]["accuracy"], again.stderr
    file = "run/predictions/dev/predictions.tsv"
    again = bertie(folder, "evaluate", "--predictions", file, "--data", "dev.csv", *columns, "--json")
    assert json.loads(again.stdout)["accuracy"] == scores["dev"]["accuracy"], again.stderr
    refused = bertie(folder, "finetune", *OWN, "--out", "run", *FAST)
    assert refused.returncode == 2
    assert "already holds a run" in refused.stderr


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("review,stars\nfine,1\n,0\nbad,1\nbad,0\n", "train.csv: line 3"),
        ("review,rating\nfine,1\n", "no column 'stars'"),
        ("review,stars\nfine,1\nbad,1\n", "all examples have"),
        ("review,stars\nfine,1\nbad,0\nbad,0\n", "no other example has the label '1'"),
    ],
)
def test_bad_input_is_one_line(bertie, folder, tmp_path, rows, message):
    shutil.copytree(folder / "model", tmp_path / "model")
    shutil.copy(folder / "dev.csv", tmp_path)
    (tmp_path / "train.csv").write_text(rows)
    refused = bertie(tmp_path, "finetune", *OWN, "--out", "run")
    assert refused.returncode == 2
    assert message in refused.stderr
    assert refused.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_one_file_is_not_learnt_from_and_judged_by(bertie, folder):
    arguments = ["--task", "mrpc", "--data", "train.csv", "--model", "model", "--out", "run"]
    refused = bertie(folder, "finetune", *arguments)
    assert refused.returncode == 2
    assert (
        refused.stderr == "bertie: --data train.csv: not a folder; give that of the task's official files\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--train", "train.csv", "--column", "text=review"], "--column is for the other kinds; texts have"),
        (["--train", "train.csv", "--separator", ""], "--separator is empty"),
        (["--task", "mrpc", "--data", ".", "--dev", "dev.csv"], "--dev goes with --train"),
        (["--task", "mrpc", "--data", ".", "--label", "gold"], "--task mrpc knows its own files; --kind,"),
        (["--task", "ner", "--data", ".", "--kind", "tags"], "--task ner knows its own files; --kind,"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(bertie, folder, arguments, message):
    refused = bertie(folder, "finetune", *arguments, "--model", "model", "--out", "run")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert message in refused.stderr


def test_the_label_of_choices_is_named_in_either_way():
    assert custom_task("choices", "text", None, "gold", None, None) == CustomMultipleChoice(label="gold")
    assert custom_task("choices", "text", None, "gold", None, ["label=right"]) == CustomMultipleChoice(
        label="right"
    )


def test_an_unknown_label_in_dev_is_named(bertie, folder, tmp_path):
    for name in ("model", "train.csv"):
        (tmp_path / name).symlink_to(folder / name)
    (tmp_path / "dev.csv").write_text("review,stars\nfine,1\nfine,7\n")
    refused = bertie(tmp_path, "finetune", *OWN, "--out", "run")
    assert refused.returncode == 2
    assert "dev.csv: line 3" in refused.stderr
    assert "'7'" in refused.stderr


def test_a_search_repeats_nothing_and_keeps_the_best(bertie, folder):
    grid = ["--set", "batch_sizes=[32]", "--set", "learning_rates=[3e-3,1e-6]", "--set", "epochs=[2]"]
    arguments = ["search", *OWN, "--out", "search", *grid, "--set", "restarts=2", "--json"]
    done = bertie(folder, *arguments)
    assert done.returncode == 0, done.stderr
    cells = json.loads(done.stdout)
    assert [len(cell["scores"]) for cell in cells] == [2, 2]
    assert max(cells, key=lambda cell: cell["mean"])["chosen"]
    assert cells[0]["std"] == pytest.approx(np.std(cells[0]["scores"], ddof=1))
    kept = [path.parent.name for path in (folder / "search/cells").glob("*/model")]
    assert all("rate0.003" in name for name in kept) == cells[0]["chosen"]
    assert len(kept) == 2
    lost = folder / "search/cells/batch32-rate1e-06-epochs2-seed1"
    before = {path: path.stat().st_mtime_ns for path in (folder / "search/cells").glob("*/metrics.jsonl")}
    shutil.rmtree(lost)
    again = bertie(folder, *arguments)
    assert json.loads(again.stdout) == cells, again.stderr
    for path, time in before.items():
        assert (path.stat().st_mtime_ns == time) == (path.parent != lost)
    unjudged = bertie(folder, "search", *OWN[:2], *OWN[4:], "--out", "unjudged")
    assert unjudged.stderr.endswith("\nbertie: a search chooses by dev: give --dev FILE\n")
    assert "is kept" not in unjudged.stderr
    other = bertie(folder, *arguments, "--set", "finetuning.max_seq_length=64")
    assert other.returncode == 2
    assert "finetuning.max_seq_length was 128 when" in other.stderr
    # Another grid, whose best run has lost its model to the other's; rounding and the like may be another.
    first, second = (cell["scores"][0] for cell in cells)
    narrowed = ["--set", f"learning_rates=[{'1e-6,1e-6' if first > second else '3e-3,3e-3'}]"]
    again = bertie(folder, *arguments, *narrowed, "--set", "finetuning.micro_batch_tokens=999")
    (cell,) = json.loads(again.stdout)
    assert cell["scores"] == cells[first > second]["scores"], again.stderr
    assert (folder / "search/model/model.safetensors").exists()


def test_a_search_from_another_model_is_another_search(bertie, folder, tmp_path):
    arguments = ["search", *OWN[:-1], str(tmp_path / "other"), "--out", str(tmp_path / "search")]
    arguments += ["--set", "batch_sizes=[64]", "--set", "learning_rates=[1e-3]", "--set", "epochs=[1]"]
    shutil.copytree(folder / "model", tmp_path / "other")
    done = bertie(folder, *arguments)
    assert done.returncode == 0, done.stderr
    weights = load_file(folder / "model/model.safetensors")
    save_file({name: weight + 1 for name, weight in weights.items()}, tmp_path / "other/model.safetensors")
    done = bertie(folder, *arguments)
    assert done.returncode == 2
    assert "search: this run began with another model to start from; give" in done.stderr


@pytest.mark.parametrize(
    ("key", "axis"), [("seed", "restarts"), ("optimizer.learning_rate", "learning_rates")]
)
def test_what_the_grid_sets_is_not_set_beside_it(bertie, folder, key, axis):
    done = bertie(folder, "search", *OWN, "--out", "unused", "--set", f"finetuning.{key}=1")
    assert (done.returncode, done.stderr) == (
        2,
        f"bertie: finetuning.{key} is the grid's to set: give {axis}\n",
    )


SLOW = pytest.param("squad-v2", marks=pytest.mark.slow)


@pytest.mark.parametrize("name", ["mrpc", "sts-b", "mnli", "swag", "squad-v1", SLOW, "ner"])
def test_a_task_of_the_paper(bertie, folder, shared_data, name):
    places = {"swag": "swag-layout", "squad-v1": "squad", "squad-v2": "squad", "ner": "ner/wnut17"}
    data = str(shared_data / places.get(name, "glue"))
    few = ["--set", "max_training_examples=32", "--set", "epochs=1"]
    done = bertie(
        folder, "finetune", "--task", name, "--data", data, "--model", "model", "--out", name, *few, "--json"
    )
    assert done.returncode == 0, done.stderr
    scores = json.loads(done.stdout)
    task = TASKS[name]
    assert name != "mnli" or (folder / "mnli/submission/AX.tsv").exists()
    assert list(scores) == list(task.dev_parts)
    part = task.dev_parts[0]
    for source in (
        ["--model", f"{name}/model"],
        ["--predictions", f"{name}/predictions/{part}/{task.predictions_file}"],
    ):
        again = bertie(folder, "evaluate", "--task", name, "--data", data, "--part", part, *source, "--json")
        found = json.loads(again.stdout)
        assert found[task.main_metric] == pytest.approx(scores[part][task.main_metric], abs=1e-9), (
            again.stderr
        )


def test_a_submission_wants_all_tasks(bertie, folder, shared_data):
    few = ["--set", "max_training_examples=32", "--set", "epochs=1"]
    data = str(shared_data / "glue")
    done = bertie(
        folder, "finetune", "--task", "rte", "--data", data, "--model", "model", "--out", "rte", *few
    )
    assert done.returncode == 0, done.stderr
    lines = (folder / "rte/submission/RTE.tsv").read_text().splitlines()
    assert lines[0] == "index\tprediction"
    assert len(lines) == 3001
    refused = bertie(folder, "submission", "rte", "--out", "glue.zip")
    assert refused.returncode == 2
    assert "CoLA.tsv" in refused.stderr


def test_what_is_no_submission_and_what_is_one_twice(bertie, tmp_path):
    for file in ("swag/submission/predictions.csv", "ner/submission/predictions.tsv", "a/submission/RTE.tsv"):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text("")
    for run in ("swag", "ner"):
        refused = bertie(tmp_path, "submission", run, "--out", "glue.zip")
        assert refused.stderr.startswith(
            f"bertie: {run}: no predictions for GLUE's server; this run is of another"
        )
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    refused = bertie(tmp_path, "submission", "a", "b", "--out", "glue.zip")
    assert (refused.returncode, refused.stderr) == (
        2,
        "bertie: b: RTE.tsv is in a too; name one of them\n",
    )


@pytest.mark.parametrize("verb", ["finetune", "search"])
def test_a_wrong_setting_and_a_missing_model_are_told_before_the_data_are_read(
    folder, tmp_path, bertie, verb
):
    absent = [verb, "--train", "absent.csv", "--dev", "absent.csv", "--label", "stars", "--out", "run"]
    prefix = "finetuning." if verb == "search" else ""
    done = bertie(tmp_path, *absent, "--model", f"{folder / 'model'}", "--set", f"{prefix}epocs=2")
    assert (done.returncode, "did you mean 'epochs'" in done.stderr) == (2, True), done.stderr
    done = bertie(tmp_path, *absent, "--model", "no-model")
    assert (done.returncode, "no-model" in done.stderr) == (2, True), done.stderr
