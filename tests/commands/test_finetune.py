"""`bertie finetune`, `search`, `evaluate` and `submission` from the command line."""

import csv
import json
import re
import shutil
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from bertie.api.task_data import custom_task
from bertie.commands.main import main
from bertie.model.config import BertConfig
from bertie.model.formats.directory import ModelMetadata
from bertie.model.formats.weights import save_model
from bertie.model.heads import PreTrainingModel
from bertie.tasks.custom.choices import CustomMultipleChoice
from bertie.tasks.glue import SUBMISSION_FILES
from bertie.tasks.registry import TASKS
from bertie.text.tokenizer import Tokenizer
from bertie.text.vocabulary import SPECIAL_TOKENS, Vocabulary

GOOD, BAD = ("good", "fine", "great"), ("bad", "poor", "awful")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with a tiny model, and with reviews that a single word of the text classifies."""
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
    random = np.random.default_rng(0)
    for name, count in (("train", 120), ("dev", 40)):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["review", "stars"])
            for _ in range(count):
                stars = int(random.integers(2))
                writer.writerow([f"the film was {random.choice((BAD, GOOD)[stars])}, a film", stars])
    return folder


class Completed(NamedTuple):
    """The result of a command."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def bertie(monkeypatch, capsys) -> Callable[..., Completed]:
    """Return a function that runs a command in a folder, within this process."""

    def run(folder: Path, *arguments: str) -> Completed:
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "argv", ["bertie", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_status:
            main()
        return Completed(exit_status.value.code or 0, *capsys.readouterr())

    return run


CUSTOM = [
    "--train",
    "train.csv",
    "--dev",
    "dev.csv",
    "--text",
    "review",
    "--label",
    "stars",
    "--model",
    "model",
]
FAST = ["--set", "optimizer.learning_rate=3e-3", "--set", "epochs=12"]


def test_finetune_and_evaluate_custom_data(bertie, folder):
    done = bertie(folder, "finetune", *CUSTOM, "--out", "run", *FAST, "--json")
    assert done.returncode == 0, done.stderr
    scores = json.loads(done.stdout)
    assert scores["dev"]["accuracy"] > 90
    assert scores == json.loads((folder / "run/scores.json").read_text())["scores"]
    assert "classification: 120 training examples\nlabels: 0 (" in done.stderr
    assert (folder / "run/report.html").exists()
    columns = ["--text", "review", "--label", "stars"]
    again = bertie(folder, "evaluate", "--model", "run/model", "--data", "dev.csv", *columns, "--json")
    assert json.loads(again.stdout)["accuracy"] == scores["dev"]["accuracy"], again.stderr
    assert "dev: 40 of 40 inputs are also training inputs" in done.stderr
    file = "run/predictions/dev/predictions.tsv"
    again = bertie(folder, "evaluate", "--predictions", file, "--data", "dev.csv", *columns, "--json")
    assert json.loads(again.stdout)["accuracy"] == scores["dev"]["accuracy"], again.stderr
    failed = bertie(folder, "finetune", *CUSTOM, "--out", "run", *FAST)
    assert failed.returncode == 2
    assert "already holds a run" in failed.stderr


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("review,stars\nfine,1\n,0\nbad,1\nbad,0\n", "train.csv, line 3"),
        ("review,rating\nfine,1\n", "no column 'stars'"),
        ("review,stars\nfine,1\nbad,1\n", "all examples have"),
        ("review,stars\nfine,1\nbad,0\nbad,0\n", "no other example has the label '1'"),
    ],
)
def test_bad_training_data_are_one_line_with_status_2(bertie, folder, tmp_path, rows, message):
    shutil.copytree(folder / "model", tmp_path / "model")
    shutil.copy(folder / "dev.csv", tmp_path)
    (tmp_path / "train.csv").write_text(rows)
    failed = bertie(tmp_path, "finetune", *CUSTOM, "--out", "run")
    assert failed.returncode == 2
    assert message in failed.stderr
    assert failed.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_data_must_be_a_folder(bertie, folder):
    arguments = ["--task", "mrpc", "--data", "train.csv", "--model", "model", "--out", "new"]
    failed = bertie(folder, "finetune", *arguments)
    assert failed.returncode == 2
    message = "train.csv: not a folder; give the folder of the official files of mrpc, from https://gluebench"
    assert failed.stderr.startswith(f"bertie: {message}")


