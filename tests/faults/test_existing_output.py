"""Nothing that exists is overwritten without --force, and an input never is."""

import shutil
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
from tests.faults.commands import COMMANDS
from tests.faults.runs import error_line

from bertie.commands.main import main
from bertie.text.tokenizer import Tokenizer

Capsys = pytest.CaptureFixture[str]
REASONS = {
    "prepare-workers": "contains other files (model); choose a new directory",
    "prepare": "contains other files (model); choose a new directory",
    "pretrain": "contains other files (model); choose an empty or a new directory",
    "finetune": "contains other files (model); choose an empty or a new directory",
    "search": "contains other files (model); choose an empty or a new directory",
    "demo": "exists already; choose another folder with --out",
}


def run_bertie(*arguments: object) -> None:
    """Run `bertie ARGUMENTS` in this process; it must succeed."""
    command = ["bertie", *map(str, arguments)]
    with patch.object(sys, "argv", command), pytest.raises(SystemExit) as info:
        main()
    assert not info.value.code


WITHOUT_MODEL = ("finetune-2", "reproduce", "reproduce-model")  # the first is finetune; the others have none


@pytest.mark.parametrize("verb", [verb for verb in COMMANDS if verb not in WITHOUT_MODEL])
def test_existing_output_is_not_overwritten(
    verb: str,
    inputs: Path,
    tmp_path: Path,
    capsys: Capsys,
) -> None:
    arguments, name = COMMANDS[verb]
    out = tmp_path / name
    mine = out / "model" if "." not in name else out
    mine.parent.mkdir(exist_ok=True)
    mine.write_text("mine")
    line = error_line(capsys, *(argument.format(inputs) for argument in arguments), out)
    reason = REASONS.get(verb, "exists already; choose another name, or replace it with --force (force=True)")
    assert line == f"bertie: {out}: {reason}"
    assert mine.read_text() == "mine"
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [mine]


@pytest.mark.parametrize("verb", ["pretrain", "finetune", "search"])
def test_a_run_is_not_written_among_other_files(
    verb: str, inputs: Path, tmp_path: Path, capsys: Capsys
) -> None:
    arguments, name = COMMANDS[verb]
    (tmp_path / name).mkdir()
    (tmp_path / name / "notes.md").write_text("mine")
    line = error_line(capsys, *(argument.format(inputs) for argument in arguments), tmp_path / name)
    assert line == f"bertie: {tmp_path / name}: {REASONS[verb].replace('(model)', '(notes.md)')}"
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["notes.md"]


def test_a_log_in_the_folder_of_a_run_stays(inputs: Path, tmp_path: Path) -> None:
    arguments, name = COMMANDS["finetune"]
    out = tmp_path / name
    out.mkdir()
    (out / "slurm-1.out").write_text("mine")
    run_bertie(*(argument.format(inputs) for argument in arguments), out)
    assert (out / "slurm-1.out").read_text() == "mine"
    assert (out / "model").is_dir()


RUNS = {
    "pretrain": "[[phases]]\nsteps = 1\n",
    "finetune": "epochs = 1\n",
    "search": "learning_rates = [1e-3]\n",
}


@pytest.mark.parametrize("command", RUNS)
@pytest.mark.parametrize("found", RUNS)
def test_a_run_of_another_command_is_not_resumed(
    command: str, found: str, tmp_path: Path, capsys: Capsys
) -> None:
    (tmp_path / "settings.toml").write_text(RUNS[found])
    line = error_line(capsys, command, "--resume", "--out", tmp_path)
    expected = f"bertie: {tmp_path}: holds a run of `bertie {found}`; choose another directory, or resume it"
    assert line.startswith(expected) == (command != found)


def test_vocabulary_is_replaced_with_force(inputs: Path, tmp_path: Path) -> None:
    shutil.copytree(inputs / "tokenizer", tmp_path / "tokenizer")
    options = ["--size", "120", "--workers", "1", "--out", str(tmp_path / "tokenizer"), "--force"]
    run_bertie("vocab", inputs / "text.txt", *options)
    assert len(Tokenizer.load(tmp_path / "tokenizer").vocabulary) <= 120


def test_input_is_not_an_output_with_force(inputs: Path, tmp_path: Path, capsys: Capsys) -> None:
    labelled = tmp_path / "my.csv"
    labelled.write_text("text,label\nword1 [MASK],1\n")
    model = inputs / "undisturbed/model"
    for force in ([], ["--force"]):
        line = error_line(capsys, "predict", model, "--input", labelled, "--out", labelled, *force)
        assert line == f"bertie: {labelled}: would replace the input {labelled}; choose another name"
    assert labelled.read_text().startswith("text,label")
    line = error_line(capsys, "convert", model, model, "--to", "tensorflow", "--force")
    assert line == f"bertie: {model}: would replace the input {model}; choose another name"


def test_corpus_is_replaced_with_force(inputs: Path, tmp_path: Path) -> None:
    corpus = shutil.copytree(inputs / "corpus", tmp_path / "corpus")
    options = ["--tokenizer", str(inputs / "tokenizer"), "--workers", "1", "--held-out", "0", "--force"]
    run_bertie("prepare", inputs / "text.txt", *options, "--out", corpus)
    assert [path.name for path in sorted(corpus.iterdir())] == ["manifest.json", "tokenizer", "train-00000"]