def test_tagged_words_without_their_kind_are_refused(bertie, folder, tmp_path):
    (tmp_path / "train.conll").write_text("film O\n")
    file, model = str(tmp_path / "train.conll"), str(folder / "model")
    failed = bertie(tmp_path, "finetune", "--train", file, "--model", model, "--out", "new")
    assert failed.returncode == 2
    assert "train.conll: a .conll file has tagged words; pass --kind tags (kind='tags')" in failed.stderr


@pytest.mark.parametrize("command", ["finetune", "search"])
def test_task_without_training_examples_names_the_task_to_train_on(bertie, folder, command):
    failed = bertie(folder, command, "--task", "ax", "--data", ".", "--model", "model", "--out", "new")
    message = "ax: no training examples; fine-tune on mnli, and evaluate that model on ax"
    assert (failed.returncode, failed.stderr) == (2, f"bertie: {message}\n")


def test_missing_official_files_are_reported(bertie, folder, tmp_path):
    (tmp_path / "MRPC").mkdir()
    (tmp_path / "MRPC" / "train.tsv").write_text("no columns\n")
    official = "is the folder of the official files of mrpc, from https://gluebenchmark.com/tasks"
    expected = f"bertie: {tmp_path}/MRPC/dev.tsv: no such file; --data (data=…) {official}\n"
    for command in (["finetune", "--out", "new", "--model", "model"], ["evaluate", "--predictions", "p.tsv"]):
        failed = bertie(folder, *command, "--task", "mrpc", "--data", str(tmp_path))
        assert (failed.returncode, failed.stderr) == (2, expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "taken"], "taken: already holds a run; pass --resume"),
        (["--set", "frozen_layers=2"], "frozen_layers 2 exceeds the model's 1 layer; use 1 or less"),
        (["--set", "max_seq_length=600"], "max_seq_length 600 exceeds the model's 512 positions; use 512"),
        (["--dev", "0.9"], "dev=0.9: expected a fraction above 0 and at most 0.5 of the examples"),
        (["--dev", "no.csv"], "no.csv: no such file; --dev (dev=…) is a file, or a fraction such as 0.1"),
    ],
)
def test_options_are_checked_before_the_data_are_read(bertie, folder, arguments, message):
    (folder / "taken").mkdir(exist_ok=True)
    (folder / "taken" / "settings.toml").write_text("epochs = 1\n")
    failed = bertie(folder, "finetune", "--train", "none.csv", "--model", "model", "--out", "new", *arguments)
    assert failed.returncode == 2
    assert failed.stderr.startswith(f"bertie: {message}")


def test_files_of_questions_in_the_other_format_are_reported(bertie, folder, tmp_path):
    advice = "a table with a question on each line is a .jsonl file, for --kind questions (kind='questions')"
    question = {"id": "a", "question": "who", "context": "Ada was", "answers": []}
    (tmp_path / "lines.json").write_text(f"{json.dumps(question)}\n" * 2)
    (tmp_path / "line.json").write_text(json.dumps(question))
    options = ["finetune", "--model", str(folder / "model"), "--out", "new"]
    for file, problem in (("lines.json", "not valid JSON (Extra"), ("line.json", "no list 'data'; write")):
        failed = bertie(tmp_path, *options, "--kind", "questions", "--train", file)
        assert failed.stderr.startswith(f"bertie: {file}: {problem}")
        assert failed.stderr.endswith(f"; {advice}\n")
    failed = bertie(tmp_path, *options, "--train", "line.json")
    assert failed.stderr.startswith(
        "bertie: line.json: a .json file is not a table; write each row on a line of a .jsonl file (an "
        "array: jq --compact-output '.[]'), or, "
    )


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("options", [["--kind", "questions"], [], ["--on-error", "skip"]])
def test_squads_json_with_the_name_of_a_table_is_to_be_renamed(bertie, folder, tmp_path, indent, options):
    article = {"title": "Ada", "paragraphs": [{"context": "Ada was", "qas": []}]}
    (tmp_path / "train.jsonl").write_text(json.dumps({"version": "1.1", "data": [article]}, indent=indent))
    model = str(folder / "model")
    failed = bertie(
        tmp_path, "finetune", "--train", "train.jsonl", "--model", model, "--out", "run", *options
    )
    assert (failed.returncode, failed.stderr) == (
        2,
        "bertie: train.jsonl: seems to be one JSON object in the form of SQuAD, not a table; rename it to "
        "train.json, and pass --kind questions (kind='questions')\n",
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--train", "train.csv", "--column", "text=review"],
            "columns are for tags, entities, questions and choices; texts have",
        ),
        (
            ["--train", "train.csv", "--separator", ""],
            "the separator is empty; give the text between two labels",
        ),
        (["--train", "train.csv", "--column", "text"], "--column text: expected NAME=COLUMN"),
        (
            ["--train", "train.csv", "--kind", "tags", "--column", "words=a", "--column", "words=b"],
            "--column words=b: words has the column 'a' already; omit one",
        ),
        *(
            (
                ["--train", "train.csv", "--dev", dev],
                f"--dev {dev!r}: give a file, or a fraction with a decimal point, such as 0.1",
            )
            for dev in ("20%", "12,5 %", "0,1", ",1", "")
        ),
        (["--train", "train.csv", "--task", "mrpc"], "give either task and data (its folder), or train and"),
        (["--data", "."], "give either task and data (its folder), or train and dev"),
        (
            ["--task", "mrpc", "--data", ".", "--dev", "dev.csv"],
            "dev goes with train; a task of the paper has",
        ),
        (
            ["--task", "mrpc", "--data", ".", "--label", "gold"],
            "task mrpc has its own file format; kind, text,",
        ),
        (["--task", "ner", "--data", ".", "--kind", "tags"], "task ner has its own file format; kind, text,"),
    ],
)
def test_contradicting_options_are_an_error(bertie, folder, arguments, message):
    failed = bertie(folder, "finetune", *arguments, "--model", "model", "--out", "new")
    assert (failed.returncode, failed.stderr.count("\n")) == (2, 1)
    assert message in failed.stderr


def test_label_of_choices_is_an_option_or_a_column():
    assert custom_task("choices", label="gold") == CustomMultipleChoice(label="gold")
    columns = {"label": "right"}
    assert custom_task("choices", label="gold", columns=columns) == CustomMultipleChoice(label="right")


def test_finetune_without_dev_keeps_the_last_epoch(bertie, folder, tmp_path):
    out = str(tmp_path / "run")
    done = bertie(folder, "finetune", *CUSTOM[:2], *CUSTOM[4:], "--out", out, "--set", "epochs=1")
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'run' / 'model'}\n")
    assert "\nno dev examples: the model of the last epoch is kept, without scores\n" in done.stderr


def test_unknown_label_in_dev_is_reported_with_its_line(bertie, folder, tmp_path):
    for name in ("model", "train.csv"):
        (tmp_path / name).symlink_to(folder / name)
    (tmp_path / "dev.csv").write_text("review,stars\nfine,1\nfine,7\n")
    failed = bertie(tmp_path, "finetune", *CUSTOM, "--out", "run")
    assert failed.returncode == 2
    assert "dev.csv, line 3" in failed.stderr
    assert "'7'" in failed.stderr


DECISIONS = ["class_weights=balanced", "main_metric=f1_macro", "tune_threshold=true", "calibrate=true"]


def test_settings_of_decisions_reach_report_prediction_and_evaluation(bertie, folder, tmp_path):
    """As a user with unequal classes: one "0" for nine "1" in training."""
    for name in ("model", "dev.csv"):
        (tmp_path / name).symlink_to(folder / name)
    rows = (folder / "train.csv").read_text().splitlines()
    kept = [row for row in rows[1:] if row.endswith("1")] + [row for row in rows[1:] if row.endswith("0")][:6]
    (tmp_path / "train.csv").write_text("\n".join([rows[0], *kept]))
    rate = ["--set", "optimizer.learning_rate=1e-6", "--set", "epochs=1"]  # too low to learn anything
    changes = [option for setting in DECISIONS for option in ("--set", setting)]
    done = bertie(tmp_path, "finetune", *CUSTOM, "--out", "run", *rate, *changes, "--json")
    assert done.returncode == 0, done.stderr
    scores = json.loads(done.stdout)["dev"]
    html = (tmp_path / "run/report.html").read_text()
    for text in ("<dt>class weights</dt>", "<dt>decision threshold</dt>", "<dt>temperature</dt>"):
        assert text in html
    assert "f1_macro, dev" in html
    assert "Calibration on dev" in html
    config = json.loads((tmp_path / "run/model/config.json").read_text())
    (limit,) = config["decision_thresholds"]
    assert limit != 0.5
    columns = ["--data", "dev.csv", "--text", "review", "--label", "stars", "--json"]
    evaluated = json.loads(bertie(tmp_path, "evaluate", "--model", "run/model", *columns).stdout)
    assert {name: evaluated[name] for name in scores} == scores
    bertie(tmp_path, "predict", "run/model", "--input", "dev.csv", "--out", "answers.csv")
    with (tmp_path / "answers.csv").open(newline="") as file:
        answers = list(csv.DictReader(file))
    correct = [answer["prediction"] == answer["stars"] for answer in answers]
    assert 100 * np.mean(correct) == scores["accuracy"]
    wrong = bertie(tmp_path, "finetune", *CUSTOM, "--out", "other", "--set", "class_weights.2=3")
    assert wrong.returncode == 2
    assert "class_weights: classification has no label '2'; its labels are 0, 1\n" in wrong.stderr


def test_search_ranks_by_the_chosen_metric(bertie, folder):
    grid = ["--set", "batch_sizes=[32]", "--set", "learning_rates=[1e-6]", "--set", "epochs=[1]"]
    changes = ["--set", "finetuning.main_metric=f1_macro", "--recipe", "search"]
    done = bertie(folder, "search", *CUSTOM, "--out", "by-f1", *grid, *changes)
    assert "batch  rate     epochs  f1_macro on dev" in done.stdout, done.stderr
    run = next((folder / "by-f1/trials").iterdir())
    scores = json.loads((run / "scores.json").read_text())["scores"]["dev"]
    assert f"{scores['f1_macro']:.2f}" in done.stdout


def test_search_resumes_and_keeps_the_best_model(bertie, folder):
    grid = ["--set", "batch_sizes=[32]", "--set", "learning_rates=[3e-3,1e-6]", "--set", "epochs=[2]"]
    arguments = ["search", *CUSTOM, "--out", "search", *grid, "--set", "restarts=2", "--json"]
    done = bertie(folder, *arguments)
    assert done.returncode == 0, done.stderr
    trials = json.loads(done.stdout)
    assert [len(trial["scores"]) for trial in trials] == [2, 2]
    assert max(trials, key=lambda trial: trial["mean"])["chosen"]
    assert trials[0]["std"] == pytest.approx(np.std(trials[0]["scores"], ddof=1))
    kept = [path.parent.name for path in (folder / "search/trials").glob("*/model")]
    assert all("rate0.003" in name for name in kept) == trials[0]["chosen"]
    assert len(kept) == 2
    lost = folder / "search/trials/batch32-rate1e-06-epochs2-seed1"
    before = {path: path.stat().st_mtime_ns for path in (folder / "search/trials").glob("*/metrics.jsonl")}
    shutil.rmtree(lost)
    again = bertie(folder, *arguments)
    assert json.loads(again.stdout) == trials, again.stderr
    for path, time in before.items():
        assert (path.stat().st_mtime_ns == time) == (path.parent != lost)
    without_dev = bertie(folder, "search", *CUSTOM[:2], *CUSTOM[4:], "--out", "without_dev")
    message = "a search needs dev examples to choose the best model; pass --dev FILE or --dev 0.1 (dev=…)"
    assert without_dev.stderr == f"bertie: {message}\n"  # before the training examples are read
    other = bertie(folder, *arguments, "--set", "finetuning.max_seq_length=64")
    assert other.returncode == 2
    assert "finetuning.max_seq_length was 128 when" in other.stderr
    # The best run of the smaller grid has lost its model; settings that only affect rounding may change.
    first, second = (trial["scores"][0] for trial in trials)
    narrowed = ["--set", f"learning_rates=[{'1e-6,1e-6' if first > second else '3e-3,3e-3'}]"]
    again = bertie(folder, *arguments, *narrowed, "--set", "finetuning.micro_batch_tokens=999")
    (trial,) = json.loads(again.stdout)
    assert trial["scores"] == trials[first > second]["scores"], again.stderr
    assert (folder / "search/model/model.safetensors").exists()


def test_search_does_not_resume_with_another_model(bertie, folder, tmp_path):
    arguments = ["search", *CUSTOM[:-1], str(tmp_path / "other"), "--out", str(tmp_path / "search")]
    arguments += ["--set", "batch_sizes=[64]", "--set", "learning_rates=[1e-3]", "--set", "epochs=[1]"]
    shutil.copytree(folder / "model", tmp_path / "other")
    done = bertie(folder, *arguments)
    assert done.returncode == 0, done.stderr
    weights = load_file(folder / "model/model.safetensors")
    save_file({name: weight + 1 for name, weight in weights.items()}, tmp_path / "other/model.safetensors")
    done = bertie(folder, *arguments)
    assert done.returncode == 2
    assert "search: this run started with a different initial model; pass" in done.stderr


@pytest.mark.parametrize(
    ("key", "axis"), [("seed", "restarts"), ("optimizer.learning_rate", "learning_rates")]
)
def test_setting_of_the_grid_cannot_be_set_for_all_trials(bertie, folder, key, axis):
    done = bertie(folder, "search", *CUSTOM, "--out", "unused", "--set", f"finetuning.{key}=1")
    assert (done.returncode, done.stderr) == (
        2,
        f"bertie: finetuning.{key} is varied by the grid; set {axis} instead\n",
    )


def write_few_paragraphs(squad: Path, folder: Path) -> None:
    """Write the first paragraphs of the files of SQuAD."""
    for file in squad.glob("*.json"):
        content = json.loads(file.read_text())
        article = content["data"][0]
        content["data"] = [article | {"paragraphs": article["paragraphs"][:8]}]
        (folder / file.name).write_text(json.dumps(content))


SLOW = pytest.param("squad-v2", marks=pytest.mark.slow)


@pytest.mark.parametrize("name", ["mrpc", "sts-b", "mnli", "swag", "squad-v1", SLOW, "ner"])
def test_finetune_and_evaluate_a_task_of_the_paper(bertie, folder, shared_data, tmp_path, name):
    folders = {"swag": "swag-layout", "squad-v1": "squad", "squad-v2": "squad", "ner": "ner/wnut17"}
    data = str(shared_data / folders.get(name, "glue"))
    if name.startswith("squad"):
        write_few_paragraphs(shared_data / "squad", tmp_path)
        data = str(tmp_path)
    few = ["--set", "max_training_examples=32", "--set", "epochs=1"]
    done = bertie(
        folder, "finetune", "--task", name, "--data", data, "--model", "model", "--out", name, *few, "--json"
    )
    assert done.returncode == 0, done.stderr
    unit = "windows" if name in ("squad-v1", "squad-v2", "ner") else "examples"
    assert re.search(rf"^train: trains on 32 of [\d,]+ {unit} \(max_training", done.stderr, re.MULTILINE)
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
        evaluated = json.loads(again.stdout)
        assert evaluated[task.main_metric] == pytest.approx(scores[part][task.main_metric], abs=1e-9), (
            again.stderr
        )


def test_submission_requires_all_tasks(bertie, folder, shared_data):
    few = ["--set", "max_training_examples=32", "--set", "epochs=1"]
    data = str(shared_data / "glue")
    done = bertie(
        folder, "finetune", "--task", "rte", "--data", data, "--model", "model", "--out", "rte", *few
    )
    assert done.returncode == 0, done.stderr
    lines = (folder / "rte/submission/RTE.tsv").read_text().splitlines()
    assert lines[0] == "index\tprediction"
    assert len(lines) == 3001
    failed = bertie(folder, "submission", "rte", "--out", "glue.zip")
    assert failed.returncode == 2
    assert failed.stderr.startswith(
        "bertie: glue.zip: not written, because no run has predictions for CoLA, "
    )
    assert "RTE" not in failed.stderr
    assert "WNLI" not in failed.stderr


def test_submission_says_that_wnli_has_the_majority_class(bertie, tmp_path):
    (tmp_path / "runs/submission").mkdir(parents=True)
    for name in SUBMISSION_FILES:
        (tmp_path / "runs/submission" / name).write_text("index\tprediction\n0\t1\n")
    done = bertie(tmp_path, "submission", "runs", "--out", "glue.zip")
    assert (done.returncode, done.stdout) == (0, "glue.zip\n"), done.stderr
    assert "WNLI: the majority class, as in the paper (Appendix B.1) (runs is used with" in done.stderr
    done = bertie(tmp_path, "submission", "runs", "--out", "model.zip", "--wnli", "model")
    assert (done.returncode, done.stderr) == (0, "")
    answers = [zipfile.ZipFile(tmp_path / name).read("WNLI.tsv") for name in ("glue.zip", "model.zip")]
    assert b"\n0\t0\n" in answers[0].replace(b"\r", b"")
    assert answers[1] == (tmp_path / "runs/submission/WNLI.tsv").read_bytes()
    failed = bertie(tmp_path, "submission", "runs", "--out", "glue.zip")
    assert (failed.returncode, "glue.zip: exists already" in failed.stderr) == (2, True)
    assert bertie(tmp_path, "submission", "runs", "--out", "glue.zip", "--force").returncode == 0


def test_submission_rejects_other_tasks_and_duplicates(bertie, tmp_path):
    for file in ("swag/submission/predictions.csv", "ner/submission/predictions.tsv", "a/submission/RTE.tsv"):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text("")
    for run in ("swag", "ner"):
        failed = bertie(tmp_path, "submission", run, "--out", "glue.zip")
        assert failed.stderr.startswith(
            f"bertie: {run}: no predictions for the GLUE server; fine-tune on a GLUE task"
        )
    failed = bertie(tmp_path, "submission", "c", "--out", "glue.zip")
    assert failed.stderr == "bertie: c: no such folder; give the folder of a run\n"
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    failed = bertie(tmp_path, "submission", "c", "--out", "glue.tsv")
    assert (failed.returncode, failed.stderr) == (
        2,
        "bertie: glue.tsv: the output is a zip file; name it .zip\n",
    )
    failed = bertie(tmp_path, "submission", "a", "b", "--out", "glue.zip")
    assert (failed.returncode, failed.stderr) == (
        2,
        "bertie: RTE.tsv is in both a and b; give only one of them\n",
    )


@pytest.mark.parametrize("command", ["finetune", "search"])
def test_setting_and_model_are_checked_before_reading_data(folder, tmp_path, bertie, command):
    absent = [command, "--train", "absent.csv", "--dev", "absent.csv", "--label", "stars", "--out", "run"]
    prefix = "finetuning." if command == "search" else ""
    done = bertie(tmp_path, *absent, "--model", f"{folder / 'model'}", "--set", f"{prefix}epocs=2")
    assert (done.returncode, f"did you mean '{prefix}epochs'" in done.stderr) == (2, True), done.stderr
    done = bertie(tmp_path, *absent, "--model", "no-model")
    assert (done.returncode, "no-model" in done.stderr) == (2, True), done.stderr


def test_a_run_resumes_from_its_directory_only(bertie, folder, tmp_path):
    """The report is lost, as if the run had been killed after training."""
    started = bertie(folder, "finetune", *CUSTOM, "--out", str(tmp_path / "run"), "--set", "epochs=1")
    assert started.returncode == 0, started.stderr
    (tmp_path / "run/report.html").unlink()
    resumed = bertie(tmp_path, "finetune", "--resume", "--out", str(tmp_path / "run"))
    assert (resumed.returncode, resumed.stdout) == (0, started.stdout), resumed.stderr
    assert (tmp_path / "run/report.html").exists()


def test_a_search_resumes_from_its_directory_only(bertie, folder, tmp_path):
    """A trial is lost, as if the search had been killed before."""
    grid = ["--set", "batch_sizes=[64]", "--set", "learning_rates=[1e-3, 1e-4]", "--set", "epochs=[1]"]
    started = bertie(folder, "search", *CUSTOM, "--out", str(tmp_path / "search"), *grid)
    assert started.returncode == 0, started.stderr
    shutil.rmtree(next((tmp_path / "search/trials").glob("*rate0.0001*")))
    shutil.rmtree(tmp_path / "search/model")
    resumed = bertie(tmp_path, "search", "--resume", "--out", str(tmp_path / "search"))
    assert (resumed.returncode, resumed.stdout) == (0, started.stdout), resumed.stderr
    assert (tmp_path / "search/model/model.safetensors").exists()


@pytest.mark.parametrize(
    ("key", "advice", "grid"),
    [
        ("seed=1", "seed is varied by the grid; set restarts", "restarts=1"),
        ("batch_size=64", "batch_size is varied by the grid; set batch_sizes", "batch_sizes=[64]"),
        ("learning_rate=1e-3", "did you mean 'learning_rates'?", "learning_rates=[1e-3]"),
        (
            "optimizer.learning_rate=1e-3",
            "optimizer.learning_rate is varied by the grid; set learning_rates",
            "learning_rates=[1e-3]",
        ),
    ],
)
def test_advice_about_settings_of_the_grid_works(bertie, folder, tmp_path, key, advice, grid):
    small = ["--set", "batch_sizes=[64]", "--set", "learning_rates=[1e-3]", "--set", "epochs=[1]"]
    command = ["search", *CUSTOM, "--out", str(tmp_path / "search"), *small]
    done = bertie(folder, *command, "--set", key)
    assert (done.returncode, advice in done.stderr) == (2, True), done.stderr
    done = bertie(folder, *command, "--set", grid)
    assert done.returncode == 0, done.stderr


def test_evaluate_skips_malformed_rows_but_not_with_predictions(bertie, folder, tmp_path):
    run = tmp_path / "run"
    assert bertie(folder, "finetune", *CUSTOM, "--out", str(run), "--set", "epochs=1").returncode == 0
    (tmp_path / "bad.csv").write_text((folder / "dev.csv").read_text() + "no label\n,1\nfine,7\n")
    gold = ["--text", "review", "--label", "stars", "--data"]
    model = ["evaluate", "--model", str(run / "model"), "--json", *gold]
    expected = bertie(folder, *model, "dev.csv")
    done = bertie(folder, *model, str(tmp_path / "bad.csv"), "--on-error", "skip")
    assert (done.returncode, done.stdout) == (0, expected.stdout), done.stderr
    assert "bad.csv: skipped 3 of 43 rows" in done.stderr
    assert bertie(folder, *model, str(tmp_path / "bad.csv")).returncode == 2
    (predictions,) = (run / "predictions").iterdir()
    file = predictions if predictions.is_file() else next(predictions.iterdir())
    score = ["evaluate", "--predictions", str(file), *gold, "dev.csv"]
    done = bertie(folder, *score, "--on-error", "skip")
    assert (done.returncode, "predictions are for all rows" in done.stderr) == (2, True), done.stderr
    assert bertie(folder, *score).returncode == 0


@pytest.mark.parametrize(("kind", "name"), [("tags", "train.conll"), ("questions", "train.json")])
def test_only_rows_of_tables_can_be_skipped(bertie, folder, tmp_path, kind, name):
    """Without the option, the file is read, and found to be empty."""
    (tmp_path / name).write_text("")
    command = ["finetune", "--kind", kind, "--model", "model", "--train", str(tmp_path / name)]
    command += ["--out", str(tmp_path / "run")]
    done = bertie(folder, *command, "--on-error", "skip")
    assert (done.returncode, f"{name}: --on-error skip (on_error) is for rows" in done.stderr) == (2, True)
    assert "--on-error" not in bertie(folder, *command).stderr
